"""The verbs of the commit graph: branch, tag, log, diff, merge. Each asks the management API once and shows it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from icefield.cli import locate, output
from icefield.cli.remote import Remote
from icefield.model.errors import BadRequest

Server = Annotated[
    str | None, typer.Option("--server", metavar="URL", help="The server; else the one that runs on --data.")
]
Data = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="A data folder on which a server runs.")]
Repo = Annotated[str | None, typer.Option("--repo", metavar="NAME", help="The repo; 'lake' if nothing else is set.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

branch_app = typer.Typer(name="branch", help="Branches: list, create, drop.", no_args_is_help=True)
tag_app = typer.Typer(name="tag", help="Tags: list, create, drop.", no_args_is_help=True)


def remote(server: str | None, data: Path | None, repo: str | None) -> Remote:
    return Remote(locate.find(server, data, repo))


# ---------------------------------------------------------------- branches and tags


@branch_app.command("list")
def branch_list(server: Server = None, data: Data = None, repo: Repo = None, json: Json = False) -> None:
    """All branches; * marks the default one."""
    _list_refs(remote(server, data, repo), "branch", as_json=json)


@branch_app.command("create")
def branch_create(
    name: Annotated[str, typer.Argument(help="The new branch.")],
    start: Annotated[
        str | None, typer.Option("--from", metavar="REF", help="Where it begins; the default branch if not said.")
    ] = None,
    server: Server = None,
    data: Data = None,
    repo: Repo = None,
    json: Json = False,
) -> None:
    """Make a branch."""
    _create_ref(remote(server, data, repo), "branch", name, start, as_json=json)


@branch_app.command("drop")
def branch_drop(
    name: Annotated[str, typer.Argument(help="The branch to drop.")],
    server: Server = None,
    data: Data = None,
    repo: Repo = None,
    json: Json = False,
) -> None:
    """Drop a branch. Its commits stay as long as something else reaches them."""
    _drop_ref(remote(server, data, repo), "branch", name, as_json=json)


@tag_app.command("list")
def tag_list(server: Server = None, data: Data = None, repo: Repo = None, json: Json = False) -> None:
    """All tags."""
    _list_refs(remote(server, data, repo), "tag", as_json=json)


@tag_app.command("create")
def tag_create(
    name: Annotated[str, typer.Argument(help="The new tag.")],
    target: Annotated[
        str | None, typer.Option("--from", metavar="REF", help="What it names; the default branch's head if not said.")
    ] = None,
    server: Server = None,
    data: Data = None,
    repo: Repo = None,
    json: Json = False,
) -> None:
    """Make a tag."""
    _create_ref(remote(server, data, repo), "tag", name, target, as_json=json)


@tag_app.command("drop")
def tag_drop(
    name: Annotated[str, typer.Argument(help="The tag to drop.")],
    server: Server = None,
    data: Data = None,
    repo: Repo = None,
    json: Json = False,
) -> None:
    """Drop a tag."""
    _drop_ref(remote(server, data, repo), "tag", name, as_json=json)


def _list_refs(api: Remote, kind: str, *, as_json: bool) -> None:
    refs = [ref for ref in api.get("refs")["refs"] if ref["kind"] == kind]
    rows = [
        ("*" if ref.get("default") else "", ref["name"], output.short(ref["commit"]), _when(ref.get("created-ms")))
        for ref in sorted(refs, key=lambda ref: (not ref.get("default"), ref["name"]))
    ]
    empty = f"no {kind} yet: icefield {kind} create NAME"
    output.show({"refs": refs}, output.table(("", "NAME", "COMMIT", "MADE"), rows, empty=empty), as_json=as_json)


def _create_ref(api: Remote, kind: str, name: str, start: str | None, *, as_json: bool) -> None:
    made = api.post(_plural(kind), {"name": name, **({} if start is None else {"from": start})})
    from_text = "" if start is None else f" from {start}"
    at = f" at {output.short(made['commit'])}" if made.get("commit") else ""
    output.show(made, output.done(f"{kind} {name} made{from_text}{at}"), as_json=as_json)


def _drop_ref(api: Remote, kind: str, name: str, *, as_json: bool) -> None:
    api.delete(_plural(kind), name)
    output.show({"dropped": name, "kind": kind}, output.done(f"{kind} {name} dropped"), as_json=as_json)


def _plural(kind: str) -> str:
    return "branches" if kind == "branch" else "tags"


# ---------------------------------------------------------------- history


def log(
    ref: Annotated[str | None, typer.Argument(help="A branch, tag or commit; the default branch if not said.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many commits at most.")] = 20,
    before: Annotated[str | None, typer.Option("--before", metavar="COMMIT", help="Go on after this commit.")] = None,
    server: Server = None,
    data: Data = None,
    repo: Repo = None,
    json: Json = False,
) -> None:
    """The commits of a ref, newest first."""
    found = remote(server, data, repo).get("log", ref=ref, limit=limit, before=before)
    rows = [
        (
            Text(output.short(commit["id"]), style="yellow"),
            output.when(commit["time-ms"]),
            commit.get("principal") or "",
            _described(commit),
            _entries(commit.get("entries", [])),
        )
        for commit in found["commits"]
    ]
    view = output.table(("COMMIT", "TIME", "BY", "MESSAGE", "CHANGED"), rows, empty="no commits")
    output.show(found, view, as_json=json)
    if found.get("next") and not json:
        output.console.print(output.plain(f"… and more: --before {found['next']}"), style="dim")


def diff(
    from_ref: Annotated[str, typer.Argument(metavar="FROM", help="The older side: a branch, tag or commit.")],
    to_ref: Annotated[str, typer.Argument(metavar="TO", help="The newer side.")],
    server: Server = None,
    data: Data = None,
    repo: Repo = None,
    json: Json = False,
) -> None:
    """Which tables, views and namespaces differ between two refs."""
    found = remote(server, data, repo).get("diff", **{"from": from_ref, "to": to_ref})
    rows = [
        (
            _CHANGE_MARKS.get(entry["change"], output.plain(entry["change"])),
            entry["name"] if not entry.get("from-name") else f"{entry['from-name']} -> {entry['name']}",
            entry.get("kind", "table"),
            _records(entry.get("from")),
            _records(entry.get("to")),
        )
        for entry in found["entries"]
    ]
    empty = f"no difference between {from_ref} and {to_ref}"
    columns = ("", "NAME", "KIND", f"ROWS IN {from_ref}", f"ROWS IN {to_ref}")
    output.show(found, output.table(columns, rows, empty=empty), as_json=json)


def merge(
    from_ref: Annotated[str, typer.Argument(metavar="FROM", help="What is merged: a branch, tag or commit.")],
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="BRANCH", help="Takes it; the default branch if not said."),
    ] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", help="The merge commit's message.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")] = False,
    server: Server = None,
    data: Data = None,
    repo: Repo = None,
    json: Json = False,
) -> None:
    """Merge one branch into another, all tables at once, or list every conflict and change nothing (exit code 3)."""
    api = remote(server, data, repo)
    target = into or _default_branch(api)
    body: dict[str, Any] = {"from": from_ref, "into": target, "id": str(uuid.uuid4()), "dry-run": dry_run}
    if message is not None:
        body["message"] = message
    # The id makes it safe to ask again when an answer is lost: the first outcome is answered.
    outcome = api.post_once("merge", body)
    would = "would be " if dry_run else ""
    sentence = {
        "nothing-to-do": f"{target} already has all of {from_ref}",
        "fast-forward": f"{from_ref} {would}merged into {target} (fast-forward)",
        "merged": f"{from_ref} {would}merged into {target}",
    }.get(outcome["result"], outcome["result"])
    at = f" at {output.short(outcome['commit'])}" if outcome.get("commit") and not dry_run else ""
    output.show(outcome, output.done(sentence + at), as_json=json)


def _default_branch(api: Remote) -> str:
    for ref in api.get("refs")["refs"]:
        if ref.get("default"):
            return str(ref["name"])
    raise BadRequest("this repo names no default branch: say --into BRANCH", field="into")


_CHANGE_MARKS = {
    "created": Text("+ created", style="green"),
    "dropped": Text("- dropped", style="red"),
    "changed": Text("~ changed", style="yellow"),
    "renamed": Text("> renamed", style="cyan"),
}


def _described(commit: dict[str, Any]) -> str:
    return output.first_line(commit.get("message") or commit.get("operation") or "")


def _entries(entries: list[dict[str, Any]]) -> str:
    shown = [f"{_CHANGE_SIGNS.get(entry['change'], '~')}{entry['name']}" for entry in entries[:4]]
    return " ".join(shown) + (f" and {len(entries) - 4} more" if len(entries) > 4 else "")


# A diff tells what is so (created), a log what was done (create).
_CHANGE_SIGNS = {"create": "+", "created": "+", "drop": "-", "dropped": "-", "rename": ">", "renamed": ">"}


def _records(side: dict[str, Any] | None) -> str:
    if not side:
        return ""
    records = side.get("records")
    return "?" if records is None else f"{int(records):,}"


def _when(time_ms: int | None) -> str:
    return "" if time_ms is None else output.when(time_ms)
