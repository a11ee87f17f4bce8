"""Values as records bring them, made the values of their kind's Arrow type: times, decimals, bytes, lists, structs.

A value that its kind cannot take is a fault of its row, named by path; the rest of the block goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.connectors.bridge.casting.casts import parted
from lakestore.connectors.bridge.formats.debezium import base64_texts
from lakestore.connectors.bridge.formats.debezium.connect_types import (
    ANY,
    DECIMAL,
    TIMES,
    TIMESTAMPS,
    VARIABLE_DECIMAL,
    ZONED,
    Kind,
)
from lakestore.connectors.bridge.records import Ints

_DAY_NANOS = 86_400 * 10**9
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999, which are those of readers."""
_BASE64_ONLY = r"^[A-Za-z0-9+/]+={0,2}$"
_NUMBER_ONLY = r"^[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?$"
"""Digits alone are both, where their count is a multiple of four."""
_END_OF_DAY = r"^24:00(:00(\.0+)?)?(Z|[+]00:00)?$"
_NO_TIME = (
    "a time of day is outside of a day, as 24:00:00 of PostgreSQL is, and no time column takes it: declare the column"
    " with type: string or int64 in an entry of its own for the topic"
)


@dataclass(slots=True)
class Faults:
    """Values that their kinds cannot take."""

    found: list[tuple[Ints, str, str, str]] = field(default_factory=list)
    """Rows, code, reason, path."""

    def add(self, wrong: pa.BooleanArray | pa.ChunkedArray, code: str, reason: str, path: str) -> None:
        """The rows where `wrong` is true."""
        rows = np.flatnonzero(wrong.fill_null(False).to_numpy(zero_copy_only=False))
        if len(rows):
            self.found.append((rows, code, reason, path))


def converted(array: pa.Array, kind: Kind, path: str, faults: Faults) -> pa.Array:
    """The values as `kind.type`, or as they are for ANY; null where a value cannot be taken."""
    if kind.wire == ANY and not (kind.name and pa.types.is_integer(array.type)):
        return array
    if array.type == kind.type and not kind.fields and kind.wire not in ("array", "map") and kind.name != DECIMAL:
        return _bounded(array, path, faults)
    if kind.name == VARIABLE_DECIMAL and pa.types.is_struct(array.type):
        return _variable_decimal(array, path, faults)
    if pa.types.is_struct(array.type) and kind.wire == "struct":
        return _struct(array, kind, path, faults)
    if pa.types.is_map(array.type) and kind.key and kind.item:
        return _map(array, kind, path, faults)
    if (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)) and kind.item:
        return _list(array, kind, path, faults)
    return _leaf(array, kind, path, faults)


def _struct(array: pa.StructArray, kind: Kind, path: str, faults: Faults) -> pa.StructArray:
    parts = []
    for name, part in kind.fields:
        at = array.type.get_field_index(name)
        if at < 0:
            parts.append(pa.nulls(len(array), part.type))
            continue
        parts.append(converted(pc.struct_field(array, [at]), part, f"{path}.{name}", faults))
    fields = [pa.field(name, made.type) for (name, _), made in zip(kind.fields, parts, strict=True)]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())


def _inner(array: pa.Array, parts: list[tuple[pa.Array, Kind]], path: str, faults: Faults) -> list[pa.Array]:
    """Values inside of lists; faults of these are faults of the rows that they are in."""
    inside, made = Faults(), []
    for values, kind in parts:
        made.append(converted(values, kind, path, inside))
    parents = pc.list_parent_indices(array.cast(pa.list_(parts[0][0].type)) if pa.types.is_map(array.type) else array)
    for rows, code, reason, where in inside.found:
        faults.found.append((np.unique(parents.to_numpy()[rows]).astype(np.int64), code, reason, where))
    return made


def _list(array: pa.Array, kind: Kind, path: str, faults: Faults) -> pa.Array:
    assert kind.item is not None
    array = _compact(array)
    (values,) = _inner(array, [(array.values, kind.item)], f"{path}[]", faults)
    return pa.ListArray.from_arrays(array.offsets.cast(pa.int32()), values, mask=_mask(array))


def _map(array: pa.MapArray, kind: Kind, path: str, faults: Faults) -> pa.Array:
    assert kind.item is not None
    assert kind.key is not None
    array = _compact(array)
    inside = Faults()
    keys = converted(array.keys, kind.key, f"{path}{{}}", inside)
    items = converted(array.items, kind.item, f"{path}{{}}", inside)
    lengths = np.diff(array.offsets.to_numpy())
    parents = np.repeat(np.arange(len(array)), lengths)
    for rows, code, reason, where in inside.found:
        faults.found.append((np.unique(parents[rows]), code, reason, where))
    return pa.MapArray.from_arrays(array.offsets, keys, items, mask=_mask(array))


