"""Names as users write them: namespaces, identifiers, refs and the addresses that carry them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from icefield.model.errors import BadRequest

Namespace = tuple[str, ...]

DEFAULT_REPO = "lake"
DEFAULT_BRANCH = "main"
SESSION_MARK = "~"
"""What follows ``@`` in a session's address: ``lake@~<session id>``. No branch may begin with it."""

_REPO = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
_REF = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_./-]{0,126}[A-Za-z0-9_])?")
MAX_NAME_BYTES = 512


@dataclass(frozen=True, slots=True, order=True)
class Identifier:
    """A table's or view's full name inside a repo."""

    namespace: Namespace
    name: str

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name))


@dataclass(frozen=True, slots=True)
class Address:
    """Where a client stands: a repo and a ref (branch, tag or commit id), or a session's symbolic ref."""

    repo: str
    ref: str | None = None
    session: str | None = None

    def __str__(self) -> str:
        if self.session is not None:
            return f"{self.repo}@{SESSION_MARK}{self.session}"
        return self.repo if self.ref is None else f"{self.repo}@{self.ref}"


def parse_address(text: str) -> Address:
    """``shop``, ``shop@dev``, ``shop@~<session>``; an empty text is the default repo."""
    if not text:
        return Address(DEFAULT_REPO)
    repo, at, ref = text.partition("@")
    check_repo_name(repo)
    if not at:
        return Address(repo)
    if ref.startswith(SESSION_MARK):
        return Address(repo, session=ref[1:])
    check_ref_name(ref)
    return Address(repo, ref=ref)


def check_repo_name(name: str) -> None:
    if not _REPO.fullmatch(name):
        raise BadRequest(
            f"repo name {name!r} is not allowed: use letters, digits, '_' and '-', beginning with a letter or '_'",
            field="warehouse",
        )


def check_ref_name(name: str) -> None:
    if not _REF.fullmatch(name) or ".." in name or "//" in name:
        raise BadRequest(
            f"ref name {name!r} is not allowed: use letters, digits, '_', '-', '.' and '/', "
            "beginning and ending with a letter, a digit or '_'",
            field="ref",
        )


def check_level(text: str, field: str) -> None:
    """One level of a namespace, or a table's name: any Unicode text that can be stored and sent back."""
    if not text:
        raise BadRequest(f"{field} must not be empty", field=field)
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise BadRequest(f"{field} is not valid Unicode (a lone surrogate)", field=field) from None
    if size > MAX_NAME_BYTES:
        raise BadRequest(f"{field} is longer than {MAX_NAME_BYTES} bytes", field=field)
    if "\x1f" in text or "\x00" in text:
        raise BadRequest(f"{field} must not contain the characters U+001F or U+0000", field=field)
