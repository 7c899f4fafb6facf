"""Values that need work between the lake and PostgreSQL, whole columns at a time: stored text <-> binary fields.

In: what other engines wrote in another form than ours is understood as PostgreSQL's input would, or ``NotUnderstood``
is raised with the value. The usual form is read by numpy and Arrow alone; another one once per distinct value.
Out: hexadecimal text that the brain gave becomes bytes, or an interval's text. No settings of a session matter.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

_INT64 = (-(2**63), 2**63 - 1)
_INT32 = (-(2**31), 2**31 - 1)
_SECOND = 1_000_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_POSTGRES_EPOCH = 946_684_800 * _SECOND


class NotUnderstood(Exception):
    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value


# In: the lake's text -> fields ----------------------------------------------------------------------------------------


def uuid_fields(texts: pa.StringArray) -> pa.Array:
    return _fields(texts, "V16", _uuids, _uuid)


def time_fields(texts: pa.StringArray) -> pa.Array:
    return _fields(texts, ">i8", _times, _time)


def interval_fields(texts: pa.StringArray) -> pa.Array:
    return _fields(texts, _interval_dtype(), _intervals, _interval)


def jsonb_fields(texts: pa.StringArray) -> pa.BinaryArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(pa.scalar(b"\x01"), texts.cast(pa.binary()), b"")


def text_fields(texts: pa.StringArray) -> pa.BinaryArray:
    import pyarrow as pa

    return texts.cast(pa.binary())


def timestamp_fields(stamps: pa.TimestampArray) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    micros = stamps.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return _fixed((micros - np.int64(_POSTGRES_EPOCH)).astype(">i8"), _valid(stamps))


def array_fields(element_oid: int, lists: pa.ListArray, fields: Callable[[Any], pa.Array]) -> pa.BinaryArray:
    """``fields`` makes the elements' fields out of the elements."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    binary = pa.binary()
    elements = fields(lists.flatten()).cast(binary)
    sizes = pc.binary_length(elements).fill_null(0).to_numpy(zero_copy_only=False)
    present = pc.binary_join_element_wise(_fixed(sizes.astype(">i4"), None).cast(binary), elements, b"")
    counts = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    nulls = np.zeros(len(elements) + 1, np.int64)
    np.cumsum(elements.is_null().to_numpy(zero_copy_only=False), out=nulls[1:])
    heads = np.zeros(len(lists), np.dtype([(name, ">i4") for name in ("dimensions", "nulls", "oid", "size", "lower")]))
    heads["dimensions"] = heads["lower"] = 1
    heads["nulls"] = nulls[offsets[1:]] > nulls[offsets[:-1]]
    heads["oid"] = element_oid
    heads["size"] = counts
    empty = np.array([0, 0, element_oid], ">i4").tobytes()
    head = pc.if_else(pa.array(counts == 0), pa.scalar(empty), _fixed(heads, None).cast(binary))
    bodies = pc.binary_join(pa.ListArray.from_arrays(offsets, present.fill_null(b"\xff\xff\xff\xff")), b"")
    return pc.if_else(lists.is_valid(), pc.binary_join_element_wise(head, bodies, b""), pa.scalar(None, binary))


def _fields(
    texts: pa.StringArray, dtype: Any, fast: Callable[[pa.StringArray], np.ndarray | None], slow: Callable[[str], Any]
) -> pa.Array:
    import numpy as np

    dense = texts.drop_null()
    numbers = fast(dense) if len(dense) else np.zeros(0, dtype)
    if numbers is None:
        coded = dense.dictionary_encode()
        distinct = np.array([slow(text) for text in coded.dictionary.to_pylist()], dtype)
        numbers = distinct[coded.indices.to_numpy(zero_copy_only=False)]
    numbers = numbers.astype(dtype, copy=False)
    valid = _valid(texts)
    if valid is not None:
        every = np.zeros(len(texts), dtype)
        every[valid] = numbers
        numbers = every
    return _fixed(numbers, valid)


def _valid(array: pa.Array) -> np.ndarray | None:
    return array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None


def _fixed(numbers: np.ndarray, valid: np.ndarray | None) -> pa.FixedSizeBinaryArray:
    """The numbers' bytes as they are."""
    import numpy as np
    import pyarrow as pa

    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.Array.from_buffers(
        pa.binary(numbers.dtype.itemsize), len(numbers), [bits, pa.py_buffer(numbers.tobytes())]
    )


def _matrix(dense: pa.StringArray, width: int) -> np.ndarray | None:
    """The texts' bytes, one row each, if all are ``width`` bytes long."""
    import numpy as np

    _, offsets, data = dense.buffers()
    ends = np.frombuffer(offsets, np.int32)[dense.offset : dense.offset + len(dense) + 1]
    if data is None or not (np.diff(ends) == width).all():
        return None
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]].reshape(len(dense), width)


