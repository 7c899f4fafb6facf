"""Namespaces: list, load, exists, create, change properties, drop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icefield.catalog.places import Place
from icefield.model.entries import Entry, EntryKind
from icefield.model.errors import AlreadyExists, BadRequest, NoSuchNamespace, NotEmpty, Unprocessable
from icefield.model.names import Namespace, check_level
from icefield.transaction.changes import Change
from icefield.transaction.steps import Standing, Step

MAX_LEVELS = 16


def list_namespaces(place: Place, parent: Namespace) -> list[Namespace]:
    if parent:
        load(place, parent)
    return [namespace for namespace, _ in place.view.namespaces(parent)]


def load(place: Place, namespace: Namespace) -> dict[str, str]:
    entry = place.view.get(namespace) if namespace else None
    if entry is None:
        raise NoSuchNamespace(f"Namespace does not exist: {'.'.join(namespace)}")
    return dict(entry.properties)


def exists(place: Place, namespace: Namespace) -> bool:
    return bool(namespace) and place.view.get(namespace) is not None


def create(place: Place, namespace: Namespace, properties: Mapping[str, str]) -> dict[str, str]:
    check(namespace)
    id_ = place.core.randomness.uuid()

    def verb(at: Standing) -> Sequence[Step]:
        if at.view.get(namespace) is not None:
            raise AlreadyExists(f"Namespace already exists: {'.'.join(namespace)}")
        if len(namespace) > 1:
            require(at, namespace[:-1])
        entry = Entry(id_, EntryKind.NAMESPACE, properties=tuple(sorted(properties.items())))
        return [Step(Change("create", {namespace: entry}))]

    place.write(verb, message=f"create namespace {'.'.join(namespace)}", operation="create-namespace")
    return dict(properties)


def drop(place: Place, namespace: Namespace) -> None:
    def verb(at: Standing) -> Sequence[Step]:
        require(at, namespace)
        if at.view.has_children(namespace):
            raise NotEmpty(f"Namespace {'.'.join(namespace)} is not empty: drop what it holds first")
        return [Step(Change("drop", {namespace: None}))]

    place.write(verb, message=f"drop namespace {'.'.join(namespace)}", operation="drop-namespace")


def update_properties(
    place: Place, namespace: Namespace, removals: Sequence[str], updates: Mapping[str, str]
) -> dict[str, Any]:
    both = sorted(set(removals) & set(updates))
    if both:
        raise Unprocessable(f"property {both[0]!r} is both set and removed")
    answer: dict[str, Any] = {}

    def verb(at: Standing) -> Sequence[Step]:
        entry = require(at, namespace)
        before = dict(entry.properties)
        after = {k: v for k, v in before.items() if k not in set(removals)} | dict(updates)
        answer.update(
            updated=sorted(updates),
            removed=sorted(k for k in set(removals) if k in before),
            missing=sorted(k for k in set(removals) if k not in before),
        )
        if after == before:
            return []
        changed = Entry(entry.id, entry.kind, properties=tuple(sorted(after.items())))
        return [Step(Change("change", {namespace: changed}))]

    place.write(
        verb, message=f"set properties of namespace {'.'.join(namespace)}", operation="set-namespace-properties"
    )
    return answer


def require(at: Standing, namespace: Namespace) -> Entry:
    entry = at.view.get(namespace) if namespace else None
    if entry is None:
        raise NoSuchNamespace(f"Namespace does not exist: {'.'.join(namespace)}")
    return entry


def check(namespace: Namespace) -> None:
    if not namespace:
        raise BadRequest("namespace must have at least one level", field="namespace")
    if len(namespace) > MAX_LEVELS:
        raise BadRequest(f"namespace has more than {MAX_LEVELS} levels", field="namespace")
    for level in namespace:
        check_level(level, "namespace")
