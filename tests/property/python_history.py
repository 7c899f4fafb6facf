"""Random histories of one lake as PySpark programs write them, played on the real thing and in a plain model at once.

Two lakes (``icefield.connect()``) write, in and out of transactions, on branches that part and meet; a third one only
looks at main. After each step what the one that acted sees, and what the third sees, is what ``python_model.py`` says;
at the end every branch is, and no id stands for two things.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import currently_in_test_context, note
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

import icefield
from icefield.client.lake import Lake
from icefield.client.transaction import Rollback, Transaction
from icefield.model.errors import CommitConflict, WrongState
from property.python_model import Appended, Commit, Commits, Open, Other, Table, Tree, differences, land
from support.server import Http

TABLES = ("t", "u")
BRANCHES = ("main", "dev", "fix")
MAX_SAVEPOINTS = 3
ANY = st.integers(0, 119)  # small and with many divisors: picks are even

WRITES = (
    "inserts",
    "appends_frame",
    "inserts_select",
    "updates",
    "deletes",
    "merges_rows",
    "overwrites",
    "adds_column",
)
OUTSIDE = {
    "writes": 4,
    "makes_or_drops_table": 1,
    "begins": 8,
    "keeps_frame": 2,
    "reads_kept_frame": 3,
    "makes_branch": 3,
    "drops_branch": 1,
    "checks_out": 3,
    "merges_branch": 4,
    "both_at_once": 2,
    "looks_back": 1,
    "compares": 1,
    "fails": 1,
}
INSIDE = {
    "writes": 8,
    "makes_or_drops_table": 1,
    "ends": 7,
    "overtaken": 8,
    "sets_savepoint": 4,
    "leaves_savepoint": 4,
    "keeps_frame": 2,
    "reads_kept_frame": 4,
    "merges_branch": 1,
    "checks_out": 1,
    "fails": 2,
}
"""How often a lake does what, out of a transaction and in one."""


def weighted(weights: Mapping[str, int]) -> st.SearchStrategy[str]:
    return st.sampled_from([name for name, weight in weights.items() for _ in range(weight)])


def say(words: str) -> None:
    if currently_in_test_context():
        note(words)


class Undo(Exception):
    """What a program might raise inside a block."""


@dataclass
class Actor:
    """One lake, and where the model has it."""

    lake: Lake
    branch: str = "main"
    tx: Transaction | None = None
    open: Open | None = None
    blocks: list[AbstractContextManager[Transaction]] = field(default_factory=list)
    """The ``with tx.savepoint()`` it is in."""


@dataclass
class Kept:
    """A frame that the program holds on to. It means its table, wherever the ref stands when it is run."""

    actor: int
    name: str
    frame: DataFrame
    table: Table
    """As it was when the frame was made."""


class PythonHistory(RuleBasedStateMachine):
    url: str
    """Of the server, for all histories; each has a repo of its own."""
    seen: ClassVar[Counter[str]] = Counter()
    """What happened, over all histories: a rule that never gets anywhere proves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.repo = "p" + uuid.uuid4().hex[:12]
        self.http = Http(self.url)
        self.actors: list[Actor] = []
        self.commits = Commits()
        self.heads: dict[str, str] = {}
        self.kept: list[Kept] = []
        self.row_ids: dict[int, dict[int, int]] = {}
        self.keys = 1
        self.uids = 0
        self.acted = 0
        self.sound = False

    # -- the two worlds ----------------------------------------------------------------------------------------------

    @initialize(first=st.sampled_from([2, 3]), second=st.sampled_from([2, 3]), lazy=st.booleans())
    def starts(self, first: int, second: int, lazy: bool) -> None:
        assert self.http.post("/api/v1/repos", {"name": self.repo}).status == 200
        assert self.http.post(f"/v1/{self.repo}/namespaces", {"namespace": ["s"]}).status == 200
        self.actors = [Actor(icefield.connect(self.url, repo=self.repo)) for _ in range(2)]
        self.viewer = icefield.connect(self.url, repo=self.repo)
        log = self.viewer.log()
        for commit in reversed(log):
            self.commits[commit.id] = Commit(commit.id, commit.parents, {})
        self.heads["main"] = log[0].id
        self._make(0, "t", first, lazy, rows=3)
        self._make(0, "u", second, not lazy, rows=2)
        self.sound = True

    def tree(self, i: int) -> Tree:
        """What actor i stands on."""
        actor = self.actors[i]
        return actor.open.tree if actor.open is not None else self.commits.tree(self.heads[actor.branch])

    def committed(self, branch: str, *trees: Tree | None, parents: tuple[str, ...] = ()) -> None:
        """These came one after the other on the branch, and nothing else did."""
        log = self.viewer.log(branch, limit=len(trees) + 1)
        before = self.heads[branch]
        for commit, tree in zip(reversed(log[: len(trees)]), trees, strict=True):
            assert commit.parents == (parents or (before,)), f"{branch}: {commit} does not follow {before}"
            assert commit.id not in self.commits
            self.commits[commit.id] = Commit(commit.id, commit.parents, tree)
            before = commit.id
        self.heads[branch] = before

    def write(self, i: int, run: Callable[[], Any], name: str, after: Table | None, *said: Appended | Other) -> None:
        actor = self.actors[i]
        tree = {key: table for key, table in self.tree(i).items() if key != name}
        if after is not None:
            tree[name] = after
        run()
        if actor.open is None:
            self.committed(actor.branch, tree)
        else:
            actor.open.tree = tree
            actor.open.said += said

    def fresh_keys(self, count: int) -> range:
        keys = range(self.keys, self.keys + count)
        self.keys += count
        return keys

    # -- one step ----------------------------------------------------------------------------------------------------

    @rule(i=st.integers(0, 1), outside=weighted(OUTSIDE), inside=weighted(INSIDE), pick=ANY, more=ANY)
    def step(self, i: int, outside: str, inside: str, pick: int, more: int) -> None:
        self.acts(i, outside if self.actors[i].tx is None else inside, pick, more)

    def acts(self, i: int, action: str, pick: int, more: int) -> None:
        self.sound = False
        self.acted = i
        say(f"actor {i} {action}({pick}, {more})")
        possible = getattr(self, action)(i, pick, more)
        if possible is False:
            action = "writes"
            if self.writes(i, pick, more) is False:
                self.makes_or_drops_table(i, pick, more)
        self.seen[action] += 1

    # Each of these says False where it has nothing to do.

    def writes(self, i: int, pick: int, more: int, how: str | None = None) -> bool:
        tables = sorted(self.tree(i))
        if not tables:
            return False
        name = tables[pick % len(tables)]
        how = how or WRITES[more % len(WRITES)]
        if how in ("updates", "deletes") and not self.tree(i)[name].rows:
            how = "inserts"
        if how == "inserts_select" and not any(table.rows for table in self.tree(i).values()):
            how = "appends_frame"
        say(f"  actor {i} {how} {name}")
        self.seen[how] += 1
        getattr(self, f"_{how}")(i, name, more)
        return True

    def _inserts(self, i: int, name: str, more: int) -> None:
        table = self.tree(i)[name]
        rows = frozenset((k, more) for k in self.fresh_keys(1 + more % 3))
        values = ", ".join(f"({k}, {v}{', NULL' * len(table.columns)})" for k, v in sorted(rows))
        sql = f"INSERT INTO s.{name} VALUES {values}"
        self.write(i, lambda: self._sql(i, sql), name, table.now(table.rows | rows), Appended(table.uid, rows))

    def _appends_frame(self, i: int, name: str, more: int) -> None:
        table = self.tree(i)[name]
        keys = self.fresh_keys(1 + more % 3)
        rows = frozenset((k, more) for k in keys)
        nulls = [f"CAST(NULL AS int) AS {column}" for column in table.columns]

        def run() -> None:
            frame = self.actors[i].lake.spark.range(keys.start, keys.stop)
            frame.selectExpr("id AS k", f"CAST({more} AS bigint) AS v", *nulls).writeTo(f"s.{name}").append()

        self.write(i, run, name, table.now(table.rows | rows), Appended(table.uid, rows))

    def _inserts_select(self, i: int, name: str, more: int) -> None:
        tree = self.tree(i)
        sources = sorted(key for key, table in tree.items() if table.rows)
        source = sources[more % len(sources)]
        table, offset = tree[name], self.keys
        rows = frozenset((k + offset, v) for k, v in tree[source].rows)
        self.keys = max(k for k, _ in rows) + 1
        sql = f"INSERT INTO s.{name} SELECT k + {offset}, v{', NULL' * len(table.columns)} FROM s.{source}"
        self.write(i, lambda: self._sql(i, sql), name, table.now(table.rows | rows), Appended(table.uid, rows))

    def _updates(self, i: int, name: str, more: int) -> None:
        table = self.tree(i)[name]
        chosen = sorted(table.rows)[more % len(table.rows)][0]
        where, hit = ("", lambda k: True) if more % 5 == 0 else (f" WHERE k = {chosen}", lambda k: k == chosen)
        rows = {(k, v + 100) if hit(k) else (k, v) for k, v in table.rows}
        sql = f"UPDATE s.{name} SET v = v + 100{where}"
        self.write(i, lambda: self._sql(i, sql), name, table.now(rows), Other(table.uid))

    def _deletes(self, i: int, name: str, more: int) -> None:
        table = self.tree(i)[name]
        chosen = sorted(table.rows)[more % len(table.rows)][0]
        sign, kept = (
            ("<=", {r for r in table.rows if r[0] > chosen})
            if more % 3 == 0
            else (
                "=",
                {r for r in table.rows if r[0] != chosen},
            )
        )
        sql = f"DELETE FROM s.{name} WHERE k {sign} {chosen}"
        self.write(i, lambda: self._sql(i, sql), name, table.now(kept), Other(table.uid))

    def _merges_rows(self, i: int, name: str, more: int) -> None:
        """Insert-only every other time: an append by its files, but not by its meaning."""
        table = self.tree(i)[name]
        (k,) = self.fresh_keys(1)
        rows = {*table.rows, (k, more)}
        sql = f"MERGE INTO s.{name} AS x USING (SELECT {k} AS k, {more} AS v) AS y ON x.k = y.k "
        if more % 2 and table.rows:
            chosen = min(table.rows)[0]
            rows = {(key, v + 7) if key == chosen else (key, v) for key, v in rows}
            sql = (
                f"MERGE INTO s.{name} AS x USING (SELECT {k} AS k, {more} AS v UNION ALL SELECT {chosen}, 0) AS y "
                "ON x.k = y.k WHEN MATCHED THEN UPDATE SET v = x.v + 7 "
            )
        nulls = "".join(f", {column}" for column in table.columns)
        sql += f"WHEN NOT MATCHED THEN INSERT (k, v{nulls}) VALUES (y.k, y.v{', NULL' * len(table.columns)})"
        self.write(i, lambda: self._sql(i, sql), name, table.now(rows), Other(table.uid))

    def _overwrites(self, i: int, name: str, more: int) -> None:
        table = self.tree(i)[name]
        (k,) = self.fresh_keys(1)
        sql = f"INSERT OVERWRITE s.{name} VALUES ({k}, {more}{', NULL' * len(table.columns)})"
        self.write(i, lambda: self._sql(i, sql), name, table.now({(k, more)}), Other(table.uid))

    def _adds_column(self, i: int, name: str, more: int) -> None:
        table = self.tree(i)[name]
        column = f"c{len(table.columns)}_{more % 2}"
        sql = f"ALTER TABLE s.{name} ADD COLUMN {column} int"
        after = table.now(table.rows, (*table.columns, column))
        self.write(i, lambda: self._sql(i, sql), name, after, Other(table.uid))

    def fails(self, i: int, pick: int, more: int) -> bool:
        """A statement that stops in the middle leaves nothing, and a transaction goes on after it."""
        tables = sorted(name for name, table in self.tree(i).items() if table.rows)
        if not tables:
            return False
        name = tables[pick % len(tables)]
        failing = "CAST(raise_error('enough') AS bigint)"
        if more % 2:
            sql = f"UPDATE s.{name} SET v = {failing}"
        else:
            sql = f"CREATE TABLE s.fresh AS SELECT k, {failing} AS v FROM s.{name}"
        with pytest.raises(Exception, match="enough"):
            self._sql(i, sql)
        return True

    def makes_or_drops_table(self, i: int, pick: int, more: int) -> None:
        name = TABLES[pick % len(TABLES)]
        if name in self.tree(i):
            self.seen["drops_table"] += 1
            self.write(i, lambda: self._sql(i, f"DROP TABLE s.{name}"), name, None)
        else:
            self.seen["makes_table"] += 1
            self._make(i, name, 2 + more % 2, more % 3 == 0, rows=more % 4)

    def _make(self, i: int, name: str, version: int, lazy: bool, rows: int) -> None:
        self.uids += 1
        table = Table(self.uids, version, lazy, rows=frozenset((k, 0) for k in self.fresh_keys(rows)))
        properties = {"format-version": version}
        if lazy:
            properties |= {f"write.{verb}.mode": "merge-on-read" for verb in ("update", "delete", "merge")}
        options = "TBLPROPERTIES (" + ", ".join(f"'{key}' = '{value}'" for key, value in properties.items()) + ")"
        if rows:
            values = ", ".join(f"({k}, 0)" for k, _ in sorted(table.rows))
            query = f"SELECT CAST(k AS bigint) AS k, CAST(v AS bigint) AS v FROM VALUES {values} AS x (k, v)"
            sql = f"CREATE TABLE s.{name} USING iceberg {options} AS {query}"
        else:
            sql = f"CREATE TABLE s.{name} (k bigint, v bigint) USING iceberg {options}"
        self.write(i, lambda: self._sql(i, sql), name, table)

    # Transactions

    def begins(self, i: int, pick: int, more: int) -> bool:
        actor = self.actors[i]
        if actor.tx is not None or (self.actors[1 - i].tx is not None and pick % 3):
            return False  # mostly one at a time, so that the other one can overtake it
        tx = actor.lake.transaction(message=f"load {more}")
        if more % 2:
            tx.begin()
        else:
            tx.__enter__()
        base = self.commits.tree(self.heads[actor.branch])
        assert tx.base == self.heads[actor.branch]
        actor.tx, actor.open = tx, Open(tx.id, actor.branch, base, base)
        return True

    def ends(self, i: int, pick: int, more: int) -> bool:
        actor = self.actors[i]
        if actor.tx is None or actor.open is None:
            return False
        tx, opened = actor.tx, actor.open
        actor.tx = actor.open = None
        blocks, actor.blocks = actor.blocks, []
        if pick % 4 == 0:
            self.seen["rollback"] += 1
            say(f"  actor {i} rolls back")
            if more % 2:
                tx.rollback()
            else:
                assert tx.__exit__(Undo, Undo(), None) is False
        else:
            self._commit(actor, tx, opened, explicit=bool(more % 2))
        for block in reversed(blocks):  # the program leaves the blocks it was in: they have nothing to do any more
            block.__exit__(None, None, None)
        return True

    def _commit(self, actor: Actor, tx: Transaction, opened: Open, explicit: bool) -> None:
        head = self.commits.tree(self.heads[opened.branch])
        outcome = land(opened, head)
        conflict = None
        try:
            if explicit:
                tx.commit()
            else:
                tx.__exit__(None, None, None)
        except CommitConflict as error:
            conflict = error
        if conflict is not None:
            named = {one.entry for one in conflict.conflicts}
            assert named == {f"s.{name}" for name in outcome.conflicts}, str(conflict)
            assert tx.state == "rolled back"
            self.seen["conflict"] += 1
            say(f"  conflict: {conflict.message}")
            return
        assert outcome.conflicts == set(), f"committed, though there are conflicts: {outcome.conflicts}"
        assert tx.result is not None
        self.seen["rebased commit" if head != opened.base else "commit"] += 1
        if self.viewer.log(opened.branch, limit=1)[0].id == self.heads[opened.branch]:
            assert outcome.tree == dict(head), "it was said to be committed, and the branch did not move"
            return
        self.committed(opened.branch, outcome.tree)
        assert tx.result.commit == self.heads[opened.branch]
        newest = actor.lake.log(opened.branch, limit=1)[0]
        assert (newest.transaction, newest.message) == (tx.id, tx.message)
        assert {name for name, _ in newest.changes} == {f"s.{name}" for name, _ in differences(head, outcome.tree)}

    def overtaken(self, i: int, pick: int, more: int) -> bool:
        """Somebody else commits, on its branch, to a table that a transaction has written."""
        actor, other = self.actors[i], self.actors[1 - i]
        if actor.open is None or other.open is not None or other.branch != actor.branch:
            return False
        tables = sorted(self.tree(1 - i))
        written = {one.uid for one in actor.open.said}
        choice = [n for n, name in enumerate(tables) if self.tree(1 - i)[name].uid in written]
        if not choice:
            return False
        self.acted = 1 - i
        return self.writes(1 - i, choice[pick % len(choice)], more)

    def sets_savepoint(self, i: int, pick: int, more: int) -> bool:
        actor = self.actors[i]
        if actor.tx is None or actor.open is None or len(actor.blocks) >= MAX_SAVEPOINTS:
            return False
        block = actor.tx.savepoint("same" if more % 2 else None)
        block.__enter__()
        actor.blocks.append(block)
        actor.open.savepoints.append((actor.open.tree, actor.open.said))
        return True

    def leaves_savepoint(self, i: int, pick: int, more: int) -> bool:
        """By its end; by ``Rollback``, which stays inside; or by an error, caught one or more blocks further out."""
        actor = self.actors[i]
        if actor.open is None or not actor.blocks:
            return False
        if pick % 3 == 0:
            self.seen["savepoint kept"] += 1
            actor.blocks.pop().__exit__(None, None, None)
            actor.open.savepoints.pop()
            return True
        depth = 1 if pick % 3 == 1 else 1 + more % len(actor.blocks)
        for _ in range(depth):
            self.seen["savepoint undone"] += 1
            error = Rollback() if pick % 3 == 1 else Undo()
            stays = actor.blocks.pop().__exit__(type(error), error, None)
            assert bool(stays) is isinstance(error, Rollback)
            assert getattr(error, "__notes__", []) == []
            actor.open.tree, actor.open.said = actor.open.savepoints.pop()
        return True

    # What Spark remembers

    def keeps_frame(self, i: int, pick: int, more: int) -> bool:
        tables = sorted(self.tree(i))
        if not tables:
            return False
        name = tables[pick % len(tables)]
        frame = self.actors[i].lake.table(f"s.{name}")
        if more % 3 != 1:
            frame = frame.select("k", "v")
        if more % 2:
            frame = frame.cache()
        self.kept.append(Kept(i, name, frame, self.tree(i)[name]))
        self._reads(self.kept[-1], more)
        return True

    def reads_kept_frame(self, i: int, pick: int, more: int) -> bool:
        if not self.kept:
            return False
        kept = self.kept[pick % len(self.kept)]
        self.acted = kept.actor
        self._reads(kept, more)
        return True

    def _reads(self, kept: Kept, more: int) -> None:
        now = self.tree(kept.actor).get(kept.name)
        found: Any = None
        refusal = None
        try:
            if more % 4 == 0:
                found = kept.frame.count()
            elif more % 4 == 1:
                found = Counter((row["k"], row["v"]) for row in kept.frame.toArrow().to_pylist())
            else:
                found = Counter((row.k, row.v) for row in kept.frame.collect())
        except AnalysisException as error:
            refusal = error
        if refusal is not None:
            # Spark's own word where its table is gone, is another one or has lost a column.
            gone = now is None or now.uid != kept.table.uid or not set(kept.table.columns) <= set(now.columns)
            assert gone, str(refusal)
            self.seen["kept frame without a table"] += 1
            return
        assert now is not None, f"a kept frame of s.{kept.name} shows {found}, and there is no such table"
        expected = len(now.rows) if isinstance(found, int) else Counter(now.rows)
        assert found == expected, f"a kept frame of s.{kept.name}: {found}, not {expected}"

    # Branches

    def makes_branch(self, i: int, pick: int, more: int) -> bool:
        free = [name for name in BRANCHES if name not in self.heads]
        if not free:
            return False
        name = free[pick % len(free)]
        # Not from before the namespace was made.
        starts = [*sorted(self.heads), *(c.id for c in self.commits.values() if c.tree)]
        start = starts[more % len(starts)] if more % 3 == 0 else "main"
        self.actors[i].lake.branches.create(name, start)
        self.heads[name] = self.heads.get(start, start)
        if self.actors[i].tx is None and more % 2:  # as one does
            self.checks_out(i, sorted(self.heads).index(name), more)
        return True

    def drops_branch(self, i: int, pick: int, more: int) -> bool:
        free = sorted(set(self.heads) - {"main"} - {actor.branch for actor in self.actors})
        if not free:
            return False
        name = free[pick % len(free)]
        self.actors[i].lake.branches.drop(name)
        del self.heads[name]
        assert name not in self.actors[i].lake.branches
        return True

    def checks_out(self, i: int, pick: int, more: int) -> bool:
        actor = self.actors[i]
        branch = sorted(self.heads)[pick % len(self.heads)]
        try:
            actor.lake.checkout(branch)
        except WrongState:
            assert actor.tx is not None
            return True
        assert actor.tx is None
        actor.branch = branch
        return True

    def merges_branch(self, i: int, pick: int, more: int) -> bool:
        if len(self.heads) < 2:
            return self.makes_branch(i, pick, more)
        lake = self.actors[i].lake
        names = sorted(self.heads)
        source = names[pick % len(names)]
        into = [name for name in names if name != source][more % (len(names) - 1)]
        theirs, ours = self.heads[source], self.heads[into]
        outcome = self.commits.merge(ours, theirs)
        conflict, merged = None, None
        try:
            merged = lake.merge(source, into=into)
        except CommitConflict as error:
            conflict = error
        if conflict is not None:
            named = {one.entry for one in conflict.conflicts}
            assert named == {one.entry for one in lake.merge(source, into=into, dry_run=True).conflicts}
            assert named
            assert outcome.uncertain or named == {f"s.{name}" for name in outcome.conflicts}, str(conflict)
            self.seen["merge conflict"] += 1
            return True
        assert merged is not None
        self.seen[merged.result] += 1
        if theirs in self.commits.ancestors(ours):
            assert (merged.result, merged.commit) == ("nothing-to-do", ours)
        elif ours in self.commits.ancestors(theirs):
            assert (merged.result, merged.commit) == ("fast-forward", theirs)
            self.heads[into] = theirs
        else:
            assert not outcome.conflicts, f"merged, though there are conflicts: {outcome.conflicts}"
            assert merged.result == "merged"
            self.committed(into, outcome.tree, parents=(ours, theirs))
            assert merged.commit == self.heads[into]
        return True

    def both_at_once(self, i: int, pick: int, more: int) -> bool:
        """Two programs autocommit to one table: both land, whoever was first; what conflicts is run again."""
        one, two = self.actors
        if one.tx is not None or two.tx is not None or one.branch != two.branch or not self.tree(i):
            return False
        tree = self.tree(i)
        name = sorted(tree)[pick % len(tree)]
        table = tree[name]
        k, other = self.fresh_keys(2)
        nulls = ", NULL" * len(table.columns)
        rows = {*table.rows, (k, 1)}
        statements = [f"INSERT INTO s.{name} VALUES ({k}, 1{nulls})"]
        if more % 2 and table.rows:
            chosen = min(table.rows)[0]
            rows = {(key, v + 1000) if key == chosen else (key, v) for key, v in rows}
            statements.append(f"UPDATE s.{name} SET v = v + 1000 WHERE k = {chosen}")
        else:
            rows.add((other, 2))
            statements.append(f"INSERT INTO s.{name} VALUES ({other}, 2{nulls})")
        failures: list[BaseException] = []

        def run(number: int) -> None:
            try:
                self._sql((i + number) % 2, statements[number])
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        self.committed(one.branch, None, {**tree, name: table.now(rows)})
        return True

    # Looking

    def looks_back(self, i: int, pick: int, more: int) -> bool:
        """The whole lake at an earlier commit; nothing can be written there."""
        actor = self.actors[i]
        known = [commit for commit in self.commits.values() if commit.tree]
        if actor.tx is not None or not known:
            return False
        commit = known[pick % len(known)]
        assert commit.tree is not None
        actor.lake.checkout(commit.id)
        self._check(actor.lake, commit.tree, f"commit {commit.id}")
        name, table = min(commit.tree.items())
        insert = f"INSERT INTO s.{name} VALUES (0, 0{', NULL' * len(table.columns)})"
        with pytest.raises(Exception, match="does not change"):
            actor.lake.sql(insert if more % 2 else f"DROP TABLE s.{name}")
        actor.lake.checkout(actor.branch)
        return True

    def compares(self, i: int, pick: int, more: int) -> bool:
        lake = self.actors[i].lake
        known = [*sorted(self.heads), *(c.id for c in self.commits.values() if c.tree is not None)]
        start, end = known[pick % len(known)], known[more % len(known)]
        one, other = (self.commits.tree(self.heads.get(ref, ref)) for ref in (start, end))
        diff = lake.diff(start, end)
        found = {(c.name.removeprefix("s."), c.change) for c in diff if c.kind == "table"}
        assert found == differences(one, other), str(diff)
        for change in diff:
            table = other.get(change.name.removeprefix("s."))
            if change.change != "dropped" and change.after is not None and table is not None and not table.lazy:
                assert change.after.records == len(table.rows), str(change)
        return True

    # -- the laws ----------------------------------------------------------------------------------------------------

    @invariant()
    def everybody_sees_what_the_model_says(self) -> None:
        if not self.actors:
            return
        actor = self.actors[self.acted]
        where = f"actor {self.acted} on {actor.branch}" + (" in its transaction" if actor.tx else "")
        self._check(actor.lake, self.tree(self.acted), where, open_=actor.tx is not None)
        self._check(self.viewer, self.commits.tree(self.heads["main"]), "main")
        self.sound = True

    def _check(self, lake: Lake, tree: Tree, where: str, *, open_: bool = False) -> None:
        if lake is self.viewer:
            answer = self.http.get(f"/v1/{self.repo}@{lake.ref}/namespaces/s/tables")
            names = {one["name"] for one in answer.body["identifiers"]}
        else:
            names = {row.tableName for row in lake.sql("SHOW TABLES IN s").collect()}
        assert names == set(tree), f"{where}: tables {names}, not {set(tree)}"
        if not tree:
            return
        ids = {name: "_row_id" if table.format == 3 else "CAST(NULL AS bigint)" for name, table in tree.items()}
        parts = (f"SELECT '{name}' AS name, k, v, {ids[name]} AS row FROM s.{name}" for name in sorted(tree))
        found = lake.sql(" UNION ALL ".join(parts)).collect()
        for name, table in tree.items():
            rows = Counter((row.k, row.v) for row in found if row.name == name)
            assert rows == Counter(table.rows), (
                f"{where}: s.{name} has {sorted(rows.elements())}, not {sorted(table.rows)}"
            )
            if table.format == 3 and not open_:
                self._note_row_ids(table, {row.k: row.row for row in found if row.name == name}, where)

    def _note_row_ids(self, table: Table, found: dict[int, int], where: str) -> None:
        """Over all refs and the whole history: a row id is one row, and a row has one row id."""
        known = self.row_ids.setdefault(table.uid, {})
        for k, row_id in found.items():
            assert known.setdefault(row_id, k) == k, f"{where}: row id {row_id} is row {known[row_id]} and row {k}"
        assert len(set(known.values())) == len(known), f"{where}: a row changed its row id: {known}"

    def teardown(self) -> None:
        try:
            if self.sound:
                self._ends_well()
        finally:
            for actor in self.actors:
                actor.lake.spark.catalog.clearCache()
                actor.lake.close()
            if self.actors:
                self.viewer.close()

    def _ends_well(self) -> None:
        for actor in self.actors:
            if actor.tx is not None:
                actor.tx.rollback()
                actor.tx = actor.open = None
        assert {ref.name: ref.commit for ref in self.viewer.branches} == self.heads
        ids = Ids()
        for branch, head in self.heads.items():
            self.viewer.checkout(branch)
            tree = self.commits.tree(head)
            self._check(self.viewer, tree, branch)
            log = self.viewer.log(limit=1000)
            assert {commit.id for commit in log} == self.commits.ancestors(head)
            assert all(commit.parents == self.commits[commit.id].parents for commit in log)
            for name, table in tree.items():
                answer = self.http.get(f"/v1/{self.repo}@{branch}/namespaces/s/tables/{name}")
                assert answer.status == 200, answer
                meta = answer.body["metadata"]
                schema = next(s for s in meta["schemas"] if s["schema-id"] == meta["current-schema-id"])
                assert [f["name"] for f in schema["fields"]] == ["k", "v", *table.columns]
                assert meta["format-version"] == table.format
                ids.note(table.uid, meta)

    def _sql(self, i: int, sql: str) -> None:
        self.actors[i].lake.sql(sql)


class Ids:
    """Over all refs: one id, one thing."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Any] = {}

    def note(self, uid: int, meta: dict[str, Any]) -> None:
        self._same(("table uuid", meta["table-uuid"]), uid)
        for snapshot in meta["snapshots"]:
            self._same(("snapshot id", snapshot["snapshot-id"]), (uid, snapshot))
        for schema in meta["schemas"]:
            for column in schema["fields"]:
                self._same(("field id", uid, column["id"]), (column["name"], column["type"]))

    def _same(self, key: tuple[Any, ...], value: Any) -> None:
        assert self._known.setdefault(key, value) == value, f"{key} stands for {self._known[key]} and for {value}"
