"""The codec of the Postgres protocol: every message, cut at every byte, and bytes that are none."""

from __future__ import annotations

import struct
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from lakestore_server.edge.postgres import messages
from lakestore_server.edge.postgres.messages import Field, Inbox, MalformedMessage, Message
from tests.support import postgres_wire as wire
from tests.support.seeds import examples

LATER: list[tuple[bytes, Message]] = [
    (wire.message("p", b"secret\0"), messages.Password(b"secret\0")),
    (wire.query("SELECT 'ä'"), messages.Query("SELECT 'ä'")),
    (wire.parse("SELECT $1", "p1", (23, 0, 4294967295)), messages.Parse("p1", "SELECT $1", (23, 0, 4294967295))),
    (
        wire.bind([b"1", None, b""], portal="c", statement="p1", formats=(0, 1, 0), results=(1,)),
        messages.Bind("c", "p1", (0, 1, 0), (b"1", None, b""), (1,)),
    ),
    (wire.bind(), messages.Bind("", "", (), (), ())),
    (wire.describe("S", "p1"), messages.Describe("S", "p1")),
    (wire.execute("c", 7), messages.Execute("c", 7)),
    (wire.execute("c", -7), messages.Execute("c", 0)),
    (wire.close("P", "c"), messages.Close("P", "c")),
    (wire.SYNC, messages.Sync()),
    (wire.FLUSH, messages.Flush()),
    (wire.TERMINATE, messages.Terminate()),
    (wire.message("F", b"anything"), messages.FunctionCall()),
    (wire.message("d", b"anything"), messages.CopyMessage()),
    (wire.message("c"), messages.CopyMessage()),
    (wire.message("f", b"why\0"), messages.CopyMessage()),
]
FIRST: list[tuple[bytes, Message]] = [
    (wire.TLS, messages.TlsRequest()),
    (wire.GSS, messages.GssRequest()),
    (wire.cancel(7, b"abcd"), messages.CancelRequest(7, b"abcd")),
    (wire.cancel(7, b"a" * 256), messages.CancelRequest(7, b"a" * 256)),
    (
        wire.start("ann", (3, 2), database="läke", options="-c a=b"),
        messages.StartMessage(3, 2, {"user": "ann", "database": "läke", "options": "-c a=b"}),
    ),
    (wire.start("ann", (2, 0)), messages.StartMessage(2, 0, {})),
]


def inbox(*, is_started: bool) -> Inbox:
    """An inbox before or after the first message."""
    made = Inbox()
    if is_started:
        made.started()
    return made


@pytest.mark.parametrize("is_started", [True, False])
def test_every_message_is_read_wherever_it_is_cut(is_started: bool) -> None:
    for data, message in LATER if is_started else FIRST:
        for cut in range(len(data) + 1):
            box = inbox(is_started=is_started)
            box.feed(data[:cut])
            if cut < len(data):
                assert box.next_message() is None, (message, cut)
            box.feed(data[cut:])
            assert box.next_message() == message
            assert box.next_message() is None
            assert len(box) == 0


@pytest.mark.parametrize("rest", [b"", b"S"])
def test_a_long_message_that_is_read_leaves_nothing(rest: bytes) -> None:
    box = inbox(is_started=True)
    box.bytes_max = 2 << 20
    box.feed(wire.bind([b"x" * (1 << 20)]) + rest)
    assert len(box) > 1 << 20
    assert isinstance(box.next_message(), messages.Bind)
    assert len(box) == len(rest)
    assert sys.getsizeof(box._data) < 1 << 10, "its memory is free"