def _compact(array: pa.Array) -> pa.Array:
    """The array without offset and without values hidden under nulls."""
    return pa.concat_arrays([array.take(pa.array(np.arange(len(array))))])


def _mask(array: pa.Array) -> pa.BooleanArray | None:
    return array.is_null() if array.null_count else None


def _leaf(array: pa.Array, kind: Kind, path: str, faults: Faults) -> pa.Array:
    """A value that is not nested, by what its kind says it means."""
    target, t = kind.type, pa.types
    if t.is_null(array.type):
        return pa.nulls(len(array), target)
    if t.is_decimal(target) or kind.name == DECIMAL:
        return _decimal(array, kind, path, faults)
    if t.is_binary(target) or t.is_large_binary(target) or t.is_fixed_size_binary(target):
        return _bytes(array, target, path, faults)
    if t.is_integer(array.type) and t.is_string(target) and kind.name in TIMES:
        return _text_of_time(array, TIMES[kind.name], path, faults)
    if t.is_integer(array.type) and t.is_temporal(target):
        return _time_of_number(array, kind, path, faults)
    if t.is_string(array.type) and t.is_temporal(target):
        return _time_of_text(array, kind, path, faults)
    return _cast(array, target, path, faults)


def _cast(array: pa.Array, target: pa.DataType, path: str, faults: Faults) -> pa.Array:
    """A cast that changes no value; values that it would change are faults."""
    try:
        return _bounded(array.cast(target), path, faults)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        made, wrong = parted(array, lambda some: _told(some, target), target)
        faults.add(pa.array(wrong), "wrong-type", f"a value is no {target}", path)
        return _bounded(made, path, faults)


def _told(array: pa.Array, target: pa.DataType) -> pa.Array:
    return array.cast(target) if array.null_count < len(array) else pa.nulls(len(array), target)


def _bounded(array: pa.Array, path: str, faults: Faults) -> pa.Array:
    """Timestamps within the years that readers have."""
    if not pa.types.is_timestamp(array.type) or array.type.unit != "us":
        return array
    micros = array.cast(pa.int64())
    wrong = pc.or_(pc.less(micros, _FIRST_US), pc.greater(micros, _LAST_US))
    if not pc.any(wrong).as_py():
        return array
    faults.add(wrong, "out-of-range", "a timestamp is outside the years 1 to 9999", path)
    return pc.if_else(wrong, pa.scalar(None, array.type), array)


def _time_of_number(array: pa.Array, kind: Kind, path: str, faults: Faults) -> pa.Array:
    """Days, times of a day and timestamps that come as numbers."""
    target, t = kind.type, pa.types
    if t.is_date(target):
        return _cast(_cast(array, pa.int32(), path, faults).cast(pa.date32()), target, path, faults)
    if t.is_time(target):
        nanos = TIMES.get(kind.name, 1_000)
        wrong = pc.or_(pc.less(array, 0), pc.greater_equal(array, _DAY_NANOS // nanos))
        faults.add(wrong, "out-of-range", _NO_TIME, path)
        micros = _micros(pc.if_else(wrong, pa.scalar(None, array.type), array), nanos, path, faults)
        return _cast(micros.cast(pa.time64("us")), target, path, faults)
    nanos = TIMESTAMPS.get(kind.name, 1_000)
    micros = _micros(array, nanos, path, faults).cast(pa.timestamp("us"))
    zone = target.tz if t.is_timestamp(target) else None
    return _cast(micros.cast(pa.timestamp("us", tz=zone)), target, path, faults)


def _micros(array: pa.Array, nanos: int, path: str, faults: Faults) -> pa.Array:
    """Microseconds of numbers in a unit. Digits of nanoseconds are cut, as columns have none."""
    array = array.cast(pa.int64())
    if nanos < 1_000:
        return pa.array(np.floor_divide(array.fill_null(0).to_numpy(), 1_000), mask=_nulls(array))
    factor = nanos // 1_000
    limit = (2**63 - 1) // factor
    wrong = pc.or_(pc.less(array, -limit), pc.greater(array, limit))
    faults.add(wrong, "out-of-range", "a timestamp is outside the years 1 to 9999", path)
    return pc.multiply(pc.if_else(wrong, pa.scalar(None, pa.int64()), array), factor)


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False))


def _time_of_text(array: pa.Array, kind: Kind, path: str, faults: Faults) -> pa.Array:
    """Times as ISO 8601. A fraction is cut at microseconds; a date may end in Z."""
    target, t = kind.type, pa.types
    text = pc.replace_substring_regex(array, r"(\.[0-9]{6})[0-9]+", r"\1")
    if t.is_timestamp(target) and (kind.name == ZONED or target.tz):
        return _cast(text, target, path, faults)
    if t.is_time(target):
        ends = pc.match_substring_regex(text, _END_OF_DAY)
        faults.add(ends, "out-of-range", _NO_TIME, path)
        text = pc.if_else(ends, pa.scalar(None, text.type), text)
    text = pc.replace_substring_regex(text, r"(Z|[+]00:00)$", "")
    if t.is_time(target):  # Arrow casts no text to a time of a day
        moments = _cast(pc.binary_join_element_wise("1970-01-01T", text, ""), pa.timestamp("us"), path, faults)
        return moments.cast(target)
    return _cast(text, target, path, faults)


