"""Branches, tags and their history as SQL statements: what ``branching.py`` recognises, done by the server.

None of it is part of a transaction (a branch that was made is there at once, for everybody), so what changes refs is
refused inside one. Rows are formed by the brain, so that a client gets them in its own formats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from icefield.model.errors import BadRequest, CommitConflict, NoSuchRef, ReadOnly
from icefield.pgwire import messages as m
from icefield.pgwire.brain_link import SYNC
from icefield.pgwire.codec import Frame, decode_backend, encode
from icefield.pgwire.errors import PgError
from icefield.pgwire.sqlstate import to_pg_error
from icefield.sql.branching import (
    BranchKind,
    CreateRef,
    DropRef,
    MergeBranch,
    ShowBranches,
    ShowLog,
    ShowTags,
    UseBranch,
)
from icefield.sql.interrupts import Interrupts
from icefield.sql.spool import Spool
from icefield.sql.standing import Standing

_PAGE = 1000

_TYPES = {"text": (25, -1), "boolean": (16, 1), "timestamptz": (1184, 8), "text[]": (1009, -1)}
_BRANCHES = (("name", "text"), ("commit", "text"), ("is_default", "boolean"), ("is_current", "boolean"))
_TAGS = (("name", "text"), ("commit", "text"), ("is_current", "boolean"))
_LOG = (
    ("commit", "text"),
    ("time", "timestamptz"),
    ("principal", "text"),
    ("message", "text"),
    ("operation", "text"),
    ("tables", "text[]"),
)
_MERGED = (("commit", "text"), ("state", "text"))
Columns = tuple[tuple[str, str], ...]


def columns_of(kind: object) -> Columns | None:
    """The columns of the rows that a statement answers; None if it answers none."""
    match kind:
        case ShowBranches():
            return _BRANCHES
        case ShowTags():
            return _TAGS
        case ShowLog():
            return _LOG
        case MergeBranch():
            return _MERGED
        case _:
            return None


def description(columns: Columns, formats: Sequence[int] = ()) -> m.RowDescription:
    per_column = list(formats) if len(formats) > 1 else [formats[0] if formats else 0] * len(columns)
    return m.RowDescription(
        tuple(
            m.FieldDescription(name, _TYPES[kind][0], type_size=_TYPES[kind][1], format=form)
            for (name, kind), form in zip(columns, per_column, strict=True)
        )
    )


class Branches:
    def __init__(self, standing: Standing, interrupts: Interrupts) -> None:
        self._at = standing
        self._interrupts = interrupts

    async def run(self, kind: BranchKind, formats: Sequence[int] | None = None) -> Spool:
        """``formats`` are those of Bind; None in the simple protocol, where rows come with their description."""
        match kind:
            case ShowBranches():
                return await self._rows(_BRANCHES, [self._branch(ref) for ref in await self._refs("branch")], formats)
            case ShowTags():
                return await self._rows(_TAGS, [self._branch(ref) for ref in await self._refs("tag")], formats)
            case ShowLog():
                return await self._rows(_LOG, await self._log(kind), formats)
            case UseBranch(name=name):
                self._outside("USE BRANCH")
                await self._at.checkout(name)
                return _done("USE BRANCH")
            case CreateRef():
                self._outside(f"CREATE {kind.kind.upper()}")
                return await self._create(kind)
            case DropRef():
                self._outside(f"DROP {kind.kind.upper()}")
                return await self._drop(kind)
            case MergeBranch():
                self._outside("MERGE BRANCH")
                # libpq reads a number of rows behind a tag's "MERGE ".
                return await self._rows(_MERGED, [await self._merge(kind)], formats, "BRANCH MERGE")

    def _outside(self, what: str) -> None:
        if self._at.open:
            raise PgError("25001", f"{what} cannot run inside a transaction block")

    # refs -----------------------------------------------------------------------------------------------------------

    async def _refs(self, kind: str) -> list[dict[str, Any]]:
        found = [ref for ref in await self._at.lake.refs() if ref["kind"] == kind]
        return sorted(found, key=lambda ref: str(ref["name"]))

    def _branch(self, ref: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "name": ref["name"],
            "commit": ref["commit"],
            "is_default": bool(ref.get("default")),
            "is_current": ref["name"] == self._at.lake.ref,
        }

    async def _find(self, name: str) -> dict[str, Any] | None:
        return next((ref for ref in await self._at.lake.refs() if ref["name"] == name), None)

    async def _create(self, kind: CreateRef) -> Spool:
        spool = Spool()
        there = await self._find(kind.name)
        if there is not None:
            message = f'{there["kind"]} "{kind.name}" already exists'
            if not kind.if_not_exists or there["kind"] != kind.kind:
                raise PgError("42710", message)
            spool.say(_notice("42710", f"{message}, skipping"))
        else:
            try:
                await self._at.lake.create_ref(kind.kind, kind.name, kind.start or self._at.lake.ref)
            except NoSuchRef as error:
                raise PgError("42704", error.message, hint="SHOW BRANCHES and SHOW TAGS list what there is.") from error
            except BadRequest as error:
                raise PgError("42602", error.message) from error
        spool.say(m.CommandComplete(f"CREATE {kind.kind.upper()}"))
        return spool

    async def _drop(self, kind: DropRef) -> Spool:
        spool = Spool()
        there = await self._find(kind.name)
        missing = f'{kind.kind} "{kind.name}" does not exist'
        if there is None:
            if not kind.if_exists:
                raise PgError("42704", missing)
            spool.say(_notice("00000", f"{missing}, skipping"))
        elif there["kind"] != kind.kind:
            what = there["kind"]
            raise PgError(
                "42809", f'"{kind.name}" is a {what}, not a {kind.kind}', hint=f"DROP {what.upper()} drops it."
            )
        elif kind.name == self._at.lake.ref:
            raise PgError(
                "55006",
                f'cannot drop the {kind.kind} "{kind.name}" that this session is on',
                hint="USE BRANCH leaves it.",
            )
        elif there.get("default"):
            raise PgError("55006", f'cannot drop the default branch "{kind.name}"')
        else:
            try:
                await self._at.lake.drop_ref(kind.kind, kind.name)
            except NoSuchRef as error:
                raise PgError("42704", missing) from error
        spool.say(m.CommandComplete(f"DROP {kind.kind.upper()}"))
        return spool

    # merge and log --------------------------------------------------------------------------------------------------

    async def _merge(self, kind: MergeBranch) -> dict[str, Any]:
        try:
            async with self._interrupts.shielded():  # like a COMMIT: its outcome is told
                told = await self._at.lake.merge(kind.source, kind.into, dry_run=kind.dry_run)
        except CommitConflict as error:
            raise PgError(
                "40001",
                f'could not merge "{kind.source}" into "{kind.into}": both changed the same',
                detail=to_pg_error(error).detail or error.message,
                hint="Nothing was merged.",
            ) from error
        except NoSuchRef as error:
            raise PgError("42704", error.message, hint="SHOW BRANCHES lists what there is.") from error
        except ReadOnly as error:
            raise PgError("42809", error.message) from error
        return {"commit": told.get("commit"), "state": told["result"]}

    async def _log(self, kind: ShowLog) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        before: str | None = None
        while kind.limit is None or len(rows) < kind.limit:
            self._interrupts.check()
            most = _PAGE if kind.limit is None else min(_PAGE, kind.limit - len(rows))
            try:
                page = await self._at.lake.log(kind.ref, most, before=before)
            except NoSuchRef as error:
                raise PgError("42704", error.message, hint="SHOW BRANCHES lists what there is.") from error
            rows += [_commit(told) for told in page["commits"]]
            before = page.get("next")
            if before is None:
                break
        return rows

    # rows -----------------------------------------------------------------------------------------------------------

    async def _rows(
        self, columns: Columns, rows: list[dict[str, Any]], formats: Sequence[int] | None, tag: str = "SHOW"
    ) -> Spool:
        described = formats is None
        formats = formats or ()
        names = ", ".join(f'"{name}" pg_catalog.{_PG_NAMES[kind]}' for name, kind in columns)
        request = (
            encode(m.Parse("", f"SELECT * FROM pg_catalog.json_to_recordset($1) AS x({names})", (114,)))
            + encode(m.Bind("", "", (0,), (json.dumps(rows).encode(),), tuple(formats)))
            + encode(m.Describe(m.Target.PORTAL, ""))
            + encode(m.Execute("", 0))
            + SYNC
        )
        spool = Spool()
        error: PgError | None = None
        try:
            async for run in self._at.link.relay(request):
                if run.kind == b"D" or (run.kind == b"T" and described):
                    spool.add(run)
                elif run.kind == b"E":
                    message = decode_backend(Frame(b"E", run.body))
                    assert isinstance(message, m.ErrorResponse)
                    error = error or PgError.from_fields(message.fields)
            if error is not None:
                raise error
        except BaseException:
            spool.close()
            raise
        spool.say(m.CommandComplete(tag))
        return spool


_PG_NAMES = {"text": "text", "boolean": "bool", "timestamptz": "timestamptz", "text[]": "text[]"}


def _commit(told: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "commit": told["id"],
        "time": datetime.fromtimestamp(told["time-ms"] / 1000, UTC).isoformat(),
        "principal": told.get("principal") or "",
        "message": told.get("message") or "",
        "operation": told.get("operation") or "",
        "tables": [entry["name"] for entry in told.get("entries") or ()],
    }


def _done(tag: str) -> Spool:
    spool = Spool()
    spool.say(m.CommandComplete(tag))
    return spool


def _notice(sqlstate: str, message: str) -> m.NoticeResponse:
    return m.NoticeResponse({"S": "NOTICE", "V": "NOTICE", "C": sqlstate, "M": message})
