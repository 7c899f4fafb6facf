"""Bodies of Iceberg REST to model values and back; shape checks that name the field."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, TypeVar

from icefield.catalog.tables import LoadedTable, TableCommit
from icefield.model.errors import BadRequest
from icefield.model.names import Identifier, Namespace, check_level
from icefield.rest.http import Request

SEPARATOR = "\x1f"
T = TypeVar("T")


def namespace_of(segment: str) -> Namespace:
    return tuple(segment.split(SEPARATOR))


def read_namespace(value: Any, field: str) -> Namespace:
    if not isinstance(value, list) or not value or not all(isinstance(level, str) for level in value):
        raise BadRequest(f"{field} must be a list of one or more texts", field=field)
    for level in value:
        check_level(level, field)
    return tuple(value)


def read_identifier(value: Any, field: str) -> Identifier:
    if not isinstance(value, dict):
        raise BadRequest(f"{field} must be an object with namespace and name", field=field)
    name = value.get("name")
    if not isinstance(name, str):
        raise BadRequest(f"{field}.name must be a text", field=f"{field}.name")
    check_level(name, f"{field}.name")
    return Identifier(read_namespace(value.get("namespace"), f"{field}.namespace"), name)


def read_properties(value: Any, field: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise BadRequest(f"{field} must be an object of texts", field=field)
    return dict(value)


def read_texts(value: Any, field: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise BadRequest(f"{field} must be a list of texts", field=field)
    return list(value)


def read_commit(document: dict[str, Any], identifier: Identifier | None, field: str = "") -> TableCommit:
    """One table's change. The body's identifier must agree with the path's where both are there."""
    told = document.get("identifier")
    if identifier is None:
        identifier = read_identifier(told, f"{field}identifier")
    elif told is not None and read_identifier(told, f"{field}identifier") != identifier:
        raise BadRequest(f"identifier in the body is not the path's table {identifier}", field="identifier")
    return TableCommit(
        identifier,
        _objects(document.get("requirements"), f"{field}requirements"),
        _objects(document.get("updates"), f"{field}updates"),
    )


def _objects(value: Any, field: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadRequest(f"{field} must be a list", field=field)
    for number, each in enumerate(value):
        if not isinstance(each, dict):
            raise BadRequest(f"{field}[{number}] must be an object", field=f"{field}[{number}]")
    return value


def load_result(loaded: LoadedTable) -> dict[str, Any]:
    told: dict[str, Any] = {"metadata": loaded.metadata, "config": loaded.config}
    if loaded.metadata_location is not None:
        told["metadata-location"] = loaded.metadata_location
    return told


def commit_result(loaded: LoadedTable) -> dict[str, Any]:
    return {"metadata-location": loaded.metadata_location, "metadata": loaded.metadata}


def identifier_json(identifier: Identifier) -> dict[str, Any]:
    return {"namespace": list(identifier.namespace), "name": identifier.name}


def page(request: Request, items: Sequence[T], name: Any) -> tuple[Sequence[T], str | None]:
    """Items in name order; a token says after which name to go on, so that changes in between lose nothing."""
    size = request.number("pageSize", 0)
    token = request.query.get("pageToken")
    if token:
        try:
            after = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True).decode("utf-8")
        except (binascii.Error, ValueError, UnicodeEncodeError):
            raise BadRequest("pageToken was not made by this server", field="pageToken") from None
        items = [item for item in items if name(item) > after]
    if token is None or size <= 0 or len(items) <= size:
        return items, None
    shown = items[:size]
    return shown, base64.urlsafe_b64encode(name(shown[-1]).encode()).decode()
