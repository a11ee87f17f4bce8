"""Commits whose rows stand beside the message: the wire has what protobuf would have, whoever made it."""

from __future__ import annotations

import pyarrow as pa
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from lakestore.model.varint import varint
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.commit_message import CommitMessage, taken_apart
from lakestore.wire.fields import ALIGNED, ROWS_MIN
from tests.support.wire_bytes import FIELDS, damaged, encoded_fields

NAMES = st.text(max_size=40)
SMALL = st.builds(
    pb.Change, table=NAMES, rows=st.binary(max_size=300), crc32c=st.integers(0, 9), pad=st.binary(max_size=9)
)
MESSAGES = st.builds(pb.CommitRequest, changes=st.lists(SMALL, max_size=4), producer=NAMES, progress=NAMES)


def large(size: int) -> bytes:
    return bytes(range(256)) * (size // 256 + 1)


def parsed(data: bytes) -> pb.CommitRequest | None:
    try:
        return pb.CommitRequest.FromString(data)
    except DecodeError:
        return None


def whole(data: bytes) -> pb.CommitRequest | None:
    """A message as a server reads it, its rows put back."""
    left, rows = taken_apart(data)
    assert taken_apart(pa.py_buffer(data)) == (left, rows), "it may lie in any memory"
    request = parsed(left)
    if request is not None:
        for number, parts in rows.items():
            assert not request.changes[number].rows
            request.changes[number].rows = b"".join(map(bytes, parts))
    return request


def plain(request: pb.CommitRequest | None) -> pb.CommitRequest | None:
    for change in request.changes if request is not None else ():
        change.pad = b""
    return request


@given(MESSAGES, st.integers(0, 4), st.integers(ROWS_MIN, ROWS_MIN + 300), st.integers(0, 9))
def test_what_is_sent_is_what_protobuf_reads(request: pb.CommitRequest, at: int, size: int, cut: int) -> None:
    rows = large(size)[:size]
    request.changes.insert(min(at, len(request.changes)), pb.Change(table="a.b", crc32c=7))
    number = min(at, len(request.changes) - 1)
    request.changes[number].rows = b""
    data = CommitMessage(request, {number: (rows[:cut], pa.py_buffer(rows[cut:]))}).encoded()
    expected = pb.CommitRequest()
    expected.CopyFrom(request)
    expected.changes[number].rows = rows
    assert plain(parsed(data)) == plain(expected)
    left, beside = taken_apart(data)
    assert len(left) < len(data) - size + 9, "no copy of them is in the message"
    [(found, [taken])] = beside.items()
    assert (found, bytes(taken)) == (number, rows)
    assert isinstance(taken, pa.Buffer)
    assert taken.address % ALIGNED == 0
    assert data.index(rows) % ALIGNED == 0, "so that it need not be copied"
    assert plain(whole(data)) == plain(expected)
    assert plain(whole(expected.SerializeToString())) == plain(expected), "as protobuf puts it together"


def test_rows_that_are_not_most_of_a_message_are_left_in_it() -> None:
    """What holds them would hold all of it."""
    request = pb.CommitRequest(changes=[pb.Change(rows=large(ROWS_MIN)), pb.Change(rows=large(ROWS_MIN * 3 // 2))])
    data = request.SerializeToString()
    left, beside = taken_apart(data)
    assert (list(beside), parsed(left).changes[0].rows) == ([1], request.changes[0].rows)  # type: ignore[union-attr]
    request.changes[1].rows = request.changes[0].rows + b"-"
    request.changes.add(rows=large(ROWS_MIN))
    data = request.SerializeToString()
    assert taken_apart(data) == (data, {})


def test_of_rows_that_are_said_twice_the_last_count() -> None:
    rows = large(ROWS_MIN)
    twice = pb.Change(rows=rows).SerializeToString() + pb.Change(rows=b"last").SerializeToString()
    data = b"\x0a" + varint(len(twice)) + twice
    assert taken_apart(data) == (data, {})
    assert parsed(data) == pb.CommitRequest(changes=[pb.Change(rows=b"last")])


@given(st.integers(0, 1 << 30), st.integers(0, 255), st.integers(0, 200), st.booleans())
def test_a_damaged_message_is_judged_as_protobuf_does(place: int, byte: int, size: int, cut: bool) -> None:
    request = pb.CommitRequest(changes=[pb.Change(table="a.b", crc32c=1 << 31)], producer="someone", sequence=300)
    data = damaged(CommitMessage(request, {0: (large(ROWS_MIN + size),)}).encoded(), place, byte, cut=cut)
    assert whole(data) == parsed(data)


@given(FIELDS)
def test_any_fields_are_judged_as_protobuf_does(fields: list[tuple[int, int, bytes]]) -> None:
    rows = large(ROWS_MIN)
    inside = encoded_fields(fields)
    with_rows = inside + b"\x1a" + varint(len(rows)) + rows
    for change in (with_rows, with_rows + inside):
        data = inside + b"\x0a" + varint(len(change)) + change + inside
        assert whole(data) == parsed(data)
