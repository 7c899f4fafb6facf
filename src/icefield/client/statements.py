"""Statements as the server must know them: each sees one commit for all its tables.

Everything that PySpark lets Spark do passes Py4J's ``send_command``, as text: ``c``, target, method, arguments. The
hook here stands in that place. The outermost call of a thread that does work (loads tables, runs a job, writes) is one
statement: it is marked before and reported after. What is called inside it is part of it.

Three things follow from the server moving a session's ref while Spark remembers:

- What Spark has cached (``df.cache()``, CACHE TABLE) is refreshed when the ref has moved, before the statement runs;
  else it would serve another commit's rows, or rolled-back ones.
- A DataFrame that was run once keeps its plan and with it its snapshot, whose files a ROLLBACK may have removed. A
  frame that was run at another place of the ref is planned anew for this call.
- A write that autocommits and conflicts was refused as a whole; it is run again at the new head. In a transaction the
  conflict is raised, as the model's ``CommitConflict``, whichever way the write was spelled.

A method that is not known here goes unmarked: it reads where the last statement stood, never a mixture, and the server
refuses to let it write.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from icefield.client.lease import Lease
from icefield.engine.spark.errors import conflict_text
from icefield.engine.spark.session import CATALOG
from icefield.model.errors import (
    CommitConflict,
    IcefieldError,
    NoSuchSession,
    NotSupported,
    Unauthorized,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("icefield.client")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OWN_PLAN = _names(
    """collectToPython collectAsArrowToPython toPythonIterator javaToPython tailToPython toArrowBatchRdd
    checkpoint localCheckpoint javaRDD toJavaRDD inputFiles collectAsList cache persist
    queryExecution"""
)
"""Methods that make or run the frame's own, remembered plan. All others (``count``, ``show``, …) plan anew."""
_READS = (_OWN_PLAN - {"queryExecution"}) | _names(
    # of SparkSession and DataFrameReader (they load tables to analyse), Dataset, Catalog, and ML's estimators
    """table load
    getRowsToPython showString htmlString count isEmpty describe summary pivot transpose
    approxQuantile corr cov crosstab freqItems
    tableExists listTables getTable listColumns databaseExists getDatabase listDatabases
    cacheTable uncacheTable refreshTable setCurrentDatabase
    fit evaluate"""
)
_APPENDS = _names("append")
_BY_MODE = _names("save saveAsTable insertInto json csv parquet orc text xml jdbc")
"""DataFrameWriter's: an append or not, as its mode says. (DataFrameReader has some of these names, and no mode.)"""
_STRICT = _names("create replace createOrReplace overwrite overwritePartitions merge createTable recoverPartitions")
_STATIC_READS = frozenset({("z:org.apache.spark.sql.api.python.PythonSQLUtils", "explainString")})
_DEFERRED = "collectAsArrowToPython"
"""Returns before its job is done; PySpark then calls ``getResult`` in the same thread."""
_READING_SQL = _names("select values table show describe desc explain use set")
_SQL_WORD = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*([A-Za-z]+)", re.DOTALL)
_WRITING_WORD = re.compile(r"\b(insert\s+into|insert|update|delete|merge)\b", re.IGNORECASE)
_INSERT_INTO = re.compile(r"insert\s+into\b", re.IGNORECASE)
_BROKEN = "x"
"""Py4J's answer to a call that did not return: its connection broke, as by Ctrl-C (PySpark's handler breaks in)."""
_AGAIN = 8
"""How often an autocommitted write that conflicts is run, at most."""


class Statements:
    """The statements of one lake: one server session, and the Spark session that is bound to it."""

    def __init__(self, lease: Lease, spark: SparkSession) -> None:
        self.lease = lease
        self.spark = spark
        self._lock = threading.Lock()
        self._place: tuple[str, int] | None = None
        self._serial = 0
        self._unreported: list[int] = []
        self.in_transaction = False

    @property
    def serial(self) -> int:
        """Changes whenever what the session's ref shows may have changed."""
        return self._serial

    def moved(self) -> None:
        """The ref was moved from here (BEGIN, COMMIT, ROLLBACK …): the next statement refreshes what Spark cached."""
        with self._lock:
            self._place = None
            self._serial += 1

    def wrote(self) -> None:
        """Spark refreshes its own cache after its own write; a frame that was run before is stale all the same."""
        with self._lock:
            self._serial += 1

    def begin(self, *, strict: bool) -> int:
        self._report()
        marked = self.lease.mark(strict=strict)
        number = int(marked["statement"])
        place = (str(marked["commit"]), int(marked["epoch"]))
        with self._lock:
            moved = self._place != place or bool(marked.get("moved"))
            if moved:
                self._serial += 1
            self._place = place
        if moved:
            try:
                refresh_cached(self.spark)
            except BaseException:
                self.end(number)
                raise
        return number

    def end(self, number: int) -> None:
        """Never raises: what could not be reported is reported before the next mark."""
        try:
            self.lease.returned(number)
        except IcefieldError as error:
            log.debug("statement %s could not be reported as returned: %s", number, error.message)
            if not self.lease.lost:  # else the server has forgotten it together with its session
                with self._lock:
                    self._unreported.append(number)

    def _report(self) -> None:
        with self._lock:
            unreported, self._unreported = self._unreported, []
        while unreported:
            try:
                self.lease.returned(unreported[-1])
            except IcefieldError:
                with self._lock:
                    self._unreported += unreported
                raise
            unreported.pop()


