"""Framing of keys and values: the schema that a record names, and the payload after it.

- Confluent: a zero byte and a schema number, or a one byte and a GUID. For Protobuf the index of the message in its
  file follows.
- Newer clients send the same in a header and leave the bytes alone.
- Avro's single-object encoding starts with a fingerprint.

A block is processed as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.kafka.bridge.outcome import Reject, Stage
from lakestore.kafka.bridge.records import Headers, Ints, Records
from lakestore.kafka.bridge.spec import Wire
from lakestore.rows.scalar_casts import is_utf8

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int32]


def spans(values: pa.BinaryArray | pa.StringArray) -> tuple[Places, Bytes]:
    """The start of each value, the end of the last one, and the buffer. Nulls may have bytes in it."""
    if not len(values):
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    places = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4)
    return places, np.frombuffer(values.buffers()[2] or b"", np.uint8)


Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.uint64]
_PAD = 40
"""Zero bytes after the last record, so that a read past the end needs no check. Longer than any single read."""
VARINT_BYTES_MAX = 10


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a record cannot be read."""

    code: str
    sentence: str
    path: str


class Cursors:
    """One read position in the buffer for each record of a block."""

    def __init__(self, data: Bytes, at: Ints, end: Ints) -> None:
        self.data = data
        """All payloads in sequence, then zeros."""
        self._buffer = pa.py_buffer(data)
        self.at = at
        self.end = end
        self.bad: Bools = np.zeros(len(at), np.bool_)
        self.faults: dict[int, Fault] = {}

    @staticmethod
    def of(payloads: pa.BinaryArray) -> Cursors:
        """Cursors at the start of each payload."""
        offsets, data = spans(payloads)
        places = offsets.astype(np.int64) - offsets[0]
        return Cursors(_padded(data[offsets[0] : offsets[-1]]), places[:-1].copy(), places[1:].copy())

    def within(self, starts: Ints, ends: Ints) -> Cursors:
        """Cursors inside the same buffer, for nested messages."""
        return Cursors(self.data, starts.copy(), ends.copy())

    def over(self, data: Bytes) -> Cursors:
        """The same records and faults with positions in another buffer."""
        other = Cursors(_padded(data), self.at, self.end)
        other.bad, other.faults = self.bad, self.faults
        return other

    def fail_from(self, inner: Cursors, rows: Ints) -> None:
        """Copy faults of nested cursors to their records; `rows` are the record numbers."""
        for place, fault in inner.faults.items():
            self.fail(rows[place : place + 1], fault.code, fault.sentence, fault.path)

    def fail(self, rows: Ints, code: str, sentence: str, path: str) -> None:
        """Record a fault for rows. The first fault of a row wins."""
        fault = Fault(code, sentence, path)
        for row in rows.tolist():
            self.faults.setdefault(row, fault)
        self.bad[rows] = True
        self.end[rows] = self.at[rows]

    def fail_where(self, rows: Ints, wrong: Bools, code: str, sentence: str, path: str) -> None:
        if wrong.any():
            self.fail(rows[wrong], code, sentence, path)

    def varints(self, rows: Ints, path: str) -> Longs:
        """Read a varint of up to 64 bits from each record, lowest seven bits first."""
        places = self.at[rows]
        first = self.data[places]
        value: Longs = (first & 0x7F).astype(np.uint64)
        after = places + 1
        long = np.flatnonzero(first >= 0x80)
        for count in range(1, VARINT_BYTES_MAX):
            if not len(long):
                break
            byte = self.data[places[long] + count]
            value[long] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * count)
            after[long] += 1
            long = long[byte >= 0x80]
        short = after > self.end[rows]
        if len(long):
            endless = np.zeros(len(rows), np.bool_)
            endless[long] = True
            self.fail_where(rows, endless & ~short, "bad-number", "a number has more than 10 bytes", path)
            short |= endless
        if short.any():
            self.fail(rows[short], "short-payload", "the record ends inside a field", path)
            value[short] = 0
            after[short] = places[short]
        self.at[rows] = after
        return value

    def take(self, rows: Ints, lengths: Ints | int, path: str) -> tuple[Ints, Ints]:
        """Skip `lengths` bytes of each record. Returns their start and end (exclusive)."""
        starts = self.at[rows]
        left = self.end[rows] - starts
        wrong = (lengths > left) | (np.less(lengths, 0))
        ends = starts + lengths
        if wrong.any():
            self.fail(rows[wrong], "short-payload", "the record ends inside a field", path)
            ends[wrong] = starts[wrong]
        self.at[rows] = ends
        return starts, ends

    def matrix(self, starts: Ints, width: int) -> Bytes:
        """Read `width` bytes at each start as rows of a matrix. Rows with a fault have undefined bytes."""
        if width <= _PAD:
            return np.lib.stride_tricks.sliding_window_view(self.data, width)[starts]
        found: Bytes = self.data[np.minimum(starts[:, None] + np.arange(width), len(self.data) - 1)]
        return found

    def binaries(self, starts: Ints, ends: Ints) -> pa.BinaryArray:
        """The bytes between ascending positions."""
        if not len(starts):
            return pa.array([], pa.binary())
        between = np.empty(2 * len(starts), np.int32)
        between[0::2], between[1::2] = starts, ends
        pieces = pa.Array.from_buffers(pa.binary(), len(between) - 1, [None, pa.py_buffer(between), self._buffer])
        return pieces.take(pa.array(np.arange(0, len(between), 2)))

    def strings(self, rows: Ints, starts: Ints, ends: Ints, path: str) -> pa.StringArray:
        """The UTF-8 texts between positions. A record with other bytes gets a fault."""
        found = self.binaries(starts, ends)
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            wrong = ~is_utf8(found)
            self.fail(rows[wrong], "bad-utf8", "a text is not UTF-8", path)
            mended = ends.copy()
            mended[wrong] = starts[wrong]
            return self.binaries(starts, mended).cast(pa.string())


