"""The grammar of branches, tags and their history: what each of these statements says. None of it is PostgreSQL's.

    CREATE BRANCH [IF NOT EXISTS] name [FROM ref]       DROP BRANCH [IF EXISTS] name     SHOW BRANCHES
    CREATE TAG [IF NOT EXISTS] name [AT | FROM ref]     DROP TAG [IF EXISTS] name        SHOW TAGS
    MERGE BRANCH ref INTO name [DRY RUN]                USE BRANCH name                  SHOW LOG [FOR ref] [LIMIT n]

A name is quoted ("Dev", 'Dev') or not (folded; ``-``, ``/`` and ``.`` are allowed as they are: feature/new-1.x).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from icefield.sql.lexer import TokenKind, fold
from icefield.sql.reader import No, Reader

RefKind = Literal["branch", "tag"]
_PART = re.compile(r"[\w./@~-]+")


@dataclass(frozen=True, slots=True)
class CreateRef:
    kind: RefKind
    name: str
    start: str | None = None
    """None: where the session stands."""
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropRef:
    kind: RefKind
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class MergeBranch:
    source: str
    into: str
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class UseBranch:
    name: str


@dataclass(frozen=True, slots=True)
class ShowBranches:
    pass


@dataclass(frozen=True, slots=True)
class ShowTags:
    pass


@dataclass(frozen=True, slots=True)
class ShowLog:
    ref: str | None = None
    limit: int | None = None


BranchKind = CreateRef | DropRef | MergeBranch | UseBranch | ShowBranches | ShowTags | ShowLog
BRANCH_KINDS = (CreateRef, DropRef, MergeBranch, UseBranch, ShowBranches, ShowTags, ShowLog)


def ref_kind(r: Reader) -> RefKind | None:
    """After CREATE or DROP: takes BRANCH or TAG, if that is what comes."""
    if r.take("branch"):
        return "branch"
    return "tag" if r.take("tag") else None


def create(r: Reader, kind: RefKind) -> CreateRef:
    if_not_exists = r.take("if", "not", "exists")
    name = _ref(r)
    start = _ref(r) if r.take("from") or (kind == "tag" and r.take("at")) else None
    _end(r)
    return CreateRef(kind, name, start, if_not_exists)


def drop(r: Reader, kind: RefKind) -> DropRef:
    if_exists = r.take("if", "exists")
    name = _ref(r)
    _end(r)
    return DropRef(kind, name, if_exists)


def merge(r: Reader) -> MergeBranch:
    r.need("merge", "branch")
    source = _ref(r)
    if not r.take("into"):
        raise r.error()
    into = _ref(r)
    dry_run = r.take("dry", "run")
    _end(r)
    return MergeBranch(source, into, dry_run)


def use(r: Reader) -> UseBranch:
    r.need("use", "branch")
    name = _ref(r)
    _end(r)
    return UseBranch(name)


def show(r: Reader) -> BranchKind:
    """After SHOW. Settings may have such names, too (``log.x``), and stay PostgreSQL's."""
    if r.take("branches"):
        r.end()
        return ShowBranches()
    if r.take("tags"):
        r.end()
        return ShowTags()
    r.need("log")
    if not r.done() and r.peek() not in ("for", "limit"):
        raise No
    ref = _ref(r) if r.take("for") else None
    limit = _count(r) if r.take("limit") else None
    _end(r)
    return ShowLog(ref, limit)


def _ref(r: Reader) -> str:
    if r.done():
        raise r.error()
    token = r.tokens[r.at]
    if token.kind in (TokenKind.STRING, TokenKind.QUOTED) and token.text[0] in "'\"":
        quote = token.text[0]
        name = token.text[1:-1].replace(quote * 2, quote)
        if not name:
            raise r.error()
        r.at += 1
        return name
    # Unquoted: what may be in a ref's name is several tokens, with nothing between them.
    first, last = r.at, r.at
    while r.at < len(r.tokens) and _PART.fullmatch(r.tokens[r.at].text):
        if r.at > first and r.tokens[r.at].start != r.tokens[last].end:
            break
        last = r.at
        r.at += 1
    if r.at == first:
        raise r.error()
    return fold(r.text[token.start : r.tokens[last].end])


def _count(r: Reader) -> int:
    if r.done() or r.tokens[r.at].kind is not TokenKind.NUMBER or not r.tokens[r.at].text.isdecimal():
        raise r.error()
    digits = r.tokens[r.at].text
    r.at += 1
    return int(digits) if len(digits) < 19 else 10**18


def _end(r: Reader) -> None:
    if not r.done():
        raise r.error()
