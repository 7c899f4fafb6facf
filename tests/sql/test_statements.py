"""Cutting and recognising statements: never changes the text, keeps every position, and agrees with PostgreSQL."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefield.pgwire.errors import PgError
from icefield.sql import statements as s
from icefield.sql.branching import ShowBranches, UseBranch
from icefield.sql.lexer import TokenKind, split, tokens
from icefield.sql.statements import classify

PIECES = st.sampled_from(
    [
        "select 1", ";", "'it''s'", "E'a\\'b;'", "$$;$$", "$x$ $$ ; $x$", '"a;b"', "-- c ; d\n", "/* ; /* ; */ ; */",
        " ", "\n", "(", ")", "a$b$c", "$1", "1e5", "0x1F", "::", "U&'\\0041;'", 'U&"d;e"',
        "é", "'", '"', "$$", "/*", "--",
        "begin atomic", "end", "create function f() ", "case", "\\", "B'01'", "n'x'",
    ]
)  # fmt: skip
TEXTS = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=12).map("".join))


@given(TEXTS, st.booleans())
def test_cutting_never_changes_the_text(text: str, backslashes: bool) -> None:
    pieces = split(text, backslashes=backslashes)
    assert ";".join(piece.text for piece in pieces) == text
    for piece in pieces:
        assert text[piece.start : piece.start + len(piece.text)] == piece.text
        for token in piece.tokens:
            assert piece.text[token.start : token.end] == token.text


@given(TEXTS, st.booleans())
def test_tokens_cover_everything_but_blanks_and_comments(text: str, backslashes: bool) -> None:
    at = 0
    for token in tokens(text, backslashes=backslashes):
        between = text[at : token.start].strip(" \t\n\r\f\v")
        assert between == "" or between.startswith(("--", "/*"))
        assert token.start >= at
        assert token.end > token.start
        at = token.end


@given(TEXTS)
def test_recognising_never_fails_but_by_our_own_grammar(text: str) -> None:
    for piece in split(text):
        try:
            kind = classify(piece)
        except PgError as caught:
            error: PgError | None = caught
            kind = None
        else:
            error = None
        if error is not None:
            assert error.sqlstate in ("42601", "42704", "22023")
            assert error.position is not None
            assert 1 <= error.position <= len(piece.text) + 1
        elif isinstance(kind, s.CreateTable):
            assert len(kind.brain_text) == len(piece.text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("select 1; select 2", 2),
        ("select ';'; select $$;$$", 2),
        ("select 1 /* ; */ -- ;\n", 1),
        ("create rule r as on insert to t do (select 1; select 2); select 3", 2),
        ("create function f() returns int begin atomic select 1; select case when true then 1 end; end; select 4", 2),
        ("begin; select 1; end", 3),
        ("select a$$ ; $$b", 2),
        ("select E'\\';'", 1),
        ("select '\\'; select 1", 2),
    ],
)
def test_where_statements_end(text: str, count: int) -> None:
    assert len([piece for piece in split(text) if not piece.empty]) == count


def test_where_statements_end_depends_on_standard_conforming_strings() -> None:
    assert len(split("select '\\';'")) == 2
    assert len(split("select '\\';'", backslashes=True)) == 1


def one(text: str) -> s.Kind:
    (piece,) = split(text)
    return classify(piece)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("BEGIN", s.Begin(s.Modes())),
        ("begin isolation level read committed, read only", s.Begin(s.Modes("read committed", True))),
        ("START TRANSACTION READ WRITE NOT DEFERRABLE", s.Begin(s.Modes(None, False, False), "START TRANSACTION")),
        ("COMMIT WORK AND CHAIN", s.Commit(chain=True)),
        ("end and no chain", s.Commit()),
        ("ABORT", s.Rollback()),
        ('ROLLBACK TO SAVEPOINT "A b"', s.RollbackTo("A b")),
        ("rollback work to X", s.RollbackTo("x")),
        ("ROLLBACK TO savepoint", s.RollbackTo("savepoint")),
        ("SAVEPOINT a", s.Savepoint("a")),
        ("RELEASE a", s.Release("a")),
        ("RELEASE savepoint", s.Release("savepoint")),
        ("RELEASE SAVEPOINT a", s.Release("a")),
        ("SHOW branches", ShowBranches()),
        ("SHOW search_path", s.Local("show")),
        ("USE BRANCH Dev", UseBranch("dev")),
        ('USE BRANCH "Dev"', UseBranch("Dev")),
        ("use branch feature/new-1.x", UseBranch("feature/new-1.x")),
        ("USE BRANCH 'a''b'", UseBranch("a'b")),
        ("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", s.SetTransaction(s.Modes("serializable"), session=False)),
        (
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
            s.SetTransaction(s.Modes(read_only=True), session=True),
        ),
        ("set default_transaction_isolation = 'Serializable'", s.SetIsolation("serializable", True)),
        ("SET search_path = x", s.Local("set")),
        ("DROP TABLE IF EXISTS a, \"B\".c CASCADE", s.DropTable(("a", '"B".c'))),
        ("DROP SCHEMA a, b CASCADE", s.DropSchema(("a", "b"), True)),
        ("CREATE SCHEMA IF NOT EXISTS a", s.CreateSchema("a")),
        ("CREATE TEMP TABLE t (a int)", s.Other()),
        ("CREATE TABLE t (a int)", s.Other()),
        ("CREATE TABLE t AS SELECT 'using iceberg'", s.Other()),
        ("FETCH 1 FROM c", s.CursorMove()),
        ("PREPARE p AS SELECT 1", s.Local("prepare")),
        ("BEGIN ISOLATION LEVEL NONSENSE", s.Other()),
        ("COMMIT x", s.Other()),
        ("USE t", s.Other()),
    ],
)  # fmt: skip
def test_what_a_statement_is(text: str, kind: s.Kind) -> None:
    assert one(text) == kind


def test_create_iceberg_table_keeps_positions_and_takes_its_own_clauses_out() -> None:
    text = (
        "CREATE ICEBERG TABLE IF NOT EXISTS s.\"T\" (id bigint NOT NULL, \"N\" numeric(10,2), at timestamp)\n"
        "PARTITION BY (id, bucket(16, id), truncate(\"N\", 5), days(at)) WITH ('format-version' = 3, a.b = 'x''y')"
    )  # fmt: skip
    kind = one(text)
    assert isinstance(kind, s.CreateTable)
    assert kind.name == ("s", "T")
    assert kind.if_not_exists
    assert len(kind.brain_text) == len(text)
    plain = 'CREATE TABLE IF NOT EXISTS s."T" (id bigint NOT NULL, "N" numeric(10,2), at timestamp)'
    assert kind.brain_text.split() == plain.split()
    assert kind.brain_text.index("numeric") == text.index("numeric")
    assert [(p.transform, p.column) for p in kind.partitions] == [
        ("identity", "id"),
        ("bucket[16]", "id"),
        ("truncate[5]", "N"),
        ("day", "at"),
    ]
    assert kind.properties == (("format-version", "3"), ("a.b", "x'y"))
    assert kind.type_at == {"id": text.index("bigint"), "N": text.index("numeric"), "at": text.index("timestamp")}


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE t (a int) USING iceberg",
        "CREATE TABLE t (a int) PARTITION BY (a) USING ICEBERG",
        "CREATE ICEBERG TABLE t (a int) USING iceberg",
    ],
)
def test_ways_to_say_iceberg(text: str) -> None:
    kind = one(text)
    assert isinstance(kind, s.CreateTable)
    assert kind.brain_text.split() == ["CREATE", "TABLE", "t", "(a", "int)"]


@pytest.mark.parametrize(
    ("text", "position", "sqlstate"),
    [
        ("CREATE ICEBERG VIEW v", 16, "42601"),
        ("CREATE ICEBERG TABLE t", 23, "42601"),
        ("CREATE ICEBERG TABLE t (a int", 30, "42601"),
        ("CREATE ICEBERG TABLE t (a int) PARTITION (a)", 42, "42601"),
        ("CREATE ICEBERG TABLE t (a int) PARTITION BY (bucket(0, a))", 53, "22023"),
        ("CREATE ICEBERG TABLE t (a int) PARTITION BY (hash(a))", 46, "42704"),
        ("CREATE ICEBERG TABLE t (a int) WITH (a)", 39, "42601"),
        ("CREATE ICEBERG TABLE t (a int) ORDER BY a", 32, "42601"),
        ("USE BRANCH a b", 14, "42601"),
        ("USE BRANCH", 11, "42601"),
    ],
)
def test_errors_of_our_own_grammar_say_where(text: str, position: int, sqlstate: str) -> None:
    with pytest.raises(PgError) as caught:
        one(text)
    assert (caught.value.sqlstate, caught.value.position) == (sqlstate, position)


@pytest.mark.parametrize("text", ["CREATE ICEBERG TABLE t AS SELECT 1", "CREATE TABLE t USING iceberg AS SELECT 1"])
def test_ctas_is_refused(text: str) -> None:
    assert isinstance(one(text), s.Refused)


def test_a_broken_string_runs_to_the_end() -> None:
    (piece,) = split("select 'a; select 2")
    assert piece.tokens[-1].kind is TokenKind.BROKEN
