"""Manifest files from strangers: every byte string is read, or refused with its location; never anything else."""

from __future__ import annotations

import io
import json
import time
import tracemalloc
import zlib
from typing import Any

import fastavro
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from iceberg_worlds import BY_DAY, World, added_entry, avro_file, entry_schema, list_schema

from icefield.iceberg import avro
from icefield.iceberg.manifest_list import ManifestFile, read_list, write_list
from icefield.iceberg.manifests import file_facts, inherit, may_inherit, read_manifest
from icefield.model.errors import BadRequest

WHERE = "file:///w/t/metadata/x.avro"


def sample_manifest() -> bytes:
    world = World(3, BY_DAY)
    line = world.manifest(7, [added_entry(7, world.file(5)), added_entry(None, world.file(6))])
    return world.files[line["manifest_path"]]


def sample_list() -> bytes:
    world = World(3, BY_DAY)
    meta = world.empty()
    meta = world.commit(meta, world.append(meta, 5))
    return world.files[world.append(meta, 6)["manifest-list"]]


MANIFEST, LIST = sample_manifest(), sample_list()


def read_everything(data: bytes) -> None:
    """Both readers, and what is computed from a manifest: each answers, or refuses with the location."""
    for reader in (read_list, read_manifest):
        refused = None
        try:
            found = reader(WHERE, data)
            if reader is read_manifest:
                line = ManifestFile(WHERE, 1, 0, 0, 5, 5, 7, 1, 1, 1, 1, 1, 1, first_row_id=10)
                list(inherit(found, line))
                file_facts(found)
                may_inherit(found)
                found.header_json("schema")
                found.spec_id()
        except BadRequest as error:
            refused = error
        assert refused is None or WHERE in refused.message


