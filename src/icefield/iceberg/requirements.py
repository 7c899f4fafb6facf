"""What a commit asserts about the table it was made for, judged against what its client was served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from icefield.iceberg.shapes import (
    Json,
    as_list,
    as_object,
    as_uuid,
    bad,
    describe,
    join,
    need,
    need_int,
    need_text,
)
from icefield.iceberg.snapshots import read_snapshot_id_or_none, snapshot_refs
from icefield.model.errors import BadRequest


@dataclass(frozen=True, slots=True)
class FailedRequirement:
    """``expected`` is what the client asserted, ``actual`` what was served."""

    type: str
    message: str
    expected: int | str | None = None
    actual: int | str | None = None
    ref: str | None = None
    """Only for ``assert-ref-snapshot-id``: ``expected`` is then the base the client's change was made on."""


def failed_requirements(served: Json | None, requirements: Any) -> list[FailedRequirement]:
    """Every requirement that does not hold, in order. ``served`` None: the table does not exist.

    Raises BadRequest for a malformed or unknown requirement, also where an earlier one already failed.
    """
    failed: list[FailedRequirement] = []
    for i, item in enumerate(as_list(requirements, "requirements")):
        path = f"requirements[{i}]"
        requirement = as_object(item, path)
        kind = need_text(requirement, "type", path).lower()
        check = _CHECKS.get(kind)
        if check is None:
            raise bad(join(path, "type"), f"names no requirement of a table: {describe(kind)}")
        try:
            failure = check(served, requirement, path)
        except BadRequest as error:
            raise BadRequest(f"{kind}: {error.message}", field=error.field) from None
        if failure is not None:
            failed.append(failure)
    return failed


_Check = Callable[[Json | None, Json, str], FailedRequirement | None]


def _create(served: Json | None, requirement: Json, path: str) -> FailedRequirement | None:
    if served is None:
        return None
    return FailedRequirement("assert-create", "the table already exists", None, served.get("table-uuid"))


def _uuid(served: Json | None, requirement: Json, path: str) -> FailedRequirement | None:
    expected = as_uuid(need(requirement, "uuid", path), join(path, "uuid"))
    if served is None:
        return FailedRequirement("assert-table-uuid", "the table does not exist", expected)
    actual = served["table-uuid"]
    if expected.lower() == actual.lower():
        return None
    return FailedRequirement(
        "assert-table-uuid", f"the table is another one: expected uuid {expected}, found {actual}", expected, actual
    )


def _ref(served: Json | None, requirement: Json, path: str) -> FailedRequirement | None:
    kind = "assert-ref-snapshot-id"
    name = need_text(requirement, "ref", path)
    expected = read_snapshot_id_or_none(requirement.get("snapshot-id"), join(path, "snapshot-id"))
    if served is None:
        if expected is None:
            return None
        return FailedRequirement(kind, "the table does not exist", expected, ref=name)
    ref = snapshot_refs(served).get(name)
    actual = None if ref is None else int(ref["snapshot-id"])
    if expected == actual:
        return None
    if expected is None:
        message = f"snapshot ref {name!a} was created meanwhile, at snapshot {actual}"
    elif actual is None:
        message = f"snapshot ref {name!a} is gone; expected it at snapshot {expected}"
    else:
        message = f"snapshot ref {name!a} has moved: expected snapshot {expected}, found {actual}"
    return FailedRequirement(kind, message, expected, actual, name)


def _number(kind: str, key: str, stored: str, what: str, *, holds_without_table: bool = False) -> _Check:
    """``holds_without_table``: as in Java, where a table that does not exist has no last id to disagree."""

    def check(served: Json | None, requirement: Json, path: str) -> FailedRequirement | None:
        expected = need_int(requirement, key, path)
        if served is None:
            return None if holds_without_table else FailedRequirement(kind, "the table does not exist", expected)
        actual = int(served[stored])
        if actual == expected:
            return None
        return FailedRequirement(kind, f"{what} changed: expected {expected}, found {actual}", expected, actual)

    return check


_CHECKS: Final[dict[str, _Check]] = {
    "assert-create": _create,
    "assert-table-uuid": _uuid,
    "assert-ref-snapshot-id": _ref,
    "assert-last-assigned-field-id": _number(
        "assert-last-assigned-field-id",
        "last-assigned-field-id",
        "last-column-id",
        "the last assigned field id",
        holds_without_table=True,
    ),
    "assert-current-schema-id": _number(
        "assert-current-schema-id", "current-schema-id", "current-schema-id", "the current schema"
    ),
    "assert-last-assigned-partition-id": _number(
        "assert-last-assigned-partition-id",
        "last-assigned-partition-id",
        "last-partition-id",
        "the last assigned partition field id",
        holds_without_table=True,
    ),
    "assert-default-spec-id": _number(
        "assert-default-spec-id", "default-spec-id", "default-spec-id", "the default partition spec"
    ),
    "assert-default-sort-order-id": _number(
        "assert-default-sort-order-id", "default-sort-order-id", "default-sort-order-id", "the default sort order"
    ),
}
