"""Rows of the log that a query returns unchanged. The server keeps their message, and the process names a place in it.

1. The process gets rows of the log in messages (`RowBatch`). A batch of its answer that has the buffers of a batch of
   the newest message crosses the pipe as a `Place`: its bytes are with the server already.
2. Both ends keep the newest message and number all of them. The server refuses a place in another message.
3. The bytes of a place are the server's own, but the process is not trusted: it may name any place.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Self

import pyarrow as pa

from lakestore.rows import ipc
from lakestore.wire.row_messages import RowMessage

_PLACE = struct.Struct("<III")


class Place(NamedTuple):
    """Rows of a batch of a message."""

    message: int = 0
    """The number of the message, from 1 on; 0 if the rows are in no message."""
    batch: int = 0
    first: int = 0
    """The first row in the batch."""

    def to_bytes(self) -> bytes:
        return _PLACE.pack(*self)

    @classmethod
    def from_bytes(cls, data: memoryview) -> Self:
        """Raises `ValueError`."""
        if len(data) < _PLACE.size:
            raise ValueError("a part without a place")
        return cls(*_PLACE.unpack_from(data))


NOWHERE, PLACE_BYTES = Place(), _PLACE.size


class SentRows:
    """The server's end: the newest message that it has sent. For one thread at a time."""

    def __init__(self) -> None:
        self._number, self._data = 0, b""
        self._batches: list[pa.Buffer] = []
        self._schema: pa.Schema | None = None

    def put(self, data: bytes) -> None:
        """Note the next message."""
        self._number, self._data, self._schema = self._number + 1, data, None

    def rows(self, place: Place, count: int) -> memoryview:
        """`count` rows at a place, as one IPC message. Raises `ValueError` if there are none."""
        if place.message != self._number:
            raise ValueError(f"a place in message {place.message}, while message {self._number} is the newest")
        if self._schema is None:
            self._read()
        if place.batch >= len(self._batches):
            raise ValueError(f"a place in batch {place.batch} of {len(self._batches)}")
        message = self._batches[place.batch]
        batch = pa.ipc.read_record_batch(message, self._schema)
        if not 0 < count <= batch.num_rows - place.first:
            raise ValueError(f"{count:,} rows from {place.first:,} on of {batch.num_rows:,}")
        is_whole = count == batch.num_rows
        return memoryview(message if is_whole else batch.slice(place.first, count).serialize())

    def _read(self) -> None:
        data = pa.py_buffer(RowMessage.of(self._data).rows)
        self._schema, self._batches = pa.ipc.read_schema(data), []
        at = ipc.FRAME.size + ipc.FRAME.unpack_from(data)[1]
        while next_at := ipc.message_end(data, at):
            self._batches.append(data[at:next_at])
            at = next_at


class ReceivedRows:
    """The process's end: the newest message that it has received.

    Any thread may `put`, in the order of the server's messages. One thread asks for places.
    """

    def __init__(self) -> None:
        self._newest: tuple[int, RowMessage | None] = (0, None)
        self._batches: tuple[int, list[pa.RecordBatch]] = (0, [])

    def put(self, rows: RowMessage | None) -> None:
        """Note the next message; None for one that has no rows of the log. One thread at a time."""
        self._newest = self._newest[0] + 1, rows

    def place(self, batch: pa.RecordBatch) -> Place:
        """The place of rows that came with the newest message, else `NOWHERE`."""
        message, rows = self._newest  # at once: another thread may put the next message meanwhile
        if self._batches[0] != message:
            batches: list[pa.RecordBatch] = []
            if rows is not None and rows.rows:
                with pa.ipc.open_stream(rows.rows) as reader:
                    batches = list(reader)
            self._batches = message, batches
        for number, whole in enumerate(self._batches[1]):
            first = _first_row(batch, whole)
            if first is not None:
                return Place(message, number, first)
        return NOWHERE


def _first_row(part: pa.RecordBatch, whole: pa.RecordBatch) -> int | None:
    """The row of `whole` with which `part` begins; None if `part` does not consist of its columns."""
    if part.num_columns != whole.num_columns or not part.num_columns:
        return None
    first = part.column(0).offset - whole.column(0).offset
    if not 0 <= first <= whole.num_rows - part.num_rows:
        return None
    same = (_is_slice(mine, its, first) for mine, its in zip(part.columns, whole.columns, strict=True))
    return first if all(same) else None


def _is_slice(part: pa.Array, whole: pa.Array, first: int) -> bool:
    if part.type != whole.type or pa.types.is_nested(part.type) or pa.types.is_dictionary(part.type):
        return False
    return part.offset - whole.offset == first and _addresses(part) == _addresses(whole)


def _addresses(array: pa.Array) -> list[int]:
    return [0 if buffer is None else buffer.address for buffer in array.buffers()]
