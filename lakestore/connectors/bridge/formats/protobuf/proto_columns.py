"""Protobuf messages to columns: the fields that a scan found, a column at a time, messages inside messages alike."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.json_format import MessageToJson, SerializeToJsonError
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from lakestore.connectors.bridge.formats.protobuf.proto_scan import Found, Scan, offsets, scanned, unpacked
from lakestore.connectors.bridge.formats.protobuf.proto_schema import BYTES, Message, ProtoField
from lakestore.connectors.bridge.framing.cursors import Bools, Cursors, signed, spread
from lakestore.connectors.bridge.records import Ints

_SECONDS_LEAST, _SECONDS_MOST = -62_135_596_800, 253_402_300_799
"""Year 1 to 9999."""
_DURATION_MOST = 315_576_000_000
_NANOS = 1_000_000_000


def columns(message: Message, cursors: Cursors, path: str = "") -> pa.StructArray:
    """The values of all messages; those that cannot be read are marked."""
    count = len(cursors.at)
    scan = scanned(cursors, path)
    last = _last_of_oneofs(message, scan, count)
    children = [_column(field, scan, cursors, path, last.get(field.oneof)) for field in message.fields]
    if not children:
        return pa.array([{}] * count, message.arrow)
    return pa.StructArray.from_arrays(children, fields=list(message.arrow))


def _last_of_oneofs(message: Message, scan: Scan, count: int) -> dict[str, Ints]:
    """For each oneof the turn of the member that came last in each message: the others were cleared by it."""
    last: dict[str, Ints] = {}
    for field in message.fields:
        found = scan.found(field.number, field.wire) if field.oneof else None
        if found is not None:
            np.maximum.at(last.setdefault(field.oneof, np.full(count, -1, np.int64)), found.rows, found.turn)
    return last


def _column(field: ProtoField, scan: Scan, cursors: Cursors, path: str, last: Ints | None) -> pa.Array:
    below = f"{path}.{field.name}" if path else field.name
    found = scan.found(field.number, field.wire)
    if field.label and field.wire != BYTES:
        packed = scan.found(field.number, BYTES)
        if packed is not None:
            found = _both(found, unpacked(cursors, packed, field.wire, below))
    if found is not None and field.closed:
        known = np.isin(found.first.astype(np.uint32).view(np.int32), [number for number, _ in field.symbols])
        found = _some(found, known)
    if field.label == "map":
        return _map(field, found, cursors, below)
    if field.label:
        return _list(field, found, cursors, below)
    return _single(field, found, cursors, below, last)


def _both(one: Found | None, other: Found) -> Found:
    if one is None:
        return other
    return Found(
        np.concatenate([one.rows, other.rows]),
        np.concatenate([one.first, other.first]),
        np.concatenate([one.end, other.end]),
        np.concatenate([one.turn, other.turn]),
    )


def _some(found: Found, which: Ints | Bools) -> Found:
    return Found(found.rows[which], found.first[which], found.end[which], found.turn[which])


def _ordered(found: Found) -> Found:
    """By message, and within one as they came."""
    if (np.diff(found.rows) > 0).all():
        return found
    return _some(found, np.lexsort((found.turn, found.rows)))


def _single(field: ProtoField, found: Found | None, cursors: Cursors, path: str, last: Ints | None) -> pa.Array:
    count = len(cursors.at)
    there = np.zeros(count, np.bool_)
    values = None
    if found is not None and len(found.rows):
        found = _ordered(found)
        newest = np.append(found.rows[1:] != found.rows[:-1], True)
        if not newest.all() and field.wire == BYTES and field.kind not in ("string", "bytes"):
            cursors, found = _merged(found, newest, cursors)
        found = _some(found, newest)
        if last is not None:
            found = _some(found, found.turn == last[found.rows])
        there[found.rows] = True
        values = _values(field, found, cursors, path)
    if field.required:
        missing = np.flatnonzero(~there & ~cursors.bad[:count])
        if len(missing):
            cursors.fail(missing, "missing-field", f"{field.name} is required, and the message does not have it", path)
    if values is None:
        values = pa.nulls(0, field.arrow)
    if field.presence or field.required:
        return spread(values, there) if there.any() else pa.nulls(count, field.arrow)
    return _with_zeros(field, values, there)


def _merged(found: Found, newest: Bools, cursors: Cursors) -> tuple[Cursors, Found]:
    """A message inside that came in several pieces, as one: its bytes are theirs, one behind the other."""
    starts, ends = found.first.astype(np.int64), found.end
    group = np.cumsum(np.append(True, newest[:-1])) - 1
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    bytes_ = cursors.data[np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))]
    places = np.concatenate([[0], np.cumsum(np.bincount(group, lengths).astype(np.int64))])
    whole = Found(found.rows, places[:-1][group].astype(np.uint64), places[1:][group], found.turn)
    return cursors.over(bytes_), whole


def _with_zeros(field: ProtoField, values: pa.Array, there: Bools) -> pa.Array:
    """The values, and the type's zero where there is none."""
    if there.all():
        return values
    zero = dict(field.symbols).get(0, "0") if field.kind == "enum" else _ZERO.get(field.kind, 0)
    if field.kind == "uint64" or field.kind == "fixed64":
        zeros = pa.array([0]).cast(field.arrow)
    else:
        zeros = pa.array([zero], field.arrow)
    index = np.where(there, np.cumsum(there), 0)
    return pa.concat_arrays([zeros, values]).take(pa.array(index))


