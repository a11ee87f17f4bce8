"""The fields of a block of Protobuf messages, found for all of them at once.

Each round takes the lowest tag that any message is at, and reads it in all messages that are at it: messages are mostly
written in the order of their fields, so a round is a whole column. A few messages that have far more fields than the
others are looked through by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lakestore.connectors.bridge.formats.protobuf.proto_schema import BYTES, FIXED32, FIXED64, VARINT
from lakestore.connectors.bridge.framing.cursors import VARINT_BYTES_MAX, Cursors, Longs
from lakestore.connectors.bridge.records import Ints

TOGETHER_ROUNDS, TOGETHER_ROWS = 512, 16
"""After so many rounds, so many messages or fewer that have more fields are looked through by themselves."""
FIELD_NUMBER_MAX = (1 << 29) - 1
_DONE = np.uint64((1 << 64) - 1)
_SHORT = "the message ends inside a field"


@dataclass(slots=True)
class Found:
    """Occurrences of a field: the message of each, and the value or its place."""

    rows: Ints
    first: Longs
    """The value of a varint, or where the bytes begin."""
    end: Ints
    """The ends of the bytes."""
    turn: Ints
    """Later in the same message is larger."""


@dataclass(slots=True)
class Scan:
    """Occurrences by field number and wire type."""

    pieces: dict[tuple[int, int], list[Found]] = field(default_factory=dict)

    def found(self, number: int, wire: int) -> Found | None:
        """All occurrences, those of one message in order."""
        pieces = self.pieces.get((number, wire))
        if not pieces:
            return None
        if len(pieces) > 1:
            whole = Found(
                np.concatenate([piece.rows for piece in pieces]),
                np.concatenate([piece.first for piece in pieces]),
                np.concatenate([piece.end for piece in pieces]),
                np.concatenate([piece.turn for piece in pieces]),
            )
            self.pieces[number, wire] = pieces = [whole]
        return pieces[0]


def scanned(cursors: Cursors, path: str) -> Scan:
    """The fields of each message; messages that are none are marked."""
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
    """Reads one field of several messages."""
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
    scan.pieces.setdefault((tag >> 3, wire), []).append(Found(rows, first, end, turns))


def _alone(cursors: Cursors, row: int, tag: int, turn: int, scan: Scan, path: str) -> None:
    """Reads what is left of one message, whose first tag is read."""
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
        piece = Found(rows, np.array(first_, np.uint64), np.array(end_, np.int64), np.array(turn_, np.int64))
        scan.pieces.setdefault(key, []).append(piece)


_ENDS, _ENDLESS = -1, -2


def _skipped(data: bytes, at: int, wire: int) -> tuple[int, int, str]:
    """The value or its place, the end of it, and a code if there is none."""
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
    """A number and the place behind it; a negative place tells why there is none."""
    value = 0
    for count in range(VARINT_BYTES_MAX):
        if at + count >= len(data):
            return 0, _ENDS
        byte = data[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value & ((1 << 64) - 1), at + count + 1
    return 0, _ENDLESS


def unpacked(cursors: Cursors, found: Found, wire: int, path: str) -> Found:
    """Packed values as occurrences of their own. Bytes that are no whole values mark their message."""
    starts, ends = found.first.astype(np.int64), found.end
    lengths = ends - starts
    if wire in (FIXED64, FIXED32):
        width = 8 if wire == FIXED64 else 4
        text = "packed values end inside one"
        cursors.fail_where(found.rows, lengths % width != 0, "short-payload", text, path)
        counts = lengths // width
        owner = np.repeat(np.arange(len(counts)), counts)
        before = np.cumsum(counts) - counts
        first = starts[owner] + (np.arange(len(owner)) - before[owner]) * width
        return Found(found.rows[owner], first.astype(np.uint64), first + width, found.turn[owner])
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
    cursors.fail_where(found.rows, ~whole, "short-payload", "packed values end inside one", path)
    value = np.zeros(len(last), np.uint64)
    for count in range(min(int(size.max()) if len(size) else 0, VARINT_BYTES_MAX)):
        more = np.flatnonzero(size > count)
        value[more] |= (bytes_[begin[more] + count] & 0x7F).astype(np.uint64) << np.uint64(7 * count)
    return Found(found.rows[owner], value, np.zeros(len(owner), np.int64), found.turn[owner])


def offsets(rows: Ints, count: int) -> pa.Array:
    """The beginnings of each message's items, which come in the order of the messages."""
    lengths = np.zeros(count + 1, np.int64)
    lengths[1:] = np.bincount(rows, minlength=count)
    return pa.array(np.cumsum(lengths).astype(np.int32))