# --- hostile bytes -----------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
@example(b"")
@example(b"Obj\x01")
@example(b"Obj\x01" + b"\xff" * 100)
def test_any_bytes(data: bytes) -> None:
    read_everything(data)
    read_everything(b"Obj\x01" + data)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_real_file_with_some_bytes_changed(data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from([MANIFEST, LIST])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "end"])):
            case "flip":
                raw[at] ^= data.draw(st.integers(1, 255))
            case "cut":
                del raw[at : at + data.draw(st.integers(1, 30))]
            case "insert":
                raw[at:at] = data.draw(st.binary(min_size=1, max_size=30))
            case _:
                del raw[at:]
        if not raw:
            return
    read_everything(bytes(raw))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_real_blocks_with_some_bytes_changed(data: st.DataObject) -> None:
    """Past the packing: what is in the block is damaged, not the packed bytes."""
    schema = entry_schema(3, BY_DAY)
    world = World(3, BY_DAY)
    raw = bytearray(avro_file(schema, [added_entry(7, world.file(5))], {"content": "data"}, codec="null"))
    body = raw.rindex(b"mem://")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(body - 20, len(raw) - 17))
        raw[at] = data.draw(st.integers(0, 255))
    read_everything(bytes(raw))


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["null", "long", "record", "array", "x", "r2"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", "name", "fields", "items", "values", "size", "field-id"]), inner)
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(json_values, st.binary(max_size=40), st.integers(0, 50))
def test_any_schema(schema: Any, body: bytes, count: int) -> None:
    read_everything(container(schema, [(count, body)]))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_real_schema_with_a_part_replaced(data: st.DataObject) -> None:
    schema = json.loads(json.dumps(data.draw(st.sampled_from([entry_schema(3, BY_DAY), list_schema(3)]))))
    part: Any = schema
    while True:
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if isinstance(part[key], (dict, list)) and data.draw(st.booleans()):
            part = part[key]
            continue
        part[key] = data.draw(json_values)
        break
    whole = io.BytesIO(MANIFEST)
    body = fastavro.block_reader(whole)
    raw = next(iter(body)).bytes_.getvalue()
    read_everything(container(schema, [(2, raw)]))


def container(schema: Any, blocks: list[tuple[int, bytes]], codec: bytes = b"null") -> bytes:
    def long(value: int) -> bytes:
        value = (value << 1) ^ (value >> 63)
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([*out, value])

    def text(value: bytes) -> bytes:
        return long(len(value)) + value

    sync = b"s" * 16
    head = b"Obj\x01" + long(2) + text(b"avro.schema") + text(json.dumps(schema).encode())
    head += text(b"avro.codec") + text(codec) + long(0) + sync
    return head + b"".join(long(count) + text(body) + sync for count, body in blocks)


def record(*types: Any, name: str = "r") -> Any:
    return {"type": "record", "name": name, "fields": [{"name": f"f{i}", "type": t} for i, t in enumerate(types)]}


def doubling(levels: int, leaf: Any) -> Any:
    """A small schema whose expansion is 2 to the power of ``levels`` parts."""
    schema = record(leaf, name="r0")
    for level in range(1, levels):
        schema = record(schema, f"r{level - 1}", name=f"r{level}")
    return schema


FAR = 2**62
BOMBS = {
    "records that take no bytes": container(record(), [(FAR, b"")]),
    "records of nulls": container(record("null"), [(FAR, b"")]),
    "more records than bytes": container(record("long"), [(FAR, b"\x02" * 100)]),
    "a negative count": container(record("long"), [(-5, b"\x02" * 100)]),
    "an array of nulls": container(
        record({"type": "array", "items": "null"}), [(1, b"\x80\x80\x80\x80\x80\x80\x80\x80\x01")]
    ),
    "an array of empty records": container(
        record({"type": "array", "items": record(name="e")}), [(1, b"\x80\x80\x80\x80\x80\x80\x80\x80\x01")]
    ),
    "an array of empty fixed": container(
        record({"type": "array", "items": {"type": "fixed", "name": "e", "size": 0}}), [(1, b"\xfe\xff\xff\xff\x0f")]
    ),
    "two types of one name": container(
        record(
            {"type": "record", "name": "a.E", "fields": []},
            {"type": "fixed", "name": "b.E", "size": 9},
            {"type": "array", "items": "a.E"},
        ),
        [(1, b"\x02" * 30)],
    ),
    "a type inside itself": container(record(["null", "r"]), [(1, b"\x02" * 1_000_000)]),
    "a schema that doubles, of nulls": container(record("long", doubling(40, "null"), name="top"), [(1, b"\x02" * 9)]),
    "a schema that doubles, of longs": container(record("long", doubling(40, "long"), name="top"), [(1, b"\x02" * 9)]),
    "a schema nested deeply": container(json.loads('{"type":"array","items":' * 300 + '"long"' + "}" * 300), []),
    "a text that is longer than the file": container(record("string"), [(1, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f")]),
    "an index outside of a union": container(record(["null", "long"]), [(1, b"\x0c\x02")]),
    "a header that does not end": b"Obj\x01" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f" + b"\x00" * 50,
    "a header of very many keys": b"Obj\x01" + b"\xa0\x9c\x01" + b"\x02a\x02b" * 10_000,
    "a json number of very many digits": container(record("long"), []).replace(b'"r"', b"9" * 20_000),
}


@pytest.mark.parametrize("name", list(BOMBS))
def test_small_files_that_would_take_long(name: str) -> None:
    started = time.monotonic()
    with pytest.raises(BadRequest, match=WHERE):
        avro.read_container(WHERE, BOMBS[name])
    assert time.monotonic() - started < 2


def test_a_long_list_of_json_brackets() -> None:
    raw = container(record("long"), []).replace(json.dumps(record("long")).encode(), b"[" * 65)
    with pytest.raises(BadRequest, match=WHERE):
        avro.read_container(WHERE, raw)
    deep = b"[" * 200_000
    size = len(deep) * 2
    prefix = bytearray()
    while size > 0x7F:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    raw = b"Obj\x01\x02\x16avro.schema" + bytes(prefix) + deep + b"\x00" + b"s" * 16
    with pytest.raises(BadRequest, match=WHERE):
        avro.read_container(WHERE, raw)


@pytest.mark.parametrize("codec", ["deflate", "zstandard"])
def test_a_small_block_that_unpacks_to_much(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "MAX_UNPACKED_BYTES", 1_000_000)
    plain = b"\x02" * 100_000_000
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(plain) + packer.flush() if codec == "deflate" else zstandard.compress(plain)
    del plain
    raw = container(record("long"), [(100, packed)], codec.encode())
    tracemalloc.start()
    with pytest.raises(avro.BeyondLimits, match=WHERE):
        avro.read_container(WHERE, raw)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


def test_limits_on_size_and_records(monkeypatch: pytest.MonkeyPatch) -> None:
    assert avro.read_container(WHERE, container(record("long"), [(3, b"\x02\x04\x06")])).records == [
        {"f0": 1},
        {"f0": 2},
        {"f0": 3},
    ]
    monkeypatch.setattr(avro, "MAX_RECORDS", 2)
    with pytest.raises(avro.BeyondLimits, match="2 records"):
        avro.read_container(WHERE, container(record("long"), [(1, b"\x02"), (2, b"\x04\x06")]))
    monkeypatch.setattr(avro, "MAX_FILE_BYTES", 10)
    with pytest.raises(avro.BeyondLimits, match="10 bytes"):
        avro.read_container(WHERE, MANIFEST)


def test_a_codec_that_is_not_known() -> None:
    with pytest.raises(avro.BeyondLimits, match="'snappy'"):
        avro.read_container(WHERE, container(record("long"), [], b"snappy"))


def test_blocks_that_hold_less_than_they_have_bytes() -> None:
    with pytest.raises(BadRequest, match=WHERE):
        avro.read_container(WHERE, MANIFEST[:-3] + b"xyz")


# --- good files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["null", "deflate", "zstandard"])
def test_every_codec(codec: str) -> None:
    records = [{"f0": i} for i in range(1000)]
    if codec == "zstandard":  # fastavro wants another library for it
        blocks = [(2, zstandard.compress(bytes([4 * i % 128, (4 * i + 2) % 128]))) for i in range(10)]
        found = avro.read_container(WHERE, container(record("long"), blocks, b"zstandard"))
        assert found.records == records[:20]
        return
    raw = io.BytesIO()
    fastavro.writer(raw, record("long"), records, codec=codec, metadata={"k": "v"}, sync_interval=100)
    found = avro.read_container(WHERE, raw.getvalue())
    assert found.records == records
    assert found.text("k") == "v"
    assert set(found.header) == {"k"}


def test_values_are_read_as_stored_and_written_back_bit_for_bit() -> None:
    schema = record(
        {"type": "int", "logicalType": "date"},
        {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
        {"type": "fixed", "name": "d", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 2},
        {"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"},
        ["null", "float"],
    )
    values = [{"f0": 2**31 - 1, "f1": 2**63 - 1, "f2": b"\x80\x00", "f3": b"u" * 16, "f4": 1.5}]
    written = avro.write_container(schema, values, {"k": "v"})
    found = avro.read_container(WHERE, written)
    assert (found.records, found.schema, found.header) == (values, schema, {"k": b"v"})
    assert avro.write_container(found.schema, found.records, found.header) == written


def test_a_list_comes_back_as_it_was_written() -> None:
    first = read_list(WHERE, LIST)
    assert [(m.added_files, m.added_rows, m.first_row_id, m.sequence_number) for m in first.manifests] == [
        (1, 6, 5, 2),
        (1, 5, 0, 1),
    ]
    again = write_list(
        first.manifests, format_version=3, snapshot_id=1, parent_snapshot_id=None, sequence_number=2, first_row_id=5
    )
    assert read_list(WHERE, again).manifests == first.manifests
    names = {field["name"]: field["field-id"] for field in fastavro.reader(io.BytesIO(again)).writer_schema["fields"]}
    assert names["added_files_count"] == 504
    assert names["first_row_id"] == 520
    assert read_list(WHERE, again).header["parent-snapshot-id"] == b"null"


def test_a_format_2_list_has_no_row_ids() -> None:
    line = read_list(WHERE, LIST).manifests[0]
    raw = write_list([line], format_version=2, snapshot_id=1, parent_snapshot_id=7, sequence_number=2)
    assert read_list(WHERE, raw).manifests[0].first_row_id is None
    assert "first-row-id" not in read_list(WHERE, raw).header


def test_an_empty_list_and_an_empty_manifest() -> None:
    assert read_list(WHERE, avro_file(list_schema(3), [], {})).manifests == ()
    assert read_manifest(WHERE, avro_file(entry_schema(3, BY_DAY), [], {})).entries == ()


def test_a_list_that_names_a_manifest_twice() -> None:
    lines = list(fastavro.reader(io.BytesIO(LIST)))
    with pytest.raises(BadRequest, match="twice"):
        read_list(WHERE, avro_file(list_schema(3), [lines[0], lines[0]], {}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"content": 2}, "content 2"),
        ({"manifest_path": ""}, "manifest_path"),
        ({"added_rows_count": -1}, "added_rows_count"),
        ({"first_row_id": -1}, "first_row_id"),
    ],
)
def test_lines_that_make_no_sense(change: dict[str, Any], said: str) -> None:
    lines = list(fastavro.reader(io.BytesIO(LIST)))
    with pytest.raises(BadRequest, match=said):
        read_list(WHERE, avro_file(list_schema(3), [lines[0] | change], {}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"status": 3}, "status"),
        ({"data_file": {"content": 5}}, "content"),
        ({"data_file": {"file_path": ""}}, "path"),
        ({"data_file": {"record_count": -1}}, "record count"),
    ],
)
def test_entries_that_make_no_sense(change: dict[str, Any], said: str) -> None:
    world = World(3)
    entry = added_entry(7, world.file(5))
    for key, value in change.items():
        entry[key] = entry[key] | value if key == "data_file" else value
    with pytest.raises(BadRequest, match=said):
        read_manifest(WHERE, avro_file(entry_schema(3, world.spec), [entry], {}))


def test_fields_are_found_by_id() -> None:
    schema = json.loads(
        json.dumps(entry_schema(3, BY_DAY)).replace('"file_path"', '"where"').replace('"status"', '"state"')
    )
    world = World(3, BY_DAY)
    entry = added_entry(7, world.file(5))
    entry["state"] = entry.pop("status")
    entry["data_file"]["where"] = entry["data_file"].pop("file_path")
    found = read_manifest(WHERE, avro_file(schema, [entry], {"content": "Data"})).entries[0]
    assert (found.path, found.status) == (entry["data_file"]["where"], 1)


def test_row_ids_are_inherited_in_order() -> None:
    world = World(3)
    files = [world.file(5), world.file(7, first_row_id=1000), world.file(2), world.file(3)]
    entries = [added_entry(7, file) for file in files]
    entries[2] |= {"status": 2, "sequence_number": 1, "file_sequence_number": 1}
    found = read_manifest(WHERE, avro_file(entry_schema(3, world.spec), entries, {}))
    line = ManifestFile(WHERE, 1, 0, 0, 9, 9, 8, 1, 1, 1, 1, 1, 1, first_row_id=100)
    assert [(n.first_row_id, n.sequence_number, n.snapshot_id) for _, n in inherit(found, line)] == [
        (100, 9, 7),
        (1000, 9, 7),
        (105, 9, 7),
    ]
