"""Kept columns: a row takes the value of the row before it, wherever that is, or refuses its commit by its number."""

from __future__ import annotations

import datetime as dt
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.writer import Marks, change_to
from lakestore.errors import ChangeRows, Invalid, NothingToKeep
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore_server.commit.build import build
from lakestore_server.commit.request import Request
from tests.support.log_start import compact, move_log_start
from tests.support.merge_cases import grouped
from tests.support.served import Served

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("v", pa.int64()),
        pa.field("blob", pa.binary(), nullable=False),
        ("more", pa.list_(pa.struct([("x", pa.int32())]))),
    ]
)
MERGES = ("upsert", "versioned(v)", {"versioned": "v", "within": "n"})
KINDS: dict[str, pa.DataType] = {
    "string": pa.string(),
    "fixed": pa.binary(3),
    "decimal": pa.decimal128(30, 2),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "at": pa.timestamp("us", tz="UTC"),
    "half": pa.float32(),
    "map": pa.map_(pa.string(), pa.int8()),
    "struct": pa.struct([("a", pa.string())]),
}
VALUES: dict[str, Any] = {
    "string": "ä",
    "fixed": b"abc",
    "decimal": 7,
    "bool": True,
    "date": dt.date(2026, 1, 2),
    "time": dt.time(1, 2, 3),
    "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "half": 0.5,
    "map": [("k", 1)],
    "struct": {"a": "x"},
}


def rows(table: ls.Table) -> dict[int, dict[str, Any]]:
    return {row.pop("id"): row for row in table.scan().to_arrow().to_pylist()}


def counted(table: ls.Table) -> dict[str, int]:
    assert table.last_result is not None
    counts = asdict(table.last_result)
    return {name: value for name, value in counts.items() if value and name not in ("table", "schema_id")}


def photos(lake: ls.Lake, name: str = "d.t", **options: Any) -> ls.Table:
    table = lake.create_table(name, SCHEMA, primary_key=["id"], **{"buckets": 3, **options})
    table.upsert([{"id": i, "v": 1, "blob": b"%d" % i, "more": [{"x": i}]} for i in range(8)])
    return table