_ZERO = {"string": "", "bytes": b"", "bool": False, "double": 0.0, "float": 0.0}


def _list(field: ProtoField, found: Found | None, cursors: Cursors, path: str) -> pa.Array:
    if found is None:
        none = pa.array(np.zeros(len(cursors.at) + 1, np.int32))
        return pa.ListArray.from_arrays(none, pa.nulls(0, field.arrow), type=field.column)
    found = _ordered(found)
    values = _values(field, found, cursors, path)
    return pa.ListArray.from_arrays(offsets(found.rows, len(cursors.at)), values, type=field.column)


def _map(field: ProtoField, found: Found | None, cursors: Cursors, path: str) -> pa.Array:
    assert field.message is not None
    if found is None:
        none = pa.array(np.zeros(len(cursors.at) + 1, np.int32))
        kind = field.arrow
        keys, items = pa.nulls(0, kind.key_type), pa.nulls(0, kind.item_type)
        return pa.MapArray.from_arrays(none, keys, items, type=kind)
    found = _ordered(found)
    entries = _inside(field.message, found, cursors, path)
    rows, keys, items = found.rows, entries.field(0), entries.field(1)
    table = pa.table({"row": rows, "key": keys, "at": np.arange(len(rows))})
    newest = table.group_by(["row", "key"]).aggregate([("at", "max")])["at_max"].to_numpy()
    if len(newest) < len(rows):  # a later entry of a key is the one that counts
        newest = np.sort(newest)
        rows, keys, items = rows[newest], keys.take(pa.array(newest)), items.take(pa.array(newest))
    return pa.MapArray.from_arrays(offsets(rows, len(cursors.at)), keys, items, type=field.arrow)


def _inside(message: Message, found: Found, cursors: Cursors, path: str) -> pa.StructArray:
    """Messages inside; where one cannot be read, neither can the one around."""
    inner = cursors.within(found.first.astype(np.int64), found.end)
    values = columns(message, inner, path)
    cursors.fail_from(inner, found.rows)
    return values


def _values(field: ProtoField, found: Found, cursors: Cursors, path: str) -> pa.Array:
    return _READERS[field.kind](field, found, cursors, path)


def _message(field: ProtoField, found: Found, cursors: Cursors, path: str) -> pa.Array:
    assert field.message is not None
    return _inside(field.message, found, cursors, path)


def _wrapper(field: ProtoField, found: Found, cursors: Cursors, path: str) -> pa.Array:
    assert field.message is not None
    return _inside(field.message, found, cursors, path).field(0)


def _seconds(field: ProtoField, found: Found, cursors: Cursors, path: str) -> tuple[Ints, Ints]:
    assert field.message is not None
    inner = _inside(field.message, found, cursors, path)
    return inner.field(0).to_numpy(), inner.field(1).to_numpy().astype(np.int64)


def _timestamp(field: ProtoField, found: Found, cursors: Cursors, path: str) -> pa.Array:
    seconds, nanos = _seconds(field, found, cursors, path)
    wrong = (seconds < _SECONDS_LEAST) | (seconds > _SECONDS_MOST) | (nanos < 0) | (nanos >= _NANOS)
    cursors.fail_where(found.rows, wrong, "out-of-range", "a Timestamp is not of the years 1 to 9999", path)
    micros = np.where(wrong, 0, seconds) * 1_000_000 + np.where(wrong, 0, nanos) // 1000
    return pa.array(micros).cast(field.arrow)


