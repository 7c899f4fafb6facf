"""What chance has a client do: statements over two tables, transactions with savepoints and errors, and crashes.

No statement's outcome depends on the order in which rows are stored or joined: each can fail in one way at most, and
what it reads from several rows of a group is the same for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dml.asking import Copy, Statement
from hypothesis import strategies as st

KEYED = "id integer PRIMARY KEY, v integer CHECK (v < 1000), n numeric(8,2) DEFAULT 1.25, s text NOT NULL DEFAULT 'new'"
LOOSE = "k integer, v bigint, s text"
ANEW = (
    "TRUNCATE keyed, loose",
    "INSERT INTO keyed VALUES (1, 10, 1.50, 'one'), (2, 20, NULL, 'two'), (3, NULL, 3.00, ''), (4, 4, -4.25, 'four')",
    "INSERT INTO keyed VALUES (5, 5, 0, 'five'), (6, -6, 6.66, 'ä'), (7, 7, 7.00, 'seven')",
    "INSERT INTO loose VALUES (1, 10, 'a'), (1, 10, 'a'), (2, NULL, 'b'), (NULL, 3, NULL), (NULL, NULL, NULL)",
    "INSERT INTO loose VALUES (3, 5, 'c'), (5, 5, 'd'), (1, 11, 'A'), (9, -1, '')",
)
"""Several data files each; the same rows at the start of every program."""
STATE = "SELECT 'keyed', whole::text FROM keyed AS whole UNION ALL SELECT 'loose', whole::text FROM loose AS whole"

PartName = Literal["spark", "server", "sql"]


@dataclass(frozen=True)
class Say:
    statement: Statement
    extended: bool = False

    def __str__(self) -> str:
        if isinstance(self.statement, Copy):
            return f"{self.statement.statement} {self.statement.data!r}"
        return self.statement + (" (extended)" if self.extended else "")


@dataclass(frozen=True)
class Kill:
    """kill -9. ``after_s``: while the next statement runs; None: before it, which waits until all is up again."""

    part: PartName
    after_s: float | None = None

    def __str__(self) -> str:
        return f"kill -9 {self.part} " + (
            "" if self.after_s is None else f"{self.after_s} s after the start of the next"
        )


Step = Say | Kill

_ids = st.integers(0, 9)
_small = st.integers(-3, 12)
_values = st.one_of(_small, _small, st.none(), st.just(999))
_texts = st.sampled_from(["''", "'x'", "'ß'", "'two words'"])


def _sql(value: object) -> str:
    return "NULL" if value is None else str(value)


@st.composite
def _pairs(draw: st.DrawFn) -> str:
    """VALUES (id, v), …: one id twice, sometimes, so that just one kind of error can come of it."""
    ids = draw(st.lists(_ids, min_size=1, max_size=4, unique=True))
    if draw(st.integers(0, 5)) == 0:
        ids.append(ids[0])
    return ", ".join(f"({number}, {draw(_small)})" for number in ids)


@st.composite
def _keyed_rows(draw: st.DrawFn) -> str:
    rows = []
    for number in draw(st.lists(_ids, min_size=1, max_size=3)):
        rows.append(f"({number + draw(st.sampled_from((0, 8, 16)))}, {_sql(draw(_values))}, 2.50, {draw(_texts)})")
    return ", ".join(rows)


@st.composite
def _loose_rows(draw: st.DrawFn) -> str:
    several = draw(st.lists(st.tuples(st.one_of(_ids, st.none()), _values, _texts), min_size=1, max_size=3))
    return ", ".join(f"({_sql(k)}, {_sql(v)}, {s})" for k, v, s in several)


@st.composite
def _copied(draw: st.DrawFn) -> Copy:
    if draw(st.booleans()):
        lines = [f"{draw(_ids) + 8}\t{draw(_small)}\tcopied\n" for _ in range(draw(st.integers(1, 3)))]
        if draw(st.integers(0, 4)) == 0:
            lines.append("no number\t1\tx\n")
        return Copy("COPY keyed (id, v, s) FROM STDIN", "".join(lines))
    lines = [f'{draw(_ids)},{draw(_small)},"copied, too"\n' for _ in range(draw(st.integers(0, 3)))]
    return Copy("COPY loose FROM STDIN (FORMAT csv)", "".join(lines))


INSERTS = st.one_of(
    _keyed_rows().map(lambda rows: f"INSERT INTO keyed VALUES {rows}"),
    _loose_rows().map(lambda rows: f"INSERT INTO loose VALUES {rows} RETURNING k, v + 1, s"),
    _ids.map(lambda i: f"INSERT INTO keyed (id) VALUES ({i + 5}) RETURNING *"),
    _ids.map(lambda i: f"INSERT INTO loose SELECT id, v, s FROM keyed WHERE id < {i}"),
    st.just("INSERT INTO keyed (id, v) SELECT k + 20, min(v % 500)::integer FROM loose WHERE k IS NOT NULL GROUP BY k"),
    _ids.map(lambda i: f"INSERT INTO keyed (id, s) VALUES ({i + 30}, 'fits'), ({i + 40}, NULL)"),
)
CONFLICTING = st.one_of(
    _pairs().map(
        lambda rows: (
            f"INSERT INTO keyed AS t (id, v) VALUES {rows} ON CONFLICT (id) DO UPDATE"
            " SET v = (excluded.v + coalesce(t.v, 0)) % 500, s = left(t.s || excluded.s, 20)"
            " WHERE t.v IS DISTINCT FROM excluded.v RETURNING old.v, new.v, t.s"
        )
    ),
    _pairs().map(lambda rows: f"INSERT INTO keyed (id, v) VALUES {rows} ON CONFLICT DO NOTHING RETURNING id"),
    _loose_rows().map(lambda rows: f"INSERT INTO loose VALUES {rows} ON CONFLICT DO NOTHING"),
    _loose_rows().map(lambda rows: f"INSERT INTO loose VALUES {rows} ON CONFLICT (k) DO NOTHING"),
)
UPDATES = st.one_of(
    st.builds("UPDATE keyed SET v = v + {} WHERE id = {}".format, _small, _ids),
    st.builds("UPDATE keyed SET v = 100 / (v - {}), n = n * 2".format, _small),
    st.builds("UPDATE keyed SET id = {} WHERE id = {} RETURNING old.id, new.id".format, _ids, _ids),
    st.builds("UPDATE keyed SET s = NULL WHERE id = {}".format, _ids),
    st.builds("UPDATE keyed SET v = v + 998 WHERE id = {} AND v > 1".format, _ids),
    st.builds("UPDATE loose SET v = v * 2, s = left(s || 'x', 9) WHERE k = {} RETURNING k, v, s".format, _ids),
    st.just("UPDATE loose SET v = v + 1"),
    st.just("UPDATE loose AS l SET v = a.v, s = a.s FROM keyed AS a WHERE l.k = a.id RETURNING l.k, l.v, a.n"),
    st.just(
        "UPDATE keyed SET (v, s) = (SELECT (max(v) % 500)::integer, coalesce(max(s), 'none') FROM loose"
        " WHERE loose.k = keyed.id)"
    ),
)
DELETES = st.one_of(
    st.builds("DELETE FROM keyed WHERE id = {} RETURNING *".format, _ids),
    st.builds("DELETE FROM loose WHERE v IS NULL OR k < {}".format, _ids),
    st.builds("DELETE FROM loose USING keyed WHERE loose.k = keyed.id AND keyed.v > {}".format, _small),
    st.just("DELETE FROM loose"),
    st.just("TRUNCATE loose"),
    st.just("TRUNCATE keyed, loose"),
)
MERGES = st.one_of(
    st.builds(
        (
            "MERGE INTO keyed AS t USING (VALUES {}) AS d(id, v) ON t.id = d.id"
            " WHEN MATCHED AND d.v > {} THEN UPDATE SET v = d.v WHEN MATCHED THEN DELETE"
            " WHEN NOT MATCHED THEN INSERT (id, v) VALUES (d.id, d.v) RETURNING merge_action(), t.id, t.v"
        ).format,
        _pairs(),
        _small,
    ),
    st.builds(
        (
            "MERGE INTO loose USING keyed ON loose.k = keyed.id WHEN MATCHED THEN UPDATE SET v = keyed.v"
            " WHEN NOT MATCHED BY SOURCE AND loose.v > {} THEN DELETE"
            " WHEN NOT MATCHED THEN INSERT VALUES (keyed.id, keyed.v, keyed.s)"
        ).format,
        _small,
    ),
    st.builds(
        (
            "WITH gone AS (DELETE FROM loose WHERE k < {} RETURNING *) INSERT INTO keyed (id, v)"
            " SELECT k, (min(v) % 500)::integer FROM gone GROUP BY k"
            " ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING id, v"
        ).format,
        _ids,
    ),
    st.builds(
        (
            "WITH up AS (UPDATE keyed SET v = coalesce(v % 500, 0) + 1 WHERE id <= {} RETURNING id, v)"
            " SELECT count(*), sum(v) FROM up"
        ).format,
        _ids,
    ),
    st.builds(
        (
            "DO $$ BEGIN UPDATE keyed SET v = v % 500 + 1 WHERE id < {}; PERFORM 1 / ({}); EXCEPTION"
            " WHEN division_by_zero THEN INSERT INTO loose VALUES (0, 0, 'caught'); END $$"
        ).format,
        _ids,
        st.integers(0, 1),
    ),
)
READS = st.sampled_from(
    [
        "SELECT * FROM keyed",
        "SELECT k, count(*), sum(v), max(s) FROM loose GROUP BY k",
        "SELECT id, keyed.v, loose.v FROM keyed LEFT JOIN loose ON k = id",
    ]
)
ERRORS = st.sampled_from(
    ["SELECT 1 / 0", "SELECT * FROM nowhere", "SELEC 1", "INSERT INTO keyed VALUES ('x')", "SELECT 1 / v FROM loose"]
)
_KINDS = {
    "update": UPDATES,
    "delete": DELETES,
    "insert": INSERTS,
    "conflicting": CONFLICTING,
    "merge": MERGES,
    "copy": _copied(),
    "read": READS,
    "error": ERRORS,
}
_CHANGES = ("update", "update", "delete", "insert", "conflicting", "merge")
_ALL = (*_CHANGES, *_CHANGES, "copy", "read", "read", "error")


@st.composite
def _one(draw: st.DrawFn) -> Step:
    """Kind first: alternatives of one strategy would be drawn by their number."""
    kind = draw(st.sampled_from(_ALL))
    statement = draw(_KINDS[kind])
    return Say(statement, kind != "copy" and draw(st.booleans()))


@st.composite
def _several(draw: st.DrawFn) -> Step:
    """One simple query: all or nothing."""
    kinds = draw(st.lists(st.sampled_from((*_CHANGES, "error")), min_size=2, max_size=3))
    return Say("; ".join(str(draw(_KINDS[kind])) for kind in kinds))


_NAMES = st.sampled_from(["a", "b"])


@st.composite
def _savepoint(draw: st.DrawFn) -> list[Step]:
    name = draw(_NAMES)
    inside = draw(st.lists(_one(), min_size=1, max_size=2))
    end = draw(st.sampled_from(["ROLLBACK TO SAVEPOINT {}", "ROLLBACK TO SAVEPOINT {}", "RELEASE SAVEPOINT {}", "-"]))
    ends = [] if end == "-" else [Say(end.format(name))]
    return [Say(f"SAVEPOINT {name}"), *inside, *ends]


@st.composite
def _transaction(draw: st.DrawFn) -> list[Step]:
    steps: list[Step] = [Say("BEGIN")]
    for kind in draw(st.lists(st.sampled_from(("one", "one", "savepoint")), min_size=1, max_size=4)):
        steps += draw(_savepoint()) if kind == "savepoint" else [draw(_one())]
    return [*steps, Say(draw(st.sampled_from(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"])))]


_STRAYS = ("SAVEPOINT a", "ROLLBACK TO SAVEPOINT b", "RELEASE SAVEPOINT a", "COMMIT", "ROLLBACK", "BEGIN")
_BLOCKS = ("transaction", "transaction", "transaction", "one", "one", "several", "stray")


@st.composite
def programs(
    draw: st.DrawFn, *, longest: int, shortest: int = 1, crashes: tuple[PartName, ...] = ()
) -> tuple[Step, ...]:
    """So many blocks (a transaction is one), and at most one crash among them."""
    steps: list[Step] = []
    for block in draw(st.lists(st.sampled_from(_BLOCKS), min_size=shortest, max_size=longest)):
        if block == "transaction":
            steps += draw(_transaction())
        elif block == "stray":
            steps.append(Say(draw(st.sampled_from(_STRAYS))))
        else:
            steps.append(draw(_one() if block == "one" else _several()))
    if crashes:
        kill = Kill(draw(st.sampled_from(crashes)), draw(st.sampled_from([None, 0.0, 0.05, 0.15, 0.3, 0.6])))
        steps.insert(draw(st.integers(0, len(steps) - 1)), kill)
    return tuple(steps)


def written(program: tuple[Step, ...], at: int) -> str:
    return "\n".join(("--> " if number == at else "    ") + str(step) for number, step in enumerate(program))
