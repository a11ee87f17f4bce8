"""Decodes Protobuf records: messages of a block by schema, with the fields of the newest schema and of older ones.

- A field is identified by its number, so a renamed field continues under its newest name.
- Records whose schema gives a number another type wait for a decision.
- Different messages in one topic become rows with the fields of all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToJson, SerializeToJsonError
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as LibraryMessage
from google.protobuf.message_factory import GetMessageClass

from lakestore.errors import Invalid
from lakestore.kafka.bridge.decode.framing import (
    VARINT_BYTES_MAX,
    Bools,
    Cursors,
    Fault,
    Longs,
    Part,
    SchemaName,
    decode_zigzag,
    spread,
    strip_framing,
)
from lakestore.kafka.bridge.decode.pieces import Piece, fault_rejects, join_pieces, select_rows
from lakestore.kafka.bridge.decode.protobuf_schema import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    Message,
    ProtoField,
    add_aliases,
    build_message,
    compile_proto,
    conflict,
    merge_messages,
    message,
)
from lakestore.kafka.bridge.decode.schemas import RegistrySchema, Schemas
from lakestore.kafka.bridge.outcome import TOMBSTONE, DecodedBlock, Reject, Stage
from lakestore.kafka.bridge.records import Ints, Records
from lakestore.kafka.bridge.spec import SchemaSpec, Wire

if TYPE_CHECKING:
    from lakestore.kafka.bridge.decode.registry import Registry

TOGETHER_ROUNDS, TOGETHER_ROWS = 512, 16
"""After `TOGETHER_ROUNDS` fields, at most `TOGETHER_ROWS` messages that have more fields are scanned one by one."""
FIELD_NUMBER_MAX = (1 << 29) - 1
_DONE = np.uint64((1 << 64) - 1)
_SHORT = "the message ends inside a field"


@dataclass(slots=True)
class Occurrences:
    """Occurrences of a field: message number, and value or byte range."""

    rows: Ints
    first: Longs
    """The value of a varint, or the start of the bytes."""
    end: Ints
    turn: Ints
    """Grows with the order of fields inside a message."""


@dataclass(slots=True)
class Scan:
    """Occurrences by field number and wire type."""

    pieces: dict[tuple[int, int], list[Occurrences]] = dataclasses.field(default_factory=dict)

    def occurrences(self, number: int, wire: int) -> Occurrences | None:
        """All occurrences of the field. Within one message they are in order."""
        pieces = self.pieces.get((number, wire))
        if not pieces:
            return None
        if len(pieces) > 1:
            whole = Occurrences(
                np.concatenate([piece.rows for piece in pieces]),
                np.concatenate([piece.first for piece in pieces]),
                np.concatenate([piece.end for piece in pieces]),
                np.concatenate([piece.turn for piece in pieces]),
            )
            self.pieces[number, wire] = pieces = [whole]
        return pieces[0]


def scan_fields(cursors: Cursors, path: str) -> Scan:
    """Find the fields of all messages. A malformed message gets a fault."""
    scan = Scan()
    tags = np.full(len(cursors.at), _DONE, np.uint64)
    _next_tags(cursors, np.arange(len(cursors.at)), tags, path)
    rounds = 0
    while True:
        lowest = tags.min() if len(tags) else _DONE
        if lowest == _DONE:
            return scan
        if rounds > TOGETHER_ROUNDS:
            open_ = np.flatnonzero(tags != _DONE)
            if len(open_) <= TOGETHER_ROWS:
                for row in open_.tolist():
                    _alone(cursors, row, int(tags[row]), rounds, scan, path)
                return scan
        rows = np.flatnonzero(tags == lowest)
        _one(cursors, rows, int(lowest), rounds, scan, path)
        tags[rows] = _DONE
        _next_tags(cursors, rows, tags, path)
        rounds += 1


def _next_tags(cursors: Cursors, rows: Ints, tags: Longs, path: str) -> None:
    rows = rows[cursors.at[rows] < cursors.end[rows]]
    if not len(rows):
        return
    found = cursors.varints(rows, path)
    number = found >> np.uint64(3)
    wrong = ((number == 0) | (number > FIELD_NUMBER_MAX)) & ~cursors.bad[rows]
    cursors.fail_where(rows, wrong, "bad-tag", "a field has no number that a message may have", path)
    fine = ~cursors.bad[rows]
    tags[rows[fine]] = found[fine]


def _one(cursors: Cursors, rows: Ints, tag: int, turn: int, scan: Scan, path: str) -> None:
    wire = tag & 7
    if wire == VARINT:
        first = cursors.varints(rows, path)
        end = np.zeros(len(rows), np.int64)
    elif wire in (FIXED64, FIXED32):
        starts, end = cursors.take(rows, 8 if wire == FIXED64 else 4, path)
        first = starts.astype(np.uint64)
    elif wire == BYTES:
        lengths = cursors.varints(rows, path).astype(np.int64)
        starts, end = cursors.take(rows, lengths, path)
        first = starts.astype(np.uint64)
    else:
        text = "a field has a wire type that is not read: groups are not"
        cursors.fail(rows, "bad-wire-type", text, path)
        return
    turns = np.full(len(rows), turn, np.int64)
    scan.pieces.setdefault((tag >> 3, wire), []).append(Occurrences(rows, first, end, turns))


def _alone(cursors: Cursors, row: int, tag: int, turn: int, scan: Scan, path: str) -> None:
    data, base, end = cursors.data[cursors.at[row] : cursors.end[row]].tobytes(), int(cursors.at[row]), 0
    at = 0
    found: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    while True:
        wire = tag & 7
        first, end, code = _skipped(data, at, wire)
        if code:
            cursors.fail(np.array([row]), code, _SHORT if code == "short-payload" else "a field is damaged", path)
            return
        place = first if wire == VARINT else first + base
        found.setdefault((tag >> 3, wire), []).append((place, end + base, turn))
        turn, at = turn + 1, end
        if at == len(data):
            break
        tag, at = _varint(data, at)
        if at < 0 or not 0 < tag >> 3 <= FIELD_NUMBER_MAX:
            cursors.fail(np.array([row]), "short-payload" if at == _ENDS else "bad-tag", _SHORT, path)
            return
    cursors.at[row] = cursors.end[row]
    for key, places in found.items():
        rows = np.full(len(places), row, np.int64)
        first_, end_, turn_ = zip(*places, strict=True)
        piece = Occurrences(rows, np.array(first_, np.uint64), np.array(end_, np.int64), np.array(turn_, np.int64))
        scan.pieces.setdefault(key, []).append(piece)


_ENDS, _ENDLESS = -1, -2


def _skipped(data: bytes, at: int, wire: int) -> tuple[int, int, str]:
    if wire == VARINT:
        value, at = _varint(data, at)
        return value, at, "" if at >= 0 else _CODES[at]
    if wire in (FIXED64, FIXED32):
        end = at + (8 if wire == FIXED64 else 4)
        return at, end, "" if end <= len(data) else "short-payload"
    if wire != BYTES:
        return at, at, "bad-wire-type"
    length, at = _varint(data, at)
    if at < 0:
        return at, at, _CODES[at]
    return at, at + length, "" if at + length <= len(data) else "short-payload"


_CODES = {_ENDS: "short-payload", _ENDLESS: "bad-number"}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for count in range(VARINT_BYTES_MAX):
        if at + count >= len(data):
            return 0, _ENDS
        byte = data[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value & ((1 << 64) - 1), at + count + 1
    return 0, _ENDLESS


def unpack(cursors: Cursors, occurrences: Occurrences, wire: int, path: str) -> Occurrences:
    """Expand packed values to occurrences. A message with an incomplete value gets a fault."""
    starts, ends = occurrences.first.astype(np.int64), occurrences.end
    lengths = ends - starts
    if wire in (FIXED64, FIXED32):
        width = 8 if wire == FIXED64 else 4
        text = "packed values end inside one"
        cursors.fail_where(occurrences.rows, lengths % width != 0, "short-payload", text, path)
        counts = lengths // width
        owner = np.repeat(np.arange(len(counts)), counts)
        before = np.cumsum(counts) - counts
        first = starts[owner] + (np.arange(len(owner)) - before[owner]) * width
        return Occurrences(occurrences.rows[owner], first.astype(np.uint64), first + width, occurrences.turn[owner])
    places = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))
    bytes_ = cursors.data[places]
    span = np.repeat(np.arange(len(lengths)), lengths)
    last = np.flatnonzero(bytes_ < 0x80)
    owner = span[last]
    begin = np.concatenate([[0], last[:-1] + 1]) if len(last) else last
    begin = np.maximum(begin, (np.cumsum(lengths) - lengths)[owner])
    whole = np.zeros(len(lengths), np.bool_)
    whole[lengths == 0] = True
    filled = lengths > 0
    finals = np.cumsum(lengths)[filled] - 1
    whole[filled] = bytes_[finals] < 0x80
    size = last - begin + 1
    if len(size) and size.max() > VARINT_BYTES_MAX:
        whole[owner[size > VARINT_BYTES_MAX]] = False
    cursors.fail_where(occurrences.rows, ~whole, "short-payload", "packed values end inside one", path)
    value = np.zeros(len(last), np.uint64)
    for count in range(min(int(size.max()) if len(size) else 0, VARINT_BYTES_MAX)):
        more = np.flatnonzero(size > count)
        value[more] |= (bytes_[begin[more] + count] & 0x7F).astype(np.uint64) << np.uint64(7 * count)
    return Occurrences(occurrences.rows[owner], value, np.zeros(len(owner), np.int64), occurrences.turn[owner])


def offsets(rows: Ints, count: int) -> pa.Array:
    """Offsets of a list array. Items are in message order."""
    lengths = np.zeros(count + 1, np.int64)
    lengths[1:] = np.bincount(rows, minlength=count)
    return pa.array(np.cumsum(lengths).astype(np.int32))


_SECONDS_LEAST, _SECONDS_MOST = -62_135_596_800, 253_402_300_799
"""Years 1 to 9999."""
_DURATION_MOST = 315_576_000_000
_NANOS = 1_000_000_000


def columns(message: Message, cursors: Cursors, path: str = "") -> pa.StructArray:
    """Values of all messages. An unreadable message gets a fault."""
    count = len(cursors.at)
    scan = scan_fields(cursors, path)
    found = {field.name: _occurrences(field, scan, cursors, _below(path, field)) for field in message.fields}
    _clear_oneofs(message, found, cursors, path)
    children = [_column(field, found[field.name], cursors, _below(path, field)) for field in message.fields]
    if not children:
        return pa.array([{}] * count, message.arrow)
    return pa.StructArray.from_arrays(children, fields=list(message.arrow))


def _below(path: str, field: ProtoField) -> str:
    return f"{path}.{field.name}" if path else field.name


def _occurrences(field: ProtoField, scan: Scan, cursors: Cursors, path: str) -> Occurrences | None:
    found = scan.occurrences(field.number, field.wire)
    if field.label and field.wire != BYTES:
        packed = scan.occurrences(field.number, BYTES)
        if packed is not None:
            found = _both(found, unpack(cursors, packed, field.wire, path))
    if found is not None and field.closed:
        known = np.isin(found.first.astype(np.uint32).view(np.int32), [number for number, _ in field.symbols])
        found = _some(found, known)
    return found


def _clear_oneofs(message: Message, fields: dict[str, Occurrences | None], cursors: Cursors, path: str) -> None:
    members: dict[str, list[tuple[ProtoField, Occurrences]]] = {}
    for field in message.fields:
        its = fields[field.name] if field.oneof else None
        if its is not None:
            members.setdefault(field.oneof, []).append((field, its))
    for each in members.values():
        for (field, its), cleared in zip(each, _cleared([its for _, its in each], len(cursors.at)), strict=True):
            if cleared.any():
                check(field, _ordered(_some(its, cleared)), cursors, _below(path, field))
                fields[field.name] = _some(its, ~cleared)


def _cleared(members: Sequence[Occurrences], count: int) -> Iterator[Bools]:
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


def check(field: ProtoField, occurrences: Occurrences, cursors: Cursors, path: str) -> None:
    """Refuse messages with an unreadable value, even if a later one replaces it, like Protobuf's libraries."""
    if field.kind == "string":
        if field.is_checked:
            cursors.strings(occurrences.rows, occurrences.first.astype(np.int64), occurrences.end, path)
        return
    if field.wire != BYTES or field.kind == "bytes":
        return
    if field.kind == "json":
        _read_one_by_one(field, occurrences, cursors, path, lambda _: "")
        return
    inner = cursors.within(occurrences.first.astype(np.int64), occurrences.end)
    scan = scan_fields(inner, path)
    for each in field.message.fields if field.message is not None else ():
        below = _below(path, each)
        its = _occurrences(each, scan, inner, below)
        if its is not None:
            check(each, _ordered(its), inner, below)
    cursors.fail_from(inner, occurrences.rows)


