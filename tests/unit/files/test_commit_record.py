"""A commit record and its bytes: as releases before wrote them, and whatever a record holds is read back."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakestore.model.table import define
from lakestore.model.token import Place
from lakestore_server.files import journal
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

SALT = 0x1122334455667788
SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])
TABLE = replace(
    define(
        "shop.orders", pa.schema([pa.field("id", pa.int64(), False), SCHEMA.field(1)]), primary_key=["id"], buckets=2
    ),
    uuid="u-1",
    number=7,
)
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
DEFINITION = (
    '{"name":"shop.orders","columns":[{"id":1,"name":"id","type":"int64","required":true},'
    '{"id":2,"name":"note","type":"string","required":false}],"primary_key":["id"],"buckets":2,"bucket_key":["id"],'
    '"merge":"upsert","lake":{"freshness":"1m","partition_by":[],"sort_by":[],"format_version":2,'
    '"target_file_bytes":134217728},"uuid":"u-1","number":7,'
)
META = (
    '{"t":1700000000000001,'
    '"rows":[["u-1",1,100,2,0,256,18446744073709551615,17,3],["u-2",0,0,1,256,240,5,1,0]],'
    '"producers":[["p",3,9,[["shop.orders",1,2,3,4,5],["shop.orders",1,2,3,4,5,0,6,0]],"here"],["q",4,0,[],""]],'
    '"create":[' + DEFINITION + '"schema_id":0,"last_column_id":2}],'
    '"alter":[' + DEFINITION + '"schema_id":1,"last_column_id":2,"deletes":"refuse"}],'
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
HEADER = "314a534c020000000c00000000000000c90500000002000000000000887766554433221162ad62ae" + 48 * "0"
SHA256 = "b23a1b7944879eeff8c6b290b414dec6e2579150579ca94d11023c75e1c44673"
"""Of the whole frame, as that code wrote it."""


def encoded(record: CommitRecord) -> bytes:
    return b"".join(bytes(part) for part in journal.encode(record, SALT))


def decoded(data: bytes) -> CommitRecord:
    (raw,) = journal.frames(journal.file_header(SALT) + data, "journal", last=False)
    return journal.decode(raw, lambda _uuid, _schema_id: SCHEMA)


def test_the_bytes_of_a_record_are_those_of_earlier_releases() -> None:
    data = encoded(SAMPLE)
    assert data[64 : 64 + len(META)].decode() == META
    assert data[:64].hex() == HEADER
    assert hashlib.sha256(data).hexdigest() == SHA256


def test_results_of_earlier_releases_are_shorter() -> None:
    commit = decoded(encoded(CommitRecord(1, 1, producers=[ProducerCommit("p", 1, 1, (ChangeResult("t", 1),))])))
    assert commit.producers[0].results == (ChangeResult("t", inserted=1),)
    raw = journal.RawFrame(1, json.loads('{"t":1,"producers":[["p",1,1,[["t",1,2,3,4]],""]]}'), pa.py_buffer(b""), 0)
    found = journal.decode(raw, lambda _uuid, _schema_id: SCHEMA)
    assert found.producers[0].results == (ChangeResult("t", 1, 2, 3, 4),)


NAMES = st.text(max_size=8)
COUNTS = st.integers(0, 2**53)
SUMS = st.integers(0, 2**64 - 1)
SMALL = st.integers(0, 5)


def tuples(of: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(of, max_size=3).map(tuple)


BATCHES = st.lists(st.tuples(COUNTS, st.none() | NAMES), max_size=4).map(
    lambda rows: pa.record_batch([[id_ for id_, _ in rows], [note for _, note in rows]], schema=SCHEMA)
)
SLOTS = st.lists(st.builds(KeySlot, COUNTS, COUNTS, is_link=st.booleans()), max_size=3)
PARTS = st.builds(RowsPart, NAMES, SMALL, COUNTS, BATCHES, SUMS, COUNTS, SMALL, SLOTS)
RESULTS = st.builds(ChangeResult, NAMES, *[COUNTS] * 4, SMALL, *[st.just(0) | COUNTS] * 3)
PRODUCERS = st.builds(ProducerCommit, NAMES, COUNTS, COUNTS, tuples(RESULTS), NAMES)
TABLES = st.builds(
    lambda uuid, number, schema_id, deletes: replace(
        TABLE, uuid=uuid, number=number, schema_id=schema_id, deletes=deletes
    ),
    NAMES,
    COUNTS,
    SMALL,
    st.sampled_from(["allow", "ignore", "refuse"]),
)
POINTERS = st.builds(Pointer, NAMES, NAMES)
TIERS = st.builds(TierRecord, SUMS, tuples(COUNTS), tuples(SUMS), COUNTS, COUNTS, st.none() | COUNTS, SMALL)
STEPS = st.one_of(
    st.builds(SetPointer, NAMES, NAMES, st.none() | NAMES, POINTERS, tuples(TIERS), tuples(COUNTS)),
    st.builds(DropPointer, NAMES, NAMES),
    st.builds(SetNamespace, NAMES, st.dictionaries(NAMES, NAMES, max_size=2)),
    st.builds(DropNamespace, NAMES),
)
MARKS = st.builds(Mark, COUNTS, st.just(-1) | COUNTS, COUNTS, COUNTS)
ROW_OF_MARKS = st.lists(MARKS, min_size=1, max_size=3).map(tuple)
SUBSCRIPTIONS = st.one_of(
    st.builds(
        Subscription,
        NAMES,
        tuples(NAMES),
        COUNTS,
        st.none() | st.builds(Place, NAMES, SMALL, COUNTS),
        COUNTS,
        COUNTS,
        tuples(ROW_OF_MARKS),
    ),
    st.builds(SubscriptionMove, NAMES, COUNTS, tuples(st.builds(MovedMark, SMALL, SMALL, MARKS))),
    st.builds(SubscriptionDrop, NAMES),
)
RECORDS = st.builds(
    CommitRecord,
    COUNTS,
    COUNTS,
    st.lists(PARTS, max_size=3),
    st.lists(PRODUCERS, max_size=2),
    st.lists(TABLES, max_size=2),
    st.lists(TABLES, max_size=2),
    st.lists(NAMES, max_size=2),
    st.lists(st.builds(CatalogChange, tuples(STEPS), NAMES), max_size=2),
    st.none() | st.builds(TiererClaim, COUNTS, NAMES),
    st.lists(st.builds(LogStart, NAMES, COUNTS), max_size=2),
    st.lists(SUBSCRIPTIONS, max_size=3),
)


@given(RECORDS)
def test_whatever_a_record_holds_is_read_back(record: CommitRecord) -> None:
    assert decoded(encoded(record)) == record


@given(RECORDS, RECORDS)
def test_records_that_differ_have_bytes_that_differ(one: CommitRecord, other: CommitRecord) -> None:
    assert (encoded(one) == encoded(other)) == (one == other)
