"""What the brain made of a statement: read from the analysed tree that it sends as a notice at Parse.

Contract: ``ASK`` turns the notice on (inside a savepoint that is rolled back), ``read`` reads it. Only facts that are
safe to read by pattern are read: names and constants in the tree cannot look like these fields, since the server
escapes the blanks inside them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

ASK = (
    "SET LOCAL client_min_messages = log; SET LOCAL debug_pretty_print = off;"
    " SET LOCAL debug_print_parse = on; SET LOCAL debug_print_rewritten = on"
)
_TITLE = "parse tree:"
_REWRITTEN = "rewritten parse tree:"
_FIRST_USER_OID = 16384


class Command(IntEnum):
    UNKNOWN = 0
    SELECT = 1
    UPDATE = 2
    INSERT = 3
    DELETE = 4
    MERGE = 5
    UTILITY = 6
    NOTHING = 7


@dataclass(frozen=True, slots=True)
class Analysis:
    command: Command
    reads: frozenset[int]
    """OIDs of relations of which rows are read."""
    writes: frozenset[int]
    hidden_writes: frozenset[int]
    """What is written through a view or a rule, and not by its own name."""
    returning: bool
    on_conflict: bool
    modifying_cte: bool
    harmless: bool
    """No views, and only PostgreSQL's own functions, none of which leaves anything behind or runs SQL of its own."""

    @property
    def plain(self) -> bool:
        """What it reads is all in sight, and undoing it loses nothing."""
        return self.harmless and self.command in _ROWS

    @property
    def plain_insert(self) -> bool:
        """It adds rows to one table, and to that by its own name, whatever is in it."""
        return (
            self.command is Command.INSERT
            and not self.on_conflict
            and not self.modifying_cte
            and not self.hidden_writes
            and len(self.writes) == 1
        )


_ROWS = (Command.SELECT, Command.INSERT, Command.UPDATE, Command.DELETE, Command.MERGE)
_HEAD = re.compile(r"\{QUERY\s+:commandType\s+(\d+)")
_PERMISSION = re.compile(r"\{RTEPERMISSIONINFO\s+:relid\s+(\d+)\s+:inh\s+\w+\s+:requiredPerms\s+(\d+)")
_RELATION = re.compile(r":rtekind\s+0\s+:relid\s+(\d+)\s")
_FUNCTION = re.compile(r":(?:funcid|opfuncid|aggfnoid|winfnoid|hashfuncid|negfuncid|fnoid|handler)\s+(\d+)")
_RELATION_KIND = re.compile(r":relkind\s+(\w)")
_TYPE = re.compile(r":(?:resulttype|consttype|vartype)\s+(\d+)")
_MODIFYING = re.compile(r":hasModifyingCTE\s+true")
_RETURNING = re.compile(r":returningList\s+\(")
_ON_CONFLICT = re.compile(r":onConflict\s+\{")

_SELECT = 2
_INSERT = 1
_WRITES = 1 | 4 | 8 | 16

# PostgreSQL's own functions that leave something behind in the transaction, or run SQL given as text.
_EFFECTS = frozenset(
    (
        *(2078, 3036),  # set_config, pg_notify
        *range(3089, 3097),  # advisory locks that end with the transaction
        *(715, 764, 765, 767, 952, 953, 954, 955, 956, 957, 958, 964, 1004, 3170, 3171, 3172, 3457, 3460),  # lo_*
        *range(2923, 2940),  # table_to_xml, query_to_xml, cursor_to_xml …
        *(3585, 3689, 3690),  # ts_rewrite and ts_stat with a query
    )
)


def read(notices: Sequence[Mapping[str, str]]) -> Analysis | None:
    """The first parse tree among the notices, and what became of it when views were put in (utilities have no such)."""
    parsed = next((n["D"] for n in notices if n.get("M") == _TITLE and "D" in n), None)
    rewritten = next((n["D"] for n in notices if n.get("M") == _REWRITTEN and "D" in n), None)
    return None if parsed is None else _read(parsed, rewritten)


def _read(tree: str, rewritten: str | None) -> Analysis:
    head = _HEAD.search(tree)
    command = Command(int(head[1])) if head else Command.UNKNOWN
    modifying = _MODIFYING.search(tree) is not None
    # FOR UPDATE asks for the right to update; what DECLARE, EXPLAIN … hold is judged when it is run
    may_write = command is not Command.UTILITY and (command is not Command.SELECT or modifying)
    # An INSERT asks for more than the right to insert only for what it reads FOR UPDATE, and ON CONFLICT.
    writing = _INSERT if command is Command.INSERT and not modifying else _WRITES
    reads, writes = _relations(tree, writing)
    hidden: set[int] = set()
    if rewritten is not None:
        more, hidden = _relations(rewritten, writing)
        reads |= more
    whole = tree if rewritten is None else rewritten
    functions = {int(found[1]) for found in _FUNCTION.finditer(whole)}
    if command is Command.INSERT and not modifying and _ON_CONFLICT.search(tree) is None:
        # RETURNING asks for the right to read the target, and reads only what is new. Named twice, it is read.
        named = [int(found[1]) for found in _RELATION.finditer(whole)]
        reads -= {oid for oid in writes | hidden if named.count(oid) == 1}
    return Analysis(
        command,
        frozenset(reads),
        frozenset(writes if may_write else ()),
        frozenset(hidden - writes if may_write else ()),
        _RETURNING.search(tree) is not None,
        _ON_CONFLICT.search(tree) is not None,
        modifying,
        harmless=all(oid < _FIRST_USER_OID for oid in functions)
        and not functions & _EFFECTS
        and all(int(found[1]) < _FIRST_USER_OID for found in _TYPE.finditer(whole))
        and (rewritten is not None or all(found[1] != "v" for found in _RELATION_KIND.finditer(tree))),
    )


def _relations(tree: str, writing: int) -> tuple[set[int], set[int]]:
    """Of which rows are read, and which are written to."""
    reads: set[int] = set()
    writes: set[int] = set()
    for found in _PERMISSION.finditer(tree):
        oid, permissions = int(found[1]), int(found[2])
        if permissions & _SELECT:
            reads.add(oid)
        if permissions & writing:
            writes.add(oid)
    return reads, writes
