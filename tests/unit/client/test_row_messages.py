"""Messages of streams of rows whose rows are outside protobuf: the bytes are what protobuf writes and reads."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.fields import ALIGNED, ROWS_MIN
from lakestore.wire.row_messages import ChangeMessage, RowMessage, with_rows
from tests.support.wire_bytes import FIELDS, damaged, encoded_fields

TEXT, FLAG = st.text(max_size=40), st.booleans()
NUMBER = st.integers(0, (1 << 32) - 1)
ROW_HEADS = st.builds(pb.RowBatch, crc32c=NUMBER, tested=NUMBER, passed_over=NUMBER)
CHANGE_HEADS = st.builds(
    pb.ChangeBatch,
    table=TEXT,
    token=TEXT,
    snapshot=FLAG,
    schema_id=NUMBER,
    subscription_epoch=NUMBER,
    read_the_lake=FLAG,
    progress=FLAG,
    goes_on=FLAG,
    table_uuid=TEXT,
)
HEADS = st.one_of(ROW_HEADS, CHANGE_HEADS)
READ_AS: dict[Any, Any] = {pb.RowBatch: RowMessage, pb.ChangeBatch: ChangeMessage}


def large(size: int) -> bytes:
    return (bytes(range(256)) * (size // 256 + 1))[:size]


def by_protobuf(kind: Any, data: bytes) -> dict[str, Any] | None:
    """The fields of a message as protobuf reads it; None if it refuses the bytes."""
    try:
        message = kind.FromString(data)
    except DecodeError:
        return None
    return {name: getattr(message, name) for name in names(kind)}


def as_read(kind: Any, data: bytes) -> dict[str, Any] | None:
    """The same fields as a client reads them."""
    try:
        message = READ_AS[kind].of(data)
    except DecodeError:
        return None
    return {name: bytes(value) if name == "rows" else value for name, value in of_names(kind, message)}


def names(kind: Any) -> list[str]:
    own = {field.name for field in fields(READ_AS[kind])} - {"parts"}
    return sorted(own | {"rows"})


def of_names(kind: Any, message: Any) -> list[tuple[str, Any]]:
    return [(name, getattr(message, name)) for name in names(kind)]


@given(HEADS, st.integers(ROWS_MIN, ROWS_MIN + 300), st.integers(0, 9))
def test_what_is_sent_is_what_protobuf_reads(head: Any, size: int, cut: int) -> None:
    kind, rows = type(head), large(size)
    data = with_rows(head, (rows[:cut], pa.py_buffer(rows[cut:])))
    expected = kind()
    expected.CopyFrom(head)
    expected.rows = rows
    plain = kind.FromString(data)
    plain.ClearField("pad")
    assert plain == expected
    assert as_read(kind, data) == by_protobuf(kind, data)
    found = READ_AS[kind].of(data).rows
    assert found.address % ALIGNED == 0
    assert found.address - pa.py_buffer(data).address == data.index(rows), "the rows were copied"
    assert as_read(kind, expected.SerializeToString()) == by_protobuf(kind, data), "written by protobuf"


@given(HEADS, st.binary(max_size=300))
def test_small_rows_are_read_too(head: Any, rows: bytes) -> None:
    data = with_rows(head, (rows,))
    assert as_read(type(head), data) == by_protobuf(type(head), data)
    assert by_protobuf(type(head), data)["rows"] == rows  # type: ignore[index]
    assert with_rows(head, ()) == head.SerializeToString()


def test_a_message_is_written_as_it_was_read() -> None:
    rows = large(ROWS_MIN)
    message = RowMessage((rows[:9], rows[9:]), 7, 8, 9)
    assert message.rows == rows
    again = RowMessage.of(message.encoded())
    assert (bytes(again.rows), again.crc32c, again.tested, again.passed_over) == (rows, 7, 8, 9)
    assert again.encoded() == message.encoded()
    assert RowMessage(tested=1).rows == b""


def test_fields_after_the_rows_count() -> None:
    """A consumer's epoch is added behind the rows of a message that all consumers share."""
    data = with_rows(pb.ChangeBatch(token="t"), (large(ROWS_MIN),))
    both = data + pb.ChangeBatch(subscription_epoch=5).SerializeToString()
    found = ChangeMessage.of(both)
    assert (found.token, found.subscription_epoch, bytes(found.rows)) == ("t", 5, large(ROWS_MIN))


@pytest.mark.parametrize("kind", READ_AS)
def test_of_rows_that_come_twice_the_last_count(kind: Any) -> None:
    data = with_rows(kind(), (large(ROWS_MIN),)) + kind(rows=b"last").SerializeToString()
    assert as_read(kind, data) == by_protobuf(kind, data)
    assert bytes(READ_AS[kind].of(data).rows) == b"last"


@given(HEADS, st.integers(0, 1 << 30), st.integers(0, 255), st.integers(0, 200), st.booleans())
def test_a_damaged_message_is_judged_as_protobuf_does(head: Any, place: int, byte: int, size: int, cut: bool) -> None:
    data = damaged(with_rows(head, (large(ROWS_MIN + size),)), place, byte, cut=cut)
    assert as_read(type(head), data) == by_protobuf(type(head), data)


@given(HEADS, FIELDS)
def test_any_fields_are_judged_as_protobuf_does(head: Any, found: list[tuple[int, int, bytes]]) -> None:
    around = encoded_fields(found)
    data = with_rows(head, (large(ROWS_MIN),))
    for each in (around + data, data + around, around + data + around):
        assert as_read(type(head), each) == by_protobuf(type(head), each)
