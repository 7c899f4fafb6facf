"""Runs cases on both sides and says where they differ.

Most cases run in a savepoint of one long transaction and are rolled back (``in_savepoints``); some run outside
transactions, each on a fresh copy of the tables (``in_autocommit``), where others can read what they left.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dml.asking import Answer, Connection, Copy, Lost, Statement
from dml.cases import Case
from dml.readers import Reader, spelled_answer
from dml.sides import Side
from dml.tables import Variant

CASES_A_TRANSACTION = 25


@dataclass(frozen=True)
class Difference:
    variant: Variant
    case: Case
    what: str
    expected: object
    found: object

    def __str__(self) -> str:
        return f"--- {self.variant}: {self.what}\n{self.case}\n  expected: {self.expected}\n  found:    {self.found}"


def drawn(case: Case, choices: int, salt: str = "") -> int:
    """Which of so many, the same on every machine and whatever else the corpus holds."""
    return int.from_bytes(hashlib.sha256((salt + str(case)).encode()).digest()[:8], "big") % choices


# One case ------------------------------------------------------------------------------------------------------------


def _placed(statement: Statement, variant: Variant) -> Statement:
    if isinstance(statement, Copy):
        return replace(statement, statement=variant.place(statement.statement))
    return variant.place(statement)


def answers(connection: Connection, case: Case, variant: Variant) -> list[Answer]:
    extended = case.single and drawn(case, 2, "protocol") == 1
    found = []
    for statement in case.statements:
        answer = connection.ask(_placed(statement, variant), extended=extended)
        if case.plans:
            answer = replace(answer, rows=())
        found.append(answer if isinstance(statement, str) and _says_order(statement) else answer.as_multiset())
    return found


def _says_order(statement: str) -> bool:
    """Its outermost query ends with ORDER BY, or gives a cursor's rows."""
    tail = statement.rpartition(")")[2]
    return statement.startswith("FETCH") or (statement.startswith(("SELECT", "WITH")) and "ORDER BY" in tail)


def tables_of(case: Case) -> list[str]:
    """Those that are compared. The numbers in ``g`` may have gaps, on every server others."""
    named = set(re.findall(r"\bdml\.([tskpxg])\b", str(case)))
    return ["x"] if named == {"x"} else sorted({"t", "s", "k", "p"} | named - {"g"})


def state(connection: Connection, case: Case, variant: Variant) -> dict[str, list[str]]:
    """All rows of all tables, as text."""
    names = tables_of(case)
    query = " UNION ALL ".join(f"SELECT '{name}', whole::text FROM dml.{name} AS whole" for name in names)
    answer = connection.ask(variant.place(query))
    if answer.error is not None:
        return {"error": [str(answer.error)]}
    return {name: sorted(row or "" for table, row in answer.rows if table == name) for name in names}


def _compared(variant: Variant, case: Case, expected: list[Answer], found: list[Answer]) -> Difference | None:
    for statement, one, other in zip(case.statements, expected, found, strict=True):
        if one != other:
            text = statement if isinstance(statement, str) else statement.statement
            return Difference(variant, case, f"answer of {text[:60]!r}", *_where(one, other))
    return None


def _where(one: Answer, other: Answer) -> tuple[object, object]:
    for name in ("error", "tag", "notices", "columns", "rows"):
        a, b = getattr(one, name), getattr(other, name)
        if a != b:
            if one.error or other.error:
                return one.error or one.tag, other.error or other.tag
            return (name, a), (name, b)
    raise AssertionError("nowhere")


def _states_compared(
    variant: Variant, case: Case, when: str, one: dict[str, list[str]], other: dict[str, list[str]]
) -> Difference | None:
    if one == other:
        return None
    missing = {name: _minus(one.get(name, []), other.get(name, [])) for name in one.keys() | other.keys()}
    surplus = {name: _minus(other.get(name, []), one.get(name, [])) for name in one.keys() | other.keys()}
    return Difference(
        variant,
        case,
        f"tables {when}",
        f"rows that are missing: { {k: v for k, v in missing.items() if v} }",
        f"rows too many: { {k: v for k, v in surplus.items() if v} }",
    )


