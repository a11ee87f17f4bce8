"""What merge engines refuse, remember and keep: overflow, tombstones, bitmaps, evolution, and rows of other columns."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.writer import change
from lakestore.errors import Invalid
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.arrays.equal_rows import equal
from lakestore_server.commit import request as prepare
from tests.support.merge_cases import grouped
from tests.support.served import Served
from tests.support.waiting import until

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int8()), ("word", pa.string())])
LONG = "k" * 600


def rows(table: ls.Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=repr)


def counted(table: ls.Table) -> dict[str, int]:
    assert table.last_result is not None
    counts = asdict(table.last_result)
    return {name: value for name, value in counts.items() if value and name not in NOT_COUNTS}


NOT_COUNTS = ("table", "schema_id")


def test_a_sum_that_overflows_refuses_its_request_and_no_other(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        lake = served.lake
        table = lake.create_table("d.t", SCHEMA, primary_key=["id"], merge=ls.aggregate({"n": "sum"}))
        table.upsert([{"id": 1, "n": 100}, {"id": 2, "n": 1}])

        def request(n: int, producer: str, sequence: int) -> pb.CommitRequest:
            batch = pa.record_batch([pa.array([2, 1]), pa.array([1, n], pa.int8())], names=["id", "n"])
            return pb.CommitRequest(changes=[change("d.t", pb.UPSERT, [batch])], producer=producer, sequence=sequence)

        sent = [request(1, "a", 1), request(100, "b", 1), request(1, "b", 2), request(2, "a", 2)]
        first, refused, behind, last = grouped(served, sent)
        assert refused.message == "table d.t, column 'n', key {'id': 1}: the sum does not fit into int8"
        assert isinstance(behind, Invalid), "what a producer sends behind a refused commit does not follow"
        assert first.lsn == last.lsn
        assert rows(table) == [{"id": 1, "n": 103, "word": None}, {"id": 2, "n": 3, "word": None}]


@pytest.mark.parametrize(
    ("kind", "function", "values", "fits"),
    [
        (pa.int64(), "sum", [2**62, 2**62 - 1, -5, 5], True),
        (pa.int64(), "sum", [2**62, 2**62], False),
        (pa.int64(), "product", [2**31, -(2**32)], True),
        (pa.int64(), "product", [2**31, 2**32], False),
        (pa.uint8(), "sum", [200, 55], True),
        (pa.decimal128(38, 0), "sum", [Decimal(9 * 10**37), Decimal(9 * 10**36)], True),
        (pa.decimal128(38, 0), "sum", [Decimal(9 * 10**37), Decimal(9 * 10**37)], False),
        (pa.decimal128(5, 2), "product", [Decimal("1.05"), Decimal("-1.50")], True),
        (pa.decimal128(5, 2), "sum", [Decimal("999.99"), Decimal("0.01")], False),
    ],
)
def test_sums_and_products_are_exact_or_refused(
    tmp_path: Path, kind: pa.DataType, function: str, values: list[Any], *, fits: bool
) -> None:
    """In one batch as over several commits."""
    with ls.open(tmp_path) as lake:
        schema = pa.schema([("id", pa.int64()), ("n", kind)])
        table = lake.create_table("d.t", schema, primary_key=["id"], merge=ls.aggregate({"n": function}))
        batch = pa.table({"id": [1] * len(values), "n": pa.array(values, kind)})
        steps = [pa.table({"id": [2], "n": pa.array([value], kind)}) for value in values]
        if not fits:
            with pytest.raises(Invalid, match="does not fit"):
                table.upsert(batch)
            table.upsert(steps[0])
            with pytest.raises(Invalid, match="does not fit"):
                table.upsert(steps[1])
            return
        table.upsert(batch)
        for step in steps:
            table.upsert(step)
        total = sum(values) if function == "sum" else values[0] * values[1]
        if pa.types.is_decimal(kind) and function == "product":
            total = Decimal("-1.58")  # half up
        assert {row["n"] for row in rows(table)} == {total}


@pytest.mark.parametrize("key", ["short", LONG], ids=["key", "hashed_key"])
def test_a_version_is_remembered_over_restarts_checkpoints_and_the_loss_of_the_index(tmp_path: Path, key: str) -> None:
    schema = pa.schema([("id", pa.string()), ("v", pa.int64())])

    def late(lake: ls.Lake, version: int) -> str:
        table = lake.table("d.t")
        table.upsert([{"id": key, "v": version}])
        return next(iter(counted(table)))

    with Served(tmp_path) as served:
        lake = served.lake
        table = lake.create_table("d.t", schema, primary_key=["id"], merge="versioned(v)", buckets=1)
        for other in range(5):
            table.upsert([{"id": f"{key}{other}", "v": 9}])
        table.upsert([{"id": key, "v": 2}])
        table.delete([{"id": key, "v": 4}])
        assert late(lake, 3) == "ignored"
        served.server.close(checkpoint=False)
    with Served(tmp_path) as served:
        lake = served.lake
        assert late(lake, 3) == "ignored", "after a replay of the journal"
        served.checkpoint()
        assert late(lake, 3) == "ignored", "after a checkpoint"
        table = lake.table("d.t")
        assert table.insert_if_absent([{"id": key, "v": 3}]).num_rows == 0
        assert counted(table) == {"ignored": 1}
    shutil.rmtree(tmp_path / "index")
    with Served(tmp_path) as served:
        lake = served.lake
        until(lambda: served.engine.index.ready, "the rebuild")
        assert late(lake, 3) == "ignored", "after a rebuild"
        assert lake.table("d.t").scan().count() == 5
        assert late(lake, 4) == "inserted", "a version that is not lower"
        lake.table("d.t").delete([{"id": key}])
        assert late(lake, 3) == "ignored", "a delete without a version keeps that of the row"
        assert late(lake, 5) == "inserted"
    shutil.rmtree(tmp_path / "index")
    with Served(tmp_path) as served:
        lake = served.lake
        until(lambda: served.engine.index.ready, "the rebuild")
        assert late(lake, 4) == "ignored", "the row that came back, not the delete before it"
        assert lake.table("d.t").lookup([{"id": key}]).to_pylist() == [{"id": key, "v": 5}]


def test_deletes_are_ignored_or_refused_as_the_table_says(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        table = lake.create_table("d.i", SCHEMA, primary_key=["id"], deletes="ignore")
        table.upsert([{"id": 1}])
        table.delete([{"id": 1}, {"id": 1}, {"id": 2}])
        assert counted(table) == {"ignored": 3}
        table = lake.create_table("d.r", SCHEMA, primary_key=["id"], deletes="refuse")
        with pytest.raises(Invalid, match=r"table d\.r refuses deletes: it has the option deletes='refuse'"):
            table.delete([{"id": 1}])


def test_a_delete_that_waited_while_the_table_came_to_refuse_them_is_refused(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table, engine = served.lake.create_table("d.r", SCHEMA, primary_key=["id"]), served.engine
        sent = pa.RecordBatch.from_pylist([{"id": 1}], pa.schema([pa.field("id", pa.int64(), nullable=False)]))
        message = change("d.r", pb.DELETE, [sent], 0)
        waiting = prepare.Request((prepare.change_of(engine.view.named("d.r").versions, message, "", engine.limits),))
        assert prepare.renewed(waiting, engine.view) is waiting
        table.alter(deletes="refuse")
        with pytest.raises(Invalid, match=r"table d\.r refuses deletes"):
            prepare.renewed(waiting, engine.view)


def test_bitmaps_are_taken_as_numbers_or_bytes_and_bad_ones_refused_by_row(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("who", pa.binary()), ("people", pa.int64())])
    functions = {"who": "bitmap", "people": "distinct_count(who)"}
    with ls.open(tmp_path) as lake:
        table = lake.create_table("d.t", schema, primary_key=["id"], merge=ls.aggregate(functions))
        table.upsert(pa.table({"id": [1, 1, 2], "who": [7, 2**40, None]}))
        table.upsert([{"id": 1, "who": ls.bitmap([7, 8, 2**63])}])
        assert table.lookup([{"id": 1}, {"id": 2}]).to_pylist() == [
            {"id": 1, "who": ls.bitmap([7, 8, 2**40, 2**63]), "people": 4},
            {"id": 2, "who": None, "people": 0},
        ]
        table.upsert([{"id": 3, "who": 7}, {"id": 3, "who": 9}, {"id": 3, "who": None}])
        assert table.lookup([{"id": 3}]).to_pylist()[0]["people"] == 2
        with pytest.raises(Invalid, match=r"ls.bitmap takes numbers"):
            ls.bitmap(ls.bitmap([1]))
        for bad in (b"\x07\0\0", b"", b"\xff" * 8):
            with pytest.raises(Invalid, match="column 'who', row 1: the bytes are no portable 64-bit roaring bitmap"):
                table.upsert([{"id": 1, "who": ls.bitmap([1])}, {"id": 2, "who": bad}])
        with pytest.raises(Invalid, match="column 'who', row 1: -3 is negative"):
            table.upsert(pa.table({"id": [1, 2], "who": [1, -3]}))


def test_rows_that_name_other_columns_are_parts_of_one_commit(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        table = lake.create_table("d.t", SCHEMA, primary_key=["id"], merge="partial")
        table.upsert([{"id": 1, "n": 1}, {"id": 2, "n": 2}])
        token = table.upsert([{"id": 1, "word": "a"}, {"id": 2, "n": None}, {"id": 1, "n": 3}, {"id": 3}])
        assert counted(table) == {"inserted": 1, "updated": 3}
        expected = [
            {"id": 1, "n": 3, "word": "a"},
            {"id": 2, "n": None, "word": None},
            {"id": 3, "n": None, "word": None},
        ]
        assert rows(table) == expected
        assert rows(table) == sorted(table.scan(at=token).to_arrow().to_pylist(), key=repr)
        with table.writer() as writer:
            writer.upsert([{"id": 1, "word": "b"}, {"id": 2, "n": 5}])
            writer.upsert([{"id": 3, "word": "c"}])
            writer.delete([{"id": 1, "n": None}, {"id": 2}])
        assert rows(table) == [{"id": 1, "n": None, "word": "b"}, {"id": 3, "n": None, "word": "c"}]
        table.upsert([{"id": i, **({"n": 1} if i % 2 else {"word": "x"})} for i in range(100, 3_000)])
        assert counted(table) == {"inserted": 2_900}


def test_an_unknown_column_in_a_partial_delete_is_refused(tmp_path: Path) -> None:
    """Left out, it would turn into a delete of the row."""
    with ls.open(tmp_path) as lake:
        table = lake.create_table("d.t", SCHEMA, primary_key=["id"], merge="partial")
        table.upsert([{"id": 1, "n": 1}])
        with pytest.raises(Invalid, match="no column 'typo'"):
            table.delete([{"id": 1, "typo": None}])


def test_engines_follow_their_columns_over_renames_widenings_and_new_columns(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("v", pa.int32())])
    for _ in range(2):
        with ls.open(tmp_path) as lake:
            if not lake.tables():
                made = lake.create_table(
                    "d.a", schema, primary_key=["id"], merge=ls.aggregate({"n": "sum", "v": "max"})
                )
                versioned = lake.create_table("d.v", schema, primary_key=["id"], merge=ls.versioned("v"))
                partial = lake.create_table("d.p", schema, primary_key=["id"], merge="partial")
                for table in (made, versioned, partial):
                    table.upsert([{"id": 1, "n": 2**31 - 1, "v": 5}, {"id": 2, "n": 1, "v": 5}])
                versioned.delete([{"id": 2}])
                for table in (made, versioned, partial):
                    table.alter(rename={"v": "w"}, widen={"n": pa.int64()}, add={"x": pa.string()})
            made, versioned, partial = (lake.table(f"d.{name}") for name in "avp")
            made.upsert([{"id": 1, "n": 1, "x": "new"}])
            versioned.upsert([{"id": 1, "n": 7, "w": 4}, {"id": 2, "n": 7, "w": 4}])
            assert counted(versioned) == {"ignored": 2}
            partial.upsert([{"id": 1, "x": "new"}])
    with ls.open(tmp_path) as lake:
        assert lake.table("d.a").lookup([{"id": 1}]).to_pylist() == [{"id": 1, "n": 2**31 + 1, "w": 5, "x": "new"}]
        assert lake.table("d.p").lookup([{"id": 1}]).to_pylist() == [{"id": 1, "n": 2**31 - 1, "w": 5, "x": "new"}]


def test_nested_values_are_equal_by_their_parts() -> None:
    kind = pa.list_(pa.struct([("x", pa.float64()), ("m", pa.map_(pa.string(), pa.list_(pa.int8())))]))
    nan = float("nan")
    values = [
        None,
        [],
        [{"x": nan, "m": [("a", [1, None])]}],
        [{"x": 1.0, "m": []}, None],
        [{"x": 1.0, "m": None}],
        [{"x": 1.0, "m": [("a", [1])]}],
        [{"x": 1.0, "m": [("a", [2])]}],
    ]
    for shift in range(len(values)):
        other = values[shift:] + values[:shift]
        a = pa.array([*values, [{"x": 0.0, "m": []}]], kind)[:-1]
        b = pa.array([[], *other], kind)[1:]
        assert equal(a, b).tolist() == [shift == 0] * len(values)


@pytest.mark.parametrize("key", ["short", LONG], ids=["key", "hashed_key"])
@pytest.mark.parametrize("merge", ["versioned(v)", "versioned(v, within s)"])
def test_a_delete_of_a_key_without_a_row_is_remembered_and_no_change(tmp_path: Path, key: str, merge: str) -> None:
    schema = pa.schema([("id", pa.string()), ("v", pa.int64()), ("s", pa.string())])
    others = [{"id": f"{key}{n}", "v": 1, "s": "a"} for n in range(3)]

    with Served(tmp_path) as served:
        lake = served.lake
        table = lake.create_table("d.t", schema, primary_key=["id"], merge=merge, buckets=1)
        start = table.delete([{"id": key, "v": 5, "s": "a"}, {"id": key, "v": 4, "s": "a"}])
        assert counted(table) == {"not_found": 1, "folded": 1}
        table.upsert(others)

        def late(version: int) -> str:
            table = lake.table("d.t")
            table.upsert([{"id": key, "v": version, "s": "a"}])
            return next(iter(counted(table)))

        def read(**options: Any) -> list[tuple[str, str]]:
            found = lake.table("d.t").changes("earliest", until="now", **options)
            return [(row["__change"], row["id"]) for batch in found for row in batch.to_arrow().to_pylist()]

        inserted = [("+I", row["id"]) for row in others]
        for options in ({}, {"before_images": True}, {"where": "v < 9"}, {"columns": ["id"]}):
            assert read(**options) == inserted, options
        assert late(3) == "ignored"
        table.delete([{"id": key, "v": 8, "s": "a"}])
        assert counted(table) == {"not_found": 1}
        assert late(7) == "ignored", "a delete raises the version that is remembered"
        table.delete([{"id": key, "v": 6, "s": "a"}])
        assert late(7) == "ignored", "a delete that came too late does not lower it"
        assert table.insert_if_absent([{"id": key, "v": 7, "s": "a"}]).num_rows == 0
        served.kill()
        served.start()
        lake = served.lake
        assert late(7) == "ignored", "after a replay of the journal"
        served.checkpoint()
        assert late(7) == "ignored", "after a checkpoint"
        served.kill()
        shutil.rmtree(tmp_path / "index")
        served.start()
        served.until_indexed()
        lake = served.lake
        table = lake.table("d.t")
        assert late(7) == "ignored", "after a rebuild"
        assert read() == inserted
        assert table.lookup([{"id": key}]).num_rows == table.lookup([{"id": key}], at=start).num_rows == 0
        table.delete([{"id": f"{key}9"}])
        assert counted(table) == {"not_found": 1}, "without a version there is nothing to remember"
        assert late(8) == "inserted"
        assert read() == [*inserted, ("+I", key)]
        [entry] = lake.transport.audit(pb.AuditRequest(table="d.t")).buckets
        assert (entry.live_rows, entry.live_sum, entry.log_sum) == (4, entry.index_sum, entry.live_sum)


def test_an_insert_of_a_versioned_table_takes_the_first_row_that_is_not_older_than_a_delete(tmp_path: Path) -> None:
    """In one change as in several: an older row of the same key in front of it does not take its place."""
    with Served(tmp_path) as served:
        schema = pa.schema([("id", pa.int64()), pa.field("n", pa.int8(), nullable=False), ("word", pa.string())])
        table = served.lake.create_table("d.t", schema, primary_key=["id"], merge=ls.versioned("n"), buckets=1)
        table.upsert([{"id": 1, "n": 5, "word": "gone"}, {"id": 2, "n": 5, "word": "there"}])
        table.delete([{"id": 1, "n": 5}])
        sent = [(1, 3, "late"), (2, 9, "no"), (1, 6, "first"), (3, 1, "new"), (1, 9, "second"), (3, 2, "no")]
        table.insert_if_absent([dict(zip(schema.names, row, strict=True)) for row in sent])
        assert counted(table) == {"inserted": 2, "ignored": 1, "folded": 3}
        assert [(row["id"], row["word"]) for row in rows(table)] == [(1, "first"), (2, "there"), (3, "new")]


@pytest.mark.parametrize("merge", ["upsert", "partial", "versioned(id2)"])
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.list_(pa.float64())])
def test_a_zero_of_another_sign_is_a_change(tmp_path: Path, kind: pa.DataType, merge: str) -> None:
    with Served(tmp_path) as served:
        id2 = pa.field("id2", pa.int64(), nullable=merge == "partial")
        schema = pa.schema([("id", pa.int64()), id2, ("x", kind)])
        table = served.lake.create_table("d.t", schema, primary_key=["id"], merge=merge, skip_unchanged=True)
        for value, count in ((0.0, "inserted"), (0.0, "unchanged"), (-0.0, "updated"), (-0.0, "unchanged")):
            shown = [value] if pa.types.is_list(kind) else value
            table.upsert([{"id": 1, "id2": 1, "x": shown}])
            assert counted(table) == {count: 1}
            assert repr(rows(table)[0]["x"]) == repr(shown)
