"""Table metadata by location: immutable files, so a parsed one never goes stale. Treat what it returns as read-only."""

from __future__ import annotations

import gzip
import threading
from collections import OrderedDict
from typing import Any

import msgspec

from icefield.iceberg.metadata import check_metadata
from icefield.model.errors import BadRequest, NotFound
from icefield.volume.port import FileTooLarge, NoSuchFile, Volume

Metadata = dict[str, Any]

MAX_METADATA_BYTES = 512 * 1024 * 1024
MAX_MANIFEST_BYTES = 512 * 1024 * 1024


class MetadataFiles:
    def __init__(self, volume: Volume, *, cache_bytes: int = 256 * 1024 * 1024) -> None:
        self._volume = volume
        self._limit = cache_bytes
        self._guard = threading.Lock()
        self._cached: OrderedDict[str, tuple[Metadata, int]] = OrderedDict()
        self._size = 0

    def load(self, location: str) -> Metadata:
        with self._guard:
            found = self._cached.get(location)
            if found is not None:
                self._cached.move_to_end(location)
                return found[0]
        try:
            content = self._volume.read(location, limit=MAX_METADATA_BYTES)
        except NoSuchFile:
            raise NotFound(f"metadata file {location} is missing from the volume") from None
        except FileTooLarge as error:
            raise BadRequest(str(error)) from None
        metadata = decode(content, location)
        self.remember(location, metadata, len(content))
        return metadata

    def remember(self, location: str, metadata: Metadata, size: int) -> None:
        with self._guard:
            if location in self._cached:
                return
            self._cached[location] = (metadata, size)
            self._size += size
            while self._size > self._limit and len(self._cached) > 1:
                _, (_, dropped) = self._cached.popitem(last=False)
                self._size -= dropped

    def read_manifest(self, location: str) -> bytes:
        """Bytes of a manifest list or manifest that a client names: they must lie in the volume."""
        if not self._volume.holds(location):
            raise BadRequest(f"{location} lies outside this server's volume {self._volume.root}", field="manifest-list")
        try:
            return self._volume.read(location, limit=MAX_MANIFEST_BYTES)
        except NoSuchFile:
            raise BadRequest(f"manifest file {location} does not exist", field="manifest-list") from None
        except FileTooLarge as error:
            raise BadRequest(str(error), field="manifest-list") from None


def encode(metadata: Metadata) -> bytes:
    return msgspec.json.encode(metadata)


def decode(content: bytes, location: str) -> Metadata:
    try:
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        metadata = msgspec.json.decode(content)
    except (msgspec.DecodeError, OSError, EOFError, RecursionError):
        raise BadRequest(
            f"{location} is not a table metadata file (JSON expected)", field="metadata-location"
        ) from None
    if not isinstance(metadata, dict):
        raise BadRequest(f"{location} is not a table metadata file (an object expected)", field="metadata-location")
    check_metadata(metadata)
    return metadata