def _minus(rows: Iterable[str], others: Iterable[str]) -> list[str]:
    left = list(rows)
    for row in others:
        if row in left:
            left.remove(row)
    return left


# Many cases ----------------------------------------------------------------------------------------------------------


class Pair:
    """A connection to each side, made again when it was lost."""

    def __init__(self, expected: Callable[[], Connection], found: Callable[[], Connection]) -> None:
        self._make = (expected, found)
        self.expected, self.found = expected(), found()

    def again(self) -> None:
        self.close()
        self.expected, self.found = (make() for make in self._make)

    def close(self) -> None:
        self.expected.close()
        self.found.close()

    def both(self, statement: str) -> None:
        self.expected.must(statement)
        self.found.must(statement)


def _itself(connection: Connection) -> Connection:
    return connection


def in_savepoints(expected: Side, found: Side, variant: Variant, cases: Sequence[Case]) -> list[Difference]:
    differences: list[Difference] = []
    pair = Pair(expected.connect, found.connect)
    since = 0
    for case in cases:
        try:
            if since == 0:
                pair.both("BEGIN")
            pair.both("SAVEPOINT dml_case")
            difference = _one(pair, case, variant)
            pair.both("ROLLBACK TO SAVEPOINT dml_case")
            if "PREPARE" in str(case):
                pair.both("DEALLOCATE ALL")
            since += 1
            if since == CASES_A_TRANSACTION:
                pair.both("ROLLBACK")
                since = 0
        except (Lost, AssertionError) as error:
            difference = Difference(variant, case, "connection", "an answer", error)
            pair.again()
            since = 0
        if difference is not None:
            differences.append(difference)
    pair.close()
    return differences


def _one(pair: Pair, case: Case, variant: Variant) -> Difference | None:
    one, other = answers(pair.expected, case, variant), answers(pair.found, case, variant)
    difference = _compared(variant, case, one, other)
    if difference is None and not _failed(one[-1]):
        left = [state(connection, case, variant) for connection in (pair.expected, pair.found)]
        difference = _states_compared(variant, case, "afterwards", *left)
    return difference


def _failed(answer: Answer) -> bool:
    """The transaction is aborted: the tables cannot be read before ROLLBACK TO."""
    return answer.error is not None


def in_autocommit(
    expected: Side, found: Side, variant: Variant, cases: Sequence[Case], readers: Sequence[Reader] = ()
) -> list[Difference]:
    """``readers`` look at the branch that ``found`` made for the case."""
    differences: list[Difference] = []
    for case in cases:
        (connection, _), (other_connection, copy) = expected.fresh(), found.fresh()
        pair = Pair(partial(_itself, connection), partial(_itself, other_connection))
        try:
            one, other = answers(pair.expected, case, variant), answers(pair.found, case, variant)
            difference = _compared(variant, case, one, other)
            if difference is None:
                for connection in (pair.expected, pair.found):
                    if connection.open_transaction:
                        connection.must("ROLLBACK")
                left = [state(connection, case, variant) for connection in (pair.expected, pair.found)]
                difference = _states_compared(variant, case, "afterwards", *left)
            changed = any(answer.error is None for answer in one)
            for reader in readers if difference is None and changed else ():
                difference = difference or _read(pair.expected, copy, variant, case, reader)
        except (Lost, AssertionError) as error:
            difference = Difference(variant, case, "connection", "an answer", error)
        finally:
            pair.close()
        if difference is not None:
            differences.append(difference)
    return differences


def _read(expected: Connection, copy: str, variant: Variant, case: Case, reader: Reader) -> Difference | None:
    """The tables that the case names, as another engine reads them."""
    wanted, read = {}, {}
    for name in tables_of(case):
        if f"dml.{name}" in str(case):
            place = variant.place(f"dml.{name}")
            wanted[name] = spelled_answer(expected.must(f"TABLE {place}"))
            try:
                read[name] = reader.rows(copy, place)
            except Exception as error:  # theirs, told with the case
                return Difference(variant, case, f"{reader.name} reading {place}", "rows", repr(error)[:500])
    return _states_compared(variant, case, f"as {reader.name} reads them", wanted, read)
