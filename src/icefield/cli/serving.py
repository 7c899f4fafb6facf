"""The verbs that run something until it is stopped: serve (the server alone), up (all parts), demo (the tour)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icefield import telemetry
from icefield.cli import leash, locate

Data = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="The data folder, made if it is not there. [./lake-data]")
]
Port = Annotated[int | None, typer.Option("--port", metavar="P", help="Port of the REST door; 0: a free one. [8181]")]
SqlPort = Annotated[
    int | None, typer.Option("--sql-port", metavar="Q", help="Port of the PostgreSQL door; 0: a free one. [5433]")
]
Repo = Annotated[str | None, typer.Option("--repo", metavar="NAME", help="Made if it is not there. [lake]")]
Host = Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="A loopback address. [127.0.0.1]")]
LogLevel = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error. [info]")]
LogFormat = Annotated[str | None, typer.Option("--log-format", help="text, json or auto. [auto]")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Leashed = Annotated[bool, typer.Option("--leashed", hidden=True, help="Stop when standard input ends.")]


def serve(
    data: Data = None,
    port: Port = None,
    repo: Repo = None,
    host: Host = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    json: Json = False,
    until_idle: Annotated[
        float | None, typer.Option("--until-idle", metavar="SECONDS", hidden=True, help="Stop when unused for so long.")
    ] = None,
    leashed: Leashed = False,
) -> None:
    """Run the server (catalog, transactions, branches) in the foreground, without Spark and PostgreSQL."""
    chosen = locate.settings(
        {
            "data": data,
            "port": port,
            "repo": repo,
            "host": host,
            "log_level": log_level,
            "log_format": "json" if json and log_format is None else log_format,
        }
    )
    telemetry.configure(chosen.log_level, chosen.log_format)
    if leashed:
        leash.stop_with_standard_input()
    from icefield.app import serve as run  # the other verbs need no server code

    run(chosen, until_idle_s=until_idle)


def up(
    data: Data = None,
    port: Port = None,
    sql_port: SqlPort = None,
    repo: Repo = None,
    host: Host = None,
    log_level: LogLevel = None,
    json: Json = False,
    leashed: Leashed = False,
) -> None:
    """Run everything: server, Spark and the PostgreSQL door; restarts what dies, stops all on Ctrl-C."""
    from icefield.cli import up as stack

    chosen = locate.settings(
        {
            "data": data,
            "port": port,
            "sql_port": sql_port,
            "repo": repo,
            "host": host,
            "log_level": log_level,
        }
    )
    raise typer.Exit(stack.run(chosen, as_json=json, leashed=leashed))


def demo(
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Where the demo's lake goes; else a temporary folder.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running at the end, until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON line per step, for programs.")] = False,
) -> None:
    """The tour: a PySpark pipeline loads two tables on a branch while a PostgreSQL client watches main."""
    from icefield.cli import demo as tour

    raise typer.Exit(tour.run(data, keep=keep, as_json=json))
