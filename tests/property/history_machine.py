"""Random histories of one lake, played over the server's routes and in a plain model (``lake_model.py``) at once.

Each rule asks the server for something and the model for what must come of it. After each step some places are read
and compared; at the end every ref, every commit of the history and every open transaction is, and the laws that look at
the whole of it: ids, sequence numbers, files that must be there, files that must not be queued for deletion.
"""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import note
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from icefield.store.memory import MemoryStore
from property.lake_model import (
    Commit,
    Commits,
    Entry,
    Key,
    May,
    Merged,
    Op,
    Ref,
    Refused,
    Staged,
    Transaction,
    Tree,
    dotted,
    fresh_state,
    judge,
    land_transaction,
)
from property.laws import Ids, check_table, live_of, reached
from support.inprocess import Inprocess
from support.writer import Engine

Json = dict[str, Any]
ANY = st.integers(0, 119)  # small and with many divisors: picks are even
SPACES = ("a", "b")
TABLES = ("t", "u")
BRANCHES = ("main", "dev", "fix")
SAVEPOINTS = ("s", "s2")
MAX_SESSIONS = 3
MAX_POSTS = 12
DAY_MS = 24 * 3600 * 1000
KINDS = (
    "append",
    "append",
    "append",
    "merging",
    "chain",
    "delta",
    "remove",
    "manifests",
    "rewind",
    "column",
    "partition",
)


ACTIONS = [
    action
    for action, weight in {
        "commits_now": 4,
        "stages": 8,
        "others_commit_to_what_is_staged": 2,
        "overtaken": 3,
        "prepares": 3,
        "posts_kept": 5,
        "posts_elsewhere": 1,
        "commits_several_tables": 2,
        "makes_or_drops_table": 2,
        "renames_table": 1,
        "changes_namespaces": 1,
        "makes_ref": 1,
        "merges_branch": 4,
        "uses_session": 3,
        "begins": 4,
        "sets_savepoint": 2,
        "goes_back_to_savepoint": 2,
        "ends_transaction": 3,
        "asks_again": 1,
        "takes_away": 1,
    }.items()
    for _ in range(weight)
]


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000_000

    def now_ms(self) -> int:
        self.now += 1
        return self.now


class Seeded:
    """The same history makes the same ids."""

    def __init__(self) -> None:
        self._random = random.Random(7)

    def uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def token(self) -> str:
        return f"{self._random.getrandbits(160):040x}"

    def snapshot_id(self) -> int:
        return self._random.getrandbits(63) or 1


@dataclass
class Session:
    id: str
    token: str
    address: str
    ref: str
    view: str
    """The commit that its statements see, once one was marked."""
    transaction: Transaction | None = None
    epoch: int = 0
    marked: bool = False
    flying: dict[int, bool] = field(default_factory=dict)
    """Statements in flight -> is it strict."""
    open: bool = True
    outcomes: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """Transactions that ended: how, and what COMMIT answered."""

    @property
    def path(self) -> str:
        return f"/api/v1/sessions/{self.id}"


Place = str | Session
"""A ref's name, or a session."""


@dataclass
class Post:
    """A commit to one table as its writer made it; posted once, more than once, late or never."""

    place: Place
    key: Key
    op: Op
    body: Json
    token: str | None
    epoch: int
    flying: frozenset[int]
    branch: int
    """The identity of the branch whose ranges were served, and how often it had been merged into."""
    merges: int