def _padded(data: Bytes) -> Bytes:
    padded = np.zeros(len(data) + _PAD, np.uint8)
    padded[: len(data)] = data
    return padded


def decode_zigzag(values: Longs) -> Ints:
    """Decode zigzag numbers."""
    return (values >> np.uint64(1)).astype(np.int64) ^ -(values & np.uint64(1)).astype(np.int64)


def spread(values: pa.Array, present: Bools) -> pa.Array:
    """Put values at the true positions and null elsewhere."""
    if len(values) == len(present):
        return values
    index = np.cumsum(present) - 1
    return values.take(pa.array(index, mask=~present))


Part = Literal["value", "key"]
HEADERS: dict[Part, str] = {"value": "__value_schema_id", "key": "__key_schema_id"}
MESSAGE_DEPTH_MAX = 100
_ID_BYTES, _GUID_BYTES, _SINGLE_BYTES = 5, 17, 10
_NUMBER = np.dtype(">u4")
_NONE = -1


@dataclass(frozen=True, slots=True)
class SchemaName:
    """The schema that a record names."""

    id: int | str
    """The registry's number, its GUID, or `crc64:` and the fingerprint of Avro's own framing in hex."""
    message: tuple[int, ...] = ()
    """Place of a Protobuf message in its file, outermost first."""


@dataclass(frozen=True, slots=True)
class Payloads:
    """The payloads of a block without their framing."""

    record: Ints
    """The records with a payload, ascending."""
    payloads: pa.BinaryArray
    schema: Ints
    """The index of each schema in `schemas`; -1: the record names none."""
    schemas: Sequence[SchemaName]
    nulls: Ints
    """Records whose key or value is null."""
    rejects: Sequence[Reject] = ()

    def groups(self) -> list[tuple[SchemaName | None, Ints]]:
        """Each named schema (None: no name) with its rows of `record`."""
        found = np.unique(self.schema).tolist()
        return [(None if at == _NONE else self.schemas[at], np.flatnonzero(self.schema == at)) for at in found]

    def payloads_of(self, rows: Ints) -> pa.BinaryArray:
        """The payloads of some rows of `record`, which ascend."""
        return self.payloads if len(rows) == len(self.record) else self.payloads.take(pa.array(rows))


