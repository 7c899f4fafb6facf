"""Avro container files: bytes in, records out, and back. Knows nothing of Iceberg but its field ids.

What is read here was written by a stranger. The container is therefore walked by our own few lines, which bound every
size before anything is unpacked, and only a schema that cannot make the decoder loop or recurse is handed to fastavro.
Whatever is wrong with the bytes is a ``BadRequest`` that names the location; what is merely beyond this server (too
large, an unknown codec) is its subclass ``BeyondLimits``, so that a caller may fall back to asking the client again.

Logical types are never applied: values are read as they are stored and can be written back bit for bit.
"""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import fastavro
import zstandard

from icefield.model.errors import BadRequest

MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_UNPACKED_BYTES = 256 * 1024 * 1024
MAX_RECORDS = 2_000_000
_MAX_HEADER_KEYS = 1_000
_MAX_SCHEMA_DEPTH = 24
_MAX_SCHEMA_PARTS = 50_000
_MAX_WIDTHLESS_PARTS = 100
"""Parts of a record that take no byte (null, an empty record): decoding costs time for each that no size bounds."""

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_OWN_KEYS = ("avro.schema", "avro.codec")

Record = dict[str, Any]


class BeyondLimits(BadRequest):
    """Perhaps well formed, but larger, or packed otherwise, than this server reads."""


@dataclass(frozen=True, slots=True)
class Container:
    location: str
    schema: Any
    """The writer's Avro schema, as parsed JSON."""
    header: Mapping[str, bytes]
    """The writer's own key-values, without Avro's (schema, codec)."""
    records: list[Record]

    def text(self, key: str) -> str | None:
        """A header value as text."""
        value = self.header.get(key)
        if value is None:
            return None
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise corrupt(self.location, f"its header {key!r} is not UTF-8") from None


def read_container(location: str, data: bytes) -> Container:
    """Decodes a whole file. Raises ``BadRequest`` (``BeyondLimits``) and nothing else, whatever the bytes are."""
    if len(data) > MAX_FILE_BYTES:
        raise BeyondLimits(
            f"{location} has {len(data)} bytes; this server reads manifests of up to {MAX_FILE_BYTES} bytes"
        )
    with reading(location):
        return _read(location, data)


@contextmanager
def reading(location: str) -> Iterator[None]:
    """Whatever goes wrong with a stranger's file inside is the file's fault, and says which file it was."""
    try:
        yield
    except BadRequest:
        raise
    except RecursionError:
        raise corrupt(location, "it nests too deeply") from None
    except Exception as error:
        raise corrupt(location, f"{type(error).__name__}: {str(error)[:200]}") from None


def write_container(schema: Any, records: Iterable[Record], header: Mapping[str, bytes | str]) -> bytes:
    """Encodes one file (deflate). Equal input gives equal bytes: the sync marker is a digest of the content."""
    decodable = fastavro.parse_schema(_without_logical_types(schema), expand=False, _write_hint=False)
    body = io.BytesIO()
    count = 0
    for record in records:
        fastavro.schemaless_writer(body, decodable, record)
        count += 1
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    packed = packer.compress(body.getbuffer()) + packer.flush()

    out = io.BytesIO()
    out.write(_MAGIC)
    values: dict[str, bytes] = {key: v.encode("utf-8") if isinstance(v, str) else v for key, v in header.items()}
    values["avro.schema"] = json.dumps(schema, separators=(",", ":")).encode("utf-8")
    values["avro.codec"] = b"deflate"
    out.write(_long(len(values)))
    for key, value in values.items():
        encoded = key.encode("utf-8")
        out.write(_long(len(encoded)) + encoded + _long(len(value)) + value)
    out.write(_long(0))
    sync = hashlib.sha256(out.getvalue() + packed).digest()[:_SYNC_BYTES]
    out.write(sync)
    if count:
        out.write(_long(count) + _long(len(packed)) + packed + sync)
    return out.getvalue()


def fields_of(schema: Any, location: str) -> list[dict[str, Any]]:
    """The fields of a record schema, or of the record in a union with null."""
    if isinstance(schema, list):
        schema = next((part for part in schema if part != "null"), None)
    if not isinstance(schema, dict) or not isinstance(schema.get("fields"), list):
        raise corrupt(location, "its schema has no record where Iceberg needs one")
    return [field for field in schema["fields"] if isinstance(field, dict)]


def names_by_id(schema: Any, location: str) -> dict[int, str]:
    """Iceberg field id -> the name this writer gave the field."""
    names: dict[int, str] = {}
    for field in fields_of(schema, location):
        field_id = field.get("field-id")
        if isinstance(field_id, int) and not isinstance(field_id, bool):
            names[field_id] = str(field["name"])
    return names


