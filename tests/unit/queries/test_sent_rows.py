"""Rows that a query returns unchanged cross the pipe as a place in the message that brought them."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest

from lakestore.rows import ipc
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.row_messages import RowMessage
from lakestore_server.queries.sent_rows import NOWHERE, Place, ReceivedRows, SentRows

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("flag", pa.bool_()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("none", pa.null()),
    ]
)


def batch(count: int, seed: int) -> pa.RecordBatch:
    chance = np.random.default_rng(seed)
    ids = chance.integers(-9, 9, count).tolist()
    day = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    rows = [
        {"id": n, "name": "é" * abs(n) if n % 3 else None, "flag": n > 0, "price": n, "at": day, "none": None}
        for n in ids
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def message(*batches: pa.RecordBatch) -> bytes:
    rows = ipc.encode(batches[0].schema, batches)
    return pb.RowBatch(rows=rows, crc32c=ipc.crc32c(rows), tested=7, passed_over=300).SerializeToString()


def received(data: bytes, ends: ReceivedRows) -> list[pa.RecordBatch]:
    rows = RowMessage.of(data)
    ends.put(rows)
    assert (rows.tested, rows.passed_over) == (7, 300)
    return ipc.decode_server_rows(rows.rows, crc=rows.crc32c)


def test_a_place_stands_for_the_same_rows() -> None:
    sent, ends = SentRows(), ReceivedRows()
    for seed in range(3):
        batches = [batch(count, seed) for count in (1, 40, 7)]
        data = message(*batches)
        sent.put(data)
        for number, came in enumerate(received(data, ends)):
            shown = pa.RecordBatch.from_arrays(came.columns, names=list("abcdef"))
            for first in range(0, came.num_rows, 3):
                for count in range(1, came.num_rows - first + 1, 5):
                    part = shown.slice(first, count)
                    place = ends.place(part)
                    assert place == Place(seed + 1, number, first)
                    assert pa.ipc.read_record_batch(pa.py_buffer(sent.rows(place, count)), shown.schema).equals(part)


def test_other_rows_have_no_place() -> None:
    ends = ReceivedRows()
    assert ends.place(batch(3, 1)) == NOWHERE
    (came,) = received(message(batch(40, 1)), ends)
    copy = pa.RecordBatch.from_pylist(came.to_pylist(), schema=SCHEMA)
    number = came.column(0)
    turned = pa.RecordBatch.from_arrays([came.column(1), number, *came.columns[2:]], names=list("abcdef"))
    parts = pa.RecordBatch.from_arrays(
        [number.slice(0, 9), *(each.slice(1, 9) for each in came.columns[1:])], list("abcdef")
    )
    typed = pa.RecordBatch.from_arrays([number.view(pa.timestamp("us")), *came.columns[1:]], names=list("abcdef"))
    for other in (copy, turned, parts, typed, came.select([0, 1]), came.select([])):
        assert ends.place(other) == NOWHERE
    ends.put(None)
    assert ends.place(came) == NOWHERE, "the server keeps the newest message only"


def test_rows_of_lists_have_no_place() -> None:
    ends = ReceivedRows()
    (came,) = received(message(pa.RecordBatch.from_pydict({"tags": [["a"], ["b", "c"]]})), ends)
    assert ends.place(came) == NOWHERE


@pytest.mark.parametrize(
    ("place", "count"),
    [
        (Place(1, 0, 0), 1),
        (Place(3, 0, 0), 1),
        (Place(2, 1, 0), 1),
        (Place(2, 0, 0), 0),
        (Place(2, 0, 2), 2),
        (Place(2, 0, 9), 1),
    ],
)
def test_a_place_that_is_not_there_is_refused(place: Place, count: int) -> None:
    sent = SentRows()
    for seed in range(2):
        sent.put(message(batch(3, seed)))
    assert len(sent.rows(Place(2, 0, 1), 2))
    with pytest.raises(ValueError, match=r"place|rows from"):
        sent.rows(place, count)
    with pytest.raises(ValueError, match="place"):
        Place.from_bytes(memoryview(b"short"))


def test_a_message_that_comes_while_batches_are_read_keeps_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, first, second = ReceivedRows(), message(batch(5, 1)), message(batch(5, 2))
    (mine,) = received(first, ends)
    open_stream = pa.ipc.open_stream

    def late(rows: bytes) -> pa.RecordBatchReader:
        monkeypatch.undo()
        ends.put(RowMessage.of(second))  # as a thread of DuckDB does
        return open_stream(rows)

    monkeypatch.setattr(pa.ipc, "open_stream", late)
    assert ends.place(mine) == Place(1, 0, 0)
    assert ends.place(mine) == NOWHERE