def _column(field: ProtoField, occurrences: Occurrences | None, cursors: Cursors, path: str) -> pa.Array:
    if field.label == "map":
        return _map(field, occurrences, cursors, path)
    if field.label:
        return _list(field, occurrences, cursors, path)
    return _single(field, occurrences, cursors, path)


def _both(one: Occurrences | None, other: Occurrences) -> Occurrences:
    if one is None:
        return other
    return Occurrences(
        np.concatenate([one.rows, other.rows]),
        np.concatenate([one.first, other.first]),
        np.concatenate([one.end, other.end]),
        np.concatenate([one.turn, other.turn]),
    )


def _some(occurrences: Occurrences, rows: Ints | Bools) -> Occurrences:
    return Occurrences(occurrences.rows[rows], occurrences.first[rows], occurrences.end[rows], occurrences.turn[rows])


def _ordered(occurrences: Occurrences) -> Occurrences:
    if (np.diff(occurrences.rows) > 0).all():
        return occurrences
    return _some(occurrences, np.lexsort((occurrences.turn, occurrences.rows)))


def _single(field: ProtoField, occurrences: Occurrences | None, cursors: Cursors, path: str) -> pa.Array:
    count = len(cursors.at)
    there = np.zeros(count, np.bool_)
    values = None
    if occurrences is not None and len(occurrences.rows):
        occurrences = _ordered(occurrences)
        newest = np.append(occurrences.rows[1:] != occurrences.rows[:-1], True)
        if not newest.all():
            is_piece = ~newest
            is_piece[1:] |= ~newest[:-1]
            check(field, _some(occurrences, is_piece), cursors, path)
            if field.wire == BYTES and field.kind not in ("string", "bytes"):
                cursors, occurrences = _merged(occurrences, newest, cursors)
            occurrences = _some(occurrences, newest)
        there[occurrences.rows] = True
        values = _values(field, occurrences, cursors, path)
    if field.required:
        missing = np.flatnonzero(~there & ~cursors.bad[:count])
        if len(missing):
            cursors.fail(missing, "missing-field", f"{field.name} is required, and the message does not have it", path)
    if values is None:
        values = pa.nulls(0, field.arrow)
    if field.presence or field.required:
        return spread(values, there) if there.any() else pa.nulls(count, field.arrow)
    return _with_zeros(field, values, there)