_UUID_DASHES = [8, 13, 18, 23]
_UUID = re.compile(r"(\{)?((?:[0-9a-f]{4}-?){7}[0-9a-f]{4})(?(1)\})", re.IGNORECASE)


def _uuids(dense: pa.StringArray) -> np.ndarray | None:
    import numpy as np

    found = _matrix(dense, 36)
    if found is not None:
        if not (found[:, _UUID_DASHES] == ord("-")).all():
            return None
        found = np.delete(found, _UUID_DASHES, axis=1)
    else:
        found = _matrix(dense, 32)
        if found is None:
            return None
    try:
        return np.frombuffer(binascii.unhexlify(found.tobytes()), "V16")
    except binascii.Error:
        return None


def _uuid(text: str) -> bytes:
    found = _UUID.fullmatch(text)
    if not found:
        raise NotUnderstood(text)
    return bytes.fromhex(found[2].replace("-", ""))


_TIME = re.compile(
    r"\s*(?P<h>\d{1,2}):(?P<m>\d{1,2})(?::(?P<s>\d{1,2})(?:\.(?P<f>\d*))?)?\s*(?P<half>am|pm)?\s*",
    re.IGNORECASE | re.ASCII,
)


def _times(dense: pa.StringArray) -> np.ndarray | None:
    import numpy as np

    found = _matrix(dense, 15)
    if found is None:
        found = _matrix(dense, 8)
        if found is None:
            return None
        fraction = np.frombuffer(b".000000", np.uint8)
        found = np.hstack((found, np.broadcast_to(fraction, (len(found), len(fraction)))))
    digits = found[:, [0, 1, 3, 4, 6, 7, 9, 10, 11, 12, 13, 14]] - np.uint8(ord("0"))
    if (digits > 9).any() or not (found[:, [2, 5, 8]] == np.frombuffer(b"::.", np.uint8)).all():
        return None
    pairs = digits.astype(np.int64).reshape(len(found), 6, 2) @ np.array([10, 1])
    micros: np.ndarray = pairs @ np.array([_HOUR, _MINUTE, _SECOND, 10_000, 100, 1])
    if (pairs[:, 1:3] > 59).any() or (micros > _DAY).any():
        return None
    return micros


def _time(text: str) -> int:
    found = _TIME.fullmatch(text)
    if not found:
        raise NotUnderstood(text)
    hours, minutes, seconds = int(found["h"]), int(found["m"]), int(found["s"] or 0)
    if found["half"]:
        if hours > 12:
            raise NotUnderstood(text)
        hours = hours % 12 + (12 if found["half"].lower() == "pm" else 0)
    micros = hours * _HOUR + minutes * _MINUTE + seconds * _SECOND + round(float(f"0.{found['f'] or 0}") * _SECOND)
    if minutes > 59 or seconds > 60 or micros > _DAY:
        raise NotUnderstood(text)
    return micros


def _interval_dtype() -> Any:
    import numpy as np

    return np.dtype([("micros", ">i8"), ("days", ">i4"), ("months", ">i4")])


_WHOLE = r"(?:(?P<{0}>-?[0-9]{{1,19}}){1})?"
_ISO = (
    "^P"
    + "".join(_WHOLE.format(name, letter) for name, letter in (("y", "Y"), ("mo", "M"), ("w", "W"), ("d", "D")))
    + "(?:T"
    + "".join(_WHOLE.format(name, letter) for name, letter in (("h", "H"), ("mi", "M")))
    + r"(?:(?P<minus>-?)(?P<s>[0-9]{1,13})(?:\.(?P<f>[0-9]{1,6}))?S)?)?$"
)
_ISO_INTERVAL = re.compile(_ISO)
_NOTHING = re.compile("[PT]$")
_UNENDING = {
    "infinity": (_INT64[1], _INT32[1], _INT32[1]),
    "-infinity": (_INT64[0], _INT32[0], _INT32[0]),
}