class Hook:
    """Stands before one Py4J gateway's ``send_command``, for all lakes of this process that are bound through it."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._send: Callable[..., Any] = client.send_command
        self._lakes: list[Statements] = []
        self._local = threading.local()
        self._ran_at: dict[str, tuple[int, ...]] = {}
        """Java object id of a frame -> where the refs stood when its own plan was made."""
        self._owner: dict[str, Statements] = {}
        """Java object id -> the lake it came from: a session, and all that was ever made from it."""

    @classmethod
    def of(cls, client: Any) -> Hook:
        """The hook of a gateway; put there if it has none."""
        hook = getattr(client, "_icefield_hook", None)
        if not isinstance(hook, Hook):
            hook = cls(client)
            client._icefield_hook = hook
            client.send_command = hook
        return hook

    def add(self, statements: Statements) -> None:
        self._lakes = [*self._lakes, statements]
        self._owner[statements.spark._jsparkSession._target_id] = statements

    def remove(self, statements: Statements) -> None:
        self._lakes = [one for one in self._lakes if one is not statements]

    @contextmanager
    def unmarked(self) -> Iterator[None]:
        """What this thread calls inside belongs to no statement of its own."""
        before = getattr(self._local, "inside", False)
        self._local.inside = True
        try:
            yield
        finally:
            self._local.inside = before

    def __call__(self, command: str, retry: bool = True, binary: bool = False) -> Any:
        if command.startswith("m\nd\n"):
            gone = command[4:].split("\n", 1)[0]
            self._ran_at.pop(gone, None)
            self._owner.pop(gone, None)
        elif command.startswith("c\n") and self._lakes and not binary:
            _, target, method, arguments = command.split("\n", 3)
            answer = self._call(target, method, arguments, retry)
            if _is_object(answer) and target in self._owner:
                self._owner[_object(answer)] = self._owner[target]
            return answer
        return self._send(command, retry, binary)

    def _call(self, target: str, method: str, arguments: str, retry: bool) -> Any:
        if not getattr(self._local, "inside", False):
            deferred = getattr(self._local, "deferred", None)
            if deferred is not None and method == "getResult":
                return self._finish_deferred(target, method, arguments, retry)
            work = self._classify(target, method, arguments)
            if work is not None:
                self._end_deferred()
                return self._statement(work, target, method, arguments, retry)
        return self._run(target, method, arguments, retry)

    def _lakes_of(self, target: str, arguments: str) -> list[Statements]:
        """Whose statement a call on this object is. Not known whose: everybody's."""
        lakes = self._lakes
        if len(lakes) < 2:
            return lakes
        if target.startswith("z:"):
            given = (argument[1:] for argument in arguments.split("\n") if argument.startswith("ro"))
            target = next((id_ for id_ in given if id_ in self._owner), target)
        owner = self._owner.get(target) or self._find_owner(target)
        if owner is None:
            return lakes
        return [owner] if owner in lakes else []

    def _find_owner(self, target: str) -> Statements | None:
        """By the address that the session it belongs to is bound to: a stream's batches come from a cloned session."""
        from py4j.protocol import Py4JError

        if target.startswith("z:"):
            return None
        with self.unmarked():
            for path in (("sparkSession", "conf"), ("conf",)):
                try:
                    found = self._get(target, path[0])
                    for name in path[1:]:
                        found = getattr(found, name)()
                    address = found.get(f"spark.sql.catalog.{CATALOG}.warehouse", "")
                except (Py4JError, AttributeError, TypeError):
                    continue
                for lake in self._lakes:
                    if lake.lease.address == address:
                        self._owner[target] = lake
                        return lake
        return None

    # What is work, and of which kind

    def _classify(self, target: str, method: str, arguments: str) -> _Work | None:
        if target.startswith("z:"):
            return _READ if (target, method) in _STATIC_READS else None
        if method == "sql":
            return _sql_work(arguments)
        if method in _READS:
            return _READ
        if method in _APPENDS:
            return _Work(writes=True, strict=False)
        if method in _BY_MODE and (method, arguments) != ("json", "e\n"):  # a schema's own json()
            mode = self._mode(target)
            if mode is None:
                return _READ
            # insertInto knows overwriting and, in any other mode, appending.
            plain = mode != "Overwrite" if method == "insertInto" else mode == "Append"
            return _Work(writes=True, strict=not plain)
        if method in _STRICT:
            return _Work(writes=True, strict=True)
        if method == "toTable" and arguments.startswith("s"):
            raise NotSupported(
                "a stream cannot write to a lake table with toTable yet: use foreachBatch and "
                "batch.writeTo(…).append() in it, in a lake.transaction() if several tables belong together"
            )
        return None

    def _mode(self, target: str) -> str | None:
        """A DataFrameWriter's save mode; ``None`` if the target is something else."""
        with self.unmarked():
            from py4j.protocol import Py4JError, get_return_value

            try:
                kind = self._get(target, "getClass")
                names = ("org.apache.spark.sql.classic.DataFrameWriter", "org.apache.spark.sql.DataFrameWriter")
                if str(kind.getName()) not in names:
                    return None
                base = kind if str(kind.getName()) == names[1] else kind.getSuperclass()
                field = base.getDeclaredField("curmode")
                field.setAccessible(True)
                answer = self._send(f"c\n{field._target_id}\nget\nr{target}\ne\n")
                return str(get_return_value(answer, self._client, field._target_id, "get").toString())
            except Py4JError:
                return "unknown"  # then it is strict

    # One statement

    def _statement(self, work: _Work, target: str, method: str, arguments: str, retry: bool) -> Any:
        for attempt in range(1, _AGAIN + 1):
            begun = self._begin(work, self._lakes_of(target, arguments))
            done = False
            try:
                with self.unmarked():
                    try:
                        answer = self._run(target, method, arguments, retry)
                    except BaseException:
                        done = True
                        self._not_returned(begun, work)
                        raise
                    if answer == _BROKEN:
                        done = True
                        self._not_returned(begun, work)
                        return answer
                    conflict = self._conflict(answer) if work.writes else None
                if method == _DEFERRED and _succeeded(answer):
                    self._local.deferred = begun
                    done = True
                    return answer
            finally:
                if work.writes:
                    for lake, _ in begun:
                        lake.wrote()
                if not done:
                    _end(begun)
            if conflict is None:
                return answer
            if attempt == _AGAIN or any(lake.in_transaction for lake, _ in begun):
                raise CommitConflict(conflict)
            log.info("a write conflicted and is run again: %s", conflict)
            time.sleep(random.uniform(0.0, 0.05 * 2**attempt))  # noqa: S311  not a secret
        raise AssertionError("unreachable")

    def _begin(self, work: _Work, lakes: list[Statements]) -> list[tuple[Statements, int]]:
        begun: list[tuple[Statements, int]] = []
        try:
            with self.unmarked():
                for lake in lakes:
                    try:
                        begun.append((lake, lake.begin(strict=work.strict)))
                    except (NoSuchSession, Unauthorized) as error:
                        self.remove(lake)
                        raise NoSuchSession(
                            f"{error.message}. What was not committed is gone. lake.spark now gives a new "
                            "SparkSession: make your DataFrames from that one"
                        ) from error
        except BaseException:
            _end(begun)
            raise
        return begun

    def _run(self, target: str, method: str, arguments: str, retry: bool) -> Any:
        if method not in _OWN_PLAN or target.startswith("z:"):
            return self._send(f"c\n{target}\n{method}\n{arguments}", retry)
        return self._planned_anew(target, method, arguments, retry)

    def _not_returned(self, begun: list[tuple[Statements, int]], work: _Work) -> None:
        """Interrupted: it may still run in Spark. A read's rows go nowhere; a write could land late, so it must not."""
        if not work.writes:
            _end(begun)
            return
        for lake, _ in begun:
            self.remove(lake)
            lake.lease.close()

    def _serials(self) -> tuple[int, ...]:
        return tuple(lake.serial for lake in self._lakes)

    def _planned_anew(self, target: str, method: str, arguments: str, retry: bool) -> Any:
        """Calls the method on the frame, or, if its plan was made elsewhere, on a frame of the same meaning."""
        now = self._serials()
        if self._ran_at.setdefault(target, now) == now:
            return self._send(f"c\n{target}\n{method}\n{arguments}", retry)
        temporary: list[str] = []
        try:
            # logicalPlan is the result for a command that has run (an INSERT), so nothing is written twice.
            for part in (f"{target}\nsparkSession\n", f"{target}\nlogicalPlan\n"):
                answer = self._send(f"c\n{part}e\n")
                if not _is_object(answer):
                    return self._send(f"c\n{target}\n{method}\n{arguments}", retry)  # no frame of Spark's
                temporary.append(_object(answer))
            session, plan = temporary
            answer = self._send(f"c\nz:org.apache.spark.sql.classic.Dataset\nofRows\nr{session}\nr{plan}\ne\n")
            if not _is_object(answer):
                return answer  # the tables it reads are not there any more, or others: Spark's own error says which
            temporary.append(_object(answer))
            return self._send(f"c\n{temporary[-1]}\n{method}\n{arguments}", retry)
        finally:
            for id_ in temporary:
                self._send(f"m\nd\n{id_}\ne\n")

    # A frame handed over as Arrow is done when getResult returns

    def _finish_deferred(self, target: str, method: str, arguments: str, retry: bool) -> Any:
        try:
            return self._send(f"c\n{target}\n{method}\n{arguments}", retry)
        finally:
            self._end_deferred()

    def _end_deferred(self) -> None:
        deferred = getattr(self._local, "deferred", None)
        self._local.deferred = None
        if deferred is not None:
            with self.unmarked():
                _end(deferred)

    # Conflicts

    def _conflict(self, answer: str) -> str | None:
        """The server's conflict, if that is what an exception is about."""
        if not answer.startswith("xr"):
            return None
        from py4j.protocol import Py4JError

        throwable = _object(answer)
        try:
            message = self._get(throwable, "getMessage")
            cause = self._get(throwable, "getCause")
            for _ in range(20):
                text = conflict_text(str(message or ""))
                if text is not None:
                    self._send(f"m\nd\n{throwable}\ne\n")
                    return text
                if cause is None:
                    return None
                message, cause = cause.getMessage(), cause.getCause()
        except Py4JError:
            pass
        return None

    def _get(self, target: str, method: str) -> Any:
        from py4j.protocol import get_return_value

        return get_return_value(self._send(f"c\n{target}\n{method}\ne\n"), self._client, target, method)


