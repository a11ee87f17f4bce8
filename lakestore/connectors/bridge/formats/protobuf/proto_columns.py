"""Protobuf messages to columns: the fields that a scan found, a column at a time, messages inside messages alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.json_format import MessageToJson, SerializeToJsonError
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as LibraryMessage
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
    found = {field.name: _occurrences(field, scan, cursors, _below(path, field)) for field in message.fields}
    _clear_oneofs(message, found, cursors, path)
    children = [_column(field, found[field.name], cursors, _below(path, field)) for field in message.fields]
    if not children:
        return pa.array([{}] * count, message.arrow)
    return pa.StructArray.from_arrays(children, fields=list(message.arrow))


def _below(path: str, field: ProtoField) -> str:
    return f"{path}.{field.name}" if path else field.name


def _occurrences(field: ProtoField, scan: Scan, cursors: Cursors, path: str) -> Found | None:
    """All values of a field, packed ones too, without those that a closed enum does not have."""
    found = scan.found(field.number, field.wire)
    if field.label and field.wire != BYTES:
        packed = scan.found(field.number, BYTES)
        if packed is not None:
            found = _both(found, unpacked(cursors, packed, field.wire, path))
    if found is not None and field.closed:
        known = np.isin(found.first.astype(np.uint32).view(np.int32), [number for number, _ in field.symbols])
        found = _some(found, known)
    return found


def _clear_oneofs(message: Message, found: dict[str, Found | None], cursors: Cursors, path: str) -> None:
    """Leave of each oneof what came after the last value of another member: that one has cleared the earlier ones."""
    members: dict[str, list[tuple[ProtoField, Found]]] = {}
    for field in message.fields:
        its = found[field.name] if field.oneof else None
        if its is not None:
            members.setdefault(field.oneof, []).append((field, its))
    for each in members.values():
        for (field, its), cleared in zip(each, _cleared([its for _, its in each], len(cursors.at)), strict=True):
            if cleared.any():
                check(field, _ordered(_some(its, cleared)), cursors, _below(path, field))
                found[field.name] = _some(its, ~cleared)


def _cleared(members: Sequence[Found], count: int) -> Iterator[Bools]:
    """For each member of a oneof, which of its values another member has cleared."""
    rows = np.concatenate([each.rows for each in members])
    turn = np.concatenate([each.turn for each in members])
    owner = np.repeat(np.arange(len(members)), [len(each.rows) for each in members])
    last, winner, beaten_last = (np.full(count, -1, np.int64) for _ in range(3))
    np.maximum.at(last, rows, turn)
    is_last = turn == last[rows]
    winner[rows[is_last]] = owner[is_last]
    beaten = owner != winner[rows]
    np.maximum.at(beaten_last, rows[beaten], turn[beaten])
    for number, each in enumerate(members):
        yield (winner[each.rows] != number) | (each.turn < beaten_last[each.rows])


def check(field: ProtoField, found: Found, cursors: Cursors, path: str) -> None:
    """Mark messages with values that cannot be read although others take their place, as Protobuf's libraries do."""
    if field.kind == "string":
        if field.is_checked:
            cursors.strings(found.rows, found.first.astype(np.int64), found.end, path)
        return
    if field.wire != BYTES or field.kind == "bytes":
        return
    if field.kind == "json":
        _read_one_by_one(field, found, cursors, path, lambda _: "")
        return
    inner = cursors.within(found.first.astype(np.int64), found.end)
    scan = scanned(inner, path)
    for each in field.message.fields if field.message is not None else ():
        below = _below(path, each)
        its = _occurrences(each, scan, inner, below)
        if its is not None:
            check(each, _ordered(its), inner, below)
    cursors.fail_from(inner, found.rows)


def _column(field: ProtoField, found: Found | None, cursors: Cursors, path: str) -> pa.Array:
    if field.label == "map":
        return _map(field, found, cursors, path)
    if field.label:
        return _list(field, found, cursors, path)
    return _single(field, found, cursors, path)


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


def _single(field: ProtoField, found: Found | None, cursors: Cursors, path: str) -> pa.Array:
    count = len(cursors.at)
    there = np.zeros(count, np.bool_)
    values = None
    if found is not None and len(found.rows):
        found = _ordered(found)
        newest = np.append(found.rows[1:] != found.rows[:-1], True)
        if not newest.all():
            is_piece = ~newest
            is_piece[1:] |= ~newest[:-1]
            check(field, _some(found, is_piece), cursors, path)
            if field.wire == BYTES and field.kind not in ("string", "bytes"):
                cursors, found = _merged(found, newest, cursors)
            found = _some(found, newest)
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
    """Messages of any shape: no column holds them but as text."""
    texts = _read_one_by_one(
        field, found, cursors, path, lambda it: MessageToJson(it, preserving_proto_field_name=True, indent=None)
    )
    return pa.array(texts, pa.string())


def _read_one_by_one(
    field: ProtoField, found: Found, cursors: Cursors, path: str, told: Callable[[LibraryMessage], str]
) -> list[str]:
    kind = GetMessageClass(field.descriptor)
    bodies = cursors.binaries(found.first.astype(np.int64), found.end).to_pylist()
    texts = []
    for row, body in zip(found.rows.tolist(), bodies, strict=True):
        try:
            texts.append(told(kind.FromString(body)))
        except (DecodeError, SerializeToJsonError, TypeError, ValueError, RecursionError) as error:
            text = f"a {field.descriptor.name} is no JSON: {type(error).__name__}"
            cursors.fail(np.array([row]), "bad-message", text, path)
            texts.append("")
    return texts


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
