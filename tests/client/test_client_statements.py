"""Which statement is what: a read, a plain append, or a strict write."""

from __future__ import annotations

import pytest

from icefield.client.statements import _sql_work

READ, APPEND, STRICT = (False, False), (True, False), (True, True)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("SELECT 1", READ),
        ("  -- a note\n /* and\nanother */ (select 1)", READ),
        ("VALUES (1)", READ),
        ("TABLE sales.orders", READ),
        ("describe table sales.orders", READ),
        ("EXPLAIN INSERT INTO a SELECT 1", READ),
        ("WITH q AS (SELECT 1) SELECT * FROM q", READ),
        ("FROM a SELECT x", READ),
        ("INSERT INTO a VALUES (1)", APPEND),
        ("insert\n  into a select * from b", APPEND),
        ("WITH q AS (SELECT 1) INSERT INTO a SELECT * FROM q", APPEND),
        ("FROM b INSERT INTO a SELECT x", APPEND),
        ("INSERT OVERWRITE a SELECT 1", STRICT),
        ("WITH q AS (SELECT 1) INSERT OVERWRITE a SELECT * FROM q", STRICT),
        ("FROM b INSERT INTO a SELECT x INSERT OVERWRITE c SELECT y", STRICT),
        ("MERGE INTO a USING b ON a.i = b.i WHEN NOT MATCHED THEN INSERT *", STRICT),
        ("WITH q AS (SELECT 1 i) MERGE INTO a USING q ON a.i = q.i WHEN NOT MATCHED THEN INSERT *", STRICT),
        ("UPDATE a SET x = 1", STRICT),
        ("DELETE FROM a", STRICT),
        ("CREATE TABLE a AS SELECT 1", STRICT),
        ("CALL system.rewrite_data_files('a')", STRICT),
        ("BEGIN INSERT INTO a VALUES (1); UPDATE a SET x = 1; END", STRICT),
        ("", STRICT),
        ("😀", STRICT),
    ],
)
def test_the_kind_of_a_statement(text: str, kind: tuple[bool, bool]) -> None:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")  # as Py4J sends it
    work = _sql_work(f"s{escaped}\nro5\ne\n")
    assert (work.writes, work.strict) == kind
