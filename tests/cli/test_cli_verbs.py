"""The verbs, as a person and as a program type them, against a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from icefield import __version__
from icefield.cli.program import main
from icefield.client.http import Management

Run = Callable[..., subprocess.CompletedProcess[str]]


def icefield(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ICEFIELD_")}
    return subprocess.run(
        [sys.executable, "-m", "icefield.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**clean, **environment},
    )


class Server:
    def __init__(self, data: Path, *options: str) -> None:
        command = [sys.executable, "-m", "icefield.cli", "serve", "--data", str(data), "--port", "0", "--leashed"]
        self.data = data
        self.process = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready {"), (line, self.process.stderr and self.process.stderr.read())
        self.url = json.loads(line.removeprefix("ready "))["url"]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=20)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("cli") / "lake data")
    yield running
    running.stop()


@pytest.fixture
def run(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this very process, which saves its start; the other tests start it for real."""

    def typed(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = ["icefield", *arguments, "--data", str(server.data)]
        monkeypatch.setattr(sys, "argv", line)
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return subprocess.CompletedProcess(line, int(end.value.code or 0), said.out, said.err)

    return typed


def answer(done: subprocess.CompletedProcess[str], code: int = 0) -> dict[str, Any]:
    assert done.returncode == code, done.stderr
    (line,) = done.stdout.splitlines()
    told = json.loads(line)
    assert isinstance(told, dict)
    return told


def create_namespace(server: Server, address: str, name: str) -> None:
    Management(server.url).post(f"/v1/{address}/namespaces", {"namespace": [name]})


def test_branches_are_made_listed_and_dropped(run: Run) -> None:
    assert answer(run("branch", "create", "first", "--json"))["name"] == "first"
    names = [ref["name"] for ref in answer(run("branch", "list", "--json"))["refs"]]
    assert names == ["first", "main"]
    table = run("branch", "list").stdout
    assert table.index("main") < table.index("first"), "the default branch comes first"
    assert answer(run("branch", "drop", "first", "--json")) == {"dropped": "first", "kind": "branch"}
    assert "first" not in run("branch", "list").stdout


def test_tags_stand_where_they_were_made(run: Run) -> None:
    answer(run("tag", "create", "v1", "--from", "main", "--json"))
    (tag,) = answer(run("tag", "list", "--json"))["refs"]
    assert (tag["name"], tag["kind"]) == ("v1", "tag")
    newest = answer(run("log", "--limit", "1", "--json"))["commits"][0]
    assert answer(run("log", "v1", "--json"))["commits"][0]["id"] == tag["commit"] == newest["id"]
    answer(run("tag", "drop", "v1", "--json"))
    assert answer(run("tag", "list", "--json"))["refs"] == []


def test_diff_and_merge_tell_what_differs_and_then_nothing_does(run: Run, server: Server) -> None:
    run("branch", "create", "work")
    create_namespace(server, "lake@work", "fresh")
    difference = answer(run("diff", "main", "work", "--json"))["entries"]
    assert [(entry["name"], entry["change"]) for entry in difference] == [("fresh", "created")]
    assert "fresh" in run("diff", "main", "work").stdout
    dry = answer(run("merge", "work", "--into", "main", "--dry-run", "--json"))
    assert dry["result"] == "fast-forward"
    assert answer(run("diff", "main", "work", "--json"))["entries"] == difference, "a dry run changes nothing"
    assert answer(run("merge", "work", "--message", "take it", "--json"))["result"] == "fast-forward"
    assert answer(run("diff", "main", "work", "--json"))["entries"] == []
    assert answer(run("merge", "work", "--json"))["result"] == "nothing-to-do"


def test_a_conflict_lists_every_entry_and_has_its_own_exit_code(run: Run, server: Server) -> None:
    run("branch", "create", "other")
    for address in ("lake", "lake@other"):
        create_namespace(server, address, "both_a")
        create_namespace(server, address, "both_b")
    told = answer(run("merge", "other", "--json"), code=3)["error"]
    assert [conflict["entry"] for conflict in told["conflicts"]] == ["both_a", "both_b"]
    done = run("merge", "other")
    assert done.returncode == 3
    assert "both_a" in done.stderr
    assert "both_b" in done.stderr
    assert "Traceback" not in done.stderr


def test_log_pages(run: Run, server: Server) -> None:
    for name in ("page_a", "page_b", "page_c"):
        create_namespace(server, "lake", name)
    first = answer(run("log", "-n", "2", "--json"))
    rest = answer(run("log", "--before", first["next"], "--json"))
    everything = answer(run("log", "--json"))
    assert first["commits"] + rest["commits"] == everything["commits"]
    assert "--before" in run("log", "-n", "2").stdout


def test_names_are_shown_as_they_are_and_never_steer_the_terminal(run: Run, server: Server) -> None:
    run("branch", "create", "odd")
    create_namespace(server, "lake@odd", "[red]\x1b[2J\u202e")
    shown = run("diff", "main", "odd").stdout
    assert "[red]" in shown
    assert "\x1b[2J" not in shown
    assert "\\x1b" in shown
    assert "\u202e" not in shown


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("branch", "drop", "nowhere"), 4, "nowhere"),
        (("branch", "drop", "main"), 2, "main"),
        (("branch", "create", "a..b"), 2, "a..b"),
        (("diff", "main", "nowhere"), 4, "nowhere"),
        (("log", "--repo", "elsewhere"), 4, "elsewhere"),
        (("log", "--limit", "0"), 2, "--limit"),
        (("merge", "nowhere"), 4, "nowhere"),
    ],
)
def test_what_is_wrong_is_one_clear_line(run: Run, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = run(*arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    if "Usage" not in done.stderr:
        assert len(done.stderr.splitlines()) == 1


def test_an_error_is_json_for_programs(run: Run) -> None:
    told = answer(run("branch", "drop", "nowhere", "--json"), code=4)["error"]
    assert told["type"] == "NoSuchRefException"
    assert "nowhere" in told["message"]


def test_the_server_is_found_by_its_address_too(server: Server) -> None:
    by_flag = icefield("log", "--server", server.url, "--json")
    by_variable = icefield("log", "--json", ICEFIELD_SERVER=server.url)
    assert answer(by_flag) == answer(by_variable)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("log", "--data", "/nowhere/at/all"), 5, "icefield up"),
        (("log", "--server", "http://127.0.0.1:1"), 5, "127.0.0.1:1"),
        (("log", "--server", "ftp://x"), 2, "ftp://x"),
        (("log", "--server", "http://127.0.0.1:1", "--data", "x"), 2, "not both"),
        (("serve", "--host", "0.0.0.0"), 2, "principals"),
        (("serve", "--port", "70000"), 2, "port"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_without_a_server_it_says_what_to_do(arguments: tuple[str, ...], code: int, said: str) -> None:
    done = icefield(*arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_setting_stops_every_verb() -> None:
    done = icefield("log", ICEFIELD_PROT="1")
    assert done.returncode == 2
    assert "ICEFIELD_PROT" in done.stderr


def test_a_second_server_on_the_same_folder_is_refused(server: Server) -> None:
    done = icefield("serve", "--data", str(server.data), "--port", "0")
    assert done.returncode == 5
    assert "another server runs" in done.stderr


def test_a_leashed_server_ends_when_its_input_does(tmp_path: Path) -> None:
    running = Server(tmp_path / "leashed")
    assert running.process.stdin is not None
    running.process.stdin.close()
    assert running.process.wait(10) == 0
    assert not (running.data / "server.json").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_cleanly_by_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    running = Server(tmp_path / "lake")
    running.process.send_signal(number)
    _, errors = running.process.communicate(timeout=20)
    assert running.process.returncode == 0
    assert "Traceback" not in errors


def test_connect_spark_prints_the_conf_of_a_branch(run: Run, server: Server) -> None:
    conf = answer(run("connect", "spark", "dev", "--json"))["conf"]
    assert conf["spark.sql.catalog.lake.uri"] == server.url
    assert conf["spark.sql.catalog.lake.warehouse"] == "lake@dev"
    assert conf["spark.sql.catalog.lake.cache-enabled"] == "false"
    lines = run("connect", "spark", "dev").stdout.splitlines()
    assert lines == [f"--conf {key}={value}" for key, value in conf.items()]


def test_connect_psql_names_the_door_and_the_branch(run: Run) -> None:
    told = answer(run("connect", "psql", "dev", "--sql-port", "5555", "--json"))
    assert (told["host"], told["port"], told["dbname"]) == ("127.0.0.1", 5555, "lake@dev")
    assert Path(told["command"][0]).name == "psql"
    without = run("connect", "psql")
    assert without.returncode == 5
    assert "icefield up" in without.stderr


def test_version_is_the_package_s() -> None:
    assert icefield("--version").stdout.strip() == f"icefield {__version__}"


def test_every_verb_has_help_and_json() -> None:
    verbs = [
        ("serve",), ("up",), ("demo",), ("log",), ("diff",), ("merge",), ("connect", "spark"), ("connect", "psql"),
        *((kind, verb) for kind in ("branch", "tag") for verb in ("list", "create", "drop")),
    ]  # fmt: skip
    # In one process: seventeen starts of Python tell no more than one.
    code = "import sys; from icefield.cli.program import app\nfor verb in " + repr(verbs)
    code += ":\n    try: app([*verb, '--help'])\n    except SystemExit as end: assert not end.code"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage:") == len(verbs)
    assert done.stdout.count("--json") == len(verbs)


def test_an_up_file_whose_writer_was_killed_is_not_believed(run: Run, server: Server) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    stale = server.data / "up.json"
    stale.write_text(json.dumps({"pid": ended.pid, "sql-port": 5555}))
    assert run("connect", "psql", "--print").returncode == 5
    stale.write_text(json.dumps({"pid": os.getpid(), "sql-port": 5555}))
    assert "--port 5555" in run("connect", "psql", "--print").stdout
    stale.unlink()
