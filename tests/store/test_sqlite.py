"""What only a store on disk can do: survive, be opened again, refuse what is not its own."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext

from icefield.model.errors import BadRequest, NotSupported, OutcomeUnknown, Unavailable
from icefield.store.kinds import shape_of
from icefield.store.records import ALL_KINDS, RefRecord, SequenceRecord, SettingRecord, StagedRecord
from icefield.store.sql import migrations
from icefield.store.sql import sqlite as sqlite_module
from icefield.store.sql.sqlite import open_sqlite
from icefield.store.sql.tables import TABLES, metadata

from .samples import ref

WRITER = """
import sys
from pathlib import Path
from icefield.store.records import SettingRecord, StagedRecord
from icefield.store.sql.sqlite import open_sqlite

store = open_sqlite(Path(sys.argv[1]))
with store.read() as reader:
    last = reader.get(SettingRecord, "last")
turn = 0 if last is None else int(last.value)
while True:
    turn += 1
    with store.write() as writer:
        for position in range(5):
            writer.insert(StagedRecord(str(turn), position, "x" * 500))
        writer.put(SettingRecord("last", str(turn)))
        assert writer.next_id("turn") == turn
    print(turn, flush=True)
"""


def test_kill_9_loses_nothing_acknowledged_and_leaves_nothing_half(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    for round_number in range(1, 4):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        acknowledged = 0
        for _ in range(17 * round_number):
            acknowledged = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        acknowledged = max([acknowledged, *(int(line) for line in process.stdout if line.endswith("\n"))])
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL
        store = open_sqlite(path)
        with store.read() as reader:
            last = reader.get(SettingRecord, "last")
            staged = reader.find(StagedRecord)
        store.close()
        assert last is not None
        assert int(last.value) >= acknowledged
        turns = {(int(row.transaction), row.position) for row in staged}
        assert turns == {(turn, place) for turn in range(1, int(last.value) + 1) for place in range(5)}


def test_it_is_there_when_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "store.db"
    store = open_sqlite(path)
    with store.write() as writer:
        writer.put(ref())
        writer.next_id("a")
    store.close()
    store = open_sqlite(path)
    with store.write() as writer:
        assert writer.find(RefRecord) == [ref()]
        assert writer.next_id("a") == 2
    store.close()


def test_two_stores_on_one_file_see_each_other(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    one, two = open_sqlite(path), open_sqlite(path)
    with one.write() as writer:
        writer.put(ref(head=1))
    with two.write() as writer:
        assert writer.replace(ref(head=1), ref(head=2))
    with one.read() as reader:
        assert reader.find(RefRecord) == [ref(head=2)]
    one.close()
    two.close()


def test_several_may_create_it_at_once(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def create() -> None:
        try:
            open_sqlite(tmp_path / "store.db").close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_settings_that_durability_and_size_rest_on(tmp_path: Path) -> None:
    open_sqlite(tmp_path / "store.db").close()
    connection = sqlite_module.SqliteDatabase(tmp_path / "store.db").connect()
    values = {
        name: connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "page_size", "application_id", "busy_timeout")
    }
    connection.close()
    assert values == {
        "journal_mode": "wal",
        "synchronous": 2,
        "page_size": 2048,
        "application_id": sqlite_module.APPLICATION_ID,
        "busy_timeout": sqlite_module.BUSY_MS,
    }


def test_the_migrations_make_what_the_records_say(tmp_path: Path) -> None:
    assert set(TABLES) == set(ALL_KINDS)
    path = tmp_path / "store.db"
    open_sqlite(path).close()
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        inspector = sa.inspect(connection)
        for kind, table in TABLES.items():
            assert inspector.get_pk_constraint(table.name)["constrained_columns"] == list(shape_of(kind).key)
            columns = {column["name"]: column["nullable"] for column in inspector.get_columns(table.name)}
            assert columns == {field.name: field.nullable for field in shape_of(kind).fields}
    engine.dispose()


@pytest.mark.parametrize("revision", ["0001"])
def test_a_file_of_an_older_schema_is_brought_up_to_date_with_all_it_holds(tmp_path: Path, revision: str) -> None:
    path = tmp_path / "store.db"
    _older(path, revision)
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO settings VALUES ('load-token-key', 'secret')")
        connection.execute("INSERT INTO sequences VALUES ('commit', 41)")
    connection.close()
    store = open_sqlite(path)
    with store.write() as writer:
        assert writer.get(SettingRecord, "load-token-key") == SettingRecord("load-token-key", "secret")
        assert writer.next_id("commit") == 42
        for kind in ALL_KINDS:
            assert writer.find(kind) == ([SettingRecord("load-token-key", "secret")] if kind is SettingRecord else [])
        writer.put(SequenceRecord("e", 1, 7))
    store.close()
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def _older(path: Path, revision: str) -> None:
    """A file as the Icefield of that schema left it."""
    claimed = sqlite3.connect(path)
    claimed.execute(f"PRAGMA application_id = {sqlite_module.APPLICATION_ID}")
    claimed.close()
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_sqlite(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(NotSupported, match=r"newer Icefield \(schema 9999.*install that version"):
        open_sqlite(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]
    connection.close()


def test_a_migration_that_fails_leaves_nothing_and_may_be_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA application_id = {sqlite_module.APPLICATION_ID}")
        connection.execute("CREATE TABLE staged (x)")
    connection.close()
    with pytest.raises(BadRequest, match=r"store\.db"):
        open_sqlite(path)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("staged",)]
        connection.execute("DROP TABLE staged")
    connection.close()
    open_sqlite(path).close()


def test_somebody_elses_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_text("not a database, " * 100)
    with pytest.raises(BadRequest, match="cannot be opened as a store"):
        open_sqlite(text)
    assert text.read_text() == "not a database, " * 100
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(BadRequest, match="another program"):
        open_sqlite(other)
    with sqlite3.connect(other) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]
    connection.close()


def test_a_store_that_another_process_writes_is_unavailable_and_then_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "_PRAGMAS", (*sqlite_module._PRAGMAS, "PRAGMA busy_timeout = 50"))
    store = open_sqlite(tmp_path / "store.db")
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="nothing was changed"), store.write() as writer:
        writer.put(ref())
    with store.read() as reader:
        assert reader.find(RefRecord) == []
    other.execute("ROLLBACK")
    other.close()
    with store.write() as writer:
        writer.put(ref())
    store.close()


def test_a_full_disk_is_unavailable_and_undoes_the_transaction(tmp_path: Path) -> None:
    store = open_sqlite(tmp_path / "store.db")
    with store.write() as writer:
        writer.put(ref())
        writer._execute(f"PRAGMA max_page_count = {100}")
    with pytest.raises(Unavailable, match="full"), store.write() as writer:  # noqa: PT012
        writer.put(ref(head=2))
        for number in range(1000):
            writer.put(StagedRecord("t", number, "x" * 2000))
    with store.read() as reader:
        assert reader.find(RefRecord) == [ref()]
        assert reader.find(StagedRecord) == []
    store.close()


def test_a_commit_that_cannot_be_confirmed_is_unknown_and_the_store_goes_on(tmp_path: Path) -> None:
    store = open_sqlite(tmp_path / "store.db")
    with pytest.raises(OutcomeUnknown, match="could not confirm"), store.write() as writer:  # noqa: PT012
        writer.put(ref())
        assert store._writer is not None
        store._writer.close()
    with store.write() as writer:
        writer.put(ref("dev"))
    with store.read() as reader:
        assert ref("dev") in reader.find(RefRecord)
    store.close()


def test_errors_of_the_caller_stay_theirs(tmp_path: Path) -> None:
    store = open_sqlite(tmp_path / "store.db")
    with pytest.raises(KeyError, match="mine"), store.write() as writer:  # noqa: PT012
        writer.put(ref())
        raise KeyError("mine")
    with pytest.raises(KeyError, match="mine"), store.read():
        raise KeyError("mine")
    with store.read() as reader:
        assert reader.find(RefRecord) == []
    store.close()


def test_no_sqlite_of_its_own_outside_one_file() -> None:
    """Ready for another database: every statement also compiles for PostgreSQL."""
    from sqlalchemy.dialects import postgresql

    from icefield.store.sql.queries import Queries, Question

    class Postgresql:
        sqlalchemy: sa.Dialect = postgresql.dialect(paramstyle="format")  # type: ignore[no-untyped-call]

        def insert(self, table: sa.Table) -> postgresql.Insert:
            return postgresql.insert(table)

    queries = Queries(Postgresql())
    for kind in ALL_KINDS:
        assert "ON CONFLICT" in queries.of_kind(kind).put
        question = Question(kind, ((shape_of(kind).key[0], False),), None, True, True, shape_of(kind).key[0])
        assert queries.find(question).text.count("%s") == 3
    assert "IS NOT DISTINCT FROM" in queries.of_kind(TABLES_WITH_NONE).replace
    assert "RETURNING" in queries.next_id


TABLES_WITH_NONE = next(kind for kind in ALL_KINDS if any(field.nullable for field in shape_of(kind).fields))
