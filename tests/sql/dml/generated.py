"""DML by a seeded grammar: the same statements everywhere, and every one with one possible outcome.

Laws of the grammar, so that no answer depends on the order in which rows are stored: every expression is total, but for
one per statement that is meant to fail (and then fails with one message); several source rows that match one target row
set what does not depend on the source row; sources of MERGE are unique; keys are moved by steps that collide in every
order or in none. Values stay where every engine has them (years 1 to 9999, no NaN in a numeric).
"""

from __future__ import annotations

# ruff: noqa: E501 (a statement reads best on one line)
import random
from collections.abc import Callable
from dataclasses import dataclass

from dml.cases import Case

SEED = 20_260_401
COUNT = 400

# Kinds of columns: "int" also stands for bigint, whose values are cut to what an integer holds.
COLUMNS: dict[str, dict[str, str]] = {
    "t": {
        "id": "int", "i": "int", "l": "int", "n": "numeric", "t": "text", "d": "float", "dt": "date", "ts": "timestamp",
        "tz": "timestamptz", "b": "boolean",
    },
    "s": {"id": "int", "v": "text", "q": "numeric", "x": "int", "ts": "timestamp"},
    "p": {"id": "int", "ts": "timestamp", "t": "text", "n": "numeric"},
    "k": {"id": "int", "a": "int", "b": "text", "c": "numeric", "note": "text", "at": "timestamp"},
}  # fmt: skip
FREE = {"t": tuple(COLUMNS["t"]), "s": tuple(COLUMNS["s"]), "p": ("id", "ts", "t", "n"), "k": ("c", "note", "at")}
"""What any value of the kind may be put into (``k.c`` and ``k.note`` and ``p.id`` with care: see ``assigned``)."""

_WORDS = ("a", "b", "one", "twin", "ä", "日本", "x y", "%", "it''s", "", "NULL", "half")
_DAYS = ("2023-12-31", "2024-01-01", "2024-01-02", "2024-01-03", "2024-02-29", "1970-01-01", "2100-12-31")

# What fails, always with the same message, whichever row comes first.
_FAILING = (
    ("i", "w.i + 1"),
    ("i", "w.i - 1"),
    ("l", "w.l * 10"),
    ("n", "w.n * 1000000"),
    ("i", "7 / (w.i - w.i)"),
    ("i", "100 % (w.id - 20)"),
    ("i", "(w.l * 1000000)::int"),
    ("i", "('x' || repeat('y', 2))::int"),
    ("dt", "('2024-02-3' || length('0'))::date"),
    ("b", "lower('MAYBE')::boolean"),
    ("ts", "w.ts + interval '294000 years'"),
    ("i", "(SELECT id FROM dml.s)"),
    ("d", "ln(-1 - abs(w.i::float8))"),
)