def _merged(occurrences: Occurrences, newest: Bools, cursors: Cursors) -> tuple[Cursors, Occurrences]:
    starts, ends = occurrences.first.astype(np.int64), occurrences.end
    group = np.cumsum(np.append(True, newest[:-1])) - 1
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    bytes_ = cursors.data[np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))]
    places = np.concatenate([[0], np.cumsum(np.bincount(group, lengths).astype(np.int64))])
    whole = Occurrences(occurrences.rows, places[:-1][group].astype(np.uint64), places[1:][group], occurrences.turn)
    return cursors.over(bytes_), whole


def _with_zeros(field: ProtoField, values: pa.Array, present: Bools) -> pa.Array:
    if present.all():
        return values
    zero = dict(field.symbols).get(0, "0") if field.kind == "enum" else _ZERO.get(field.kind, 0)
    if field.kind == "uint64" or field.kind == "fixed64":
        zeros = pa.array([0]).cast(field.arrow)
    else:
        zeros = pa.array([zero], field.arrow)
    index = np.where(present, np.cumsum(present), 0)
    return pa.concat_arrays([zeros, values]).take(pa.array(index))


_ZERO = {"string": "", "bytes": b"", "bool": False, "double": 0.0, "float": 0.0}


def _list(field: ProtoField, occurrences: Occurrences | None, cursors: Cursors, path: str) -> pa.Array:
    if occurrences is None:
        none = pa.array(np.zeros(len(cursors.at) + 1, np.int32))
        return pa.ListArray.from_arrays(none, pa.nulls(0, field.arrow), type=field.column)
    occurrences = _ordered(occurrences)
    values = _values(field, occurrences, cursors, path)
    return pa.ListArray.from_arrays(offsets(occurrences.rows, len(cursors.at)), values, type=field.column)