def _duration(field: ProtoField, found: Found, cursors: Cursors, path: str) -> pa.Array:
    seconds, nanos = _seconds(field, found, cursors, path)
    wrong = (np.abs(seconds) > _DURATION_MOST) | (np.abs(nanos) >= _NANOS)
    cursors.fail_where(found.rows, wrong, "out-of-range", "a Duration is longer than 10,000 years", path)
    micros = np.sign(nanos) * (np.abs(nanos) // 1000)
    return pa.array(np.where(wrong, 0, seconds) * 1_000_000 + np.where(wrong, 0, micros))


def _empty(_field: ProtoField, found: Found, cursors: Cursors, path: str) -> pa.Array:
    inner = cursors.within(found.first.astype(np.int64), found.end)
    scanned(inner, path)
    cursors.fail_from(inner, found.rows)
    return pa.array(np.ones(len(found.rows), np.bool_))


def _json(field: ProtoField, found: Found, cursors: Cursors, path: str) -> pa.Array:
    """Messages of any shape, one by one: no column holds them but as text."""
    kind = GetMessageClass(field.descriptor)
    bodies = cursors.binaries(found.first.astype(np.int64), found.end).to_pylist()
    texts = []
    for row, body in zip(found.rows.tolist(), bodies, strict=True):
        try:
            told = MessageToJson(kind.FromString(body), preserving_proto_field_name=True, indent=None)
        except (DecodeError, SerializeToJsonError, TypeError, ValueError, RecursionError) as error:
            text = f"a {field.descriptor.name} is no JSON: {type(error).__name__}"
            cursors.fail(np.array([row]), "bad-message", text, path)
            told = ""
        texts.append(told)
    return pa.array(texts, pa.string())


def _string(_field: ProtoField, found: Found, cursors: Cursors, path: str) -> pa.Array:
    return cursors.strings(found.rows, found.first.astype(np.int64), found.end, path)


def _bytes(_field: ProtoField, found: Found, cursors: Cursors, _path: str) -> pa.Array:
    return cursors.binaries(found.first.astype(np.int64), found.end)


def _enum(field: ProtoField, found: Found, _cursors: Cursors, _path: str) -> pa.Array:
    numbers, which = np.unique(found.first.astype(np.uint32).view(np.int32), return_inverse=True)
    names = dict(field.symbols)
    told = [names.get(number, str(number)) for number in numbers.tolist()]
    return pa.array(told, pa.string()).take(pa.array(which))


def _uint64(field: ProtoField, found: Found, _cursors: Cursors, _path: str) -> pa.Array:
    return pc.cast(pa.array(found.first), field.arrow)


def _fixed(form: str) -> Callable[[ProtoField, Found, Cursors, str], pa.Array]:
    width = np.dtype(form).itemsize

    def read(field: ProtoField, found: Found, cursors: Cursors, _path: str) -> pa.Array:
        values = cursors.matrix(found.first.astype(np.int64), width).view(form)[:, 0]
        return pa.array(values).cast(field.arrow)

    return read


def _sint32(_field: ProtoField, found: Found, _cursors: Cursors, _path: str) -> pa.Array:
    return pa.array(signed(found.first & np.uint64(0xFFFFFFFF)).astype(np.int32))


_READERS: dict[str, Callable[[ProtoField, Found, Cursors, str], pa.Array]] = {
    "int64": lambda _field, found, _cursors, _path: pa.array(found.first.view(np.int64)),
    "int32": lambda _field, found, _cursors, _path: pa.array(found.first.astype(np.uint32).view(np.int32)),
    "uint32": lambda _field, found, _cursors, _path: pa.array(found.first.astype(np.uint32)),
    "uint64": _uint64,
    "bool": lambda _field, found, _cursors, _path: pa.array(found.first != 0),
    "sint32": _sint32,
    "sint64": lambda _field, found, _cursors, _path: pa.array(signed(found.first)),
    "enum": _enum,
    "double": _fixed("<f8"),
    "float": _fixed("<f4"),
    "fixed64": _fixed("<u8"),
    "fixed32": _fixed("<u4"),
    "sfixed64": _fixed("<i8"),
    "sfixed32": _fixed("<i4"),
    "string": _string,
    "bytes": _bytes,
    "message": _message,
    "timestamp": _timestamp,
    "duration": _duration,
    "wrapper": _wrapper,
    "empty": _empty,
    "json": _json,
}