class _Work:
    __slots__ = ("strict", "writes")

    def __init__(self, *, writes: bool, strict: bool) -> None:
        self.writes = writes
        self.strict = strict
        """Not a plain append: its mark says so, and landing never rebases it as one."""


_READ = _Work(writes=False, strict=False)


def _sql_work(arguments: str) -> _Work:
    """From the statement's first word; what is not known to only read writes, what is not INSERT INTO is strict."""
    text = arguments[1:].replace("\\n", "\n") if arguments.startswith("s") else ""
    match = _SQL_WORD.match(text)
    word = match[1].lower() if match else ""
    if word in ("with", "from"):  # WITH … INSERT, FROM … INSERT: Spark has both
        verbs = {" ".join(verb.lower().split()) for verb in _WRITING_WORD.findall(text)}
        return _Work(writes=True, strict=verbs != {"insert into"}) if verbs else _READ
    if word in _READING_SQL:
        return _READ
    return _Work(writes=True, strict=match is None or _INSERT_INTO.match(text, match.start(1)) is None)


def _end(begun: list[tuple[Statements, int]]) -> None:
    for lake, number in begun:
        lake.end(number)


def _succeeded(answer: str) -> bool:
    return answer.startswith("y")


def _object(answer: str) -> str:
    """The Java object id in an answer: what follows ``yr`` (returned) or ``xr`` (thrown)."""
    return answer[2:].strip()