def _intervals(dense: pa.StringArray) -> np.ndarray | None:
    """None if one is not plain, or a number may not fit: then each is looked at alone."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    coded = dense.dictionary_encode()  # intervals are not many different ones, and to read one takes its time
    parts = pc.extract_regex(coded.dictionary, _ISO)
    if parts.null_count or pc.any(pc.match_substring_regex(coded.dictionary, "[PT]$")).as_py():
        return None

    def number(name: str) -> pa.Array:
        return pc.if_else(pc.equal(part := parts.field(name), ""), "0", part).cast(pa.int64())

    try:
        micros = pc.add_checked(
            pc.multiply_checked(number("s"), _SECOND), pc.utf8_rpad(parts.field("f"), 6, "0").cast("int64")
        )
        micros = pc.if_else(pc.equal(parts.field("minus"), "-"), pc.negate_checked(micros), micros)
        micros = pc.add_checked(micros, pc.multiply_checked(number("mi"), _MINUTE))
        micros = pc.add_checked(micros, pc.multiply_checked(number("h"), _HOUR))
        days = pc.add_checked(number("d"), pc.multiply_checked(number("w"), 7)).cast(pa.int32())
        months = pc.add_checked(number("mo"), pc.multiply_checked(number("y"), 12)).cast(pa.int32())
    except pa.ArrowInvalid:
        return None
    found = np.zeros(len(coded.dictionary), _interval_dtype())
    found["micros"], found["days"], found["months"] = (part.to_numpy() for part in (micros, days, months))
    # The largest and the smallest of all three mean infinity, which has a word of its own.
    unending = [found == np.array(ends, found.dtype) for ends in _UNENDING.values()]
    return None if np.any(unending) else found[coded.indices.to_numpy(zero_copy_only=False)]


def _interval(text: str) -> tuple[int, int, int]:
    if text in _UNENDING:
        return _UNENDING[text]
    found = _ISO_INTERVAL.match(text)
    if not found or _NOTHING.search(text) or text.endswith("\n"):
        raise NotUnderstood(text)
    number = {name: int(found[name] or 0) for name in ("y", "mo", "w", "d", "h", "mi", "s")}
    seconds = number["s"] * _SECOND + int((found["f"] or "").ljust(6, "0"))
    micros = number["h"] * _HOUR + number["mi"] * _MINUTE + (-seconds if found["minus"] else seconds)
    days, months = number["d"] + number["w"] * 7, number["mo"] + number["y"] * 12
    fits = _INT64[0] <= micros <= _INT64[1] and all(_INT32[0] <= one <= _INT32[1] for one in (days, months))
    if not fits or (micros, days, months) in _UNENDING.values():
        raise NotUnderstood(text)
    return micros, days, months


# Out: the brain's text -> what is stored ------------------------------------------------------------------------------


def unhex(texts: pa.StringArray) -> pa.BinaryArray:
    import numpy as np
    import pyarrow as pa

    valid, offsets, data = texts.buffers()
    assert texts.offset == 0
    ends = np.frombuffer(offsets, np.int32)[: len(texts) + 1]
    raw = binascii.unhexlify(memoryview(data)[: ends[-1]]) if data is not None else b""
    return pa.Array.from_buffers(
        pa.binary(), len(texts), [valid, pa.py_buffer((ends // 2).tobytes()), pa.py_buffer(raw)], texts.null_count
    )


def interval_texts(hexes: pa.StringArray) -> pa.StringArray:
    """interval_send's bytes in hexadecimal -> the text that IntervalStyle iso_8601 gives."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    raw = unhex(hexes).fill_null(bytes(16))
    fields = (
        np.frombuffer(raw.buffers()[2], _interval_dtype(), len(hexes)) if len(hexes) else np.zeros(0, _interval_dtype())
    )
    months, days, micros = (fields[name].astype(np.int64) for name in ("months", "days", "micros"))

    def signed(numbers: np.ndarray, minus: np.ndarray, letter: str) -> pa.Array:
        texts = pc.binary_join_element_wise(
            pc.if_else(pa.array(minus), "-", ""), pa.array(numbers).cast("string"), letter, ""
        )
        return pc.if_else(pa.array(numbers == 0), "", texts)

    # abs() of the smallest number is itself, and read without a sign it is right
    size, earlier = np.abs(micros).view(np.uint64), micros < 0
    hours, minutes = size // _HOUR, size // _MINUTE % 60
    seconds, fraction = size // _SECOND % 60, size % _SECOND
    point = pc.utf8_rtrim(pc.utf8_lpad(pa.array(fraction).cast("string"), 6, "0"), "0")
    second = pc.binary_join_element_wise(
        pc.if_else(pa.array(earlier), "-", ""),
        pa.array(seconds).cast("string"),
        pc.if_else(pa.array(fraction == 0), "", "."),
        point,
        "S",
        "",
    )
    texts = pc.binary_join_element_wise(
        "P",
        signed(np.abs(months) // 12, months < 0, "Y"),
        signed(np.abs(months) % 12, months < 0, "M"),
        signed(np.abs(days), days < 0, "D"),
        pc.if_else(pa.array(micros == 0), "", "T"),
        signed(hours, earlier, "H"),
        signed(minutes, earlier, "M"),
        pc.if_else(pa.array((seconds == 0) & (fraction == 0)), "", second),
        "",
    )
    texts = pc.if_else(pa.array((months == 0) & (days == 0) & (micros == 0)), "PT0S", texts)
    for word, ends in _UNENDING.items():
        texts = pc.if_else(pa.array(fields == np.array(ends, fields.dtype)), word, texts)
    return pc.if_else(hexes.is_valid(), texts, pa.scalar(None, pa.string()))
