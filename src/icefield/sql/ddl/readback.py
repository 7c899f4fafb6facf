"""What the brain made of a client's DDL: a relation's columns, constraints, defaults and sequences, read back.

Expressions come in a form that means the same everywhere: every name that is not PostgreSQL's own is qualified, dates
are ISO, and in a CHECK the columns are field ids. To know which word is a column, the columns are renamed for a moment
to words that nothing else is called (in a savepoint that is rolled back), so that PostgreSQL itself says it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icefield.pgwire.brain_link import BrainLink
from icefield.pgwire.errors import PgError
from icefield.sql.ddl import remembered
from icefield.sql.ddl.remembered import Check, Counter, Key, Memory, quote


@dataclass(frozen=True, slots=True)
class Attribute:
    number: int
    name: str
    type_oid: int
    typmod: int
    shown: str
    required: bool
    default: str | None
    foreign: bool
    """The default names something that is not PostgreSQL's own, nor a sequence of the table's."""
    counts: bool
    """The default takes its value from the column's sequence."""
    only_counts: bool
    """… and is nothing but that: nextval('…')."""
    volatile: bool
    """There is a default, and it was added without one value for all rows."""
    identity: str
    generated: str
    collated: bool
    comment: str | None


@dataclass(frozen=True, slots=True)
class Constraint:
    oid: int
    name: str
    kind: str
    columns: tuple[int, ...]
    definition: str
    expression: str | None
    """Of a CHECK, with ``$<column number>``."""
    not_distinct: bool
    unsupported: str | None
    """What about it cannot be kept."""


@dataclass(frozen=True, slots=True)
class OwnedSequence:
    oid: int
    sql_name: str
    name: str
    column: int
    serial: bool
    type: str
    start: int
    increment: int
    min: int
    max: int
    cycle: bool


@dataclass(frozen=True, slots=True)
class Relation:
    oid: int
    schema: str
    name: str
    attributes: tuple[Attribute, ...]
    constraints: tuple[Constraint, ...]
    sequences: tuple[OwnedSequence, ...]
    comment: str | None

    @property
    def sql_name(self) -> str:
        return f"{quote(self.schema)}.{quote(self.name)}"

    def numbers(self) -> dict[str, int]:
        return {attribute.name: attribute.number for attribute in self.attributes}

    def by_number(self) -> dict[int, Attribute]:
        return {attribute.number: attribute for attribute in self.attributes}


_CALM = (
    "SAVEPOINT icefield_look; SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL datestyle = 'ISO, YMD';"
    " SET LOCAL intervalstyle = postgres; SET LOCAL extra_float_digits = 1; SET LOCAL bytea_output = hex;"
    " SET LOCAL timezone = 'UTC'; SET LOCAL standard_conforming_strings = on; SET LOCAL quote_all_identifiers = off"
)
_UNDO = "ROLLBACK TO SAVEPOINT icefield_look; RELEASE SAVEPOINT icefield_look"

