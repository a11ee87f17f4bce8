"""Rename, truncate, drop and undrop are each there whole or not at all; a delete by a condition is exact."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.table import Table
from lakestore.errors import Invalid, NotFound, PositionExpired
from lakestore.union.verify import verify
from lakestore_server.read import delete_where, exact_deletes
from tests.support.seeds import seeded
from tests.support.served import Served

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), ("s", pa.string())])
MERGES: dict[str, Any] = {
    "upsert": "upsert",
    "partial": "partial",
    "first_row": "first_row",
    "versioned": ls.versioned("v"),
    "aggregate": ls.aggregate({"v": "sum", "s": "last"}),
}


@pytest.fixture(name="served", scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("whole") / "data") as served:
        yield served


def keyed(served: Served, name: str, **options: Any) -> Table:
    table = served.lake.create_table(name, SCHEMA, primary_key=["k"], buckets=3, **options)
    table.upsert([{"k": i, "v": i, "s": f"s{i}"} for i in range(100)])
    return table


def fold(table: Table) -> dict[int, dict[str, Any]]:
    """The rows that the changelog comes to; before-images are the rows before."""
    rows: dict[int, dict[str, Any]] = {}
    for batch in table.changes("earliest", until="now", before_images=True):
        for change in batch.to_pylist():
            row = {name: change[name] for name in ("k", "v", "s")}
            if change["__change"] in ("-D", "-U"):
                assert rows.pop(row["k"]) == row, "the image is the row that was there"
            if change["__change"] in ("+I", "+U"):
                rows[row["k"]] = row
    return rows


def ids(table: Table) -> set[int]:
    return set(table.scan(columns=["k"]).to_arrow()["k"].to_pylist())


@pytest.mark.parametrize("merge", MERGES)
def test_rows_that_meet_a_condition_are_deleted_whatever_the_engine(served: Served, merge: str) -> None:
    table = keyed(served, f"d.{merge}", merge=MERGES[merge])
    served.checkpoint()
    table.upsert([{"k": i, "v": i + 1, "s": "late"} for i in range(0, 100, 10)])
    expected = {row["k"] for row in table.scan(where="v % 3 = 0 OR s = 'late'").to_arrow().to_pylist()}
    dry = table.delete(where="v % 3 = 0 OR s = 'late'", dry_run=True)
    assert dry.result.deleted == len(expected)
    assert len(ids(table)) == 100
    token = table.delete(where="v % 3 = 0 OR s = 'late'")
    assert token.result.deleted == len(expected)
    assert ids(table) == set(range(100)) - expected
    assert {row["k"] for row in fold(table).values()} == ids(table)
    assert table.scan(at=token).count() == 100 - len(expected)
    assert table.delete(where="v % 3 = 0 OR s = 'late'").result.deleted == 0
    table.upsert([{"k": 3, "v": 500, "s": "again"}])
    assert 3 in ids(table)
    assert verify(served.lake.transport, table.name).same


def test_tables_that_take_no_deletes_say_so(served: Served) -> None:
    log = served.lake.create_table("d.log", SCHEMA)
    with pytest.raises(Invalid, match="is a log table"):
        log.delete(where="v = 1")
    for option in ("refuse", "ignore"):
        table = keyed(served, f"d.{option}", deletes=option)
        with pytest.raises(Invalid, match=f"has deletes='{option}': alter it to deletes='allow' first"):
            table.delete(where="v = 1")
    with pytest.raises(Invalid, match="'nope'"):
        table.alter(deletes="allow").delete(where="nope = 1")
    with pytest.raises(Invalid, match="not both"):
        table.delete([{"k": 1}], where="v = 1")
    with pytest.raises(Invalid, match="needs a condition"):
        table.delete(where="")


@pytest.mark.parametrize("in_one_call", [True, False])
def test_a_delete_that_a_drop_breaks_off_tells_the_rows_that_are_gone(
    served: Served, monkeypatch: pytest.MonkeyPatch, in_one_call: bool
) -> None:
    table = keyed(served, f"d.broken{in_one_call:d}")
    monkeypatch.setattr(exact_deletes, "BATCH_ROWS", 7)
    monkeypatch.setattr(delete_where, "CALL_SECONDS", 60.0 if in_one_call else 0.0)
    delete, gone = exact_deletes.delete, 0

    def dropped(engine: Any, at: Any, *rest: Any) -> Any:
        nonlocal gone
        if gone >= 21 and table.name in served.engine.view.names:
            served.lake.drop_table(table.name)
        count, done = delete(engine, at, *rest)
        gone += count
        return count, done

    monkeypatch.setattr(exact_deletes, "delete", dropped)
    with pytest.raises(NotFound) as broken:
        table.delete(where="v >= 0")
    assert gone >= 21
    assert str(broken.value).endswith(f"; before that {gone} rows were deleted")
    assert broken.value.applied == "unknown"
    assert served.lake.undrop(table.name).scan().count() == 100 - gone
    served.lake.drop_table(table.name)
    with pytest.raises(NotFound) as never:
        table.delete(where="v >= 0")
    assert "before that" not in str(never.value)
    assert never.value.applied == "no"


def test_a_row_that_is_rewritten_meanwhile_stays_and_calls_are_bounded(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commits are small, the call is cut into parts, and writers go on between any two of them."""
    table = keyed(served, "d.raced")
    monkeypatch.setattr(exact_deletes, "BATCH_ROWS", 7)
    monkeypatch.setattr(delete_where, "BLOCK_OFFSETS", 16)
    monkeypatch.setattr(delete_where, "CALL_SECONDS", 0.0)
    chance, kept = seeded(7), set()
    found: list[Any] = []
    delete = exact_deletes.delete

    def raced(engine: Any, at: Any, bucket: int, rows: exact_deletes.FoundRows, *rest: Any) -> Any:
        assert len(rows.offsets) <= 7
        mine = [key for key in rows.batch.column("k").to_pylist() if chance.random() < 0.3]
        kept.update(mine)
        for key in mine:
            table.upsert([{"k": key, "v": 0, "s": "rewritten"}])
        return delete(engine, at, bucket, rows, *rest)

    monkeypatch.setattr(exact_deletes, "delete", raced)
    token = table.delete(where="v >= 0", on_progress=found.append)
    assert kept
    assert ids(table) == kept
    assert token.result.deleted == 100 - len(kept)
    assert len(found) > 5
    assert (found[-1].looked_at, found[-1].offsets) == (100, 100)
    assert set(fold(table)) == kept
    assert verify(served.lake.transport, "d.raced").same