class History(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="icefield-history-"))
        self.clock = Clock()
        self.lake = Inprocess(self.folder / "lake", store=MemoryStore(), clock=self.clock, randomness=Seeded())
        self.rng = random.Random(11)
        self.commits = Commits()
        self.refs: dict[str, Ref] = {}
        self.merged_into: dict[int, int] = {}
        self.landed_anywhere: set[tuple[str, int]] = set()
        self.given_up: set[tuple[str, int]] = set()
        """Snapshots that went with a part of an overlay: their files are queued for deletion."""
        self.sessions: list[Session] = []
        self.posts: list[Post] = []
        self.merges: dict[str, tuple[Json, Json]] = {}
        self.numbers = itertools.count(1)
        self.ids = Ids()
        first = self.head_of("main")
        self.commits[first["id"]] = Commit(first["id"], (), {})
        self.refs["main"] = Ref("branch", first["id"], next(self.numbers))
        self.ended = False

    # -- the model's view ---------------------------------------------------------------------------------------------

    @property
    def open_sessions(self) -> list[Session]:
        return [session for session in self.sessions if session.open]

    @property
    def transactions(self) -> list[Transaction]:
        return [s.transaction for s in self.open_sessions if s.transaction is not None]

    def place(self, n: int) -> Place:
        """Branches, sessions and transactions, each as often."""
        branches: list[Place] = [name for name, ref in self.refs.items() if ref.kind == "branch"]
        sessions: list[Place] = [*self.open_sessions]
        inside: list[Place] = [session for session in self.open_sessions if session.transaction is not None]
        return _pick((branches, sessions or branches, inside or branches)[n % 3], n // 3)

    def prefix(self, place: Place) -> str:
        if isinstance(place, Session):
            return place.address
        return "lake" if place == "main" else f"lake@{place}"

    def bearer(self, place: Place) -> str | None:
        return place.token if isinstance(place, Session) else None

    def ref_of(self, place: Place) -> str:
        return place.ref if isinstance(place, Session) else place

    def tree_at(self, place: Place) -> Tree | None:
        """What is seen there; None where the ref is gone."""
        name = self.ref_of(place)
        if name not in self.refs:
            return None
        if isinstance(place, Session):
            if place.transaction is not None:
                return place.transaction.tree(self.commits[place.transaction.base].tree)
            if place.marked:
                return self.commits[place.view].tree
        return self.commits[self.refs[name].commit].tree

    def head_tree(self, place: Place) -> Tree:
        """What a write there is judged by."""
        if isinstance(place, Session) and place.transaction is not None:
            return place.transaction.tree(self.commits[place.transaction.base].tree)
        return self.commits[self.refs[self.ref_of(place)].commit].tree

    def landed_at(self, place: Place) -> set[tuple[str, int]]:
        if isinstance(place, Session) and place.transaction is not None:
            return place.transaction.landed
        return self.refs[self.ref_of(place)].landed

    def writable(self, place: Place) -> bool:
        return self.refs[self.ref_of(place)].kind == "branch"

    # -- asking and taking note ---------------------------------------------------------------------------------------

    def head_of(self, ref: str) -> Json:
        answer = self.lake.get(f"/api/v1/repos/lake/log?ref={ref}&limit=1")
        assert answer.status == 200, answer
        found: Json = answer.body["commits"][0]
        return found

    def unmoved(self, place: Place) -> None:
        name = self.ref_of(place)
        if name in self.refs:
            assert self.head_of(name)["id"] == self.refs[name].commit, f"{name} moved"

    def wrote(self, place: Place, tree: Tree, ops: Sequence[tuple[str, Op]] = ()) -> None:
        """A write was accepted there: it is staged, or has become one commit on the branch."""
        if isinstance(place, Session) and place.transaction is not None:
            place.transaction.staged.append(Staged(dict(tree), tuple(ops)))
            self.unmoved(place)
            return
        name = self.ref_of(place)
        self.new_head(name, tree, merged=None)
        self.note_landed(name, {(uid, id_) for uid, op in ops for id_ in op.snapshots})
        if isinstance(place, Session):
            place.view = self.refs[name].commit

    def note_landed(self, name: str, snapshots: set[tuple[str, int]]) -> None:
        self.refs[name].landed |= snapshots
        self.landed_anywhere |= snapshots

    def new_head(self, name: str, tree: Tree, merged: str | None) -> None:
        ref = self.refs[name]
        head = self.head_of(name)
        assert head["id"] not in self.commits, "one write, one new commit"
        assert head["parents"] == [ref.commit, *([merged] if merged else [])]
        self.commits[head["id"]] = Commit(head["id"], tuple(head["parents"]), dict(tree))
        ref.commit = head["id"]

    def gate(self, place: Place, *, table_commit: bool, post: Post | None = None) -> tuple[int, str] | None:
        """Why a write is refused before anybody looks at it: status and reason."""
        if isinstance(place, Session) and not place.open:
            return 401, "the session has ended"
        if self.ref_of(place) not in self.refs:
            return 404, "the ref is gone"
        if not self.writable(place):
            return 403, "tags are read-only"
        if not isinstance(place, Session):
            return None
        if post is not None and post.epoch != place.epoch:
            return 400, "of an earlier epoch"
        if place.marked and table_commit and not (post is not None and post.flying & set(place.flying)):
            return 400, "its statement has returned, or there was none"
        if place.marked and not table_commit and not place.flying:
            return 400, "no statement in flight"
        return None

    # -- the rule -----------------------------------------------------------------------------------------------------

    @rule(action=st.sampled_from(ACTIONS), at=ANY, n=ANY, m=ANY)
    def step(self, action: str, at: int, n: int, m: int) -> None:
        """One rule for all actions: hypothesis leaves whole rules out of an example, and long stories need them all."""
        getattr(self, action)(at, n, m)

    # -- namespaces and tables ----------------------------------------------------------------------------------------

    @initialize(version=st.sampled_from((2, 3)))
    def begin_history(self, version: int) -> None:
        self.create_namespace("main", "a")
        for name, its_version in (("t", version), ("u", 5 - version)):
            self.create_table("main", ("a", name), its_version)
            self.deliver(self.prepared("main", ("a", name), "append", 3))
        self.make_ref("branch", "dev", 0)
        self.open_session("main")

    def create_namespace(self, place: Place, name: str) -> None:
        answer = self.lake.post(f"/v1/{self.prefix(place)}/namespaces", {"namespace": [name]}, token=self.bearer(place))
        stopped = self.gate(place, table_commit=False)
        if stopped:
            return self.refused(place, answer, *stopped)
        tree = self.head_tree(place)
        if (name,) in tree:
            return self.refused(place, answer, 409, "there already")
        assert answer.status == 200, answer
        return self.wrote(place, {**tree, (name,): Entry(f"ns-{next(self.numbers)}", fresh_state())})

    def changes_namespaces(self, at: int, n: int, m: int) -> None:
        place, name = self.place(at), _pick(SPACES, n)
        if m % 2:
            return self.create_namespace(place, name)
        answer = self.lake.delete(f"/v1/{self.prefix(place)}/namespaces/{name}", token=self.bearer(place))
        stopped = self.gate(place, table_commit=False)
        if stopped:
            return self.refused(place, answer, *stopped)
        tree = self.head_tree(place)
        if (name,) not in tree:
            return self.refused(place, answer, 404, "no such namespace")
        if any(len(key) > 1 and key[0] == name for key in tree):
            return self.refused(place, answer, 409, "not empty")
        assert answer.status == 204, answer
        return self.wrote(place, {key: entry for key, entry in tree.items() if key != (name,)})

    def create_table(self, place: Place, key: Key, version: int) -> None:
        tree = self.tree_at(place)
        engine = self.engine(place, key)
        answer = engine.create(version=version)
        stopped = self.gate(place, table_commit=False)
        if stopped:
            return self.refused(place, answer, *stopped)
        tree = self.head_tree(place)
        if key[:-1] not in tree:
            return self.refused(place, answer, 404, "no such namespace")
        if key in tree:
            return self.refused(place, answer, 409, "there already")
        assert answer.status == 200, answer
        created = Entry(answer.body["metadata"]["table-uuid"], fresh_state(), version, ("id", "s"))
        return self.wrote(place, {**tree, key: created})

    def makes_or_drops_table(self, at: int, n: int, m: int) -> None:
        place = self.place(at)
        key = _pick([(space, name) for space in SPACES for name in TABLES], n)
        if m % 3:
            return self.create_table(place, key, 2 + m % 2)
        there = sorted(k for k in self.tree_at(place) or {} if len(k) > 1)
        key = _pick(there, n) if there and n % 4 else key
        purge = "?purgeRequested=true" if m % 2 else ""
        answer = self.lake.delete(self.engine(place, key).path + purge, token=self.bearer(place))
        stopped = self.gate(place, table_commit=False)
        if stopped:
            return self.refused(place, answer, *stopped)
        tree = self.head_tree(place)
        if key not in tree:
            return self.refused(place, answer, 404, "no such table")
        assert answer.status == 204, answer
        return self.wrote(place, {k: entry for k, entry in tree.items() if k != key})

    def renames_table(self, at: int, n: int, m: int) -> None:
        place = self.place(at)
        keys = [(space, name) for space in SPACES for name in TABLES]
        source = _pick([k for k in keys if k in (self.tree_at(place) or {})] or keys, n)
        target = _pick(keys, m)
        body = {
            "source": {"namespace": [source[0]], "name": source[1]},
            "destination": {"namespace": [target[0]], "name": target[1]},
        }
        answer = self.lake.post(f"/v1/{self.prefix(place)}/tables/rename", body, token=self.bearer(place))
        stopped = self.gate(place, table_commit=False)
        if stopped:
            return self.refused(place, answer, *stopped)
        tree = self.head_tree(place)
        if source not in tree or target[:-1] not in tree:
            return self.refused(place, answer, 404, "no such table or namespace")
        if source == target:
            assert answer.status == 204, answer
            return self.unmoved(place)
        if target in tree:
            return self.refused(place, answer, 409, "there already")
        assert answer.status == 204, answer
        return self.wrote(place, {target if k == source else k: entry for k, entry in tree.items()})

    # -- commits to tables --------------------------------------------------------------------------------------------

    def engine(self, place: Place, key: Key) -> Engine:
        return Engine(self.lake, self.prefix(place), key[0], key[1], token=self.bearer(place), rng=self.rng)

    def prepared(self, place: Place, key: Key, kind: str, n: int) -> Post | None:
        """Loads the table there and makes a commit of this kind for it; None where that kind makes no sense."""
        tree = self.tree_at(place)
        assert tree is not None
        base = tree[key]
        engine = self.engine(place, key)
        meta = engine.load()
        body: Json | None = None
        snapshots: list[Json] = []
        target: int | None = None
        name = ""
        sizes = [n % 3 + 1, n % 5 + 1][: n % 2 + 1]
        if kind in ("append", "merging"):
            snapshots = [engine.append(meta, *sizes, merge=2 if kind == "merging" else 0)]
        elif kind == "chain":
            first = engine.append(meta, *sizes)
            after = engine.commit({"format-version": base.format, **meta}, first)
            snapshots = [first, engine.append(after, n % 4 + 1)]
        elif kind == "delta" and base.files:
            snapshots = [engine.row_delta(meta, 1)]
        elif kind == "remove":
            paths = sorted(path for path, live in live_of(engine, meta).items() if live.content == 0)
            if paths:
                snapshots = [engine.delete(meta, _pick(paths, n))]
        elif kind == "manifests" and base.files:
            snapshots = [engine.merge_only(meta)]
        elif kind == "rewind" and len(base.past) > 1:
            target = _pick(base.lineage[:-1], n)
            body = engine.body(meta)
            body["updates"] = [
                {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": target}
            ]
        elif kind == "column":
            name = f"c{next(self.numbers)}"
            body = _adds_column(meta, name, ("int", "string", "double")[n % 3])
        elif kind == "partition":
            name = f"p{next(self.numbers)}"
            body = _adds_partition(meta, name, n % 50 + 2)
        if snapshots:
            body = engine.body(meta, *snapshots)
        if body is None:
            return None
        op = _op(kind, base, engine, meta, snapshots, target, name)
        ref = self.refs[self.ref_of(place)]
        return Post(
            place,
            key,
            op,
            body,
            engine.load_token or engine.token,
            place.epoch if isinstance(place, Session) else 0,
            frozenset(place.flying) if isinstance(place, Session) else frozenset(),
            ref.uid,
            self.merged_into.get(ref.uid, 0),
        )

    def verdict(self, post: Post) -> Entry | Refused | str:
        """What must become of it now: the table after it, a conflict, or ``landed``, ``missing``, ``either``."""
        place = post.place
        tree = self.head_tree(place)
        now = tree.get(post.key)
        if now is None:
            return "missing"
        branch = self.refs[self.ref_of(place)]
        posted = {(now.uid, id_) for id_ in post.op.snapshots}
        if posted and posted <= self.landed_at(place):
            return "landed"
        if now.uid == post.op.base.uid and posted & self.landed_anywhere:
            return Refused("this snapshot id is another ref's: it never names two contents")
        if posted & self.given_up:
            return Refused("its files were given up with the transaction that wrote them")
        if post.op.kind in ("column", "partition") and now.uid == post.op.base.uid:
            if branch.uid != post.branch:
                return Refused("these ids were served by a branch that is gone")
            in_transaction = isinstance(place, Session) and place.transaction is not None
            if in_transaction and self.merged_into.get(branch.uid, 0) != post.merges:
                # The branch's range was perhaps renewed, and the transaction borrows from it.
                return "either"
        op = post.op
        if isinstance(place, Session) and any(place.flying[n] for n in post.flying & set(place.flying)):
            op = _strict(op)
            seen = next((e for e in (self.tree_at(place) or {}).values() if e.uid == now.uid), None)
            moved = (seen and (seen.snapshot, seen.columns)) != (now.snapshot, now.columns)
            if place.transaction is None and now.uid == op.base.uid and moved:
                return Refused("a strict write, and the table has moved from what its statement sees")
        if op.links and now.uid == op.base.uid and set(op.base.columns) - set(now.columns):
            return "misfit"  # made at another ref, with columns that this one does not have
        verdict = judge(op, now)
        assert not isinstance(verdict, May)
        return verdict

    def deliver(self, *posts: Post | None) -> None:
        """One POST of one table's commit, or of several tables' at once."""
        told = [post for post in posts if post is not None]
        if not told:
            return None
        place = told[0].place
        if len(told) == 1:
            path, body = self.engine(place, told[0].key).path, told[0].body
        else:
            path = f"/v1/{self.prefix(place)}/transactions/commit"
            body = {
                "table-changes": [
                    {"identifier": {"namespace": [post.key[0]], "name": post.key[1]}, **post.body} for post in told
                ]
            }
        answer = self.lake.post(path, body, token=told[0].token)
        note(f"  {[(p.op.kind, dotted(p.key)) for p in told]} at {self.prefix(place)} -> {answer.status}")
        stopped = self.gate(place, table_commit=True, post=told[0])
        if stopped:
            return self.refused(place, answer, *stopped)
        verdicts = [self.verdict(post) for post in told]
        note(f"  must be: {[v if isinstance(v, (str, Refused)) else 'lands' for v in verdicts]}")
        if "missing" in verdicts:
            return self.refused(place, answer, 404, "no such table")
        if "misfit" in verdicts:
            assert answer.status in (400, 409), answer
            return self.refused(place, answer, answer.status, "written with a schema that this ref does not have")
        conflicting = [p for p, v in zip(told, verdicts, strict=True) if isinstance(v, Refused)]
        conflict = 400 if isinstance(place, Session) else 409
        if conflicting:
            self.refused(place, answer, conflict, str(verdicts))
            named = {c["entry"] for c in answer.error["conflicts"]}
            sure = {dotted(p.key) for p in conflicting}
            unsure = {dotted(p.key) for p, v in zip(told, verdicts, strict=True) if v == "either"}
            assert sure <= named <= sure | unsure, f"{named} named, {sure} conflict"
            return None
        if "either" in verdicts and answer.status == conflict:
            return self.refused(place, answer, conflict, "may be refused")
        assert answer.status in (200, 204), answer
        tree = dict(self.head_tree(place))
        ops = []
        for post, verdict in zip(told, verdicts, strict=True):
            if verdict == "landed":
                continue
            now = tree[post.key]
            tree[post.key] = post.op.apply(now) if verdict == "either" else verdict  # type: ignore[assignment]
            strict = isinstance(place, Session) and any(place.flying[n] for n in post.flying & set(place.flying))
            ops.append((now.uid, _strict(post.op) if strict else post.op))
        if ops:
            self.wrote(place, tree, ops)
        else:
            self.unmoved(place)
            self.answered(place)
        return None

    def answered(self, place: Place) -> None:
        """A retry of what landed before. The session may see the head after it, as after its own commit."""
        if isinstance(place, Session) and place.transaction is None:
            sees = self.lake.get(place.path, token=place.token).body["commit"]
            assert not place.marked or sees in (place.view, self.refs[place.ref].commit)
            place.view = sees

    def commits_now(self, at: int, n: int, m: int) -> None:
        """Load, write, post."""
        self.commit_now(self.place(at), n, _pick(KINDS, m))

    def stages(self, at: int, n: int, m: int) -> None:
        """Inside a transaction."""
        if at % 4 == 0:
            return self.overtaken(3 * at + 2, n, m)
        return self.commit_now(self.place(3 * at + 2), n, _pick(KINDS, m))

    def others_commit_to_what_is_staged(self, at: int, n: int, m: int) -> None:
        if not self.transactions:
            return
        transaction = _pick(self.transactions, at)
        tree = self.commits[transaction.base].tree
        touched = {uid for staged in transaction.staged for uid, _ in staged.ops}
        names = [key for key, entry in self.head_tree(transaction.branch).items() if entry.uid in touched]
        if names and touched & {entry.uid for entry in tree.values()}:
            self.deliver(self.prepared(transaction.branch, _pick(names, n), _pick(KINDS, m), n))

    def commit_now(self, place: Place, n: int, kind: str) -> None:
        table = self.some_table(place, n)
        if table is None:
            return
        number = self.maybe_mark(place, n)
        post = self.prepared(place, table, kind, n) if table in (self.tree_at(place) or {}) else None
        self.deliver(post)
        if post is not None and n % 3 == 0:
            self.keep(post)
        if number is not None:
            self.returned(place, number)  # type: ignore[arg-type]

    def overtaken(self, at: int, n: int, m: int) -> None:
        """Two writers load the same table; the second to post was overtaken."""
        place = self.place(at)
        table = self.some_table(place, n)
        if table is None:
            return
        slow = self.prepared(place, table, _pick(KINDS, m), n)
        fast = self.prepared(place, table, _pick(KINDS, m // len(KINDS) + n), n + 1)
        self.deliver(fast)
        self.deliver(slow)
        if slow is not None:
            self.keep(slow)

    def prepares(self, at: int, n: int, m: int) -> None:
        """Loads and writes; posts later, when the table may have moved."""
        place = self.place(at)
        table = self.some_table(place, n)
        if table is not None:
            post = self.prepared(place, table, _pick(KINDS, m), n)
            if post is not None:
                self.keep(post)

    def posts_kept(self, at: int, n: int, m: int) -> None:
        """First time, again, or too late."""
        if self.posts:
            self.deliver(_pick(self.posts[-3:] if m % 2 else self.posts, n))

    def posts_elsewhere(self, at: int, n: int, m: int) -> None:
        """A commit that was made at one ref is posted at another: an id never names two contents."""
        if self.posts:
            post = _pick(self.posts, n)
            branches = [name for name, ref in self.refs.items() if ref.kind == "branch" and name != post.place]
            if branches:
                self.deliver(replace(post, place=_pick(branches, m), token=None, epoch=0, flying=frozenset()))

    def commits_several_tables(self, at: int, n: int, m: int) -> None:
        if m % 3 == 0:
            self.post_kept_together(n)
            return
        place = self.place(at)
        number = self.maybe_mark(place, n)
        tables = sorted(key for key in self.tree_at(place) or {} if len(key) > 1)
        posts = [self.prepared(place, key, _pick(KINDS, m + n * i), n) for i, key in enumerate(tables)]
        self.deliver(*posts)
        if number is not None:
            self.returned(place, number)  # type: ignore[arg-type]

    def post_kept_together(self, n: int) -> None:
        """Stale and retried commits of several tables in one."""
        if not self.posts:
            return
        first = _pick(self.posts, n)
        chosen = {first.key: first}
        for post in self.posts:
            same = post.place == first.place and post.epoch == first.epoch and post.token == first.token
            if same and not isinstance(post.place, Session):
                chosen.setdefault(post.key, post)
        self.deliver(*chosen.values())

    def some_table(self, place: Place, n: int) -> Key | None:
        tables = sorted(key for key in self.tree_at(place) or {} if len(key) > 1)
        return _pick(tables, n) if tables else None

    def keep(self, post: Post) -> None:
        self.posts.append(post)
        del self.posts[:-MAX_POSTS]

    # -- branches, tags, merges ---------------------------------------------------------------------------------------

    def makes_ref(self, at: int, n: int, m: int) -> None:
        if n % 3:
            self.make_ref("branch", _pick(BRANCHES[1:], at), m)
        else:
            self.make_ref("tag", "v1", m)

    def make_ref(self, kind: str, name: str, source: int) -> None:
        start = _pick(list(self.refs), source)
        word = "branches" if kind == "branch" else "tags"
        answer = self.lake.post(f"/api/v1/repos/lake/{word}", {"name": name, "from": start})
        if name in self.refs:
            assert answer.status == 409, answer
            return
        assert answer.status == 200, answer
        assert answer.body["commit"] == self.refs[start].commit
        self.refs[name] = Ref(kind, self.refs[start].commit, next(self.numbers))

    def drops_ref(self, n: int) -> None:
        name = _pick(list(self.refs), n)
        kind = self.refs[name].kind
        if any(session.transaction is not None and session.ref == name for session in self.open_sessions):
            return  # tests/rest/test_branches.py tells what then holds
        answer = self.lake.delete(f"/api/v1/repos/lake/{'branches' if kind == 'branch' else 'tags'}/{name}")
        if name == "main":
            assert answer.status == 400, answer
            return
        assert answer.status == 200, answer
        del self.refs[name]

    def merges_branch(self, at: int, n: int, m: int) -> None:
        target = _pick([name for name, ref in self.refs.items() if ref.kind == "branch"], at)
        other = _pick([name for name in self.refs if name != target] or [target], n)
        body: Json = {"from": other, "into": target, "id": f"merge-{next(self.numbers)}"}
        path = "/api/v1/repos/lake/merge"
        trial = self.lake.post(path, {**body, "dry-run": True}) if m % 4 == 0 else None
        self.unmoved(target)
        answer = self.lake.post(path, body)
        ours, theirs = self.refs[target].commit, self.refs[other].commit
        note(f"  merge {other} into {target} -> {answer}")
        if theirs in self.commits.ancestors(ours):
            expected = "nothing-to-do"
        elif ours in self.commits.ancestors(theirs):
            expected = "fast-forward"
            self.refs[target].commit = theirs
        else:
            expected = "merged"
            merged = self.commits.merge(ours, theirs)
            if answer.status == 409:
                self.check_conflicts(answer, merged)
                self.unmoved(target)
                assert trial is None or trial.status == 409
                return
            assert not merged.conflicts, f"must not land: {merged.conflicts}"
            assert answer.status == 200, answer
            self.new_head(target, merged.tree, merged=theirs)
        assert answer.status == 200, answer
        assert answer.body["result"] == expected, answer
        assert answer.body["commit"] == self.refs[target].commit == self.head_of(target)["id"]
        assert trial is None or trial.body["result"] == expected
        self.merged_into[self.refs[target].uid] = self.merged_into.get(self.refs[target].uid, 0) + 1
        self.merges[body["id"]] = (body, answer.body)

    def merges_again(self, n: int) -> None:
        """The answer was lost: asked for again, a merge answers its first outcome."""
        if self.merges:
            body, told = _pick(list(self.merges.values()), n)
            answer = self.lake.post("/api/v1/repos/lake/merge", body)
            assert answer.body == told, answer
            self.unmoved(body["into"])

    def check_conflicts(self, answer: Any, merged: Merged) -> None:
        assert merged.conflicts or merged.may, f"nothing stands against this: {answer}"
        named = {conflict["entry"] for conflict in answer.error["conflicts"]}
        assert named, answer
        for names in merged.conflicts:
            assert names & named, f"all conflicts at once: none of {set(names)} is among {named}"
        if not merged.may:
            told = frozenset().union(*merged.conflicts)
            assert named <= told, f"{named - told} does not conflict"

    # -- sessions and transactions ------------------------------------------------------------------------------------

    def uses_session(self, at: int, n: int, m: int) -> None:
        what = _pick(("open", "checkout", "mark", "return", "return"), at)
        if what == "open":
            self.opens_session(n)
        elif what == "checkout":
            self.checks_out(n, m)
        elif what == "mark":
            self.marks(n, strict=m % 3 == 0)
        else:
            self.returns(n)

    def opens_session(self, n: int) -> None:
        if len(self.open_sessions) < MAX_SESSIONS:
            self.open_session(_pick(list(self.refs), n))

    def open_session(self, ref: str) -> None:
        told = self.lake.post("/api/v1/sessions", {"ref": ref, "lease-ms": DAY_MS}).body
        assert told["commit"] == self.refs[ref].commit
        self.sessions.append(Session(told["id"], told["token"], told["address"], ref, told["commit"]))

    def ask(self, session: Session, verb: str, body: Json | None = None) -> Any:
        return self.lake.post(f"{session.path}/{verb}", body, token=session.token)

    def some_session(self, n: int) -> Session | None:
        return _pick(self.open_sessions, n) if self.open_sessions else None

    def checks_out(self, n: int, to: int) -> None:
        session = self.some_session(n)
        if session is None:
            return None
        ref = _pick(list(self.refs), to)
        answer = self.ask(session, "checkout", {"ref": ref})
        if session.transaction is not None or session.flying:
            return self.refused(session, answer, 400, "in a transaction, or a statement in flight")
        assert answer.status == 200, answer
        session.ref, session.view = ref, self.refs[ref].commit
        session.epoch += 1
        return None

    def maybe_mark(self, place: Place, n: int) -> int | None:
        """Well-behaved engines mark their statements."""
        if not isinstance(place, Session) or n % 4 == 0 or not (place.marked or n % 4 == 1) or place.flying:
            return None
        return self.mark(place, strict=n % 5 == 0)

    def mark(self, session: Session, *, strict: bool) -> int | None:
        answer = self.ask(session, "statements", {"strict": strict})
        if session.ref not in self.refs and not session.flying and session.transaction is None:
            assert answer.status == 404, answer
            return None
        assert answer.status == 200, answer
        if not session.flying and session.transaction is None:
            moved = session.view != self.refs[session.ref].commit
            assert answer.body["moved"] == moved or not session.marked
            session.view = self.refs[session.ref].commit
        session.marked = True
        number: int = answer.body["statement"]
        session.flying[number] = strict
        return number

    def returned(self, session: Session, number: int) -> None:
        answer = self.lake.delete(f"{session.path}/statements/{number}", token=session.token)
        assert answer.status == 200, answer
        session.flying.pop(number, None)

    def marks(self, n: int, strict: bool) -> None:
        session = self.some_session(n)
        if session is not None:
            self.mark(session, strict=strict)

    def returns(self, n: int) -> None:
        flying = [session for session in self.open_sessions if session.flying]
        if flying:
            session = _pick(flying, n)
            self.returned(session, _pick(sorted(session.flying), n))

    def begins(self, at: int, n: int, m: int) -> None:
        if not self.open_sessions:
            self.open_session("main")
        idle = [session for session in self.open_sessions if session.transaction is None and not session.flying]
        session = _pick(self.open_sessions if n % 8 == 0 else idle or self.open_sessions, n)
        if session.ref not in self.refs:
            return None
        answer = self.ask(session, "begin", {"message": "a transaction"})
        if session.transaction is not None or session.flying:
            return self.refused(session, answer, 400, "in a transaction, or a statement in flight")
        if self.refs[session.ref].kind == "tag":
            return self.refused(session, answer, 403, "tags are read-only")
        assert answer.status == 200, answer
        base = self.refs[session.ref].commit
        assert answer.body["base"] == base
        session.transaction = Transaction(answer.body["transaction"], session.ref, base)
        session.view = base
        session.epoch += 1
        return None

    def in_transaction(self, n: int) -> Session | None:
        found = [session for session in self.open_sessions if session.transaction is not None]
        return _pick(found, n) if found else None

    def sets_savepoint(self, at: int, n: int, m: int) -> None:
        session = self.in_transaction(n)
        if session is not None:
            self.set_savepoint(session, _pick(SAVEPOINTS, m))

    def set_savepoint(self, session: Session, name: str) -> None:
        assert session.transaction is not None
        answer = self.ask(session, "savepoints", {"name": name})
        if session.flying:
            return self.refused(session, answer, 400, "a statement in flight")
        assert answer.status == 200, answer
        session.transaction.savepoints.append((name, len(session.transaction.staged)))
        return None

    def goes_back_to_savepoint(self, at: int, n: int, m: int) -> None:
        """ROLLBACK TO, or RELEASE. The newest of a name counts."""
        name, release = _pick(SAVEPOINTS, m), at % 6 == 0
        session = self.in_transaction(n)
        if session is None:
            return None
        transaction = session.transaction
        assert transaction is not None
        if not transaction.savepoints and not session.flying and at % 2:
            # Left to chance, this story is rare: a savepoint, a change, and back.
            self.set_savepoint(session, name)
            self.commit_now(session, n, "append" if m % 3 else _pick(KINDS, n))
        if release:
            answer = self.lake.delete(f"{session.path}/savepoints/{name}", token=session.token)
        else:
            answer = self.ask(session, f"savepoints/{name}/rollback")
        if session.flying:
            return self.refused(session, answer, 400, "a statement in flight")
        depths = [depth for depth, point in enumerate(transaction.savepoints) if point[0] == name]
        if not depths:
            return self.refused(session, answer, 404, "no such savepoint")
        assert answer.status == 200, answer
        if release:
            del transaction.savepoints[depths[-1] :]
        else:
            kept = transaction.savepoints[depths[-1]][1]
            self.give_up(transaction.staged[kept:])
            del transaction.staged[kept:]
            del transaction.savepoints[depths[-1] + 1 :]
            session.epoch += 1
        return None

    def roll_back(self, n: int) -> None:
        session = self.in_transaction(n)
        if session is None:
            return
        assert session.transaction is not None
        answer = self.ask(session, "rollback")
        assert answer.status == 200, answer
        session.outcomes[session.transaction.id] = ("rolled-back", None)
        self.give_up(session.transaction.staged)
        self.left(session)

    def give_up(self, staged: Iterable[Staged]) -> None:
        self.given_up |= {(uid, id_) for each in staged for uid, op in each.ops for id_ in op.snapshots}

    def left(self, session: Session) -> None:
        session.transaction = None
        session.epoch += 1
        session.view = self.refs[session.ref].commit
        assert self.ask(session, "rollback").status == 200, "asked again, it has been done"

    def ends_transaction(self, at: int, n: int, m: int) -> None:
        if m % 4 == 0:
            return self.roll_back(n)
        session = self.in_transaction(n)
        if session is None:
            return None
        transaction = session.transaction
        assert transaction is not None
        answer = self.ask(session, "commit", {"transaction-id": transaction.id})
        note(f"  COMMIT -> {answer}")
        if session.flying:
            return self.refused(session, answer, 400, "a statement in flight")
        name = session.ref
        head = self.refs[name].commit
        base_tree, head_tree = self.commits[transaction.base].tree, self.commits[head].tree
        merged = land_transaction(transaction, base_tree, head_tree)
        tables = {entry.uid: dotted(key) for key, entry in transaction.tree(base_tree).items()}
        for uid, _ in transaction.landed & self.landed_anywhere:
            if uid in tables:
                merged.conflicts.append(frozenset({tables[uid], *by_name(head_tree, uid)}))
        if answer.status == 409:
            self.check_conflicts(answer, merged)
            self.unmoved(name)
            session.outcomes[transaction.id] = ("failed", answer.error["conflicts"])
            self.give_up(transaction.staged)
        else:
            assert answer.status == 200, answer
            assert not merged.conflicts, f"must not land: {merged.conflicts}"
            assert answer.body["result"] == ("committed" if transaction.staged else "nothing-to-do")
            if self.head_of(name)["id"] == head:
                assert merged.tree == head_tree, "nothing landed"
            else:
                assert transaction.staged
                self.new_head(name, merged.tree, merged=None)
            assert answer.body["commit"] == self.refs[name].commit
            self.note_landed(name, transaction.landed)
            session.outcomes[transaction.id] = ("committed", answer.body)
        self.left(session)
        return None

    def commits_again(self, n: int, m: int) -> None:
        """The answer was lost: COMMIT by the transaction's id answers the first outcome."""
        asked = [session for session in self.open_sessions if session.outcomes]
        if not asked:
            return
        session = _pick(asked, n)
        id_ = _pick(list(session.outcomes), m)
        how, told = session.outcomes[id_]
        state = self.lake.get(f"/api/v1/transactions/{id_}", token=session.token)
        assert state.body["state"] == how, state
        answer = self.ask(session, "commit", {"transaction-id": id_})
        if how == "committed":
            assert answer.body == told, answer
        elif how == "failed":
            assert (answer.status, answer.error["conflicts"]) == (409, told), answer
        else:
            assert answer.status == 400, answer
        if session.ref in self.refs:
            self.unmoved(session)

    def closes_session(self, n: int) -> None:
        session = self.some_session(n)
        if session is not None:
            assert self.lake.delete(session.path, token=session.token).status == 200
            self.give_up(session.transaction.staged if session.transaction is not None else ())
            session.open, session.transaction = False, None

    def leases_run_out(self, n: int) -> None:
        if n % 2 or not self.open_sessions:
            return
        self.clock.now += DAY_MS + 1
        survivor = _pick(self.open_sessions, n // 2)
        assert self.ask(survivor, "heartbeat").status == 404, "too late"
        self.lake.application.sessions.sweep()
        for session in self.open_sessions:
            self.give_up(session.transaction.staged if session.transaction is not None else ())
            session.open, session.transaction = False, None

    def asks_again(self, at: int, n: int, m: int) -> None:
        self.commits_again(n, m)
        self.merges_again(m)

    def takes_away(self, at: int, n: int, m: int) -> None:
        _pick((self.drops_ref, self.closes_session, self.leases_run_out), at)(n)

    # -- reading ------------------------------------------------------------------------------------------------------

    def refused(self, place: Place, answer: Any, status: int, why: str) -> None:
        assert answer.status == status, f"must be refused, {status}: {why}; the server said {answer}"
        assert answer.error["message"], "an error says what is wrong"
        self.unmoved(place)

    def compare(self, place: Place) -> list[tuple[Json, Json, str]]:
        """Everything that is seen there is what the model sees; answers the tables' metadata."""
        tree = self.tree_at(place)
        prefix, token = self.prefix(place), self.bearer(place)
        if tree is None:
            assert self.lake.get(f"/v1/{prefix}/namespaces", token=token).status == 404
            return []
        return self.compare_tree(prefix, token, tree)

    def compare_tree(self, prefix: str, token: str | None, tree: Tree) -> list[tuple[Json, Json, str]]:
        found: list[tuple[Json, Json, str]] = []
        answer = self.lake.get(f"/v1/{prefix}/namespaces", token=token)
        assert answer.status == 200, answer
        spaces = sorted(key[0] for key in tree if len(key) == 1)
        assert [n[0] for n in answer.body["namespaces"]] == spaces, f"namespaces at {prefix}"
        for space in spaces:
            listed = self.lake.get(f"/v1/{prefix}/namespaces/{space}/tables", token=token).body["identifiers"]
            tables = sorted(key for key in tree if len(key) > 1 and key[0] == space)
            assert [(space, i["name"]) for i in listed] == tables, f"tables in {space} at {prefix}"
            for key in tables:
                answer = self.lake.get(f"/v1/{prefix}/namespaces/{space}/tables/{key[1]}", token=token)
                assert answer.status == 200, answer
                engine = Engine(self.lake, prefix, space, key[1], token=token)
                live = check_table(engine, answer.body["metadata"], tree[key], f"{dotted(key)} at {prefix}")
                found.append((answer.body["metadata"], live, answer.body["metadata-location"]))
        return found

    @invariant()
    def some_places_agree(self) -> None:
        if not self.refs or self.ended:
            return
        n = next(self.numbers)
        names: list[Place] = [*self.refs]
        for place in (_pick(names, n), *self.open_sessions[n % 3 : n % 3 + 1]):
            tables = self.compare(place)
            if not isinstance(place, Session):
                for metadata, live, _ in tables:
                    self.ids.note(metadata, live)

    def teardown(self) -> None:
        try:
            self.ended = True
            self.check_all()
        finally:
            self.lake.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def check_all(self) -> None:
        held: set[str] = set()
        for name, ref in self.refs.items():
            for metadata, live, location in self.compare(name):
                self.ids.note(metadata, live)
                held |= reached(self.lake, metadata, live, location)
            assert self.head_of(name)["id"] == ref.commit
        for commit in self.commits.values():
            tables = self.compare_tree(f"lake@{commit.id}", None, commit.tree)
            for metadata, live, location in tables:
                self.ids.note(metadata, live)
                held |= reached(self.lake, metadata, live, location)
        for session in self.open_sessions:
            for metadata, live, location in self.compare(session):
                self.ids.note_open(metadata, live)
                held |= reached(self.lake, metadata, live, location) - {location}
                # An overlay's metadata file is queued at its birth, for the time after the transaction.
        queued = self.lake.get("/api/v1/repos/lake/deletions").body["files"]
        wrong = [f"{each['location']} ({each['reason']})" for each in queued if each["location"] in held]
        assert not wrong, f"reachable files are queued for deletion: {wrong}"


def _pick(items: Sequence[Any], n: int) -> Any:
    return items[n % len(items)]


def by_name(tree: Tree, uid: str) -> list[str]:
    return [dotted(key) for key, entry in tree.items() if entry.uid == uid]


def _strict(op: Op) -> Op:
    return replace(op, strict=True)


def _op(
    kind: str, base: Entry, engine: Engine, meta: Json, snapshots: Iterable[Json], target: int | None, name: str
) -> Op:
    """Read from the files that the writer wrote, not from what it meant to write."""
    links = []
    live = set(base.files)
    removed: set[str] = set()
    for snapshot in snapshots:
        told: Mapping[str, Any] = live_of(
            engine, {**meta, "snapshots": [snapshot], "refs": _main(snapshot), "last-sequence-number": 2**62}
        )
        links.append((snapshot["snapshot-id"], frozenset(set(told) - live)))
        removed |= live - set(told)
        live = set(told)
    word = {"append": "append", "merging": "append", "chain": "append"}.get(kind, "other" if links else kind)
    return Op(word, base, tuple(links), frozenset(removed), target, name)


def _main(snapshot: Json) -> Json:
    return {"main": {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}}


def _adds_column(meta: Json, name: str, type_: str) -> Json:
    current = next(s for s in meta["schemas"] if s["schema-id"] == meta["current-schema-id"])
    added = {"id": meta["last-column-id"] + 1, "name": name, "required": False, "type": type_}
    schema = {**current, "schema-id": len(meta["schemas"]), "fields": [*current["fields"], added]}
    return {
        "requirements": [
            {"type": "assert-table-uuid", "uuid": meta["table-uuid"]},
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": meta["last-column-id"]},
        ],
        "updates": [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}],
    }


def _adds_partition(meta: Json, name: str, buckets: int) -> Json:
    current = next(s for s in meta["partition-specs"] if s["spec-id"] == meta["default-spec-id"])
    last = meta["last-partition-id"]
    added = {"source-id": 1, "field-id": last + 1, "name": name, "transform": f"bucket[{buckets}]"}
    spec = {"spec-id": len(meta["partition-specs"]), "fields": [*current["fields"], added]}
    return {
        "requirements": [
            {"type": "assert-table-uuid", "uuid": meta["table-uuid"]},
            {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": last},
        ],
        "updates": [{"action": "add-spec", "spec": spec}, {"action": "set-default-spec", "spec-id": -1}],
    }