def test_messages_come_one_after_the_other() -> None:
    box = inbox(is_started=True)
    box.feed(b"".join(data for data, _ in LATER))
    assert [box.next_message() for _ in LATER] == [message for _, message in LATER]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x00\x00\x00\x00\x00", "names no kind"),
        (b"?\x00\x00\x00\x04", "names no kind"),
        (b"Q\x00\x00\x00\x03", "says that it has 3 bytes"),
        (b"Q\xff\xff\xff\xff", "says that it has -1 bytes"),
        (b"Q\x00\x01\x00\x00", "the limit is 10,000"),
        (wire.message("Q", b"without end"), "has no end"),
        (wire.message("Q", b"\xff\xfe\0"), "not UTF-8"),
        (wire.message("Q", b"a\0b\0"), "after its last field"),
        (wire.message("P", b"\0\0\x00\x09"), "ends before|longer than"),
        (wire.message("P", b"\0\0\xff\xff"), "longer than its message"),
        (wire.message("B", b"\0\0\0\0\0\x01\0\0\0\x09ab"), "longer than its message"),
        (wire.message("B", b"\0\0\0\0\0\x01\xff\xff\xff\xfe\0\0"), "longer than its message"),
        (wire.bind([b"1"], formats=(2,)), "a format is neither"),
        (wire.bind([b"1"], results=(7,)), "a format is neither"),
        (wire.bind([b"1"], formats=(0, 1)), "do not belong"),
        (wire.message("D", b"X\0"), "neither that of a statement"),
        (wire.message("S", b"more"), "after its last field"),
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes, why: str) -> None:
    box = inbox(is_started=True)
    box.feed(data)
    with pytest.raises(MalformedMessage, match=why):
        box.next_message()


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x03",
        b"\x00\x00\x27\x11\x00",
        wire.request(80877103, b"more"),
        wire.request(80877102, b"\0\0\0\0abc"),
        wire.request(80877102, b"\0\0\0\0" + b"a" * 257),
        wire.start()[:-1] + b"x",
        struct.pack("!ii", 12, 196608) + b"abcd",
    ],
)
def test_first_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    box = inbox(is_started=False)
    box.feed(data)
    with pytest.raises(MalformedMessage):
        box.next_message()


@given(
    some.booleans(),
    some.lists(some.binary(max_size=40) | some.sampled_from([data for data, _ in LATER + FIRST]), max_size=6),
)
@settings(max_examples=examples(200), deadline=None)
def test_garbage_is_read_or_refused_and_nothing_else(is_started: bool, parts: list[bytes]) -> None:
    box = inbox(is_started=is_started)
    for part in parts:
        box.feed(part)
        try:
            while box.next_message() is not None:
                pass
        except MalformedMessage:
            return


@pytest.mark.parametrize(
    ("data", "kind", "body"),
    [
        (messages.authentication(0), "R", b"\0\0\0\0"),
        (messages.authentication(11, b"r=x"), "R", b"\0\0\0\x0br=x"),
        (messages.sasl_mechanisms(("A", "B")), "R", b"\0\0\0\x0aA\0B\0\0"),
        (messages.negotiated_version(2, ["_pq_.x"]), "v", b"\0\x03\0\x02\0\0\0\x01_pq_.x\0"),
        (messages.key_data(7, b"abcd"), "K", b"\0\0\0\x07abcd"),
        (messages.parameter_status("TimeZone", "UTC"), "S", b"TimeZone\0UTC\0"),
        (messages.ready("T"), "Z", b"T"),
        (messages.parameter_description((23, 4294967295)), "t", b"\0\x02\0\0\0\x17\xff\xff\xff\xff"),
        (messages.complete("SELECT 3"), "C", b"SELECT 3\0"),
        (messages.copy_out(2, is_binary=True), "H", b"\x01\0\x02\0\x01\0\x01"),
        (messages.COPY_DONE, "c", b""),
        (messages.PARSE_COMPLETE, "1", b""),
        (messages.BIND_COMPLETE, "2", b""),
        (messages.CLOSE_COMPLETE, "3", b""),
        (messages.NO_DATA, "n", b""),
        (messages.EMPTY_QUERY, "I", b""),
        (messages.PORTAL_SUSPENDED, "s", b""),
    ],
)
def test_messages_of_the_server_have_their_bytes(data: bytes, kind: str, body: bytes) -> None:
    assert wire.replies(data) == [wire.Reply(kind, body)]


def test_columns_rows_and_errors_are_read_back() -> None:
    fields = [Field("n", 23, 4), Field("ä", 1700, -1, 655366, is_binary=True)]
    (columns,) = wire.replies(messages.row_description(fields))
    assert columns.columns == [("n", 23, 0), ("ä", 1700, 1)]
    (row,) = wire.replies(messages.data_row(["1", None, "", "ä"]))
    assert row.values == [b"1", None, b"", "ä".encode()]
    (error,) = wire.replies(messages.report(b"E", {"S": "ERROR", "C": "42601", "M": "a\0b", "D": ""}))
    assert error.fields == {"S": "ERROR", "C": "42601", "M": "a"}


@given(some.lists(some.integers(0, 30), max_size=30), some.integers(1, 40), some.integers(0, 5))
@settings(max_examples=examples(100), deadline=None)
def test_rows_are_parted_between_messages(sizes: list[int], most: int, first: int) -> None:
    rows = [wire.message("D", b"x" * size) for size in sizes]
    data, begin = b"".join(rows), len(b"".join(rows[:first]))
    end, count = messages.rows_end(memoryview(data), begin, most)
    part = rows[first : first + most]
    assert (data[begin:end], count) == (b"".join(part), len(part))