def test_rows_keep_what_the_row_before_them_has_in_tail_segment_and_base(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = photos(served.lake)
        for place in ("tail", "segments", "base"):
            if place != "tail":
                served.checkpoint()
            if place == "base":
                move_log_start(served.engine, "d.t")
                compact(served.server)
            keys = [5, 0, 3]
            table.upsert(pa.table({"id": keys, "v": [2, 2, 2]}), keep=["blob", "more"])
            assert counted(table) == {"updated": 3}
            found = rows(table)
            assert [found[i] for i in keys] == [{"v": 2, "blob": b"%d" % i, "more": [{"x": i}]} for i in keys], place
            assert found[1] == {"v": 1, "blob": b"1", "more": [{"x": 1}]}


@pytest.mark.parametrize("merge", MERGES[:2], ids=str)
def test_rows_of_a_key_follow_one_another_in_one_change_one_commit_and_one_group(tmp_path: Path, merge: str) -> None:
    def row(key: int, v: int, blob: bytes | None) -> dict[str, Any]:
        return {"id": key, "v": v, "blob": blob, "more": None}

    with Served(tmp_path) as served:
        table, lake = photos(served.lake, merge=merge), served.lake
        table.upsert(
            [row(1, 2, None), row(9, 2, b"new"), row(1, 3, b"one"), row(9, 3, None), row(1, 4, None), row(1, 5, None)],
            keep={"blob": [True, False, False, True, True, True]},
        )
        assert {i: rows(table)[i]["blob"] for i in (1, 9)} == {1: b"one", 9: b"new"}
        with lake.commit() as commit:
            commit.upsert("d.t", [row(20, 1, b"a"), row(1, 6, b"two")])
            commit.upsert("d.t", [row(20, 2, None), row(1, 7, None)], keep=["blob"])
            commit.delete("d.t", [{"id": 2}])
            commit.upsert("d.t", [row(2, 8, b"anew")])
            commit.upsert("d.t", [row(2, 9, None)], keep=["blob"])
        assert [rows(table)[i]["blob"] for i in (20, 1, 2)] == [b"a", b"two", b"anew"]
        definition, schema = table.definition, SCHEMA.remove(3)

        def request(producer: str, key: int, v: int, blob: bytes | None) -> pb.CommitRequest:
            batch = pa.RecordBatch.from_pylist([{"id": key, "v": v, "blob": blob or b""}], schema)
            marks = Marks() if blob else Marks(("blob",))
            made = change_to(definition, pb.UPSERT, [batch], marks)
            return pb.CommitRequest(changes=[made], producer=producer, sequence=1)

        sent = [request("a", 30, 1, b"g"), request("b", 30, 2, None), request("c", 31, 1, None)]
        first, second, refused = grouped(served, sent)
        assert first.lsn == second.lsn
        assert isinstance(refused, NothingToKeep)
        assert rows(table)[30] == {"v": 2, "blob": b"g", "more": None}


def test_all_rows_with_nothing_to_keep_are_named_and_the_commit_goes_without_them(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        table, other = photos(lake), photos(lake, "d.o", merge="versioned(v)")
        other.delete([{"id": 6, "v": 5}])
        before = rows(table), rows(other)

        def filled(commit: ls.Commit, gone: dict[int, tuple[int, ...]]) -> None:
            commit.upsert("d.o", [{"id": 80, "v": 1, "blob": b"in"}, {"id": 81, "v": 1, "blob": b"two", "more": None}])
            sent: list[tuple[str, list[tuple[int, int]], list[bool]]] = [
                ("d.t", [(50, 1)], [False]),
                ("d.t", [(51, 1), (1, 1), (50, 2), (52, 1), (52, 2), (51, 1), (51, 1)], [True] * 5 + [False, True]),
                (
                    "d.o",
                    [(6, 4), (6, 6), (7, 0), (60, 9), (60, 8), (60, 10), (61, 1)],
                    [True] * 4 + [False, True, True],
                ),
                ("d.t", [(52, 3), (51, 4)], [True, True]),
            ]
            for call, (name, keys, keep) in enumerate(sent, start=1):
                left = [i for i in range(len(keys)) if i not in gone.get(call, ())]
                data = [{"id": keys[i][0], "v": keys[i][1], "blob": None if keep[i] else b"own"} for i in left]
                commit.upsert(name, data, keep={"blob": [keep[i] for i in left]})

        with pytest.raises(NothingToKeep) as caught, lake.commit() as commit:
            filled(commit, {})
        assert (rows(table), rows(other)) == before
        error = caught.value
        assert error.changes == (
            ChangeRows(2, "d.t", (0, 3, 4)),
            ChangeRows(3, "d.o", (1, 3, 6)),
            ChangeRows(4, "d.t", (0,)),
        )
        assert (error.table, error.rows, error.applied) == ("d.t", (0, 3, 4), "no")
        assert error.message.startswith(
            "table d.t: row 0 keeps columns of the row of its key, and there is none, one of"
        )
        with lake.commit() as commit:
            filled(commit, {change: numbers for change, _, numbers in error.changes})
        assert {i: rows(table)[i]["blob"] for i in (1, 50, 51)} == {1: b"1", 50: b"own", 51: b"own"}
        assert {i: row["v"] for i, row in rows(other).items() if i >= 6} == {7: 1, 60: 10, 80: 1, 81: 1}


def test_a_row_that_its_version_ignores_needs_nothing_to_keep(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        table = photos(lake, merge="versioned(v)")
        table.delete([{"id": 1, "v": 7}])
        table.upsert([{"id": 1, "v": 6}, {"id": 2, "v": 0}], keep=["blob"])
        assert counted(table) == {"ignored": 2}
        with pytest.raises(NothingToKeep):
            table.upsert([{"id": 1, "v": 7}], keep=["blob"])
        sent = [{"id": 3, "v": 9, "blob": b"high"}, {"id": 3, "v": 8, "blob": b"low"}, {"id": 3, "v": 9}]
        table.upsert(sent, keep={"blob": [False, False, True]})
        assert rows(table)[3]["blob"] == b"high", "what came in last is the row before, not what was ignored"


def test_kept_rows_that_equal_the_live_one_are_no_change_where_the_table_skips_those(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        for merge in MERGES[:2]:
            table = photos(lake, f"d.{merge[0]}", merge=merge, skip_unchanged=True)
            table.upsert([{"id": 1, "v": 1}, {"id": 2, "v": 2}], keep=["blob", "more"])
            assert counted(table) == {"unchanged": 1, "updated": 1}
            seen = [r for b in table.changes(before_images=True, until="now") for r in b.to_arrow().to_pylist()]
            last = [(row["__change"], row["v"], row["blob"]) for row in seen if row["__change"] != "+I"]
            assert last == [("-U", 1, b"2"), ("+U", 2, b"2")]


def test_values_of_every_type_are_kept_by_flags_of_their_own(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), *KINDS.items()])
    with ls.open(tmp_path) as lake:
        table = lake.create_table("d.t", schema, primary_key=["id"], buckets=2)
        table.upsert([{"id": i, **VALUES} for i in range(3)])
        before = rows(table)
        for number, name in enumerate(KINDS):
            flags = [number % 2 == 0, True, number % 3 == 0]
            others = [other for other in KINDS if other != name]
            table.upsert([{"id": i} for i in range(3)], keep={name: flags, **{o: [True] * 3 for o in others}})
            found = rows(table)
            for i, flag in enumerate(flags):
                assert found[i] == {**before[i], **({} if flag else {name: None})}, name
            table.upsert([{"id": i, **VALUES} for i in range(3)])


def test_what_cannot_be_kept_is_refused_by_a_sentence(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("n", pa.int64()), ("a", pa.int64())])
    with ls.open(tmp_path) as lake:
        within = lake.create_table("d.w", schema, primary_key=["id"], merge=MERGES[2])
        for column, why in (
            ("id", "'id' is in the primary key"),
            ("v", "'v' says what is older"),
            ("n", "'n' says what is older"),
            ("zz", "no column 'zz'"),
        ):
            with pytest.raises(Invalid, match=why):
                within.upsert([{"id": 1, "v": 1, "n": 1}], keep=[column])
        plain = lake.create_table("d.t", schema, primary_key=["id"])
        plain.upsert([{"id": 1, "a": 5}])
        with pytest.raises(Invalid, match="names a column twice"):
            plain.upsert([{"id": 1}], keep=["a", "a"])
        with pytest.raises(Invalid, match="a list of column names, not the text 'a'"):
            plain.upsert([{"id": 1}], keep="a")
        nameless: tuple[Any, ...] = (5, ["a", None], {5: [True]}, [["a"]])
        for keep in nameless:
            with pytest.raises(Invalid, match=r"keep= takes names of columns, not (5|None|\['a'\])"):
                plain.upsert([{"id": 1}], keep=keep)
        with pytest.raises(Invalid, match="2 values for 1 rows"):
            plain.upsert([{"id": 1}], keep={"a": [True, False]})
        with pytest.raises(Invalid, match="has no bool for each row"):
            plain.upsert([{"id": 1}], keep={"a": ["maybe"]})
        with pytest.raises(Invalid, match="'__keep_a' is true where a row keeps its column, else false"):
            plain.upsert([{"id": 1}], keep={"a": [None]})
        batch = pa.RecordBatch.from_pylist([{"id": 1, "__keep_a": True}])
        with pytest.raises(Invalid, match="no column '__keep_a'"):
            plain.upsert(batch)
        for kind in (pb.INSERT, pb.DELETE):
            made = change_to(plain.definition, kind, [batch.select(["id"])], Marks(("a",)))
            with pytest.raises(Invalid, match="rows to upsert keep columns"):
                lake.transport.commit(pb.CommitRequest(changes=[made]))
        engines: tuple[Any, ...] = ("partial", "first_row", {"aggregate": {"a": "sum"}})
        for number, merge in enumerate(engines):
            table = lake.create_table(f"d.m{number}", schema, primary_key=["id"], merge=merge)
            with pytest.raises(Invalid, match=r"its merge engine .* keeps no columns by name"):
                table.upsert([{"id": 1}], keep=["a"])
        assert rows(plain) == {1: {"v": None, "n": None, "a": 5}}


def test_a_required_column_may_be_null_only_where_it_is_kept(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        table = photos(lake)
        with pytest.raises(Invalid, match="required column 'blob' is null in row 1"):
            table.upsert([{"id": 5, "blob": None}, {"id": 2, "blob": None}], keep={"blob": [True, False]})
        with pytest.raises(Invalid, match="required column 'blob' is null in row 1"):
            table.upsert([{"id": 5}, {"id": 2}], keep={"blob": [True, False]})
        table.alter(rename={"blob": "bytes"}, add={"later": pa.string()})
        old = photos(lake, "d.o")
        lake.table("d.o").alter(rename={"blob": "bytes"}, drop=["more"])
        old.upsert([{"id": 3, "v": 2}], keep=["blob"])
        assert rows(lake.table("d.o"))[3] == {"v": 2, "bytes": b"3"}
        with pytest.raises(Invalid, match="'more' of schema version 0 was dropped"):
            old.upsert([{"id": 3, "v": 2}], keep=["more"])


def test_one_row_that_is_kept_often_is_counted_as_often_against_the_memory_of_a_commit(tmp_path: Path) -> None:
    limits = replace(Limits(), batch_memory_bytes=4 << 20, message_bytes=2 << 20)
    with Served(tmp_path, limits=limits) as served:
        table = photos(served.lake)
        table.upsert([{"id": 1, "v": 1, "blob": b"x" * (1 << 20)}])
        many = pa.table({"id": [1] * 100, "v": list(range(100))})
        with pytest.raises(Invalid, match="takes more than 4194304 bytes: send fewer rows at once"):
            table.upsert(many, keep=["blob"])
        table.upsert(many.slice(0, 2), keep=["blob"])
        assert counted(table) == {"updated": 2}
        wide = "y" * (1 << 20)
        schema = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.string())])
        table = served.lake.create_table("d.k", schema, primary_key=["id"])
        table.upsert([{"id": 1, "a": wide}])
        with pytest.raises(Invalid, match=r"the merged row id=1 takes .* bytes, and no message could hold it"):
            table.upsert([{"id": 1, "b": wide}], keep=["a"])