_SEQUENCES = """
SELECT s.seqrelid, n.nspname, c.relname, d.refobjsubid, d.deptype, format_type(s.seqtypid, NULL) AS type,
  s.seqstart::text, s.seqincrement::text, s.seqmin::text, s.seqmax::text, s.seqcycle
FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = s.seqrelid AND d.refclassid = 'pg_class'::regclass
  AND d.refobjid = {oid} AND d.deptype IN ('a', 'i') AND d.refobjsubid > 0
ORDER BY d.refobjsubid, s.seqrelid
"""
_LOOK = """
WITH sequences AS ({sequences}),
foreigners AS (
  SELECT d.classid, d.objid FROM pg_depend d
  WHERE d.deptype = 'n' AND NOT (d.refclassid = 'pg_class'::regclass
    AND (d.refobjid = {oid} OR d.refobjid IN (SELECT seqrelid FROM sequences))))
SELECT json_build_object(
  'schema', (SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = {oid}),
  'name', (SELECT relname FROM pg_class WHERE oid = {oid}),
  'comment', obj_description({oid}, 'pg_class'),
  'attributes', (SELECT json_agg(json_build_array(a.attnum, a.attname, a.atttypid::text, a.atttypmod,
      format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid),
      EXISTS (SELECT FROM foreigners f WHERE f.classid = 'pg_attrdef'::regclass AND f.objid = d.oid),
      EXISTS (SELECT FROM pg_depend u JOIN sequences s ON s.seqrelid = u.refobjid
        WHERE u.classid = 'pg_attrdef'::regclass AND u.objid = d.oid AND u.refclassid = 'pg_class'::regclass
          AND s.refobjsubid = a.attnum),
      EXISTS (SELECT FROM sequences s WHERE s.refobjsubid = a.attnum AND pg_get_expr(d.adbin, d.adrelid)
        = 'nextval(' || quote_literal(s.seqrelid::regclass::text) || '::regclass)'),
      d.oid IS NOT NULL AND NOT a.atthasmissing, a.attidentity, a.attgenerated, a.attcollation <> t.typcollation,
      col_description({oid}, a.attnum)) ORDER BY a.attnum)
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped),
  'constraints', (SELECT json_agg(json_build_array(c.oid::text, c.conname, c.contype, c.conkey,
      pg_get_constraintdef(c.oid), c.condeferrable, c.convalidated, c.conenforced, c.connoinherit AND c.contype = 'c',
      c.conperiod, coalesce(i.indnullsnotdistinct, false), coalesce(i.indnatts > i.indnkeyatts, false),
      EXISTS (SELECT FROM foreigners f WHERE f.classid = 'pg_constraint'::regclass AND f.objid = c.oid)) ORDER BY c.oid)
    FROM pg_constraint c LEFT JOIN pg_index i ON i.indexrelid = c.conindid AND c.conindid <> 0
    WHERE c.conrelid = {oid}),
  'sequences', (SELECT json_agg(s) FROM sequences s))
"""


async def look(link: BrainLink, oid: int) -> Relation:
    """As it is now, in this transaction. Leaves nothing behind."""
    query = _LOOK.format(oid=oid, sequences=_SEQUENCES.format(oid=oid))
    answer = await link.query(f"{_CALM}; {query}; {_UNDO}")
    said = json.loads(answer.scalar() or "{}")
    attributes = tuple(_attribute(one) for one in said["attributes"] or ())
    checks: Mapping[int, str] = {}
    if any(one[2] == "c" for one in said["constraints"] or ()):
        checks = await _checks(link, oid, f"{quote(said['schema'])}.{quote(said['name'])}", attributes)
    return Relation(
        oid,
        said["schema"],
        said["name"],
        attributes,
        tuple(_constraint(one, checks) for one in said["constraints"] or ()),
        tuple(_sequence(one) for one in said["sequences"] or ()),
        said["comment"],
    )


def _attribute(one: list[Any]) -> Attribute:
    number, name, oid, typmod, shown, required, default, foreign, counts, only, volatile, *rest = one
    return Attribute(number, name, int(oid), typmod, shown, required, default, foreign, counts, only, volatile, *rest)


def _constraint(one: list[Any], checks: Mapping[int, str]) -> Constraint:
    oid, name, kind, columns, shown, deferrable, valid, enforced, local, period, not_distinct, more, foreign = one
    unsupported = next(
        (
            what
            for there, what in (
                (kind == "f", "REFERENCES"),
                (kind == "x", "EXCLUDE"),
                (kind == "t", "CONSTRAINT TRIGGER"),
                (deferrable, "DEFERRABLE"),
                (not enforced, "NOT ENFORCED"),
                (not valid, "NOT VALID"),
                (local, "NO INHERIT"),
                (period, "WITHOUT OVERLAPS"),
                (more, "INCLUDE"),
                (foreign, "a CHECK with functions, types or operators of this session"),
            )
            if there
        ),
        None,
    )
    return Constraint(
        int(oid), name, kind, tuple(columns or ()), shown, checks.get(int(oid)), not_distinct, unsupported
    )