def _map(field: ProtoField, occurrences: Occurrences | None, cursors: Cursors, path: str) -> pa.Array:
    assert field.message is not None
    if occurrences is None:
        none = pa.array(np.zeros(len(cursors.at) + 1, np.int32))
        kind = field.arrow
        keys, items = pa.nulls(0, kind.key_type), pa.nulls(0, kind.item_type)
        return pa.MapArray.from_arrays(none, keys, items, type=kind)
    occurrences = _ordered(occurrences)
    entries = _inside(field.message, occurrences, cursors, path)
    rows, keys, items = occurrences.rows, entries.field(0), entries.field(1)
    table = pa.table({"row": rows, "key": keys, "at": np.arange(len(rows))})
    newest = table.group_by(["row", "key"]).aggregate([("at", "max")])["at_max"].to_numpy()
    if len(newest) < len(rows):  # a later entry of a key replaces an earlier one
        newest = np.sort(newest)
        rows, keys, items = rows[newest], keys.take(pa.array(newest)), items.take(pa.array(newest))
    return pa.MapArray.from_arrays(offsets(rows, len(cursors.at)), keys, items, type=field.arrow)


def _inside(message: Message, occurrences: Occurrences, cursors: Cursors, path: str) -> pa.StructArray:
    """Read nested messages. An unreadable nested message makes the outer one unreadable."""
    inner = cursors.within(occurrences.first.astype(np.int64), occurrences.end)
    values = columns(message, inner, path)
    cursors.fail_from(inner, occurrences.rows)
    return values


