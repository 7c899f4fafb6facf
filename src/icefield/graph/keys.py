"""Names as bytes whose order is the tree's order: a namespace, its tables and views, then its sub-namespaces.

Every level is its UTF-8 with 00 written as ``00 FF``, and ends with ``00 01``. After the last level ``00 00`` ends the
path: there stands the namespace's own entry. A table or view adds ``01`` and its name, as it is. So with P = the levels
of a namespace: P 00 00 is its entry, [P 00 00 01, P 00 00 02) its tables and views, [P 00 00, P[:-1] 02) its subtree.
Different keys never have the same bytes, empty names included. Bytes are compared as they are: é in two normal forms is
two names.
"""

from __future__ import annotations

from icefield.model.errors import BadRequest
from icefield.model.names import Identifier, Namespace

Key = Namespace | Identifier

_LEVEL = b"\x00\x01"
_PATH = b"\x00\x00"
_ENTRY = b"\x01"


def encode(key: Key) -> bytes:
    try:
        if isinstance(key, tuple):
            return _levels(key) + _PATH
        return _levels(key.namespace) + _PATH + _ENTRY + key.name.encode()
    except UnicodeEncodeError:
        raise BadRequest(f"the name {key!r} is not valid Unicode (a lone surrogate)") from None


def decode(data: bytes) -> Key:
    levels: list[str] = []
    position = 0
    while not data.startswith(_PATH, position):
        end = data.index(_LEVEL, position)
        levels.append(data[position:end].replace(b"\x00\xff", b"\x00").decode())
        position = end + len(_LEVEL)
    position += len(_PATH)
    if position == len(data):
        return tuple(levels)
    return Identifier(tuple(levels), data[position + len(_ENTRY) :].decode())


def entries_in(namespace: Namespace) -> tuple[bytes, bytes]:
    """The range of the tables and views directly in a namespace."""
    path = encode(namespace)
    return path + _ENTRY, path + b"\x02"


def inside(namespace: Namespace) -> tuple[bytes, bytes]:
    """The range of all that is below a namespace, at any depth, without its own entry."""
    return encode(namespace) + _ENTRY, _after(namespace)


def below(namespace: Namespace) -> tuple[bytes, bytes]:
    """The range of its sub-namespaces with all that they hold."""
    return encode(namespace) + b"\x02", _after(namespace)


def subtree(namespace: Namespace) -> tuple[bytes, bytes]:
    """The range of a namespace's own entry and all that is below it."""
    return encode(namespace), _after(namespace)


def _levels(namespace: Namespace) -> bytes:
    return b"".join([level.encode().replace(b"\x00", b"\x00\xff") + _LEVEL for level in namespace])


def _after(namespace: Namespace) -> bytes:
    """The first bytes above a namespace's subtree. No key begins with FF: it is no UTF-8."""
    return _levels(namespace)[:-1] + b"\x02" if namespace else b"\xff"