def _is_object(answer: str) -> bool:
    return answer.startswith("yro")


def refresh_cached(spark: SparkSession) -> None:
    """Every lake table that something in Spark's cache was made from is read again, when it is next asked for."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    manager = spark._jsparkSession.sharedState().cacheManager()
    if manager.isEmpty():
        return
    try:
        for name in _cached_tables(manager):
            spark.catalog.refreshTable(name)
    except (Py4JError, PySparkException) as error:
        # A table that is gone at this place of the ref cannot be refreshed: a cache is never worth a wrong row.
        log.debug("Spark's cache is dropped: %s", error)
        spark.catalog.clearCache()


def _cached_tables(manager: Any) -> set[str]:
    names: set[str] = set()
    cached = manager.cachedData()
    for number in range(cached.size()):
        leaves = cached.apply(number).plan().collectLeaves()
        for leaf_number in range(leaves.size()):
            leaf = leaves.apply(leaf_number)
            if leaf.getClass().getSimpleName() != "DataSourceV2Relation":
                continue
            if leaf.catalog().isEmpty() or leaf.identifier().isEmpty():
                continue
            identifier = leaf.identifier().get()
            parts = [leaf.catalog().get().name(), *identifier.namespace(), identifier.name()]
            names.add(".".join("`" + part.replace("`", "``") + "`" for part in parts))
    return names