def may_be_null(schema: Any, field_name: str) -> bool:
    """Can this field of a record schema hold null? (A field that is not there cannot hold anything else.)"""
    for field in schema.get("fields", ()) if isinstance(schema, dict) else ():
        if field.get("name") == field_name:
            declared = field.get("type")
            return declared == "null" or (isinstance(declared, list) and "null" in declared)
    return True


def corrupt(location: str, why: str) -> BadRequest:
    return BadRequest(f"{location} is not a readable Avro file of Iceberg metadata: {why}", field="manifest-list")


# --- the container -----------------------------------------------------------------------------------------------


class _Cursor:
    __slots__ = ("data", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        end = self.position + size
        if size < 0 or end > len(self.data):
            raise ValueError("it ends in the middle")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def long(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return (value >> 1) ^ -(value & 1)
        raise ValueError("a number in it is longer than 64 bits")

    def at_end(self) -> bool:
        return self.position >= len(self.data)


def _read(location: str, data: bytes) -> Container:
    cursor = _Cursor(data)
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise ValueError("it does not begin as an Avro file")
    header = _read_header(cursor)
    sync = cursor.take(_SYNC_BYTES)
    schema = json.loads(header["avro.schema"].decode("utf-8"))
    codec = header.get("avro.codec", b"null").decode("utf-8")
    unpack = _UNPACK.get(codec)
    if unpack is None:
        known = ", ".join(_UNPACK)
        raise BeyondLimits(f"{location} is packed with the Avro codec {codec!r}; this server reads {known}")
    decodable = _without_logical_types(schema)
    narrowest = _check_schema(decodable)
    if narrowest < 1:
        raise ValueError("its records take no bytes")

    blocks: list[tuple[int, bytes]] = []
    records_left, bytes_left = MAX_RECORDS, MAX_UNPACKED_BYTES
    while not cursor.at_end():
        count = cursor.long()
        packed = cursor.take(cursor.long())
        if cursor.take(_SYNC_BYTES) != sync:
            raise ValueError("a block does not end with the file's sync marker")
        if count < 0:
            raise ValueError("a block has a negative count")
        content = unpack(packed, bytes_left)
        if len(content) > bytes_left or count > records_left:
            raise BeyondLimits(
                f"{location} unpacks to more than {MAX_UNPACKED_BYTES} bytes or {MAX_RECORDS} records, "
                "which is more than this server reads"
            )
        if count * narrowest > len(content):
            raise ValueError("a block promises more records than it has bytes for")
        records_left -= count
        bytes_left -= len(content)
        blocks.append((count, content))
    own = {key: value for key, value in header.items() if key not in _OWN_KEYS}
    return Container(location, schema, own, _decode(decodable, blocks))


def _read_header(cursor: _Cursor) -> dict[str, bytes]:
    header: dict[str, bytes] = {}
    while (count := cursor.long()) != 0:
        if count < 0:
            count = -count
            cursor.long()
        if count + len(header) > _MAX_HEADER_KEYS:
            raise ValueError("its header has too many keys")
        for _ in range(count):
            key = cursor.take(cursor.long()).decode("utf-8")
            header[key] = cursor.take(cursor.long())
    if "avro.schema" not in header:
        raise ValueError("its header has no avro.schema")
    return header


def _decode(schema: Any, blocks: list[tuple[int, bytes]]) -> list[Record]:
    """Lets fastavro read the checked blocks in one go (several times faster than record by record)."""
    whole = io.BytesIO()
    sync = b"\0" * _SYNC_BYTES
    encoded = json.dumps(schema).encode("utf-8")
    whole.write(_MAGIC + _long(1) + _long(11) + b"avro.schema" + _long(len(encoded)) + encoded + _long(0) + sync)
    for count, content in blocks:
        whole.write(_long(count) + _long(len(content)))
        whole.write(content)
        whole.write(sync)
    whole.seek(0)
    records: list[Record] = []
    for record in fastavro.reader(whole):
        if not isinstance(record, dict):
            raise ValueError("its records are not records")
        records.append(record)
    if len(records) != sum(count for count, _ in blocks):
        raise ValueError("its blocks hold other records than they promise")
    return records


def _long(value: int) -> bytes:
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _unpack_null(packed: bytes, limit: int) -> bytes:
    return packed


def _unpack_deflate(packed: bytes, limit: int) -> bytes:
    unpacker = zlib.decompressobj(-15)
    content = unpacker.decompress(packed, limit + 1)
    if len(content) <= limit and not unpacker.eof:
        raise ValueError("a packed block ends in the middle")
    return content


def _unpack_zstandard(packed: bytes, limit: int) -> bytes:
    with zstandard.ZstdDecompressor(max_window_size=2**27).stream_reader(io.BytesIO(packed)) as stream:
        return stream.read(limit + 1)


_UNPACK: dict[str, Callable[[bytes, int], bytes]] = {
    "null": _unpack_null,
    "deflate": _unpack_deflate,
    "zstandard": _unpack_zstandard,
}


# --- the schema --------------------------------------------------------------------------------------------------


def _without_logical_types(schema: Any, depth: int = 0) -> Any:
    """The same encoding without annotations: raw values, and none of the decoder's conversions that can fail."""
    if depth > 2 * _MAX_SCHEMA_DEPTH:
        raise ValueError("its schema nests too deeply")
    if isinstance(schema, list):
        return [_without_logical_types(part, depth + 1) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for key in ("type", "name", "namespace", "items", "values", "size", "symbols"):
        if key in schema:
            value = schema[key]
            kept[key] = _without_logical_types(value, depth + 1) if key in ("type", "items", "values") else value
    if "fields" in schema:
        if not isinstance(schema["fields"], list):
            raise ValueError("its schema has a record without a list of fields")
        kept["fields"] = [_without_logical_types(field, depth + 1) for field in schema["fields"]]
    return kept


_LEAST_BYTES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}


@dataclass(frozen=True, slots=True)
class _Cost:
    least_bytes: int
    parts: int
    widthless: int


def _check_schema(schema: Any) -> int:
    """The least number of bytes a record takes; raises if reading could take time or stack that no size bounds."""
    named: dict[str, _Cost | None] = {}

    def new_name(part: dict[str, Any]) -> str:
        name = part.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError("its schema has a named type without a name")
        # Namespaces are not told apart: two types that differ in nothing else could be taken for one another here.
        name = name.rpartition(".")[2]
        if name in named:
            raise ValueError(f"its schema defines the type {name[:80]!r} twice")
        return name

    def cost(part: Any, depth: int) -> _Cost:
        found = _cost(part, depth)
        if found.parts > _MAX_SCHEMA_PARTS or found.widthless > _MAX_WIDTHLESS_PARTS:
            raise ValueError("its schema is too large")
        return found

    def _cost(part: Any, depth: int) -> _Cost:
        if depth > _MAX_SCHEMA_DEPTH:
            raise ValueError("its schema nests too deeply")
        if isinstance(part, str):
            if part in _LEAST_BYTES:
                return _Cost(_LEAST_BYTES[part], 1, int(_LEAST_BYTES[part] == 0))
            known = named.get(part.rpartition(".")[2])
            if known is None:
                raise ValueError(f"its schema uses the type {part[:80]!r} before, or inside, its definition")
            return known
        if isinstance(part, list):
            choices = [cost(choice, depth + 1) for choice in part]
            if not choices:
                raise ValueError("its schema has an empty union")
            # The index byte comes on top, so that a null in a union is no widthless part.
            return _Cost(
                1 + min(choice.least_bytes for choice in choices),
                1 + sum(choice.parts for choice in choices),
                max((choice.widthless for choice in choices if choice.parts > 1), default=0),
            )
        if not isinstance(part, dict):
            raise ValueError("its schema has something that is no type")
        kind = part.get("type")
        if kind == "record":
            name = new_name(part)
            named[name] = None
            fields = [
                cost(field.get("type") if isinstance(field, dict) else None, depth + 1) for field in part["fields"]
            ]
            least = sum(field.least_bytes for field in fields)
            made = _Cost(
                least,
                1 + sum(field.parts for field in fields),
                sum(field.widthless for field in fields) + int(least == 0),
            )
            named[name] = made
            return made
        if kind in ("array", "map"):
            inner = cost(part.get("items" if kind == "array" else "values"), depth + 1)
            if inner.least_bytes < 1 and kind == "array":
                raise ValueError("its schema has an array of things that take no bytes")
            return _Cost(1, 1 + inner.parts, inner.widthless)
        if kind == "fixed":
            size = part.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise ValueError("its schema has a fixed type without a size")
            named[new_name(part)] = fixed = _Cost(size, 1, int(size == 0))
            return fixed
        if kind == "enum":
            named[new_name(part)] = enum = _Cost(1, 1, 0)
            return enum
        if isinstance(kind, (str, list, dict)):
            return cost(kind, depth + 1)
        raise ValueError("its schema has something that is no type")

    return cost(schema, 0).least_bytes
