"""What an ALTER TABLE made of a relation, as a commit to the Iceberg table. Pure.

The relation is looked at before and after. Columns are told apart by their number, which a rename keeps. What did not
change keeps the words it has in the table, whoever wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from icefield.pgwire.errors import PgError
from icefield.sql import types
from icefield.sql.ddl import remembered
from icefield.sql.ddl.create import current_schema
from icefield.sql.ddl.readback import Attribute, Constraint, Relation, memory_of
from icefield.sql.ddl.remembered import Memory
from icefield.sql.ddl.running import type_of
from icefield.sql.ddl.schema import Json, iceberg_field, identifier_ids
from icefield.sql.shadows import Column, Shadow

DEFAULTS_VERSION = 3


@dataclass(frozen=True, slots=True)
class StandIns:
    """What stands in the shadow for remembered things that do not fit, so that they can be named and dropped."""

    constraints: Mapping[int, str] = field(default_factory=dict)
    """oid -> the property that it stands for."""
    defaults: Mapping[int, str] = field(default_factory=dict)
    """Column number -> property."""


@dataclass(frozen=True, slots=True)
class Difference:
    before: Relation
    after: Relation
    stand_ins: StandIns = field(default_factory=StandIns)

    def added(self) -> list[Attribute]:
        known = self.before.by_number()
        return [attribute for attribute in self.after.attributes if attribute.number not in known]

    def dropped(self) -> list[Attribute]:
        left = self.after.by_number()
        return [attribute for attribute in self.before.attributes if attribute.number not in left]

    def kept(self) -> list[tuple[Attribute, Attribute]]:
        left = self.after.by_number()
        return [(old, left[old.number]) for old in self.before.attributes if old.number in left]

    def moved(self) -> bool:
        return (self.before.schema, self.before.name) != (self.after.schema, self.after.name)

    def depends_on_rows(self) -> bool:
        """Whether rows that are there could make it fail, or have to get values."""
        if any(new.required and not old.required for old, new in self.kept()):
            return True
        if any(new.required or new.volatile or new.identity for new in self.added()):
            return True
        known = {_judged(constraint) for constraint in self.before.constraints}
        return any(
            constraint.kind in "cpu" and _judged(constraint) not in known for constraint in self.after.constraints
        )

    def check_types(self) -> None:
        """Raises 0A000 for a change of type that metadata alone cannot make."""
        for old, new in self.kept():
            if _type_changed(old, new) and not types.widens_to(type_of(old), type_of(new)):
                raise PgError(
                    "0A000",
                    f'column "{new.name}" of an Iceberg table cannot change its type from {old.shown} to {new.shown}',
                    hint="A type can become wider (integer to bigint, real to double precision, more digits before"
                    " the point, a longer varchar, text). For another one: add a column, UPDATE it, drop the old one.",
                )


def _judged(constraint: Constraint) -> tuple[Any, ...]:
    return constraint.name, constraint.kind, constraint.columns, constraint.expression, constraint.not_distinct


def _type_changed(old: Attribute, new: Attribute) -> bool:
    return (old.type_oid, old.typmod) != (new.type_oid, new.typmod)


@dataclass(slots=True)
class Evolution:
    """The commit that does it, given the table as the server holds it."""

    difference: Difference
    shadow: Shadow
    metadata: Json
    initial_defaults: dict[int, Any] = field(default_factory=dict)
    """Column number of a new column -> the value, in Iceberg's JSON, that the rows that are there have in it."""
    write_defaults: dict[int, Any] = field(default_factory=dict)
    """Column number -> what other engines write; for every column whose default changed."""
    to_be_written: frozenset[int] = frozenset()
    """Numbers of new columns whose values must be written into the rows that are there: optional until then."""
    ids: dict[int, int] = field(init=False)
    """Column number -> field id."""
    _last_id: int = field(init=False)

    def __post_init__(self) -> None:
        by_name = {column.name: column.field_id for column in self.shadow.columns}
        self.ids = {attribute.number: by_name[attribute.name] for attribute in self.difference.before.attributes}
        self._last_id = int(self.metadata["last-column-id"])
        for attribute in self.difference.added():
            self.ids[attribute.number] = self._next_id()

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    @property
    def format_version(self) -> int:
        return int(self.metadata["format-version"])

    def memories(self) -> tuple[Memory, Memory]:
        leave = frozenset(self.difference.stand_ins.constraints)
        before, after = (
            memory_of(relation, self.ids, leave) for relation in (self.difference.before, self.difference.after)
        )
        return self._as_declared(before, self.difference.before), self._as_declared(after, self.difference.after)

    def _as_declared(self, memory: Memory, relation: Relation) -> Memory:
        """A shadow's sequence shows a window of its numbers, and never cycles: what was declared is remembered."""
        known = {counter.field_id: counter for counter in self.shadow.memory.counters}
        old = {sequence.oid for sequence in self.difference.before.sequences}
        same = {self.ids[sequence.column] for sequence in relation.sequences if sequence.oid in old}
        counters = []
        for counter in memory.counters:
            declared = known.get(counter.field_id)
            if declared is not None and counter.field_id in same:
                low, high = remembered.bounds_as(declared, counter.type)
                counter = replace(
                    counter,
                    start=declared.start,
                    increment=declared.increment,
                    min=low,
                    max=high,
                    cycle=declared.cycle,
                )
            counters.append(counter)
        return replace(memory, counters=tuple(counters))

    def default_changed(self) -> list[Attribute]:
        """Columns of which the default is another now."""
        old = {attribute.number: attribute.default for attribute in self.difference.before.attributes}
        return [one for one in self.difference.after.attributes if one.default != old.get(one.number)]

    # the schema

    def schema(self) -> Json:
        loaded = current_schema(self.metadata)
        self._check_dropped(loaded)
        new = self.difference.after.by_number()
        old = self.difference.before.by_number()
        numbers = {field_id: number for number, field_id in self.ids.items()}
        fields: list[Json] = []
        for one in loaded["fields"]:
            number = numbers.get(one["id"])
            if number in new and number in old:
                fields.append(self._changed(dict(one), old[number], new[number]))
        for attribute in self.difference.added():
            fields.append(self._new_field(attribute))
        self._check_names(fields)
        schema: Json = {"type": "struct", "schema-id": loaded["schema-id"]}
        identifiers = self.identifiers(loaded, fields)
        if identifiers:
            schema["identifier-field-ids"] = identifiers
        schema["fields"] = fields
        return schema

    def _changed(self, one: Json, old: Attribute, new: Attribute) -> Json:
        one["name"] = new.name
        if old.required != new.required:
            one["required"] = new.required
        if _type_changed(old, new):
            kind = one["type"]
            element_id = kind["element-id"] if isinstance(kind, dict) else 0
            one["type"] = type_of(new).iceberg_json(lambda: element_id)
        if old.comment != new.comment:
            one.pop("doc", None)
            if new.comment is not None:
                one["doc"] = new.comment
        if new.number in self.write_defaults:
            one.pop("write-default", None)
            if self.write_defaults[new.number] is not None:
                one["write-default"] = self.write_defaults[new.number]
        return one

    def _new_field(self, attribute: Attribute) -> Json:
        required = attribute.required and attribute.number not in self.to_be_written
        column = Column(attribute.name, type_of(attribute), required, self.ids[attribute.number], attribute.comment)
        one = iceberg_field(column, self._next_id)
        for key, values in (("initial-default", self.initial_defaults), ("write-default", self.write_defaults)):
            if values.get(attribute.number) is not None:
                one[key] = values[attribute.number]
        return one

    def identifiers(self, loaded: Json, fields: list[Json]) -> list[int]:
        before, after = self.memories()
        by_id = {one["id"]: one for one in fields}
        if any(key.primary for key in (*before.keys, *after.keys)):
            return identifier_ids(after, by_id)
        named: list[int] = loaded.get("identifier-field-ids") or []
        for field_id in named:
            if field_id not in by_id or not by_id[field_id]["required"]:
                name = next(one["name"] for one in loaded["fields"] if one["id"] == field_id)
                raise PgError(
                    "0A000",
                    f'column "{name}" is one of the table\'s identifier fields: it must stay, and stay NOT NULL',
                    hint="Another engine declared them: ALTER TABLE … DROP IDENTIFIER FIELDS in Spark.",
                )
        return named

    def _check_dropped(self, loaded: Json) -> None:
        gone = {self.ids[attribute.number]: attribute.name for attribute in self.difference.dropped()}
        spec = _current(self.metadata, "partition-specs", "spec-id", "default-spec-id")
        order = _current(self.metadata, "sort-orders", "order-id", "default-sort-order-id")
        for what, fields in (("partitioned", spec.get("fields", ())), ("ordered", order.get("fields", ()))):
            for one in fields:
                if one.get("source-id") in gone and one.get("transform") != "void":
                    raise PgError(
                        "42P16",
                        f'cannot drop column "{gone[one["source-id"]]}" because table'
                        f' "{self.shadow.name}" is {what} by it',
                        hint="Change that first: ALTER TABLE … DROP PARTITION FIELD or WRITE UNORDERED in Spark.",
                    )

    def _check_names(self, fields: list[Json]) -> None:
        """Iceberg has the names of columns and partition fields in one room."""
        spec = _current(self.metadata, "partition-specs", "spec-id", "default-spec-id")
        taken = {one["name"]: one for one in spec.get("fields", ())}
        for one in fields:
            part = taken.get(one["name"])
            if part is not None and not (part["transform"] == "identity" and part["source-id"] == one["id"]):
                raise PgError(
                    "42701",
                    f'column name "{one["name"]}" is taken by a partition field of table "{self.shadow.name}"',
                    hint="Choose another name: in Iceberg a partition field's name is taken.",
                )

    # the commit

    def updates(self) -> list[Json]:
        loaded, schema = current_schema(self.metadata), self.schema()
        updates: list[Json] = []
        if {**loaded, "schema-id": 0} != {**schema, "schema-id": 0}:
            updates += [
                {"action": "add-schema", "schema": schema, "last-column-id": self._last_id},
                {"action": "set-current-schema", "schema-id": -1},
            ]
        put, removed = self.properties()
        if put:
            updates.append({"action": "set-properties", "updates": put})
        if removed:
            updates.append({"action": "remove-properties", "removals": sorted(removed)})
        return updates

    def properties(self) -> tuple[dict[str, str], set[str]]:
        """To set, and to remove."""
        stored: Mapping[str, str] = self.metadata.get("properties") or {}
        before, after = (remembered.to_properties(memory) for memory in self.memories())
        put = {name: value for name, value in after.items() if before.get(name) != value}
        removed = before.keys() - after.keys()
        types_before = {self.ids[old.number]: type_of(old).remembered for old in self.difference.before.attributes}
        for attribute in self.difference.after.attributes:
            field_id = self.ids[attribute.number]
            shown = type_of(attribute).remembered
            if shown != types_before.get(field_id):
                name = f"{remembered.PG_TYPE}{field_id}"
                if shown is None:
                    removed = removed | {name}
                else:
                    put[name] = shown
        for attribute in self.difference.dropped():
            for prefix in (remembered.PG_TYPE, remembered.DEFAULT, remembered.SEQUENCE, remembered.NOT_NULL):
                removed = removed | {f"{prefix}{self.ids[attribute.number]}"}
        renamed, gone = self._stand_ins(stored)
        put |= renamed
        return (
            {name: value for name, value in put.items() if stored.get(name) != value},
            {name for name in removed | gone if name in stored and name not in put},
        )

    def _stand_ins(self, stored: Mapping[str, str]) -> tuple[dict[str, str], set[str]]:
        """Dropped or renamed, as what they stand for."""
        put: dict[str, str] = {}
        gone: set[str] = set()
        left = {constraint.oid: constraint.name for constraint in self.difference.after.constraints}
        for oid, name in self.difference.stand_ins.constraints.items():
            was = remembered.constraint_name(name) or ""
            if oid not in left:
                gone.add(name)
            elif left[oid] != was:
                gone.add(name)
                put[name[: len(name) - len(was)] + left[oid]] = stored[name]
        old, new = self.difference.before.by_number(), self.difference.after.by_number()
        for number, name in self.difference.stand_ins.defaults.items():
            if number not in new or new[number].default != old[number].default:
                gone.add(name)
        return put, gone

    def requirements(self) -> list[Json]:
        return [
            {"type": "assert-table-uuid", "uuid": self.metadata["table-uuid"]},
            {"type": "assert-current-schema-id", "current-schema-id": self.metadata["current-schema-id"]},
            {
                "type": "assert-last-assigned-field-id",
                "last-assigned-field-id": int(self.metadata["last-column-id"]),
            },
        ]


def has_rows(metadata: Json) -> bool:
    """False only where it is certain."""
    current = metadata.get("current-snapshot-id")
    if current in (None, -1):
        return False
    for snapshot in metadata.get("snapshots") or ():
        if snapshot["snapshot-id"] == current:
            return (snapshot.get("summary") or {}).get("total-records") != "0"
    return True


def _current(metadata: Json, many: str, key: str, current: str) -> Json:
    wanted = metadata.get(current)
    return next((each for each in metadata.get(many) or () if each.get(key) == wanted), {})