def _values(field: ProtoField, occurrences: Occurrences, cursors: Cursors, path: str) -> pa.Array:
    return _READERS[field.kind](field, occurrences, cursors, path)


def _message(field: ProtoField, occurrences: Occurrences, cursors: Cursors, path: str) -> pa.Array:
    assert field.message is not None
    return _inside(field.message, occurrences, cursors, path)


def _wrapper(field: ProtoField, occurrences: Occurrences, cursors: Cursors, path: str) -> pa.Array:
    assert field.message is not None
    return _inside(field.message, occurrences, cursors, path).field(0)


def _seconds(field: ProtoField, occurrences: Occurrences, cursors: Cursors, path: str) -> tuple[Ints, Ints]:
    assert field.message is not None
    inner = _inside(field.message, occurrences, cursors, path)
    return inner.field(0).to_numpy(), inner.field(1).to_numpy().astype(np.int64)


def _timestamp(field: ProtoField, occurrences: Occurrences, cursors: Cursors, path: str) -> pa.Array:
    seconds, nanos = _seconds(field, occurrences, cursors, path)
    wrong = (seconds < _SECONDS_LEAST) | (seconds > _SECONDS_MOST) | (nanos < 0) | (nanos >= _NANOS)
    cursors.fail_where(occurrences.rows, wrong, "out-of-range", "a Timestamp is not of the years 1 to 9999", path)
    micros = np.where(wrong, 0, seconds) * 1_000_000 + np.where(wrong, 0, nanos) // 1000
    return pa.array(micros).cast(field.arrow)


