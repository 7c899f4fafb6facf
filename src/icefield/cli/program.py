"""``icefield``: the verbs, put together, and the one place where their errors become lines and exit codes."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from icefield import __version__
from icefield.cli import connecting, output, serving, versioning
from icefield.model.errors import IcefieldError

_EPILOG = (
    "Exit codes: 0 done; 1 failed; 2 wrong usage; 3 conflict; 4 not found; 5 no server answers; 6 outcome unknown. "
    "Settings: icefield.toml < ICEFIELD_* < options."
)

app = typer.Typer(
    name="icefield",
    help="Icefield: transactions, branches and plain SQL for Apache Iceberg tables.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        output.console.print(f"icefield {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command()(serving.serve)
app.command()(serving.up)
app.command()(serving.demo)
app.add_typer(versioning.branch_app)
app.add_typer(versioning.tag_app)
app.command()(versioning.log)
app.command()(versioning.diff)
app.command()(versioning.merge)
app.add_typer(connecting.app)


def main() -> NoReturn:
    try:
        app()
    except IcefieldError as error:
        sys.exit(output.report(error, as_json="--json" in sys.argv))
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)
