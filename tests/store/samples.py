"""Records to write in tests."""

from __future__ import annotations

import dataclasses
from typing import Any

from icefield.store.kinds import shape_of
from icefield.store.records import CommitRecord, RefRecord, SessionRecord


def ref(name: Any = "main", head: Any = 1, **other: Any) -> RefRecord:
    values: dict[str, Any] = {"repo": "lake", "kind": "branch", "id": "r1", "created_ms": 5} | other
    return RefRecord(name=name, head=head, **values)


def commit(seq: int, **other: Any) -> CommitRecord:
    values: dict[str, Any] = {
        "repo": "lake",
        "id": f"{seq:040x}",
        "parent": None if seq == 1 else seq - 1,
        "merged": None,
        "generation": seq,
        "time_ms": 1000 + seq,
        "principal": "ann",
        "message": "m",
        "root": None,
        "details": "{}",
    }
    return CommitRecord(seq=seq, **(values | other))


def session(session_id: str, **other: Any) -> SessionRecord:
    record: SessionRecord = filled(SessionRecord, id=session_id, **other)
    return record


def filled(kind: type[Any], **values: Any) -> Any:
    """A record with plain values in all fields that are not given."""
    plain: dict[type, Any] = {str: "x", int: 7, bytes: b"\x00\xff", bool: False}
    return kind(**{field.name: plain[field.type] for field in shape_of(kind).fields} | values)


def changed(record: Any, **values: Any) -> Any:
    return dataclasses.replace(record, **values)
