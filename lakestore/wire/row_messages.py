"""The messages of streams of rows, whose rows are outside the protobuf message: `RowBatch` and `ChangeBatch`.

- The rows are copied once while a message is written, and not at all while it is read. protobuf copies them three
  times while it writes, once while it reads, and once more at each access.
- The bytes on the wire are an ordinary protobuf message. Either end may use protobuf alone.
- `pad` fills up to a multiple of 8 bytes before the rows, because Arrow computes on aligned values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from lakestore.model.varint import varint
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore.wire.fields import ALIGNED, ROWS_MIN, Rows, aligned, fields, only_bytes, size_of, tag, whole


@dataclass(frozen=True, slots=True)
class RowMessage:
    """A `RowBatch` of an answer to `Fetch`."""

    parts: Rows = ()
    crc32c: int = 0
    tested: int = 0
    passed_over: int = 0

    @property
    def rows(self) -> bytes | pa.Buffer:
        """The rows as one Arrow IPC stream. Several parts are joined at each access."""
        return whole(self.parts)

    def encoded(self) -> bytes:
        """The bytes for the wire."""
        head = pb.RowBatch(crc32c=self.crc32c, tested=self.tested, passed_over=self.passed_over)
        return with_rows(head, self.parts)

    @classmethod
    def of(cls, data: bytes) -> Self:
        """The message of these bytes."""
        head, rows = _taken_apart(pb.RowBatch, data)
        return cls((rows,), head.crc32c, head.tested, head.passed_over)


@dataclass(frozen=True, slots=True)
class ChangeMessage:
    """A `ChangeBatch` of a change stream. Its fields are described there."""

    table: str
    rows: bytes | pa.Buffer
    token: str
    snapshot: bool
    schema_id: int
    subscription_epoch: int
    read_the_lake: bool
    progress: bool
    goes_on: bool
    table_uuid: str

    @classmethod
    def of(cls, data: bytes) -> Self:
        """The message of these bytes."""
        head, rows = _taken_apart(pb.ChangeBatch, data)
        return cls(
            table=head.table,
            rows=rows,
            token=head.token,
            snapshot=head.snapshot,
            schema_id=head.schema_id,
            subscription_epoch=head.subscription_epoch,
            read_the_lake=head.read_the_lake,
            progress=head.progress,
            goes_on=head.goes_on,
            table_uuid=head.table_uuid,
        )


_READERS: Mapping[str, Callable[[bytes], RowMessage | ChangeMessage]] = {
    "Fetch": RowMessage.of,
    "Changes": ChangeMessage.of,
}


def reader_of(method: rpc.Method) -> Callable[[bytes], Any]:
    """The function that reads an answer of an RPC."""
    return _READERS.get(method.name, method.answer.FromString)


def with_rows(head: pb.RowBatch | pb.ChangeBatch, rows: Rows) -> bytes:
    """The bytes of a message with these rows; `head` has none."""
    data: bytes = head.SerializeToString()
    if not rows:
        return data
    numbers = type(head).DESCRIPTOR.fields_by_name
    before_rows = tag(numbers["rows"].number) + varint(size_of(rows))
    before_pad = tag(numbers["pad"].number)
    pad = -(len(data) + len(before_pad) + 1 + len(before_rows)) % ALIGNED
    return b"".join((data, before_pad, varint(pad), bytes(pad), before_rows, *rows))


def _taken_apart(kind: Any, data: bytes) -> tuple[Any, bytes | pa.Buffer]:
    """(message, rows) of these bytes. Small rows, and rows that only protobuf finds, are a copy."""
    if len(data) >= ROWS_MIN:
        view = memoryview(data)
        rows = only_bytes(fields(view, 0, len(view)), kind.DESCRIPTOR.fields_by_name["rows"].number)
        if rows is not None and rows.end - rows.start >= ROWS_MIN:
            return kind.FromString(b"".join((view[: rows.at], view[rows.end :]))), aligned(data, rows)
    message = kind.FromString(data)
    return message, message.rows