@dataclass
class Grammar:
    rng: random.Random

    # Words -----------------------------------------------------------------------------------------------------------

    def chance(self, percent: int) -> bool:
        return self.rng.randrange(100) < percent

    def number(self) -> str:
        return str(self.rng.choice((-100, -1, 0, 1, 2, 3, 5, 7, 10, 20, 21, 36, 100)))

    def word(self) -> str:
        return f"'{self.rng.choice(_WORDS)}'"

    def moment(self) -> str:
        hour = self.rng.choice(("00:00:00", "23:59:59.999999", "12:34:56.7"))
        return f"'{self.rng.choice(_DAYS)} {hour}'"

    def column(self, table: str, kind: str) -> str:
        """One of that kind, or "" if there is none."""
        found = [name for name, of in COLUMNS[table].items() if of == kind]
        return self.rng.choice(found) if found else ""

    # Values: total, for rows ``w`` of ``table`` ----------------------------------------------------------------------

    def value(self, kind: str, table: str, w: str = "w", depth: int = 2) -> str:
        if self.chance(7):
            return "NULL"
        if depth and self.chance(15):
            test, one, other = self.test(table, w, 1), self.value(kind, table, w, 0), self.value(kind, table, w, 0)
            cast = {"int": "int", "float": "float8"}.get(kind, kind)
            return f"CASE WHEN {test} THEN {one} ELSE {other} END::{cast}"
        makers: dict[str, Callable[[str, str], str]] = {
            "int": self._int, "numeric": self._numeric, "text": self._text, "float": self._float, "date": self._date,
            "timestamp": self._timestamp, "timestamptz": self._timestamptz, "boolean": self._boolean,
        }  # fmt: skip
        return makers[kind](table, w)

    def _int(self, table: str, w: str) -> str:
        name = self.column(table, "int")
        text = self.column(table, "text")
        return self.rng.choice((
            self.number(),
            f"({w}.{name} % 1000)::int",
            f"({w}.{name} % 100 + {self.number()})::int",
            f"coalesce({w}.{name} % 10, {self.number()})::int",
            f"length({w}.{text})",
            f"nullif({w}.id % 5, {self.rng.randrange(5)})::int",
            f"(SELECT count(*) FROM dml.s AS z WHERE z.id = {w}.id)::int",
            f"(SELECT max(z.x) FROM dml.s AS z WHERE z.x < 1000 AND z.id <= {w}.id)::int",
        ))  # fmt: skip

    def _numeric(self, table: str, w: str) -> str:
        name = self.column(table, "numeric")
        return self.rng.choice((
            f"{self.number()}.{self.rng.randrange(1000):03d}".replace("-", "- "),
            f"{w}.{name}",
            f"{w}.{name} % 1000 + {self.number()}",
            f"round({w}.{name} / 7, {self.rng.randrange(4)})",
            f"(SELECT sum(z.q) FROM dml.s AS z WHERE z.id = {w}.id)",
            f"{self._int(table, w)}::numeric / 8",
        ))  # fmt: skip

    def _text(self, table: str, w: str) -> str:
        name = self.column(table, "text")
        other = self.rng.choice(list(COLUMNS[table]))
        return self.rng.choice((
            self.word(),
            f"{w}.{name} || {self.word()}",
            f"coalesce({w}.{name}, {self.word()})",
            f"upper({w}.{name})",
            f"reverse({w}.{name})",
            f"left({w}.{name}, {self.rng.randrange(-2, 4)})",
            f"md5({w}.{name})",
            f"concat_ws('/', {w}.id, {w}.{other}, {self.word()})",
            f"{w}.{other}::text",
            f"format('%s %L', {w}.{other}, {w}.{name})",
            f"(SELECT string_agg(z.v, ',' ORDER BY z.v, z.q) FROM dml.s AS z WHERE z.id = {w}.id)",
            f"nullif({w}.{name}, {self.word()})",
        ))  # fmt: skip

    def _float(self, table: str, w: str) -> str:
        name = self.column(table, "float")
        number = f"{self._int(table, w)}::float8"
        own: tuple[str, ...] = (
            (f"{w}.{name}", f"- {w}.{name}", f"abs({w}.{name})", f"coalesce({w}.{name}, 0.5)") if name else ()
        )
        return self.rng.choice((number, f"{number} / 4", "'-0'::float8", "'NaN'::float8", "1e300", "0.1", *own))

    def _date(self, table: str, w: str) -> str:
        day = f"date '{self.rng.choice(_DAYS)}'"
        name = self.column(table, "date")
        if not name:
            return day
        return self.rng.choice((
            day,
            f"{w}.{name}",
            f"least({w}.{name}, {day}) + {self.rng.randrange(400)}",
            f"greatest({w}.{name}, {day}) - {self.rng.randrange(400)}",
        ))  # fmt: skip

    def _timestamp(self, table: str, w: str) -> str:
        name = self.column(table, "timestamp")
        moment = f"timestamp {self.moment()}"
        return self.rng.choice((
            moment,
            f"{w}.{name}",
            f"date_trunc('day', {w}.{name})",
            f"least({w}.{name}, {moment}) + interval '{self.rng.randrange(1, 60)} hours'",
            f"greatest({w}.{name}, {moment}) - interval '{self.rng.randrange(1, 60)} days'",
            f"coalesce({w}.{name}, {moment})",
        ))  # fmt: skip

    def _timestamptz(self, table: str, w: str) -> str:
        name = self.column(table, "timestamptz")
        moment = f"timestamptz {self.moment()[:-1]}+00'"
        own: tuple[str, ...] = (f"{w}.{name}", f"least({w}.{name}, {moment}) + interval '90 minutes'") if name else ()
        return self.rng.choice((moment, *own))

    def _boolean(self, table: str, w: str) -> str:
        name = self.column(table, "boolean")
        return self.rng.choice(("true", "false", f"({self.test(table, w, 1)})", *([f"NOT {w}.{name}"] if name else [])))

    # Tests -----------------------------------------------------------------------------------------------------------

    def test(self, table: str, w: str = "w", depth: int = 2) -> str:
        if depth and self.chance(30):
            one, other = self.test(table, w, depth - 1), self.test(table, w, depth - 1)
            return self.rng.choice((f"({one} AND {other})", f"({one} OR {other})", f"NOT ({one})"))
        return self.rng.choice(self._tests(table, w))

    def _tests(self, table: str, w: str) -> list[str]:
        some = self.rng.choice(list(COLUMNS[table]))
        operator = self.rng.choice(("=", "<>", "<", "<=", ">", ">="))
        number, text = self.column(table, "int"), self.column(table, "text")
        kind = self.rng.choice(("int", "int", "numeric", "text", "timestamp"))
        literal = {
            "int": self.number(), "numeric": self.number(), "text": self.word(), "timestamp": self.moment(),
        }[kind]  # fmt: skip
        few = ", ".join(self.number() for _ in range(self.rng.randrange(1, 4)))
        tests = [
            f"{w}.{self.column(table, kind)} {operator} {literal}",
            f"{w}.id {operator} {self.number()}",
            f"{w}.id % {self.rng.randrange(2, 6)} = {self.rng.randrange(3)}",
            f"{w}.{some} IS {self.rng.choice(('', 'NOT '))}NULL",
            f"{w}.{text} {self.rng.choice(('', 'NOT '))}LIKE '%{self.rng.choice('aeint7')}%'",
            f"length({w}.{text}) {operator} {self.rng.randrange(6)}",
            f"{w}.{number} {self.rng.choice(('', 'NOT '))}IN ({few})",
            f"{w}.{number} NOT IN ({few}, NULL)",
            f"{w}.{number} BETWEEN {self.number()} AND 100",
            f"{w}.{number} IS DISTINCT FROM {self.number()}",
            f"EXISTS (SELECT FROM dml.s AS e WHERE e.id = {w}.id AND e.q {operator} 5)",
            f"{w}.id {self.rng.choice(('', 'NOT '))}IN (SELECT e.id FROM dml.s AS e WHERE e.id < {self.number()})",
            f"{w}.{number} = (SELECT max(e.id) FROM dml.k AS e)",
            f"ROW({w}.{number}, {w}.{text}) IS NOT NULL",
        ]
        if table == "t":
            tests += [
                f"{w}.b IS NOT TRUE",
                f"{w}.b",
                f"{w}.d {operator} {self.rng.choice(('0', '1.5', chr(39) + 'NaN' + chr(39)))}",
                f"{w}.dt {operator} date '{self.rng.choice(_DAYS)}'",
                f"{w}.tz {operator} timestamptz '{self.rng.choice(_DAYS)} 00:00:00+00'",
            ]
        return tests

    def where(self, table: str, w: str = "w") -> str:
        return f" WHERE {self.test(table, w)}" if self.chance(88) else ""

    # Clauses ---------------------------------------------------------------------------------------------------------

    def assigned(self, table: str, column: str, w: str = "w") -> str:
        """A value that the column takes."""
        value = self.value(COLUMNS[table][column], table, w)
        if (table, column) == ("k", "c"):
            return f"abs({value})"
        if (table, column) in (("k", "note"), ("p", "id")):
            return f"coalesce({value}, {self.word() if column == 'note' else self.number()})"
        return value

    def sets(self, table: str, w: str = "w") -> str:
        columns = self.rng.sample(FREE[table], self.rng.randrange(1, min(4, len(FREE[table])) + 1))
        if len(columns) > 1 and self.chance(20):
            values = ", ".join(self.assigned(table, column, w) for column in columns)
            return f"({', '.join(columns)}) = ROW({values})"
        default = {("k", "c"), ("k", "note"), ("k", "at"), ("t", "t"), ("s", "q")}
        return ", ".join(
            f"{column} = "
            + ("DEFAULT" if (table, column) in default and self.chance(15) else self.assigned(table, column, w))
            for column in columns
        )

    def returning(self, table: str, w: str = "w") -> str:
        if self.chance(40):
            return ""
        some = self.rng.sample(list(COLUMNS[table]), 2)
        return " RETURNING " + self.rng.choice((
            "*",
            f"{w}.*",
            f"{w}.id, {w}.{some[0]}",
            f"old.{some[0]}, new.{some[0]}, {w}.id",
            "old.*, new.*",
            f"old AS before, new AS after, {w}.id % 2",
            f"{w}, {self.value('text', table, w, 1)} AS said",
            f"(old.{some[0]} IS DISTINCT FROM new.{some[0]}) AS changed, (SELECT count(*) FROM dml.s)",
        ))  # fmt: skip

    # Statements ------------------------------------------------------------------------------------------------------

    def table(self) -> str:
        return self.rng.choice(("t", "t", "t", "s", "p", "p", "k"))

    def update(self) -> str:
        table = self.table()
        return f"UPDATE dml.{table} AS w SET {self.sets(table)}{self.where(table)}{self.returning(table)}"

    def update_subquery(self) -> str:
        where = self.rng.choice(("z.id = w.id", "z.id = w.id % 10", "false", "z.q > 1000"))
        return (
            "UPDATE dml.t AS w SET (t, n, l) = (SELECT max(z.v), sum(z.q), count(*) FROM dml.s AS z"
            f" WHERE {where} AND {self.test('s', 'z', 0)}){self.where('t')}{self.returning('t')}"
        )

    def source(self) -> str:
        """Rows ``y(id, v, q, ts)``, no id twice."""
        values = ", ".join(
            f"({number}, {self.word()}, {self.number()}.5, timestamp {self.moment()})"
            for number in self.rng.sample((1, 2, 3, 4, 5, 7, 8, 20, 30, 45, 46), self.rng.randrange(1, 6))
        )
        return self.rng.choice((
            "(SELECT id, max(v) AS v, sum(q) AS q, min(ts) AS ts FROM dml.s GROUP BY id) AS y",
            (f"(SELECT id, min(v) AS v, max(q) AS q, max(ts) AS ts FROM dml.s AS u WHERE {self.test('s', 'u', 1)}"
            " AND id IS NOT NULL GROUP BY id) AS y"),
            f"(VALUES {values}) AS y(id, v, q, ts)",
            ("(SELECT g AS id, 'g' || g AS v, g * 1.5 AS q, timestamp '2024-01-01' + g * interval '1 day' AS ts"
            f" FROM generate_series(1, {self.rng.randrange(2, 9)}) AS g) AS y"),
            "(SELECT id, note AS v, c AS q, at AS ts FROM dml.k) AS y",
        ))  # fmt: skip

    def update_from(self) -> str:
        table = self.rng.choice(("t", "t", "p"))
        ours, theirs = self.rng.choice(
            {
                "t": (("t", "y.v"), ("n", "y.q"), ("ts", "y.ts"), ("t", "y.v || w.t")),
                "p": (("ts", "y.ts"), ("n", "y.q")),
            }[table]
        )
        returned = self.rng.choice(("", f" RETURNING w.id, w.{ours}, y.*", " RETURNING *", " RETURNING old, new, y"))
        return (
            f"UPDATE dml.{table} AS w SET {ours} = {theirs} FROM {self.source()}"
            f" WHERE y.id = w.id AND {self.test(table)}{returned}"
        )

    def update_from_many(self) -> str:
        """Several source rows for one target row, and none of them shows."""
        table, by = self.rng.choice(("t", "s", "p", "k")), self.rng.randrange(2, 5)
        returned = self.rng.choice(("", "", " RETURNING w.*", " RETURNING old, new", " RETURNING w.id, old.id"))
        return (
            f"UPDATE dml.{table} AS w SET {self.sets(table)} FROM dml.s AS y"
            f" WHERE y.id % {by} = w.id % {by} AND {self.test('s', 'y', 1)}{returned}"
        )

    def delete(self) -> str:
        table = self.table()
        return f"DELETE FROM dml.{table} AS w{self.where(table)}{self.returning(table)}"

    def delete_using(self) -> str:
        table = self.rng.choice(("t", "t", "p", "k", "s"))
        other = self.rng.choice(("t", "s", "k", "p"))
        returned = self.rng.choice(("", " RETURNING w.*", " RETURNING w.id", " RETURNING old"))
        return (
            f"DELETE FROM dml.{table} AS w USING dml.{other} AS y WHERE y.id = w.id AND {self.test(other, 'y', 1)}"
            f" AND {self.test(table)}{returned}"
        )

    def delete_doubles(self) -> str:
        by = self.rng.choice(("id, t, i, n, l, d, dt, ts, tz, b", "w"))
        return (
            "DELETE FROM dml.t WHERE ctid IN (SELECT ctid FROM (SELECT w.ctid, row_number() OVER (PARTITION BY"
            f" {by}) AS r FROM dml.t AS w{self.where('t')}) AS q WHERE r > {self.rng.randrange(1, 3)}) RETURNING id, t"
        )

    def merge(self) -> str:
        table = self.rng.choice(("t", "t", "p", "k"))
        clauses = []
        if self.chance(75):
            if self.chance(50):
                action = self.rng.choice(("DELETE", "DO NOTHING", f"UPDATE SET {self.sets(table)}"))
                clauses.append(f"WHEN MATCHED AND {self.test(table)} THEN {action}")
            clauses.append(f"WHEN MATCHED THEN {self.rng.choice(('DELETE', self._merge_update(table)))}")
        if self.chance(70) or not clauses:
            if self.chance(30):
                clauses.append("WHEN NOT MATCHED AND y.id % 2 = 0 THEN DO NOTHING")
            by = self.rng.choice(("", " BY TARGET"))
            clauses.append(f"WHEN NOT MATCHED{by} THEN INSERT {self._merge_insert(table)}")
        if self.chance(35):
            action = self.rng.choice(("DELETE", f"UPDATE SET {self.sets(table)}", "DO NOTHING"))
            clauses.append(f"WHEN NOT MATCHED BY SOURCE AND {self.test(table)} THEN {action}")
        returned = self.rng.choice((
            "", " RETURNING merge_action(), w.*", " RETURNING merge_action(), old, new, y.id", " RETURNING *",
        ))  # fmt: skip
        source = f"(SELECT * FROM {self.source()} WHERE y.id IS NOT NULL) AS y"
        return f"MERGE INTO dml.{table} AS w USING {source} ON w.id = y.id {' '.join(clauses)}{returned}"

    def _merge_update(self, table: str) -> str:
        from_source = {"t": "t = y.v, n = y.q", "p": "ts = y.ts, t = w.t || y.v", "k": "at = y.ts, c = abs(y.q)"}
        return f"UPDATE SET {self.rng.choice((from_source[table], self.sets(table)))}"

    def _merge_insert(self, table: str) -> str:
        return {
            "t": "(id, t, n, ts) VALUES (y.id, y.v, y.q, y.ts)",
            "p": "VALUES (y.id, y.ts, y.v, y.q)",
            "k": self.rng.choice((
                "(id, a, b, at) VALUES (y.id, 1000 + y.id, y.v, y.ts)", "(id, a, note) VALUES (y.id, y.id + 1000, DEFAULT)",
            )),
        }[table]  # fmt: skip

    def insert(self) -> str:
        table, source = self.rng.choice(("t", "s", "p")), self.rng.choice(("t", "s", "p", "k"))
        columns = self.rng.sample(FREE[table], self.rng.randrange(1, 4))
        if table == "p" and "id" not in columns:
            columns.append("id")
        kinds = [COLUMNS[table][column] for column in columns]
        values = []
        for column, kind in zip(columns, kinds, strict=True):
            value = self.value(kind, source, "y")
            values.append(f"coalesce({value}, 0)" if (table, column) == ("p", "id") else value)
        return (
            f"INSERT INTO dml.{table} AS w ({', '.join(columns)}) SELECT {', '.join(values)} FROM dml.{source} AS y"
            f"{self.where(source, 'y')}{self.returning(table)}"
        )

    def conflict(self) -> str:
        rows = []
        for _ in range(self.rng.randrange(1, 5)):
            key = self.rng.choice((1, 2, 3, 6, 9, 10, 11, 12, 50, 51, 52))
            b = self.rng.choice(("'a'", "'b'", "'q'", "'r'", "NULL"))
            rows.append(f"({key}, {self.rng.choice((1, 2, 7, 60, 61, 62))}, {b}, {self.rng.randrange(50)})")
        target = self.rng.choice(("", " (id)", " (a, b)", " ON CONSTRAINT k_pkey"))
        update = self.rng.choice((
            "c = excluded.c + coalesce(w.c, 0)",
            "note = w.note || '+' || excluded.id, c = DEFAULT",
            "(c, note) = (SELECT count(*), max(z.v) || '' FROM dml.s AS z WHERE z.id = 1)",
            "a = excluded.a + 500, b = excluded.b",
            "id = w.id + 500, at = timestamp '2024-07-07'",
        ))  # fmt: skip
        action = f"DO UPDATE SET {update}" if target and self.chance(75) else "DO NOTHING"
        if action != "DO NOTHING" and self.chance(25):
            action += f" WHERE {self.test('k')}"
        return (
            f"INSERT INTO dml.k AS w (id, a, b, c) VALUES {', '.join(rows)} ON CONFLICT{target} {action}"
            f"{self.returning('k')}"
        )

    def keys(self) -> str:
        change = self.rng.choice((
            "id = w.id + 1", "id = w.id + 100", "id = - w.id", "a = w.a + 100", "a = 5, b = 'all'", "b = w.b || w.id",
            "id = w.id * 1000, at = NULL", "a = w.id, b = NULL", "note = NULL", "c = -1 - abs(coalesce(w.c, 0))",
        ))  # fmt: skip
        return f"UPDATE dml.k AS w SET {change}{self.returning('k')}"

    def move(self) -> str:
        by = self.rng.randrange(1, 50)
        change = self.rng.choice((
            f"ts = w.ts + interval '{by} days'", f"id = w.id + {by}", f"id = - w.id, ts = timestamp {self.moment()}",
            "ts = NULL", f"ts = coalesce(w.ts, timestamp {self.moment()})",
        ))  # fmt: skip
        table = self.rng.choice(("t", "p", "p"))
        return f"UPDATE dml.{table} AS w SET {change} WHERE w.id < 1000 AND w.ts < '2100-01-01'{self.returning(table)}"

    def failing(self) -> str:
        column, value = self.rng.choice(_FAILING)
        form = self.rng.randrange(4)
        if form == 0:
            return f"UPDATE dml.t AS w SET {column} = {value}"
        if form == 1:
            return f"DELETE FROM dml.t AS w WHERE w.id >= 0 RETURNING w.id, {value}"
        if form == 2:
            return f"INSERT INTO dml.t ({column}) SELECT {value} FROM dml.t AS w"
        return (
            "MERGE INTO dml.t AS w USING dml.k AS y ON w.id = y.id WHEN NOT MATCHED BY SOURCE THEN"
            f" UPDATE SET {column} = {value} WHEN MATCHED THEN DELETE"
        )

    def with_changes(self) -> str:
        first = self.rng.choice((
            f"DELETE FROM dml.t AS w WHERE {self.test('t')} RETURNING w.id, w.t AS v, w.ts",
            f"UPDATE dml.t AS w SET {self.sets('t')} WHERE {self.test('t')} RETURNING old.id, new.t AS v, new.ts",
            ("INSERT INTO dml.t (id, t, ts) SELECT y.id, y.v, y.ts FROM dml.s AS y"
            f" WHERE {self.test('s', 'y')} RETURNING id, t AS v, ts"),
            f"DELETE FROM dml.p AS w WHERE {self.test('p')} RETURNING w.id::int, w.t AS v, w.ts",
        ))  # fmt: skip
        second = self.rng.choice((
            "INSERT INTO dml.s (id, v, ts) SELECT id, v, ts FROM a RETURNING *",
            "SELECT count(*), count(id), min(v), max(ts) FROM a",
            f"DELETE FROM dml.s AS w WHERE w.id IN (SELECT id FROM a) AND {self.test('s')}",
            "UPDATE dml.k AS w SET c = 1 + (SELECT count(*) FROM a) WHERE w.id IN (SELECT id FROM a) RETURNING w.id, w.c",
            "INSERT INTO dml.p (id, ts, t) SELECT coalesce(id, 0), ts, v FROM a RETURNING id",
            ("INSERT INTO dml.k (id, a, b) SELECT DISTINCT id + 1000, 1000, 'w' || id FROM a WHERE id IS NOT NULL"
            " ON CONFLICT DO NOTHING"),
        ))  # fmt: skip
        return f"WITH a AS ({first}) {second}"

    def block(self) -> str:
        steps = self.rng.choice((
            (f"FOR r IN SELECT * FROM dml.s AS y WHERE {self.test('s', 'y')} AND id IS NOT NULL ORDER BY id, v, q LOOP"
            " UPDATE dml.t SET t = coalesce(t, '') || coalesce(r.v, '?'), l = r.id WHERE id = r.id;"
            " IF NOT FOUND THEN INSERT INTO dml.t (id, t) VALUES (r.id, r.v); END IF; END LOOP"),
            (f"BEGIN {self.block_step()}; RAISE EXCEPTION 'no'; EXCEPTION WHEN raise_exception THEN {self.block_step()};"
            " END"),
            f"{self.block_step()}; GET DIAGNOSTICS many = ROW_COUNT; RAISE NOTICE 'rows %', many; {self.block_step()}",
            (f"BEGIN {self.failing().partition(' RETURNING')[0]}; EXCEPTION WHEN OTHERS THEN RAISE NOTICE '%', SQLSTATE;"
            f" {self.block_step()}; END"),
            (f"FOR turn IN 1..{self.rng.randrange(2, 5)} LOOP UPDATE dml.k SET c = coalesce(c, 0) + turn"
            " WHERE id = turn; DELETE FROM dml.p WHERE id = turn; END LOOP"),
            f"EXECUTE {self._literal(self.block_step())}; SELECT count(*) INTO many FROM dml.t; RAISE NOTICE '%', many",
            ("FOR r IN SELECT id FROM dml.k ORDER BY id FOR UPDATE LOOP IF r.id % 3 = 0 THEN DELETE FROM dml.k"
            " WHERE id = r.id; ELSE UPDATE dml.k SET note = 'n' || r.id WHERE id = r.id; END IF; END LOOP"),
        ))  # fmt: skip
        return f"DO $$ DECLARE r record; many bigint; BEGIN {steps}; END $$"

    def block_step(self) -> str:
        return self.rng.choice((self.update, self.delete, self.update_from, self.keys, self.move))().partition(
            " RETURNING"
        )[0]

    def _literal(self, text: str) -> str:
        return "'" + text.replace("'", "''") + "'"

    def truncate(self) -> str:
        names = self.rng.sample(("dml.t", "dml.s", "dml.k", "dml.p"), self.rng.randrange(1, 4))
        return f"TRUNCATE {', '.join(names)}"

    def script(self) -> tuple[str, ...]:
        statements: list[str] = []
        for number in range(self.rng.randrange(2, 5)):
            if self.chance(25):
                statements += [f"SAVEPOINT s{number}", self.statement()[0], f"ROLLBACK TO s{number}"]
            else:
                statements.append(self.steady())
        return tuple(statements)

    def steady(self) -> str:
        """A statement that does not fail on the base tables, and hardly elsewhere."""
        makers = (
            self.update,
            self.update_from,
            self.delete,
            self.delete_using,
            self.insert,
            self.move,
            self.with_changes,
        )
        return self.rng.choice(makers)()

    def statement(self) -> tuple[str, ...]:
        makers: tuple[tuple[int, Callable[[], str]], ...] = (
            (16, self.update), (4, self.update_subquery), (8, self.update_from), (5, self.update_from_many),
            (10, self.delete), (6, self.delete_using), (2, self.delete_doubles), (13, self.merge), (7, self.insert),
            (9, self.conflict), (4, self.keys), (5, self.move), (6, self.failing), (7, self.with_changes),
            (7, self.block), (1, self.truncate),
        )  # fmt: skip
        weights = [weight for weight, _ in makers]
        (_, maker) = self.rng.choices(makers, weights)[0]
        return (maker(),)


def generate(seed: int = SEED, count: int = COUNT) -> list[Case]:
    cases: dict[str, Case] = {}
    turn = 0
    while len(cases) < count:
        # Each case has a seed of its own: a change in one kind of statement leaves the others as they are.
        grammar = Grammar(random.Random(f"{seed}/{turn}"))
        made = Case(grammar.script() if turn % 10 == 9 else grammar.statement())
        cases.setdefault(str(made), made)
        turn += 1
    return list(cases.values())


CASES = generate()