def strip_framing(
    records: Records, wire: Wire, part: Part = "value", *, format: str = "json", registry: bool = False
) -> Payloads:
    """Strip the framing of a block, as declared or, with `auto`, as detected.

    With `auto`, a leading zero or one byte before JSON is framing; Avro and Protobuf are framed if there is a registry;
    a leading Avro fingerprint is framing; raw bytes and texts have none.
    """
    given = records.values if part == "value" else records.keys
    there = _there(given)
    record, nulls = np.flatnonzero(there), np.flatnonzero(~there)
    payloads = given if len(record) == len(given) else given.drop_null()
    if wire == "plain" or (wire == "auto" and format in ("raw", "string", "arrow")):
        none = np.full(len(record), _NONE, np.int64)
        return Payloads(record, payloads, none, (), nulls)
    binary = format.endswith("avro") or format == "protobuf"
    if wire == "auto" and not binary and not _told(records.headers, record, HEADERS[part]) and _bare(payloads):
        return Payloads(record, payloads, np.full(len(record), _NONE, np.int64), (), nulls)
    return _Framing(records, part, record, payloads).read(
        strict=wire == "confluent" or (binary and registry),
        json=wire == "auto" and not binary,
        single=wire == "auto" and format.endswith("avro"),
        messages=format == "protobuf",
        nulls=nulls,
    )


def _there(values: pa.BinaryArray) -> Bools:
    if not values.null_count:
        return np.ones(len(values), np.bool_)
    return np.asarray(values.is_valid())


def _bare(payloads: pa.BinaryArray) -> bool:
    offsets, data = spans(payloads)
    return bool((data[offsets[:-1][np.diff(offsets) > 0]] > 1).all())


class _Framing:
    """The framing of one block while it is stripped."""

    def __init__(self, records: Records, part: Part, record: Ints, payloads: pa.BinaryArray) -> None:
        self._record = record
        self._cursors = Cursors.of(payloads)
        self._schema = np.full(len(record), _NONE, np.int64)
        self._schemas: list[SchemaName] = []
        self._places: dict[SchemaName, int] = {}
        self._told = _told(records.headers, record, HEADERS[part])

    def read(self, *, strict: bool, json: bool, single: bool, messages: bool, nulls: Ints) -> Payloads:
        cursors, rows = self._cursors, np.arange(len(self._record))
        told = rows[np.fromiter((row in self._told for row in rows.tolist()), np.bool_)] if self._told else rows[:0]
        self._by_header(messages=messages)
        left = np.setdiff1d(rows, told, assume_unique=True) if len(told) else rows
        magic = cursors.data[cursors.at[left]]
        empty = cursors.end[left] == cursors.at[left]
        fingerprint = np.zeros(len(left), np.bool_)
        if single:
            fingerprint = (magic == 0xC3) & (cursors.data[cursors.at[left] + 1] == 1) & ~empty
            fingerprint &= cursors.end[left] - cursors.at[left] >= _SINGLE_BYTES
            self._by_fingerprint(left[fingerprint])
        number, guid = (magic == 0) & ~empty & ~fingerprint, (magic == 1) & ~empty
        if strict:
            wrong = ~number & ~guid & ~fingerprint
            cursors.fail_where(left, wrong & empty, "short-payload", "the payload is empty: it has no framing", "")
            text = "the payload begins with no zero byte, so it has no schema's number: set wire: plain if so meant"
            cursors.fail_where(left, wrong & ~empty, "bad-magic", text, "")
        if strict or json:
            self._by_number(left[number], messages=messages)
            self._by_guid(left[guid], messages=messages)
        return self._framed(nulls)

    def _framed(self, nulls: Ints) -> Payloads:
        cursors = self._cursors
        rows = np.flatnonzero(~cursors.bad)
        rejects = [
            Reject(int(self._record[row]), Stage.WIRE, fault.code, fault.sentence, fault.path)
            for row, fault in sorted(cursors.faults.items())
        ]
        payloads = cursors.binaries(cursors.at[rows], cursors.end[rows])
        return Payloads(self._record[rows], payloads, self._schema[rows], self._schemas, nulls, rejects)

    def _behind(self, rows: Ints, size: int) -> tuple[Ints, Ints]:
        """Skip `size` bytes of framing. Returns the records that have them, and the position of each framing."""
        starts, _ = self._cursors.take(rows, size, "")
        whole = ~self._cursors.bad[rows]
        return rows[whole], starts[whole]

    def _by_number(self, rows: Ints, *, messages: bool) -> None:
        if not len(rows):
            return
        rows, starts = self._behind(rows, _ID_BYTES)
        numbers = self._cursors.matrix(starts + 1, 4).view(_NUMBER)[:, 0].astype(np.int64)
        found, which = np.unique(numbers, return_inverse=True)
        self._name(rows, [int(number) for number in found.tolist()], which, messages=messages)

    def _by_guid(self, rows: Ints, *, messages: bool) -> None:
        if not len(rows):
            return
        rows, starts = self._behind(rows, _GUID_BYTES)
        found, which = np.unique(self._cursors.matrix(starts + 1, 16).view("V16")[:, 0], return_inverse=True)
        self._name(rows, [str(UUID(bytes=guid.tobytes())) for guid in found], which, messages=messages)

    def _by_fingerprint(self, rows: Ints) -> None:
        if not len(rows):
            return
        rows, starts = self._behind(rows, _SINGLE_BYTES)
        found, which = np.unique(self._cursors.matrix(starts + 2, 8).view("V8")[:, 0], return_inverse=True)
        self._name(rows, [f"crc64:{print_.tobytes().hex()}" for print_ in found], which, messages=False)

    def _by_header(self, *, messages: bool) -> None:
        for row, header in self._told.items():
            name = _in_header(header, messages=messages)
            if isinstance(name, Fault):
                self._cursors.fail(np.array([row]), name.code, name.sentence, name.path)
            else:
                self._schema[row] = self._place(name)

    def _place(self, name: SchemaName) -> int:
        if name not in self._places:
            self._places[name] = len(self._schemas)
            self._schemas.append(name)
        return self._places[name]

    def _name(self, rows: Ints, ids: Sequence[int | str], which: Ints, *, messages: bool) -> None:
        if not messages:
            self._schema[rows] = np.array([self._place(SchemaName(each)) for each in ids])[which]
            return
        paths = message_paths(self._cursors, rows)
        for at, each in enumerate(ids):
            for path in set(paths):
                mine = rows[(which == at) & np.fromiter((said == path for said in paths), np.bool_, len(paths))]
                if len(mine):
                    self._schema[mine] = self._place(SchemaName(each, path))


