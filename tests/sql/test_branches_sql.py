"""Branches, tags, merge and log as SQL statements: what they do, in both protocols, and what they refuse."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefield.pgwire import messages as m
from icefield.pgwire.errors import PgError
from icefield.sql import branching as b
from icefield.sql.brain.binaries import psql_path
from icefield.sql.lexer import split
from icefield.sql.statements import Local, Other, classify
from support.up import Up
from support.wire import Wire, kinds, run, sqlstates, values

Connection = psycopg.Connection[tuple[Any, ...]]


def one(text: str) -> object:
    (piece,) = [piece for piece in split(text) if not piece.empty]
    return classify(piece)


# The grammar ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CREATE BRANCH Dev", b.CreateRef("branch", "dev")),
        ('create branch if not exists "Dev" from main', b.CreateRef("branch", "Dev", "main", True)),
        ("CREATE BRANCH if FROM feature/new-1.x", b.CreateRef("branch", "if", "feature/new-1.x")),
        ("CREATE BRANCH from FROM from", b.CreateRef("branch", "from", "from")),
        ("CREATE BRANCH a FROM 1e5f0c2", b.CreateRef("branch", "a", "1e5f0c2")),
        ("CREATE TAG v1.0 AT main", b.CreateRef("tag", "v1.0", "main")),
        ("CREATE TAG 2024-01-31 FROM 'a''b'", b.CreateRef("tag", "2024-01-31", "a'b")),
        ("DROP BRANCH IF EXISTS a", b.DropRef("branch", "a", True)),
        ("DROP TAG if", b.DropRef("tag", "if")),
        ("MERGE BRANCH a INTO main", b.MergeBranch("a", "main")),
        ("merge /* now */ branch a-b into main -- done\n dry run", b.MergeBranch("a-b", "main", True)),
        ("SHOW BRANCHES", b.ShowBranches()),
        ("SHOW TAGS", b.ShowTags()),
        ("SHOW LOG", b.ShowLog()),
        ('SHOW LOG FOR "X" LIMIT 5', b.ShowLog("X", 5)),
        ("SHOW LOG LIMIT 99999999999999999999", b.ShowLog(None, 10**18)),
        ("USE BRANCH a/b", b.UseBranch("a/b")),
    ],
)
def test_what_is_ours(text: str, kind: object) -> None:
    assert one(text) == kind


@pytest.mark.parametrize(
    "text",
    [
        "MERGE INTO branch USING t ON true WHEN MATCHED THEN DELETE",
        "MERGE INTO ONLY branch AS b USING t ON true WHEN MATCHED THEN DO NOTHING",
        "CREATE TABLE branch (tag int)",
        "CREATE TABLE tag AS SELECT 1",
        "CREATE TEMP TABLE branch (a int)",
        "DROP VIEW branch",
        "USE branches",
        "SELECT branch FROM log",
        "CREATE OR REPLACE VIEW pg_temp.tag AS SELECT 1",
    ],
)
def test_what_stays_postgresqls(text: str) -> None:
    assert one(text) == Other()


@pytest.mark.parametrize(
    "text", ["SHOW log_min_messages", "SHOW ALL", "SHOW log.x", "SHOW branches.x", "SHOW tags all", "SHOW TIME ZONE"]
)
def test_settings_stay_postgresqls(text: str) -> None:
    assert one(text) == Local("show")


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("CREATE BRANCH", 14),
        ("CREATE BRANCH a b", 17),
        ("CREATE BRANCH a AT b", 17),
        ("CREATE BRANCH a FROM", 21),
        ("CREATE BRANCH IF NOT EXISTS", 28),
        ('CREATE BRANCH ""', 15),
        ("CREATE TAG a FROM b c", 21),
        ("CREATE TAG a.b, c", 15),
        ("DROP BRANCH a CASCADE", 15),
        ("DROP TAG", 9),
        ("MERGE BRANCH a", 15),
        ("MERGE BRANCH a TO b", 16),
        ("MERGE BRANCH a INTO b DRY", 23),
        ("SHOW LOG LIMIT", 15),
        ("SHOW LOG LIMIT x", 16),
        ("SHOW LOG LIMIT -1", 16),
        ("SHOW LOG LIMIT 1.5", 16),
        ("SHOW LOG FOR a b", 16),
        ("SHOW LOG LIMIT 1 FOR a", 18),
        ("USE BRANCH $1", 12),
    ],
)
def test_syntax_errors_say_where(text: str, position: int) -> None:
    with pytest.raises(PgError) as caught:
        one(text)
    assert (caught.value.sqlstate, caught.value.position) == ("42601", position)


WORDS = (
    "create drop show use merge branch branches tag tags log for from into at if not exists limit dry run main a-b x/y"
    " 1 1.5 2e3 0x1f 'q' 'a''b' \"Q\" \"\" '' $1 $$x$$ E'x' , . / - ( ) ; -- /* */ é"
)
HEADS = ["create branch", "create tag", "drop branch", "drop tag", "merge branch", "use branch", "show log"]
TAILS = st.lists(st.tuples(st.sampled_from(WORDS.split()), st.sampled_from([" ", "", "\n", "/* c */"])), max_size=7)


@given(st.sampled_from(HEADS), TAILS)
def test_the_grammar_answers_or_says_where(head: str, tail: list[tuple[str, str]]) -> None:
    text = head + " " + "".join(word + blank for word, blank in tail)
    pieces = split(text)
    assert ";".join(piece.text for piece in pieces) == text
    for piece in pieces:
        kind, error = None, None
        try:
            kind = classify(piece)
        except PgError as caught:
            error = caught
        if error is not None:
            assert error.sqlstate == "42601"
            assert error.position is not None
            assert 1 <= error.position <= len(piece.text) + 1
        for name in ("name", "source", "into", "start", "ref"):
            assert getattr(kind, name, "x") != ""


# What they do --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lake(up: Up) -> Iterator[Connection]:
    with psycopg.connect(up.dsn(), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA br")
        connection.execute("CREATE ICEBERG TABLE br.t (a int)")
        yield connection


def fails(connection: Connection, statement: str) -> psycopg.Error:
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement.encode())
    return caught.value


def rows(connection: Connection, query: str) -> list[tuple[Any, ...]]:
    return connection.execute(query.encode()).fetchall()


spark = [pytest.mark.sql, pytest.mark.spark]


class TestStatements:
    pytestmark = spark

    def test_psql_understands_every_answer(self, lake: Connection, up: Up) -> None:
        script = (
            "CREATE BRANCH told; CREATE TAG told_tag; USE BRANCH told; INSERT INTO br.t VALUES (77);"
            " UPDATE br.t SET a = 78 WHERE a = 77; DELETE FROM br.t WHERE a = 78; USE BRANCH main;"
            " MERGE BRANCH told INTO main DRY RUN; MERGE BRANCH told INTO main; SHOW BRANCHES; SHOW TAGS;"
            " SHOW LOG LIMIT 1; DROP TAG told_tag; DROP BRANCH told;"
        )
        command = [str(psql_path()), up.dsn(), "-X", "-v", "ON_ERROR_STOP=1", "-f", "-"]
        lines = script.replace("; ", ";\n")
        done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("fast-forward") == 2

    def test_a_branch_from_its_making_to_its_merge(self, lake: Connection, client: Connection) -> None:
        assert client.execute("CREATE BRANCH work").statusmessage == "CREATE BRANCH"
        client.execute("USE BRANCH work")
        client.execute("INSERT INTO br.t VALUES (1)")
        assert rows(lake, "SELECT count(*) FROM br.t") == [(0,)]
        assert rows(client, "SHOW BRANCHES")[-1][0::3] == ("work", True)
        ((_, state),) = rows(client, "MERGE BRANCH work INTO main DRY RUN")
        assert state == "fast-forward"
        assert rows(lake, "SELECT count(*) FROM br.t") == [(0,)]
        done = client.execute("MERGE BRANCH work INTO main")
        assert done.statusmessage == "BRANCH MERGE"
        assert [column.name for column in done.description or ()] == ["commit", "state"]
        ((commit, state),) = done.fetchall()
        assert state == "fast-forward"
        assert rows(lake, "SELECT a FROM br.t") == [(1,)]
        assert rows(lake, "MERGE BRANCH work INTO main") == [(commit, "nothing-to-do")]
        assert rows(lake, "SHOW LOG LIMIT 1")[0][0] == commit
        assert fails(client, "DROP BRANCH work").sqlstate == "55006"
        client.execute("USE BRANCH main")
        assert client.execute("DROP BRANCH work").statusmessage == "DROP BRANCH"
        assert fails(client, "USE BRANCH work").sqlstate == "3D000"

    def test_a_new_branch_begins_where_the_session_stands(self, lake: Connection, client: Connection) -> None:
        client.execute("CREATE BRANCH base")
        client.execute("USE BRANCH base")
        client.execute("CREATE ICEBERG TABLE br.only_base (a int)")
        client.execute("CREATE BRANCH follower")
        client.execute("CREATE BRANCH apart FROM main")
        heads = {row[0]: row[1] for row in rows(client, "SHOW BRANCHES")}
        assert heads["follower"] == heads["base"] != heads["apart"] == heads["main"]
        client.execute("CREATE TAG first_seen AT base")
        assert rows(client, "SHOW TAGS") == [("first_seen", heads["base"], False)]
        client.execute("USE BRANCH first_seen")
        assert fails(client, "INSERT INTO br.only_base VALUES (1)").sqlstate == "25006"
        client.execute("CREATE TEMP TABLE mine AS SELECT 1 AS a")
        client.execute("UPDATE mine SET a = 2")  # what is not in the lake may change
        client.execute("INSERT INTO mine VALUES (3)")
        client.execute("USE BRANCH main")
        for statement in ("DROP BRANCH base", "DROP BRANCH follower", "DROP BRANCH apart", "DROP TAG first_seen"):
            client.execute(statement.encode())

    def test_conflicts_of_a_merge_are_all_told(self, lake: Connection, client: Connection) -> None:
        client.execute("CREATE BRANCH left_side")
        for name in ("one", "two"):
            client.execute(f"CREATE ICEBERG TABLE br.{name} (a int)".encode())
        client.execute("USE BRANCH left_side")
        for name in ("one", "two"):
            client.execute(f"CREATE ICEBERG TABLE br.{name} (b text)".encode())
        for statement in ("MERGE BRANCH left_side INTO main DRY RUN", "MERGE BRANCH left_side INTO main"):
            error = fails(client, statement)
            assert error.sqlstate == "40001"
            detail = error.diag.message_detail or ""
            assert "br.one" in detail
            assert "br.two" in detail
        client.execute("USE BRANCH main")
        client.execute("DROP BRANCH left_side")
        client.execute("DROP TABLE br.one, br.two")

    def test_the_log(self, lake: Connection, client: Connection) -> None:
        begun = datetime.now(UTC)
        client.execute("SET TimeZone = 'Asia/Kolkata'")
        client.execute("INSERT INTO br.t VALUES (5)")
        answer = client.execute("SHOW LOG LIMIT 2")
        assert [column.name for column in answer.description or ()] == [
            "commit",
            "time",
            "principal",
            "message",
            "operation",
            "tables",
        ]
        found = answer.fetchall()
        assert len(found) == 2
        assert found[0][5] == ["br.t"]
        assert abs(found[0][1] - begun) < timedelta(minutes=2)
        assert found[0][1].utcoffset() == timedelta(hours=5, minutes=30)
        whole = rows(client, "SHOW LOG")
        assert whole[:2] == found
        assert len(whole) > 2
        assert rows(client, "SHOW LOG LIMIT 0") == []
        assert rows(client, f"SHOW LOG FOR {found[1][0]} LIMIT 1") == [found[1]]
        with client.transaction():
            assert rows(client, "SHOW LOG LIMIT 2") == found
        binary = client.cursor(binary=True)
        assert binary.execute("SHOW LOG LIMIT 2").fetchall() == found

    @pytest.mark.parametrize(
        ("statement", "sqlstate"),
        [
            ("CREATE BRANCH main", "42710"),
            ("CREATE TAG main", "42710"),
            ("CREATE TAG IF NOT EXISTS main", "42710"),
            ("CREATE BRANCH x FROM nothing", "42704"),
            ("CREATE BRANCH 'a b'", "42602"),
            ("DROP BRANCH nothing", "42704"),
            ("DROP TAG nothing", "42704"),
            ("DROP TAG main", "42809"),
            ("DROP BRANCH main", "55006"),
            ("MERGE BRANCH nothing INTO main", "42704"),
            ("MERGE BRANCH main INTO nothing", "42704"),
            ("SHOW LOG FOR nothing", "42704"),
            ("CREATE BRANCH a b", "42601"),
        ],
    )
    def test_refusals(self, lake: Connection, client: Connection, statement: str, sqlstate: str) -> None:
        before = rows(client, "SHOW BRANCHES")
        assert fails(client, statement).sqlstate == sqlstate
        assert fails(client, f"SELECT 1; {statement}").sqlstate in (sqlstate, "25001")
        assert rows(client, "SHOW BRANCHES") == before

    def test_what_is_there_already_is_a_notice_if_asked_so(self, lake: Connection, client: Connection) -> None:
        heard: list[str] = []
        client.add_notice_handler(lambda notice: heard.append(notice.message_primary or ""))
        client.execute("CREATE BRANCH IF NOT EXISTS main")
        client.execute("DROP BRANCH IF EXISTS nothing")
        client.execute("DROP TAG IF EXISTS nothing")
        assert heard == [
            'branch "main" already exists, skipping',
            'branch "nothing" does not exist, skipping',
            'tag "nothing" does not exist, skipping',
        ]

    @pytest.mark.parametrize(
        "statement", ["CREATE BRANCH x", "DROP BRANCH x", "CREATE TAG x", "DROP TAG x", "MERGE BRANCH x INTO main"]
    )
    def test_no_part_of_a_transaction(self, lake: Connection, client: Connection, statement: str) -> None:
        client.execute("BEGIN")
        error = fails(client, statement)
        assert error.sqlstate == "25001"
        assert fails(client, statement).sqlstate == "25P02"
        assert fails(client, "SHOW BRANCHES").sqlstate == "25P02"
        client.execute("ROLLBACK")
        assert "x" not in [row[0] for row in rows(client, "SHOW BRANCHES") + rows(client, "SHOW TAGS")]

    def test_the_position_in_a_longer_text(self, lake: Connection, client: Connection) -> None:
        error = fails(client, "SELECT 'é';\nCREATE BRANCH a b")
        assert (error.sqlstate, error.diag.statement_position) == ("42601", "29")

    def test_the_extended_protocol(self, lake: Connection, up: Up) -> None:
        wire = Wire(up.sql_port)
        try:
            log = wire.ask(
                m.Parse("l", "SHOW LOG LIMIT 3"),
                m.Describe(m.Target.STATEMENT, "l"),
                m.Bind("p", "l", (), (), (1,)),
                m.Describe(m.Target.PORTAL, "p"),
                m.Execute("p", 2),
                m.Execute("p", 2),
            )
            described = [message for message in log if isinstance(message, m.RowDescription)]
            assert [column.format for column in described[0].fields] == [0] * 6
            assert [column.format for column in described[1].fields] == [1] * 6
            assert [column.type_oid for column in described[1].fields] == [25, 1184, 25, 25, 25, 1009]
            assert kinds(log)[-6:] == [
                "DataRow",
                "DataRow",
                "PortalSuspended",
                "DataRow",
                "CommandComplete",
                "ReadyForQuery",
            ]
            assert all(len(row[1] or b"") == 8 for row in values(log))
            assert kinds(wire.ask(m.Parse("", "CREATE BRANCH pipe"), m.Describe(m.Target.STATEMENT, "")))[1:3] == [
                "ParameterDescription",
                "NoData",
            ]
            made = wire.ask(*run("CREATE BRANCH pipe"), *run("DROP BRANCH pipe"))
            assert [message.tag for message in made if isinstance(message, m.CommandComplete)] == [
                "CREATE BRANCH",
                "DROP BRANCH",
            ]
            assert sqlstates(wire.ask(m.Parse("", "SHOW TAGS"), m.Bind("", "", (), (), (0, 1)))) == ["08P01"]
            assert sqlstates(wire.ask(*run("BEGIN"), *run("DROP BRANCH main"))) == ["25001"]
        finally:
            wire.close()