def _text_of_time(array: pa.Array, nanos: int, path: str, faults: Faults) -> pa.Array:
    """Times of a day that come as numbers, as texts; a text also takes the end of a day."""
    day = _DAY_NANOS // nanos
    wrong = pc.or_(pc.less(array, 0), pc.greater(array, day))
    faults.add(wrong, "out-of-range", "a time of day is outside of a day", path)
    ends = pc.equal(array, day)
    inside = pc.if_else(pc.or_(wrong, ends), pa.scalar(None, array.type), array)
    texts = _micros(inside, nanos, path, faults).cast(pa.time64("us")).cast(pa.string())
    return pc.if_else(ends, "24:00:00", pc.replace_substring_regex(texts, r"\.0+$", ""))


def _bytes(array: pa.Array, target: pa.DataType, path: str, faults: Faults) -> pa.Array:
    """Bytes, from base64 where JSON has brought them."""
    if not pa.types.is_string(array.type):
        return _cast(array, target, path, faults)
    made, wrong = base64_texts.decoded(array)
    faults.add(wrong, "bad-base64", "a text that stands for bytes is no base64", path)
    return _cast(made, target, path, faults)


def _decimal(array: pa.Array, kind: Kind, path: str, faults: Faults) -> pa.Array:
    """Decimals: numbers, bytes of the unscaled value, base64 of these, or digits, as the kind and the values say."""
    target, t = kind.type, pa.types
    if t.is_binary(array.type) or t.is_large_binary(array.type) or t.is_fixed_size_binary(array.type):
        return _unscaled(array.cast(pa.binary()), kind, path, faults)
    if not t.is_string(array.type):
        return _cast(array, target, path, faults)
    if kind.target is None or kind.unit == "base64":
        return _of_base64(array, kind, path, faults)
    if kind.unit == "text":
        return _cast(array, target, path, faults)
    number, base64 = pc.match_substring_regex(array, _NUMBER_ONLY), pc.match_substring_regex(array, _BASE64_ONLY)
    base64 = pc.and_(base64, pc.equal(pc.bit_wise_and(pc.binary_length(array), 3), 0))
    reason = "a decimal could be digits or base64; say `unit: text` or `unit: base64` of the column"
    unsure = pc.and_(number, base64)
    faults.add(unsure, "unsure-decimal", reason, path)
    nothing = pa.scalar(None, pa.string())
    of_base64 = _of_base64(pc.if_else(pc.and_not(base64, number), array, nothing), kind, path, faults)
    of_text = pc.if_else(pc.or_(unsure, pc.and_not(base64, number)), nothing, array)
    return pc.coalesce(of_base64, _cast(of_text, target, path, faults))


def _of_base64(array: pa.Array, kind: Kind, path: str, faults: Faults) -> pa.Array:
    raw, wrong = base64_texts.decoded(array)
    faults.add(wrong, "bad-base64", "a decimal is no base64 of its unscaled value", path)
    return _unscaled(raw, kind, path, faults)


def _unscaled(raw: pa.Array, kind: Kind, path: str, faults: Faults) -> pa.Array:
    """Decimals of big-endian two's complement bytes; texts where the digits are too many for decimals."""
    target = kind.type
    if pa.types.is_decimal(target) and kind.scale >= 0:
        made, wide = base64_texts.wide_decimals(raw, kind.scale)
        wrong = pc.and_(wide, raw.is_valid())
        if not pc.any(wrong).as_py():
            return _cast(made, target, path, faults)
    else:
        made, wrong = None, pa.array(np.ones(len(raw), bool))
    values = [None if text is None else base64_texts.digits(text, kind.scale) for text in raw.to_pylist()]
    return _cast(pa.array(values, pa.string()), target, path, faults)


def _variable_decimal(array: pa.StructArray, path: str, faults: Faults) -> pa.Array:
    """Decimals that bring their scale each, as digits."""
    raw = pc.struct_field(array, "value")
    if pa.types.is_string(raw.type):
        raw, wrong = base64_texts.decoded(raw)
        faults.add(wrong, "bad-base64", "a decimal is no base64 of its unscaled value", f"{path}.value")
    pairs = zip(raw.to_pylist(), pc.struct_field(array, "scale").to_pylist(), strict=True)
    made = [None if text is None else base64_texts.digits(text, scale or 0) for text, scale in pairs]
    return pc.if_else(array.is_null(), pa.scalar(None, pa.string()), pa.array(made, pa.string()))
