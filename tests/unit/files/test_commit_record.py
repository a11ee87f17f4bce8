"""A commit record and its bytes: as releases before wrote them, and whatever a record holds is read back."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pyarrow as pa
from hypothesis import given

from lakestore.model.token import Place
from lakestore.rows.ipc import crc32c
from lakestore_server.files import journal, journal_file
from lakestore_server.state.catalog_change import (
    CatalogChange,
    DropNamespace,
    DropPointer,
    Pointer,
    SetNamespace,
    SetPointer,
    TierRecord,
)
from lakestore_server.state.commit_record import (
    ChangeResult,
    CommitRecord,
    KeySlot,
    LogStart,
    ProducerCommit,
    RowsPart,
    TiererClaim,
)
from lakestore_server.state.subscription import Mark, MovedMark, Subscription, SubscriptionDrop, SubscriptionMove
from tests.support.records import DEFINITION_TEXT, RECORDS, SCHEMA, TABLE

SALT = 0x1122334455667788
BATCH = pa.record_batch([[1, 2], ["a", None]], schema=SCHEMA)
SAMPLE = CommitRecord(
    12,
    1_700_000_000_000_001,
    [
        RowsPart(
            "u-1",
            1,
            100,
            BATCH,
            2**64 - 1,
            17,
            3,
            [KeySlot(1, 2, is_link=True), KeySlot(0, 1, is_link=False)],
        ),
        RowsPart("u-2", 0, 0, BATCH.slice(0, 1), 5, 1),
    ],
    [
        ProducerCommit(
            "p",
            3,
            9,
            (ChangeResult("shop.orders", 1, 2, 3, 4, 5), ChangeResult("shop.orders", 1, 2, 3, 4, 5, 0, 6, 0)),
            "here",
        ),
        ProducerCommit("q", 4),
    ],
    [TABLE],
    [replace(TABLE, schema_id=1, deletes="refuse")],
    ["u-9"],
    [
        CatalogChange(
            (
                SetNamespace("shop", {"k": "v"}),
                SetPointer(
                    "shop",
                    "orders",
                    None,
                    Pointer("s3://m.json", "u-1"),
                    (TierRecord(11, (3, 4), (2**64 - 1, 5), 8, 2, 6, 1),),
                    (9, 10),
                ),
                DropPointer("shop", "old"),
                DropNamespace("gone"),
            ),
            "key-1",
        )
    ],
    TiererClaim(5, "host-1"),
    [LogStart("u-1", 7)],
    [
        Subscription("alone", ("u-1",), 9, Place("u-1", 1, 4), 2, 77),
        Subscription("many", ("u-1",), 9, None, 2, 77, ((Mark(3), Mark(4, 9, 5, 1)),)),
        SubscriptionMove("many", 80, (MovedMark(0, 1, Mark(6, -1, 8, 3)),)),
        SubscriptionMove("seen", 81),
        SubscriptionDrop("gone"),
    ],
)
META = (
    '{"t":1700000000000001,'
    '"rows":[["u-1",1,100,2,0,256,18446744073709551615,17,3],["u-2",0,0,1,256,240,5,1,0]],'
    '"producers":[["p",3,9,[["shop.orders",1,2,3,4,5],["shop.orders",1,2,3,4,5,0,6,0]],"here"],["q",4,0,[],""]],'
    '"create":[' + DEFINITION_TEXT + '"schema_id":0,"last_column_id":2}],'
    '"alter":[' + DEFINITION_TEXT + '"schema_id":1,"last_column_id":2,"deletes":"refuse"}],'
    '"drop":["u-9"],'
    '"catalog":[{"key":"key-1","steps":[["namespace","shop",{"k":"v"}],'
    '["set","shop","orders",null,["s3://m.json","u-1"],[[11,[3,4],["18446744073709551615","5"],8,2,6,1]],[9,10]],'
    '["drop","shop","old"],["drop-namespace","gone"]]}],'
    '"tierer":[5,"host-1"],'
    '"starts":[["u-1",7]],'
    '"subscriptions":[["alone",["u-1"],9,["u-1",1,4],2,77],["many",["u-1"],9,null,2,77,[[[3,-1,0,0],[4,9,5,1]]]],'
    '["many",80,[[0,1,6,-1,8,3]]],["seen",81,[]],["gone"]],'
    '"slots":[[0,1,2,1],[0,0,1,0]]}'
)
"""The section of SAMPLE that is JSON, as the code wrote it when records were lists and dictionaries."""
HEADER_2 = "314a534c020000000c00000000000000c90500000002000000000000887766554433221162ad62ae" + 48 * "0"
"""Of the frame in a file of version 2, as release 0.2 wrote it."""
HEADER = "314a534c040000000c00000000000000c905000000020000000000008877665544332211fc996ac6" + 48 * "0"
SHA256 = "db0207573b0927748757fa7dff41ea41cb65b9bc2da27dee79f0e4e5044ebc55"
"""Of the whole frame."""


def encoded(record: CommitRecord) -> bytes:
    return b"".join(bytes(part) for part in journal_file.framed(record.lsn, journal.encode(record), SALT).parts)


def decoded(data: bytes) -> CommitRecord:
    (raw,) = journal.frames(journal.file_header(SALT) + data, "journal", last=False)
    return journal.decode(raw, lambda _uuid, _schema_id: SCHEMA)


def test_a_record_of_release_0_2_is_read() -> None:
    data = bytes.fromhex(HEADER_2) + encoded(SAMPLE)[64:]
    header = journal.file_header(SALT)[:4] + bytes([2]) + journal.file_header(SALT)[5:16]
    file = (header + crc32c(header).to_bytes(4, "little")).ljust(64, b"\0") + data
    (raw,) = journal.frames(file, "journal", last=False)
    assert encoded(journal.decode(raw, lambda _uuid, _schema_id: SCHEMA)) == encoded(SAMPLE)


def test_the_bytes_of_a_record_stay() -> None:
    data = encoded(SAMPLE)
    assert data[64 : 64 + len(META)].decode() == META
    assert data[:64].hex() == HEADER
    assert hashlib.sha256(data).hexdigest() == SHA256


def test_results_of_earlier_releases_are_shorter() -> None:
    commit = decoded(encoded(CommitRecord(1, 1, producers=[ProducerCommit("p", 1, 1, (ChangeResult("t", 1),))])))
    assert commit.producers == [ProducerCommit("p", 1, 1, (ChangeResult("t", inserted=1),))]
    raw = journal.RawFrame(1, b'{"t":1,"producers":[["p",1,1,[["t",1,2,3,4]],""]]}', pa.py_buffer(b""))
    found = journal.decode(raw, lambda _uuid, _schema_id: SCHEMA)
    assert found.producers == [ProducerCommit("p", 1, 1, (ChangeResult("t", 1, 2, 3, 4),))]


@given(RECORDS)
def test_whatever_a_record_holds_is_read_back(record: CommitRecord) -> None:
    assert decoded(encoded(record)) == record


@given(RECORDS, RECORDS)
def test_records_that_differ_have_bytes_that_differ(one: CommitRecord, other: CommitRecord) -> None:
    assert (encoded(one) == encoded(other)) == (one == other)
