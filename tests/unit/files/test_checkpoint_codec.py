"""A checkpoint's bytes: as releases before wrote them, and whatever a checkpoint holds is read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from hypothesis import given

from lakestore.model.token import Place
from lakestore_server.files import checkpoint, new_segment
from lakestore_server.files.checkpoint import Checkpoint
from lakestore_server.files.segment import Segment
from lakestore_server.host.disk import RealDisk
from lakestore_server.state.catalog_change import CatalogChange, Pointer, SetNamespace, SetPointer, TierRecord
from lakestore_server.state.commit_record import (
    ChangeResult,
    CommitRecord,
    LogStart,
    ProducerCommit,
    RowsPart,
    TiererClaim,
)
from lakestore_server.state.state import Origin, State
from lakestore_server.state.subscription import Mark, Subscription
from lakestore_server.state.view import stored_schema
from tests.support.records import CHECKPOINTS, DEFINITION_TEXT, TABLE

OLD, NEW = (
    DEFINITION_TEXT + '"schema_id":0,"last_column_id":2}',
    DEFINITION_TEXT + '"schema_id":1,"last_column_id":2,"deletes":"refuse"}',
)
BODY = (
    '{"timeline":"tl-1","restored":{"timeline":"tl-0","lsn":5,"epochs":9},"lsn":4,"time_us":4000,"next_number":8,'
    '"producers":[["p",3,2,"here",[[1,[2,[["shop.orders",1,0,0,0,0]]]],'
    '[2,[3,[["shop.orders",1,0,0,0,0,0,6,0]]]]],"",1,3000,3],["q",4,0,"",[],"etl",1,2000,2]],"forgotten":{},'
    '"tierer":[2,"host-1"],"idempotency":["key-1"],"namespaces":{"shop":{"k":"v"}},'
    '"pointers":[["shop","orders","s3://n.json","u-1"]],'
    '"subscriptions":[["alone",["u-1"],3,["u-1",1,4],2,77],["many",["u-1"],3,null,2,77,[[[1,-1,0,0],[0,2,5,1]]]]],'
    '"tables":[{"table":' + NEW + ',"versions":[[1,' + OLD + "],[4," + NEW + "]],"
    '"created_lsn":1,"created_us":1000,"tiers":[[11,[1,0],["18446744073709551615","0"],3,2,6,0]],'
    '"buckets":[[["0-0-2-4.seg",600]],[]],"bases":[[1,18446744073709551614,1,2000,2],[0,0,0,0,2]]}],"runs_lsn":-1}'
)
"""The checkpoint of the records below, as the code wrote it when it was a dictionary."""
HEADER = "5043534c0400fb7182070000000000009b6c45c0"
BATCH = pa.RecordBatch.from_arrays(
    [pa.array([0, 0], pa.int8()), pa.array([-1, -1]), pa.array([1, 2]), pa.array(["a", None])],
    schema=stored_schema(TABLE),
)
RECORDS = (
    CommitRecord(
        1,
        1000,
        create=[TABLE],
        catalog=[
            CatalogChange(
                (SetNamespace("shop", {"k": "v"}), SetPointer("shop", "orders", None, Pointer("s3://m.json", "u-1"))),
                "key-1",
            )
        ],
        tierer=TiererClaim(2, "host-1"),
    ),
    CommitRecord(
        2,
        2000,
        [RowsPart("u-1", 0, 0, BATCH.slice(0, 1), 2**64 - 2, 1)],
        [ProducerCommit("p", 3, 1, (ChangeResult("shop.orders", 1),), "here"), ProducerCommit("q", 4, owner="etl")],
    ),
    CommitRecord(
        3,
        3000,
        [RowsPart("u-1", 0, 1, BATCH.slice(1, 1), 9, 2)],
        [ProducerCommit("p", 3, 2, (ChangeResult("shop.orders", 1, unchanged=6),))],
        catalog=[
            CatalogChange(
                (
                    SetPointer(
                        "shop",
                        "orders",
                        "s3://m.json",
                        Pointer("s3://n.json", "u-1"),
                        (TierRecord(11, (1, 0), (2**64 - 1, 0), 3, 2, 6, 0),),
                    ),
                )
            )
        ],
    ),
    CommitRecord(
        4,
        4000,
        alter=[replace(TABLE, schema_id=1, deletes="refuse")],
        starts=[LogStart("u-1", 2)],
        subscriptions=[
            Subscription("alone", ("u-1",), 3, Place("u-1", 1, 4), 2, 77),
            Subscription("many", ("u-1",), 3, None, 2, 77, ((Mark(1), Mark(0, 2, 5, 1)),)),
        ],
    ),
)


def test_the_bytes_of_a_checkpoint_stay(tmp_path: Path) -> None:
    state = State("tl-1")
    state.restored = Origin("tl-0", 5, 9)
    for record in RECORDS:
        state.apply(record)
    frozen = state.freeze()
    table = frozen.view.tables["u-1"]
    path = tmp_path / "segments" / "u-1" / "0-0-2-4.seg"
    path.parent.mkdir(parents=True)
    new_segment.write_segment(RealDisk(), path, new_segment.encoded(table.logs[0].chunks, keyed=True))
    cut = Segment(RealDisk(), path, table.versions.stored, keyed=True)
    data = checkpoint.encode(Checkpoint.of(frozen, {("u-1", 0): [cut]}))
    assert data[20:].decode() == BODY
    assert data[:20].hex() == HEADER
    again = checkpoint.decode(data, "c").state(RealDisk(), tmp_path).freeze()
    assert replace(again, view=frozen.view) == frozen
    cuts = {("u-1", 0): again.view.tables["u-1"].logs[0].chunks}
    assert checkpoint.encode(Checkpoint.of(again, cuts)) == data


@given(CHECKPOINTS)
def test_whatever_a_checkpoint_holds_is_read_back(held: Checkpoint) -> None:
    assert checkpoint.decode(checkpoint.encode(held), "c") == held


@given(CHECKPOINTS, CHECKPOINTS)
def test_checkpoints_that_differ_have_bytes_that_differ(one: Checkpoint, other: Checkpoint) -> None:
    assert (checkpoint.encode(one) == checkpoint.encode(other)) == (one == other)