def _duration(field: ProtoField, occurrences: Occurrences, cursors: Cursors, path: str) -> pa.Array:
    seconds, nanos = _seconds(field, occurrences, cursors, path)
    wrong = (np.abs(seconds) > _DURATION_MOST) | (np.abs(nanos) >= _NANOS)
    cursors.fail_where(occurrences.rows, wrong, "out-of-range", "a Duration is longer than 10,000 years", path)
    micros = np.sign(nanos) * (np.abs(nanos) // 1000)
    return pa.array(np.where(wrong, 0, seconds) * 1_000_000 + np.where(wrong, 0, micros))


def _empty(_field: ProtoField, occurrences: Occurrences, cursors: Cursors, path: str) -> pa.Array:
    inner = cursors.within(occurrences.first.astype(np.int64), occurrences.end)
    scan_fields(inner, path)
    cursors.fail_from(inner, occurrences.rows)
    return pa.array(np.ones(len(occurrences.rows), np.bool_))


def _json(field: ProtoField, occurrences: Occurrences, cursors: Cursors, path: str) -> pa.Array:
    texts = _read_one_by_one(
        field, occurrences, cursors, path, lambda it: MessageToJson(it, preserving_proto_field_name=True, indent=None)
    )
    return pa.array(texts, pa.string())


def _read_one_by_one(
    field: ProtoField, occurrences: Occurrences, cursors: Cursors, path: str, value_of: Callable[[LibraryMessage], str]
) -> list[str]:
    kind = GetMessageClass(field.descriptor)
    bodies = cursors.binaries(occurrences.first.astype(np.int64), occurrences.end).to_pylist()
    texts = []
    for row, body in zip(occurrences.rows.tolist(), bodies, strict=True):
        try:
            texts.append(value_of(kind.FromString(body)))
        except (DecodeError, SerializeToJsonError, TypeError, ValueError, RecursionError) as error:
            text = f"a {field.descriptor.name} is not JSON: {type(error).__name__}"
            cursors.fail(np.array([row]), "bad-message", text, path)
            texts.append("")
    return texts


def _string(_field: ProtoField, occurrences: Occurrences, cursors: Cursors, path: str) -> pa.Array:
    return cursors.strings(occurrences.rows, occurrences.first.astype(np.int64), occurrences.end, path)


def _bytes(_field: ProtoField, occurrences: Occurrences, cursors: Cursors, _path: str) -> pa.Array:
    return cursors.binaries(occurrences.first.astype(np.int64), occurrences.end)


def _enum(field: ProtoField, occurrences: Occurrences, _cursors: Cursors, _path: str) -> pa.Array:
    numbers, which = np.unique(occurrences.first.astype(np.uint32).view(np.int32), return_inverse=True)
    names = dict(field.symbols)
    told = [names.get(number, str(number)) for number in numbers.tolist()]
    return pa.array(told, pa.string()).take(pa.array(which))


def _uint64(field: ProtoField, occurrences: Occurrences, _cursors: Cursors, _path: str) -> pa.Array:
    return pc.cast(pa.array(occurrences.first), field.arrow)


def _fixed(form: str) -> Callable[[ProtoField, Occurrences, Cursors, str], pa.Array]:
    width = np.dtype(form).itemsize

    def read(field: ProtoField, found: Occurrences, cursors: Cursors, _path: str) -> pa.Array:
        values = cursors.matrix(found.first.astype(np.int64), width).view(form)[:, 0]
        return pa.array(values).cast(field.arrow)

    return read


def _sint32(_field: ProtoField, occurrences: Occurrences, _cursors: Cursors, _path: str) -> pa.Array:
    return pa.array(decode_zigzag(occurrences.first & np.uint64(0xFFFFFFFF)).astype(np.int32))


_READERS: dict[str, Callable[[ProtoField, Occurrences, Cursors, str], pa.Array]] = {
    "int64": lambda _field, found, _cursors, _path: pa.array(found.first.view(np.int64)),
    "int32": lambda _field, found, _cursors, _path: pa.array(found.first.astype(np.uint32).view(np.int32)),
    "uint32": lambda _field, found, _cursors, _path: pa.array(found.first.astype(np.uint32)),
    "uint64": _uint64,
    "bool": lambda _field, found, _cursors, _path: pa.array(found.first != 0),
    "sint32": _sint32,
    "sint64": lambda _field, found, _cursors, _path: pa.array(decode_zigzag(found.first)),
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


SCHEMAS_MERGED_MAX = 500
"""Number of newest schemas of a message whose fields are merged."""
FORMER_VERSIONS = 10
"""Versions of a topic's subject that are searched for former field names."""
_File = tuple[DescriptorPool, str]


@dataclass(slots=True)
class _Topic:
    """Schemas that records of one topic have named."""

    files: dict[int | str, _File | Fault] = dataclasses.field(default_factory=dict)
    writers: dict[SchemaName, Message | Fault] = dataclasses.field(default_factory=dict)
    readers: dict[str, Message] = dataclasses.field(default_factory=dict)
    """Full name of a message to its wanted fields."""
    former: list[Message] | None = None
    """Messages in the subject's versions, for former field names. None until they are fetched."""


class ProtobufRecords:
    """Decodes values or keys."""

    def __init__(
        self,
        *,
        wire: Wire = "auto",
        part: Part = "value",
        declared: SchemaSpec | None = None,
        registry: Registry | None = None,
        topic: str = "",
    ) -> None:
        self._wire: Wire = wire
        self._part: Part = part
        self._registered = registry is not None
        self._spec = declared or SchemaSpec()
        self._schemas = Schemas("PROTOBUF", part, self._spec, registry)
        self._topics: dict[str, _Topic] = {}
        self._topic = topic

    def decode(self, records: Records, wanted: pa.Schema | None = None) -> DecodedBlock:
        block = strip_framing(records, self._wire, self._part, format="protobuf", registry=self._registered)
        state = self._topics.setdefault(records.topic, _Topic())
        self._topic = records.topic
        rejects, pieces = list(block.rejects), []
        groups: dict[str, list[Ints]] = {}
        for name, rows in block.groups():
            writer = self._writer(name, records.topic, state)
            said = self._refusal(writer, state)
            if said is not None:
                rejects += [Reject(record, *said) for record in block.record[rows].tolist()]
            elif isinstance(writer, Message):
                groups.setdefault(writer.name, []).append(rows)
        for whole_name, parts in groups.items():
            rows = np.sort(np.concatenate(parts))
            pieces.append(_read(state.readers[whole_name], block.payloads_of(rows), block.record[rows], rejects))
        return join_pieces(_alike(pieces, rejects), rejects, {TOMBSTONE: block.nulls}, self._empty(state))

    def schema(self) -> pa.Schema | None:
        """Fields of the newest schema and of older ones that records have named; None before the first schema."""
        state = self._topics.setdefault(self._topic, _Topic())
        if not state.readers and (self._spec.text or self._topic):
            self._writer(None, self._topic, state)
        fields: dict[str, pa.Field] = {}
        for reader in state.readers.values():
            for each in reader.schema:
                fields.setdefault(each.name, each if len(state.readers) == 1 else each.with_nullable(True))
        return pa.schema(list(fields.values())) if fields else None

    def _empty(self, state: _Topic) -> pa.DataType:
        return next((reader.arrow for reader in state.readers.values()), pa.struct([]))

    def _refusal(self, writer: Message | Fault, state: _Topic) -> tuple[Stage, str, str, str] | None:
        if isinstance(writer, Fault):
            stage = Stage.DECODE if writer.code == "bad-schema" else Stage.WIRE
            return stage, writer.code, writer.sentence, writer.path
        path = conflict(writer, state.readers[writer.name])
        if not path:
            return None
        text = f"{path} has another type in the record's schema than in the newest: decide on the proposal"
        return Stage.SCHEMA, "waits-for-proposal", text, path

    def _writer(self, name: SchemaName | None, topic: str, state: _Topic) -> Message | Fault:
        """The message type of a record. If the registry does not answer, this raises and caches nothing."""
        if name is not None and name in state.writers:
            return state.writers[name]
        known = name or SchemaName("")
        file = state.files.get(known.id) if name is not None or self._spec.text else None
        if file is None:
            found = self._schemas.declared_schema(topic) if name is None else self._schemas.by_name(name, topic)
            if isinstance(found, Fault):
                return found
            known = known if name is not None or found.id is None else SchemaName(found.id)
            file = state.files.get(known.id) or _file(found)
            state.files[known.id] = file
        if isinstance(file, Fault):
            return file
        if known in state.writers:
            return state.writers[known]
        writer = self._message(file, known)
        if isinstance(writer, Message):
            reader = _reader({**state.writers, known: writer}, writer.name)
            for older in self._former(topic, state, writer.name):
                reader = add_aliases(reader, older)
            state.readers[writer.name] = reader
        state.writers[known] = writer
        return writer

    def _former(self, topic: str, state: _Topic, name: str) -> list[Message]:
        if state.former is None:
            found = [_file(each) for each in self._schemas.former(topic, FORMER_VERSIONS)]
            state.former = [each for file in found if not isinstance(file, Fault) for each in _messages(file)]
        return [each for each in state.former if each.name == name]

    def _message(self, file: _File, name: SchemaName) -> Message | Fault:
        declared = self._spec.message if not name.message else ""
        try:
            return build_message(message(*file, name.message or (0,), declared))
        except Invalid as error:
            code = "bad-message-index" if name.message else "bad-schema"
            return Fault(code, str(error), "")


def _messages(file: _File) -> list[Message]:
    pool, name = file
    found = []
    for each in pool.FindFileByName(name).message_types_by_name.values():
        try:
            found.append(build_message(each))
        except Invalid:
            continue
    return found


def _file(schema: RegistrySchema) -> _File | Fault:
    try:
        return compile_proto(schema.text, schema.references)
    except Invalid as error:
        return Fault("bad-schema", str(error), "")


def _reader(writers: Mapping[SchemaName, Message | Fault], name: str) -> Message:
    mine = [(at, key, writer) for at, (key, writer) in enumerate(writers.items()) if isinstance(writer, Message)]
    mine = [each for each in mine if each[2].name == name]
    mine.sort(key=lambda each: (isinstance(each[1].id, int), each[1].id if isinstance(each[1].id, int) else each[0]))
    newest, *older = [writer for _, _, writer in reversed(mine)][:SCHEMAS_MERGED_MAX]
    for each in older:
        newest = merge_messages(newest, each)
    return newest


def _read(reader: Message, payloads: pa.BinaryArray, record: Ints, rejects: list[Reject]) -> Piece:
    cursors = Cursors.of(payloads)
    values = columns(reader, cursors)
    rejects += fault_rejects(cursors.faults, record)
    return Piece(select_rows(values, ~cursors.bad), record[~cursors.bad])


def _alike(pieces: Sequence[Piece], rejects: list[Reject]) -> list[Piece]:
    """Give rows of different messages the fields of all. If a name has two types, the first type stays."""
    fields: dict[str, pa.DataType] = {}
    fine = []
    for piece in pieces:
        clash = next((each.name for each in piece.values.type if fields.get(each.name, each.type) != each.type), "")
        if clash:
            text = f"{clash} has another type in another message of the topic: route the topic by message, or rename it"
            said = (Stage.SCHEMA, "conflicting-fields", text, clash)
            rejects += [Reject(record, *said) for record in piece.record.tolist()]
            continue
        fields |= {each.name: each.type for each in piece.values.type}
        fine.append(piece)
    return fine if len(fine) < 2 else [_widened(piece, fields) for piece in fine]


def _widened(piece: Piece, fields: Mapping[str, pa.DataType]) -> Piece:
    has = {each.name: at for at, each in enumerate(piece.values.type)}
    nulls = {name: pa.nulls(len(piece.record), kind) for name, kind in fields.items() if name not in has}
    children = [nulls[name] if name in nulls else piece.values.field(has[name]) for name in fields]
    return Piece(pa.StructArray.from_arrays(children, list(fields)), piece.record)