def _sequence(one: Mapping[str, Any]) -> OwnedSequence:
    return OwnedSequence(
        int(one["seqrelid"]),
        f"{quote(one['nspname'])}.{quote(one['relname'])}",
        one["relname"],
        one["refobjsubid"],
        one["deptype"] == "a",
        one["type"],
        int(one["seqstart"]),
        int(one["seqincrement"]),
        int(one["seqmin"]),
        int(one["seqmax"]),
        one["seqcycle"],
    )


async def _checks(link: BrainLink, oid: int, table: str, attributes: tuple[Attribute, ...]) -> dict[int, str]:
    """By constraint: the expression with ``$<column number>``."""
    mark = f"icefield_{secrets.token_hex(6)}_"
    steps = [
        f"ALTER TABLE {table} RENAME COLUMN {quote(attribute.name)} TO {mark}{attribute.number}"
        for attribute in attributes
    ]
    steps.append(f"ALTER TABLE {table} RENAME TO {mark}table")
    answer = await link.query(
        f"{_CALM}; {'; '.join(steps)};"
        " SELECT oid, conname, pg_get_expr(conbin, conrelid) FROM pg_constraint"
        f" WHERE conrelid = {oid} AND contype = 'c';"
        f" {_UNDO}"
    )
    numbers = {f"{mark}{attribute.number}": attribute.number for attribute in attributes}
    found = {}
    for constraint, name, expression in answer.rows:
        text = remembered.with_ids(expression or "", numbers)
        if mark in text:
            raise PgError(
                "0A000",
                f'CHECK constraint "{name}" names the whole row, which is not supported in an Iceberg table',
                hint="Name the columns: another engine may add one.",
            )
        found[int(constraint or 0)] = text
    return found


# As the table remembers it --------------------------------------------------------------------------------------------


def memory_of(relation: Relation, ids: Mapping[int, int], leave: frozenset[int] = frozenset()) -> Memory:
    """``ids``: column number -> field id. ``leave``: oids of constraints that stand for something else."""
    owned = {sequence.column: sequence for sequence in relation.sequences}
    defaults: list[tuple[int, str]] = []
    counters: list[Counter] = []
    for attribute in relation.attributes:
        field_id, sequence = ids[attribute.number], owned.get(attribute.number)
        if sequence is not None:
            counters.append(_counter(field_id, attribute, sequence))
        if attribute.default is not None and not attribute.generated and not attribute.only_counts:
            defaults.append((field_id, attribute.default))
    checks: list[Check] = []
    keys: list[Key] = []
    not_nulls: list[tuple[int, str]] = []
    names = {attribute.number: attribute.name for attribute in relation.attributes}
    for constraint in relation.constraints:
        if constraint.oid in leave:
            continue
        if constraint.kind == "c":
            expression = remembered.renumbered(constraint.expression or "", ids)
            checks.append(Check(constraint.name, expression))
        elif constraint.kind in "pu":
            columns = tuple(ids[number] for number in constraint.columns)
            keys.append(Key(constraint.name, columns, constraint.kind == "p", constraint.not_distinct))
        elif constraint.kind == "n":
            (number,) = constraint.columns
            if constraint.name != remembered.not_null_name(relation.name, names[number]):
                not_nulls.append((ids[number], constraint.name))
    return Memory(
        tuple(sorted(defaults)),
        tuple(sorted(checks, key=lambda check: check.name)),
        tuple(sorted(keys, key=lambda key: (not key.primary, key.name))),
        tuple(sorted(counters, key=lambda counter: counter.field_id)),
        tuple(sorted(not_nulls)),
        relation.comment,
    )


def _counter(field_id: int, attribute: Attribute, sequence: OwnedSequence) -> Counter:
    serial = remembered.SERIAL if attribute.counts else remembered.OWNED
    kind = {"a": remembered.ALWAYS, "d": remembered.BY_DEFAULT}.get(attribute.identity, serial)
    return Counter(
        field_id,
        kind,
        sequence.name,
        sequence.type,
        sequence.start,
        sequence.increment,
        sequence.min,
        sequence.max,
        sequence.cycle,
    )
