"""Two databases compared by what their catalogs say of the tables in some schemas, and by what statements answer."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import pq

COLUMNS = """
SELECT table_schema, table_name, column_name, data_type, udt_name, character_maximum_length, numeric_precision,
  numeric_scale, datetime_precision, is_nullable, column_default, is_identity, identity_generation, identity_start,
  identity_increment, is_generated,
  col_description(format('%I.%I', table_schema, table_name)::regclass, ordinal_position)
FROM information_schema.columns WHERE table_schema = ANY ({schemas}) ORDER BY 1, 2, ordinal_position
"""
CONSTRAINTS = """
SELECT conrelid::regclass::text, conname, contype, pg_get_constraintdef(oid), convalidated, condeferrable
FROM pg_constraint WHERE connamespace = ANY (SELECT oid FROM pg_namespace WHERE nspname = ANY ({schemas}))
  AND conrelid <> 0 ORDER BY 1, 2
"""
SEQUENCES = """
SELECT schemaname, sequencename, data_type::text, start_value, increment_by,
  pg_get_serial_sequence(d.refobjid::regclass::text, a.attname)
FROM pg_sequences JOIN pg_depend d ON d.objid = format('%I.%I', schemaname, sequencename)::regclass
  AND d.classid = 'pg_class'::regclass AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i')
JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE schemaname = ANY ({schemas}) ORDER BY 1, 2
"""
BOUNDS = """
SELECT schemaname, sequencename, min_value, max_value FROM pg_sequences WHERE schemaname = ANY ({schemas}) ORDER BY 1, 2
"""
COMMENTS = """
SELECT n.nspname, c.relname, obj_description(c.oid, 'pg_class')
FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE relkind = 'r' AND nspname = ANY ({schemas}) ORDER BY 1, 2
"""
PARTS = {"columns": COLUMNS, "constraints": CONSTRAINTS, "sequences": SEQUENCES, "comments": COMMENTS}


def shape(connection: psycopg.Connection[Any], *schemas: str, **more: str) -> dict[str, list[Any]]:
    names = "ARRAY[" + ", ".join(f"'{name}'" for name in schemas) + "]::name[]"
    return {
        part: connection.execute(query.replace("{schemas}", names).encode()).fetchall()
        for part, query in (PARTS | more).items()
    }


def answer(connection: psycopg.Connection[Any], statement: str) -> tuple[Any, ...]:
    """Tag and rows, or SQLSTATE, message, detail and position."""
    result = connection.pgconn.exec_(statement.encode())
    if result.status == pq.ExecStatus.FATAL_ERROR:
        fields = (
            pq.DiagnosticField.SQLSTATE,
            pq.DiagnosticField.MESSAGE_PRIMARY,
            pq.DiagnosticField.MESSAGE_DETAIL,
            pq.DiagnosticField.STATEMENT_POSITION,
        )
        return tuple(result.error_field(field) for field in fields)
    rows = [tuple(result.get_value(row, at) for at in range(result.nfields)) for row in range(result.ntuples)]
    return (result.command_status, rows)