def message_paths(cursors: Cursors, rows: Ints) -> list[tuple[int, ...]]:
    """Read the message index before each payload: the path of the message in its file, mostly the first message."""
    counts = decode_zigzag(cursors.varints(rows, ""))
    deep = (counts < 0) | (counts > MESSAGE_DEPTH_MAX)
    text = f"the message's place in its file has no sensible depth: it is 0 to {MESSAGE_DEPTH_MAX}"
    cursors.fail_where(rows, deep, "bad-message-index", text, "")
    paths: list[tuple[int, ...]] = [(0,)] * len(rows)
    left = np.where(deep, 0, counts)
    several = np.flatnonzero(left > 0)
    for at in several.tolist():
        paths[at] = ()
    while len(several):
        steps = decode_zigzag(cursors.varints(rows[several], ""))
        for at, step in zip(several.tolist(), steps.tolist(), strict=True):
            paths[at] += (step,)
        left[several] -= 1
        several = several[left[several] > 0]
    return paths


def _told(headers: Sequence[Headers | None] | None, record: Ints, name: str) -> dict[int, bytes]:
    if headers is None:
        return {}
    found = {}
    for row, at in enumerate(record.tolist()):
        for header, value in headers[at] or ():
            if header == name and value is not None:
                found[row] = value
    return found


def _in_header(header: bytes, *, messages: bool) -> SchemaName | Fault:
    guid = header[:1] == b"\x01"
    size = _GUID_BYTES if guid else _ID_BYTES
    if header[:1] not in (b"\x00", b"\x01") or len(header) < size:
        text = "the header with the schema's id has neither 0 and four bytes nor 1 and sixteen"
        return Fault("bad-header", text, "headers")
    name: int | str = str(UUID(bytes=header[1:size])) if guid else int.from_bytes(header[1:size], "big")
    if not messages:
        return SchemaName(name)
    if len(header) == size:
        return SchemaName(name, (0,))
    cursors = Cursors.of(pa.array([header[size:]], pa.binary()))
    path = message_paths(cursors, np.array([0]))[0]
    return cursors.faults[0] if cursors.bad[0] else SchemaName(name, path)