def test_kept_values_are_there_after_a_replay_and_the_loss_of_the_index(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = photos(served.lake, merge="versioned(v)")
        table.upsert([{"id": 1, "v": 2}, {"id": 1, "v": 3}], keep=["blob"])
        found = rows(table)
        served.server.close(checkpoint=False)
    for lost in (False, True):
        if lost:
            shutil.rmtree(tmp_path / "index")
        with Served(tmp_path) as served:
            served.until_indexed()
            table = served.lake.table("d.t")
            assert rows(table) == found
            table.upsert([{"id": 2, "v": 3}], keep=["blob"])
            found = rows(table)
            assert found[2]["blob"] == b"2"


def test_a_writer_keeps_columns_and_tells_which_of_its_rows_have_nothing_to_keep(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        table = photos(lake)
        with table.writer() as writer:
            writer.upsert([{"id": 1, "v": 2}], keep=["blob"])
            writer.upsert([{"id": 2, "v": 2, "blob": b"new"}])
            writer.upsert([{"id": 2, "v": 3}, {"id": 3, "v": 3, "blob": b"own"}], keep={"blob": [True, False]})
        assert {i: rows(table)[i]["blob"] for i in (1, 2, 3)} == {1: b"1", 2: b"new", 3: b"own"}
        writer = table.writer()
        writer.upsert([{"id": 1, "v": 4}, {"id": 70, "v": 4}], keep=["blob"])
        with pytest.raises(NothingToKeep) as caught:
            writer.flush()
        sent = pa.Table.from_batches(writer.unconfirmed)
        assert [sent.column("id")[row].as_py() for row in caught.value.rows] == [70]
        with pytest.raises(NothingToKeep):
            writer.upsert([{"id": 1, "v": 5}], keep=["blob"])


def test_an_older_server_is_not_sent_what_it_would_ignore() -> None:
    method = rpc.METHODS["Commit"]
    for marked in (pb.Change(keep=["a"]), pb.Change(as_of=True)):
        with pytest.raises(Invalid, match=r"would ignore '(keep|as_of)' of Commit, which came with protocol 5"):
            rpc.check_known(method, pb.CommitRequest(changes=[marked]), 4, "0.2.0")


def test_rows_with_a_column_twice_are_refused_whatever_they_are_for(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        table = photos(lake, merge="versioned(v)")
        twice = pa.RecordBatch.from_arrays([pa.array([1])] * 3, names=["id", "v", "v"])
        for kind, marks in ((pb.DELETE, Marks()), (pb.UPSERT, Marks(("blob",))), (pb.INSERT, Marks())):
            request = pb.CommitRequest(changes=[change_to(table.definition, kind, [twice], marks)])
            with pytest.raises(Invalid, match=r"table d\.t: the rows have a column twice"):
                lake.transport.commit(request)


def test_a_group_of_refused_requests_is_made_a_few_times_and_its_others_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a group that was refused was once made anew for each refusal, and nobody else could commit meanwhile."""
    made: list[int] = []

    def counting(group: Sequence[Request], *others: Any) -> Any:
        made.append(len(group))
        return build(group, *others)

    monkeypatch.setattr("lakestore_server.commit.build.build", counting)
    with Served(tmp_path) as served:
        table = photos(served.lake)

        def request(producer: str, sequence: int, key: int) -> pb.CommitRequest:
            batch = pa.RecordBatch.from_pylist([{"id": key, "v": sequence}], SCHEMA.remove(3).remove(2))
            change = change_to(table.definition, pb.UPSERT, [batch], Marks(("blob",)))
            return pb.CommitRequest(changes=[change], producer=producer, sequence=sequence)

        made.clear()
        sent = [request(f"p{i}", 1, 100 + i) for i in range(64)]
        sent[20] = request("p20", 1, 1)
        sent += [request("p20", 2, 2), request("p21", 2, 3)]
        answers = grouped(served, sent)
        kinds = Counter(type(answer).__name__ for answer in answers[:64])
        assert kinds == {"NothingToKeep": 63, "Answer": 1}
        assert answers[64].results[0].updated == 1
        assert "does not follow" in answers[65].message
        assert {i: rows(table)[i]["v"] for i in (1, 2, 3)} == {1: 1, 2: 2, 3: 1}
        assert sum(made) < 64 * 12
