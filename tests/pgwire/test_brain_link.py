"""The client's side against a real PostgreSQL: answers, errors, what is left in the middle, and a brain that dies."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from icefield.pgwire import brain_link as bl
from icefield.pgwire import messages as m
from icefield.pgwire.brain_link import FLUSH, SYNC, BrainLink
from icefield.pgwire.codec import encode
from icefield.pgwire.errors import PgError
from icefield.pgwire.scram import ScramClient
from icefield.sql.brain.cluster import Cluster

pytestmark = pytest.mark.sql


def link_to(cluster, **kwargs):
    defaults = {"user": cluster.superuser, "password": cluster.superuser_password, "database": "postgres"}
    return BrainLink.open(cluster.socket_dir, **(defaults | kwargs))


def on_link(cluster, work, **kwargs):
    async def run():
        async with await link_to(cluster, **kwargs) as link:
            return await work(link)

    return asyncio.run(run())


def test_rows_columns_tags_and_notices(cluster):
    async def work(link):
        result = await link.query("SELECT 1 AS a, NULL, 'ä'; DO $$BEGIN RAISE NOTICE 'hi'; END$$; SELECT 2 AS b")
        assert (result.rows, result.tags, result.tag) == ([("2",)], ("SELECT 1", "DO", "SELECT 1"), "SELECT 1")
        assert [(c.name, c.type_oid) for c in result.columns] == [("b", 23)]
        assert result.notices[0]["M"] == "hi"
        assert (await link.query("")).rows == []
        assert (await link.query("SELECT NULL")).scalar() is None
        assert (await link.execute("SELECT $1::int + 1, $2::text", ["41", None])).rows == [("42", None)]
        assert len((await link.query("SELECT generate_series(1, 50000)")).rows) == 50000

    on_link(cluster, work)


def test_errors_carry_everything(cluster):
    async def work(link):
        with pytest.raises(PgError) as caught:
            await link.query("SELECT\nnope")
        assert (caught.value.sqlstate, caught.value.position, caught.value.severity) == ("42703", 8, "ERROR")
        assert caught.value.fields["R"] == "errorMissingColumn"
        with pytest.raises(PgError, match="22P02"):
            await link.execute("SELECT $1::int", ["x"])
        assert (await link.query("SELECT 1")).scalar() == "1"

    on_link(cluster, work)


def test_the_state_of_the_transaction_and_settings_are_followed(cluster):
    async def work(link):
        assert link.transaction_status == b"I"
        await link.query("BEGIN")
        assert link.transaction_status == b"T"
        with pytest.raises(PgError):
            await link.query("SELECT 1/0")
        assert link.transaction_status == b"E"
        await link.query("ROLLBACK")
        await link.query("SET application_name = 'x'")
        assert (link.transaction_status, link.parameters["application_name"]) == (b"I", "x")

    on_link(cluster, work, options={"application_name": "first"})


def test_relaying_an_extended_series_piece_by_piece(cluster):
    async def kinds(link, request, until):
        return [run.kind async for run in link.relay(request, until=until)]

    async def work(link):
        parse = encode(m.Parse("s", "SELECT $1::int")) + FLUSH
        assert await kinds(link, parse, bl.PARSED) == [b"1"]
        describe = encode(m.Describe(m.Target.STATEMENT, "s")) + FLUSH
        assert await kinds(link, describe, bl.DESCRIBED) == [b"t", b"T"]
        assert await kinds(link, encode(m.Bind("", "s", (), (b"x",))) + FLUSH, bl.BOUND) == [b"E"]
        assert await kinds(link, SYNC, bl.READY) == [b"Z"]
        assert await kinds(link, encode(m.Bind("", "s", (), (b"7",))) + FLUSH, bl.BOUND) == [b"2"]
        assert await kinds(link, encode(m.Execute("")) + FLUSH, bl.EXECUTED) == [b"D", b"C"]
        assert await kinds(link, encode(m.Close(m.Target.STATEMENT, "s")) + FLUSH, bl.CLOSED) == [b"3"]
        assert await kinds(link, SYNC, bl.READY) == [b"Z"]

    on_link(cluster, work)


def test_copy_in_and_out(cluster):
    async def late():
        for i in range(3):
            await asyncio.sleep(0)
            yield f"{i}\t".encode()
            yield b"x\n"

    def failing():
        yield b"1\tx\n"
        raise ZeroDivisionError

    async def work(link):
        await link.query("CREATE TEMP TABLE t(a int, b text)")
        assert await link.copy_in("COPY t FROM STDIN", late()) == "COPY 3"
        assert await link.copy_in("COPY t FROM STDIN", [b"9\ty\n" * 400_000]) == "COPY 400000"
        with pytest.raises(PgError) as caught:
            await link.copy_in("COPY t FROM STDIN", (b"1\tx\nbad\tx\n" for _ in range(100)))
        assert (caught.value.sqlstate, caught.value.fields["W"][:14]) == ("22P02", "COPY t, line 2")
        with pytest.raises(ZeroDivisionError):
            await link.copy_in("COPY t FROM STDIN", failing())
        with pytest.raises(PgError, match="42P01"):
            await link.copy_in("COPY nope FROM STDIN", [b""])
        with pytest.raises(PgError, match="57014"):
            await link.query("COPY t FROM STDIN")
        data = b"".join([piece async for piece in link.copy_out("COPY (SELECT * FROM t ORDER BY a) TO STDOUT")])
        assert (data[:8], data.count(b"\n")) == (b"0\tx\n1\tx\n", 400_003)
        with pytest.raises(PgError, match="22012"):
            async for _ in link.copy_out("COPY (SELECT 1/(100-i) FROM generate_series(1,200) i) TO STDOUT"):
                pass

    on_link(cluster, work)


def test_a_refused_row_stops_the_sending(cluster):
    sent = 0

    def endless():
        nonlocal sent
        for _ in range(2000):
            sent += 1
            yield b"bad\n" * 25_000

    async def work(link):
        await link.query("CREATE TEMP TABLE t(a int)")
        with pytest.raises(PgError, match="22P02"):
            await link.copy_in("COPY t FROM STDIN", endless())

    on_link(cluster, work)
    assert sent < 500


def test_cancel_ends_a_statement(cluster):
    async def work(link):
        asyncio.get_running_loop().call_later(0.2, lambda: tasks.append(asyncio.ensure_future(link.cancel())))
        with pytest.raises(PgError, match="57014"):
            await link.query("SELECT pg_sleep(30)")
        await tasks[0]
        assert (await link.query("SELECT 1")).scalar() == "1"

    tasks = []
    on_link(cluster, work)


SERIES = encode(m.Bind("", "")) + encode(m.Execute("")) + FLUSH
LEFT = {
    "many rows": encode(m.Query("SELECT generate_series(1, 3000000)")),
    "nothing": encode(m.Query("")),
    "copy out": encode(m.Query("COPY (SELECT 1) TO STDOUT")),
    "copy in": encode(m.Query("CREATE TEMP TABLE IF NOT EXISTS t(a int); COPY t FROM STDIN")),
    "an extended error": encode(m.Parse("", "SELECT 1/0")) + SERIES,
    "an extended empty statement": encode(m.Parse("", "")) + SERIES,
    "a series with its sync": encode(m.Parse("", "SELECT 1")) + SYNC,
}


@pytest.mark.parametrize("left", LEFT)
def test_a_relay_left_in_the_middle_is_taken_by_resync(cluster, left):
    async def work(link):
        await link.query("SET log_min_messages = fatal; BEGIN")
        async for _ in link.relay(LEFT[left]):
            break
        with pytest.raises(RuntimeError, match="resync"):
            await link.query("SELECT 1")
        await link.resync()
        await link.resync()
        await link.query("ROLLBACK")
        for i in range(3):
            assert (await link.query(f"SELECT {i}")).rows == [(str(i),)]

    on_link(cluster, work)


@pytest.mark.parametrize("sql", ["SELECT pg_sleep(30)", "SELECT generate_series(1, 30000000)", "SELECT 1"])
@pytest.mark.parametrize("after_s", [0, 0.001, 0.05])
def test_a_cancelled_task_leaves_a_link_that_can_be_used_again(cluster, sql, after_s):
    async def work(link):
        task = asyncio.ensure_future(link.query(sql))
        await asyncio.sleep(after_s)
        task.cancel()
        await asyncio.wait([task])
        await link.resync()
        assert (await link.query("SELECT 5")).rows == [("5",)]

    on_link(cluster, work)


def test_a_wrong_password_and_a_missing_server(cluster, tmp_path):
    with pytest.raises(PgError) as caught:
        on_link(cluster, None, password="wrong")
    assert (caught.value.sqlstate, caught.value.fatal) == ("28P01", True)

    async def nowhere():
        await BrainLink.open(tmp_path, user="u", password="p", database="d")

    with pytest.raises(PgError) as caught:
        asyncio.run(nowhere())
    assert caught.value.sqlstate == "08001"


def test_a_server_that_says_nothing_is_not_waited_for(tmp_path):
    async def run():
        over = asyncio.Event()

        async def silent(reader, writer):
            await over.wait()
            writer.close()

        server = await asyncio.start_unix_server(silent, tmp_path / ".s.PGSQL.5432")
        try:
            await BrainLink.open(tmp_path, user="u", password="p", database="d", timeout_s=0.2)
        finally:
            over.set()
            await asyncio.sleep(0.05)
            server.close()

    with pytest.raises(PgError, match="it says nothing"):
        asyncio.run(run())


@pytest.mark.parametrize("noise", [b"\x00" * 40, b"Zzzzzzzzzz", b"R\x00\x00\x00\x03", b"D\xff\xff\xff\xff"])
def test_a_server_that_talks_nonsense_is_left(tmp_path, noise):
    async def run():
        async def nonsense(reader, writer):
            writer.write(noise)
            await writer.drain()
            writer.close()

        server = await asyncio.start_unix_server(nonsense, tmp_path / ".s.PGSQL.5432")
        try:
            await BrainLink.open(tmp_path, user="u", password="p", database="d", timeout_s=5)
        finally:
            server.close()

    with pytest.raises(PgError) as caught:
        asyncio.run(run())
    assert caught.value.fatal


def test_scram_against_the_rfcs_example():
    """RFC 7677, section 3; the RFC's user name is sent, ours is empty (PostgreSQL takes the startup's)."""
    client = ScramClient("pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    client._first_bare = b"n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert client.final(challenge).endswith(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    client.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    with pytest.raises(PgError, match="signature"):
        client.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5=")


@pytest.mark.parametrize(
    "answer", [b"", b"r=x,s=AAAA,i=1", b"r=mineX,s=!!,i=1", b"r=mineX,s=AAAA,i=99999999999", b"\xff"]
)
def test_scram_refuses_a_server_that_cheats(answer):
    with pytest.raises(PgError):
        ScramClient("p", nonce="mine").final(answer)


async def _expect_gone(call):
    with pytest.raises(PgError) as caught:
        await asyncio.wait_for(call, 10)
    assert caught.value.fatal
    assert caught.value.sqlstate in ("57P01", "57P02", "08006")


@pytest.mark.parametrize("victim", ["backend", "postmaster"])
def test_a_brain_that_is_killed_gives_a_clean_error_and_never_hangs(template, victim):
    with Cluster.clone(template) as mine:

        async def run():
            busy, idle = await link_to(mine), await link_to(mine)
            running = asyncio.ensure_future(busy.query("SELECT pg_sleep(60)"))
            await asyncio.sleep(0.1)
            os.kill(busy.backend_pid if victim == "backend" else mine.pid, signal.SIGKILL)
            started = time.monotonic()
            await _expect_gone(running)
            await _expect_gone(busy.query("SELECT 1"))
            await _expect_gone(busy.copy_in("COPY x FROM STDIN", []))
            await _expect_gone(idle.query("SELECT pg_sleep(60)"))  # it may still be there for a moment
            assert busy.closed
            assert idle.closed
            await busy.close()
            await idle.close()
            return time.monotonic() - started

        assert asyncio.run(run()) < 10
        mine.start()
        assert on_link(mine, lambda link: link.query("SELECT 1")).scalar() == "1"


def test_a_brain_that_is_stopped_says_so(template):
    with Cluster.clone(template) as mine:

        async def run():
            link = await link_to(mine)
            await mine.astop()
            with pytest.raises(PgError) as caught:
                await link.query("SELECT 1")
            await link.close()
            return caught.value.sqlstate

        assert asyncio.run(run()) == "57P01"