def test_a_condition_that_takes_long_ends_its_call_behind_the_rows_that_it_saw(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = served.lake.create_table("d.slow", schema, primary_key=["k"], buckets=1)
    for part in range(0, 40, 10):
        table.upsert([{"k": key, "v": key} for key in range(part, part + 10)])
    monkeypatch.setattr(delete_where, "CALL_SECONDS", 0.0)
    found: list[Any] = []
    token = table.delete(where="v % 4 = 1", on_progress=found.append)
    assert token.result.deleted == 10
    assert [each.looked_at for each in found][:2] == [10, 20]
    assert found[-1].looked_at == found[-1].offsets == 40
    assert ids(table) == {key for key in range(40) if key % 4 != 1}


def test_a_lost_answer_or_a_restart_leaves_the_rest_to_the_next_call(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed(served, "d.lost")
    monkeypatch.setattr(delete_where, "BLOCK_OFFSETS", 16)
    monkeypatch.setattr(delete_where, "CALL_SECONDS", 0.0)

    class Lost(Exception):
        pass

    def loses(progress: Any) -> None:
        if progress.looked_at > 30:
            raise Lost

    with pytest.raises(Lost):
        table.delete(where="k < 90", on_progress=loses)
    left = len(ids(table))
    assert 10 < left < 100
    served.restart()
    table = served.lake.table("d.lost")
    assert table.delete(where="k < 90").result.deleted == left - 10
    assert ids(table) == set(range(90, 100))


def test_rows_written_before_an_alteration_are_met_as_they_show_now(served: Served) -> None:
    table = keyed(served, "d.altered")
    table.alter(rename={"v": "w"}, add={"n": pa.int64()})
    assert table.delete(where="w < 50 AND n IS NULL").result.deleted == 50
    assert ids(table) == set(range(50, 100))


def test_a_truncate_beside_writers_is_seen_whole(served: Served) -> None:
    """Writers go on; no reader sees a part of what was before, and a follower is told exactly once."""
    table = keyed(served, "t.beside")
    stop = threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            handle = served.lake.table("t.beside")
            while not stop.is_set():
                handle.upsert([{"k": k, "v": -1, "s": ""} for k in range(100, 150)])
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            token = table.truncate().token
            rows = table.scan(at=token).count()
            assert rows == 0, "the cut of the truncate has no row"
            seen = ids(table)
            assert seen in (set(), set(range(100, 150))), "part of a commit"
            with pytest.raises(PositionExpired):
                list(table.changes(served.engine.view.token(served.state("t.beside").log_start_lsn - 1), until="now"))
    finally:
        stop.set()
        writer.join()
    assert not failed
    assert {row["k"] for row in fold(table).values()} == ids(table)
    assert verify(served.lake.transport, "t.beside").same


def test_a_dropped_table_comes_back_as_it_was(served: Served) -> None:
    table = keyed(served, "t.back")
    before, heads = table.scan().to_arrow().sort_by("k"), served.state("t.back").heads()
    served.lake.drop_table("t.back")
    with pytest.raises(NotFound):
        served.lake.table("t.back")
    served.restart()
    back = served.lake.undrop("t.back")
    assert back.scan().to_arrow().sort_by("k") == before
    assert served.state("t.back").heads() == heads
    assert verify(served.lake.transport, "t.back").same
