"""The law of unfilled shadows: an unfilled shadow answers no rows, silently, so no statement may have read one.

What a statement touched is learnt from two places, before and after it, in its own transaction:
- the backend's relation locks: everything that was planned; but what was locked inside a PL/pgSQL block whose
  exception was caught, or by a statement that failed, is unlocked by then;
- the backend's own counters of scans and written rows, which outlive a rolled-back subtransaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

PROBE = (
    "SELECT 'lock', l.relation::pg_catalog.text, l.mode, k.relfilenode::pg_catalog.text FROM pg_catalog.pg_locks l"
    # indexes and sequences go with their tables; the guard's own table is nobody's
    " LEFT JOIN pg_catalog.pg_class k ON k.oid OPERATOR(pg_catalog.=) l.relation"
    " WHERE l.pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()"
    " AND l.locktype OPERATOR(pg_catalog.=) 'relation' AND l.relation OPERATOR(pg_catalog.>=) 16384"
    " AND k.relkind OPERATOR(pg_catalog.<>) ALL ('{i,I,S,t}') AND k.relnamespace OPERATOR(pg_catalog.<>) 11"
    " UNION ALL SELECT 'use', s.oid::pg_catalog.text, s.scans::pg_catalog.text, s.writes::pg_catalog.text FROM ("
    "SELECT c.oid, pg_catalog.pg_stat_get_xact_numscans(c.oid) AS scans,"
    " pg_catalog.pg_stat_get_xact_tuples_inserted(c.oid) OPERATOR(pg_catalog.+)"
    " pg_catalog.pg_stat_get_xact_tuples_updated(c.oid) OPERATOR(pg_catalog.+)"
    " pg_catalog.pg_stat_get_xact_tuples_deleted(c.oid) AS writes"
    " FROM pg_catalog.pg_class c WHERE c.relkind OPERATOR(pg_catalog.=) 'r'"
    " AND c.relnamespace OPERATOR(pg_catalog.<>) 11 AND c.oid OPERATOR(pg_catalog.>=) 16384) s"
    " WHERE s.scans OPERATOR(pg_catalog.>) 0 OR s.writes OPERATOR(pg_catalog.>) 0"
    " UNION ALL SELECT 'settings', pg_catalog.current_setting('icefield.max_fetched_rows', true),"
    " pg_catalog.current_setting('icefield.explain_route', true), NULL"
)

_READING = frozenset(("AccessShareLock", "RowShareLock"))


@dataclass(frozen=True, slots=True)
class Trace:
    locks: frozenset[tuple[int, str]]
    uses: Mapping[int, tuple[int, int]]
    """OID -> scans begun, rows written (or tried to write)."""
    files: Mapping[int, str]
    """OID -> the file of each locked relation: TRUNCATE gives it another."""
    max_rows: str | None
    explain_route: str | None = None


def read_trace(rows: Iterable[tuple[str | None, ...]]) -> Trace:
    locks: set[tuple[int, str]] = set()
    uses: dict[int, tuple[int, int]] = {}
    files: dict[int, str] = {}
    max_rows = explain_route = None
    for kind, what, first, second in rows:
        if kind == "lock":
            locks.add((int(what or 0), first or ""))
            files[int(what or 0)] = second or ""
        elif kind == "use":
            uses[int(what or 0)] = (int(first or 0), int(second or 0))
        else:
            max_rows, explain_route = what, first
    return Trace(frozenset(locks), uses, files, max_rows, explain_route)


def scanned(before: Trace, after: Trace) -> set[int]:
    """Relations of which a scan began."""
    return {oid for oid, (scans, _) in after.uses.items() if scans > before.uses.get(oid, (0, 0))[0]}


def read_locked(before: Trace, after: Trace) -> set[int]:
    """Relations that were newly locked for reading."""
    return {oid for oid, mode in after.locks - before.locks if mode in _READING}


def written(before: Trace, after: Trace) -> set[int]:
    """Relations newly locked more strongly than for reading, emptied, or of which rows were written."""
    strong = {oid for oid, mode in after.locks - before.locks if mode not in _READING}
    emptied = {oid for oid, file in after.files.items() if before.files.get(oid, file) != file}
    return strong | emptied | rows_written(before, after)


def rows_written(before: Trace, after: Trace) -> set[int]:
    """Relations of which rows were written, by the counters: also when the statement failed and its locks are gone."""
    return {oid for oid, (_, rows) in after.uses.items() if rows > before.uses.get(oid, (0, 0))[1]}


def held(trace: Trace, oids: Collection[int]) -> set[int]:
    """Those on which a lock for reading is held already, so that another read would not show among the locks."""
    return {oid for oid, mode in trace.locks if mode in _READING and oid in oids}
