"""The changelog's checks against hand-made histories of each anomaly, and good ones of unknown outcomes."""

from __future__ import annotations

import itertools
import random
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from jepsen.checkers.consumers import Consumer, Consumers
from jepsen.workloads.changelog import ENGINES, Changelog
from jepsen.workloads.following import BEGUN_BATCHES, take_begun, take_to_end
from tests.jepsen.hand_made import Written

ALL = Consumer(tuple(ENGINES), images=True)
FILTERED = Consumer(("upsert",), where="a > 50")
COUNTS = {"inserted": 1, "updated": 0, "deleted": 0, "not_found": 0, "ignored": 0, "unchanged": 0, "folded": 0}


class Told:
    """A history of writes, and of one consumer that is told everything, or the changes where `a > 50`."""

    def __init__(self, consumer: Consumer = ALL) -> None:
        self.written, self._consumer = Written(), consumer
        self._tokens = itertools.count(1)

    @property
    def found(self) -> set[str]:
        return {each.name for each in Consumers([self._consumer], self.written.history()).anomalies()}

    def write(
        self, *rows: dict[str, Any], table: str = "upsert", kind: str = "upsert", how: str = "ok", **counts: int
    ) -> None:
        asked = [{"table": table, "kind": kind, "rows": list(rows)}]
        counted = {**COUNTS, "inserted": len(rows), **counts}
        if how != "ok":
            (self.written.failed if how == "fail" else self.written.unknown)(0, "write", asked)
        else:
            self.written.call(0, "write", asked, {"changes": asked, "counts": {table: counted}})

    def read(
        self, *changes: list[Any], start: str = "earliest", begin: str = "", table: str = "upsert", **more: Any
    ) -> str:
        """One read; the token that it has come to. With `scan` the rows that a scan gave there."""
        scans = {table: more["scan"]} if "scan" in more else {}
        batch = {
            "table": f"jepsen.changelog_{table}",
            "whole": more.get("whole", True),
            "snapshot": start == "snapshot",
        }
        token = f"t{next(self._tokens)}"
        batches = [{**batch, "token": token, "rows": list(changes)}] if changes else []
        answer = {
            "consumer": 0,
            "start": start,
            "begin": begin or start,
            "batches": batches,
            "token": token,
            "scans": scans,
        }
        self.written.call(7, "read", {"consumer": 0, "start": start}, answer)
        return token


def row(key: int, a: int, by: int | None, b: str | None = None) -> dict[str, Any]:
    return {"id": key, "a": a, "b": b, "by": by}


def at(kind: str, offset: int, values: dict[str, Any], time: str = "") -> list[Any]:
    return [kind, 0, offset, values, time]


FIRST = at("+I", 0, row(1, 60, 1))


def test_what_is_told_and_read_on_is_no_anomaly() -> None:
    told = Told()
    told.write(row(1, 60, 1))
    told.write(row(1, 61, 2), how="info")
    told.write(row(1, 62, 3), how="fail")
    told.write({"id": 1}, {"id": 9}, kind="delete", inserted=0, deleted=1, not_found=1)
    told.write(row(1, 63, 4), how="info")
    token = told.read(FIRST, at("-U", 1, row(1, 60, 1)), at("+U", 1, row(1, 61, 2)), scan=[row(1, 61, 2)])
    told.read(at("-D", 2, row(1, 61, 2)), start="resume", begin=token, scan=[])
    told.read(at("+I", 0, row(1, 60, 1)), start="snapshot", scan=[row(1, 60, 1)])
    told.read(at("-D", 2, row(1, 61, 2), "t5"), start="time", begin="t4")
    assert told.found == set()


@pytest.mark.parametrize(
    ("changes", "scan", "name"),
    [
        ([FIRST], [], "fold-is-not-the-table"),
        ([FIRST], [row(1, 7, 1)], "fold-is-not-the-table"),
        ([FIRST], [row(1, 60, 1)] * 2, "row-twice"),
        ([at("+I", 0, row(1, 61, 1))], [row(1, 61, 1)], "wrong-merge"),
        ([FIRST, at("-U", 1, row(1, 60, 1)), at("+U", 1, row(1, 8, 77))], [row(1, 8, 77)], "phantom"),
        ([FIRST, at("-U", 1, row(1, 60, 1)), at("+U", 1, row(1, 62, 3))], [row(1, 62, 3)], "aborted-read"),
        ([FIRST, at("-D", 1, row(1, 60, 1))], [], "phantom-delete"),
        ([FIRST, at("-D", 1, row(1, 61, 1))], [], "false-before-image"),
        ([FIRST, at("+I", 1, row(1, 60, 1))], [row(1, 60, 1)], "insert-of-present"),
        ([FIRST, at("+U", 1, row(1, 60, 1))], [row(1, 60, 1)], "no-before-image"),
        ([at("+I", 1, row(1, 60, 1))], [row(1, 60, 1)], "not-reliable"),
        ([], [], "lost"),
    ],
)
def test_a_false_stream_is_told_by_name(changes: list[Any], scan: list[Any], name: str) -> None:
    told = Told()
    told.write(row(1, 60, 1))
    told.write(row(1, 62, 3), how="fail")
    told.read(*changes, scan=scan)
    assert name in told.found


def test_a_consumer_that_goes_on_skips_and_repeats_nothing() -> None:
    for following, name in ((at("+I", 2, row(3, 1, 3)), "not-reliable"), (FIRST, "not-unique")):
        told = Told()
        for by in (1, 2, 3):
            told.write(row(by, 60 if by == 1 else 1, by))
        token = told.read(FIRST)
        told.read(following, start="resume", begin=token)
        assert name in told.found
    told = Told()
    told.read()
    told.read(start="resume", begin="t99")
    assert told.found == {"not-resumable"}


def test_rows_of_one_key_in_one_commit_follow_one_another() -> None:
    first, second = at("+I", 0, row(1, 60, 1)), [at("-U", 1, row(1, 60, 1)), at("+U", 1, row(1, 61, 2))]
    for changes, found in (
        ([first, *second], set()),
        ([first, at("+I", 1, row(1, 61, 2))], {"insert-of-present", "wrong-merge"}),
    ):
        told = Told()
        told.write(row(1, 60, 1), row(1, 61, 2), inserted=1, updated=1)
        told.read(*changes)
        assert told.found == found


def test_the_record_at_an_offset_never_changes() -> None:
    told = Told()
    told.write(row(1, 60, 1), how="info")
    told.write(row(1, 61, 2), how="info")
    told.read(FIRST)
    told.read(at("+I", 0, row(1, 61, 2)))
    assert told.found == {"changed-record"}


def test_offsets_go_up() -> None:
    told = Told()
    for by in (1, 2):
        told.write(row(by, 60, by))
    token = told.read(FIRST, at("+I", 1, row(2, 60, 2)))
    told.read(FIRST, start="resume", begin=token)
    assert "not-ordered" in told.found


def test_a_commit_comes_whole() -> None:
    told = Told()
    told.write(row(1, 60, 1), row(2, 60, 2))
    told.read(FIRST)
    assert "not-atomic" in told.found


def test_a_no_op_stores_nothing_and_rows_are_counted_once() -> None:
    told = Told()
    told.write(row(1, 1, None), table="skipping")
    same = row(1, 1, None)
    told.read(at("+I", 0, same), at("-U", 1, same), at("+U", 1, same), table="skipping")
    assert told.found == {"no-op-stored"}
    told = Told()
    told.write(row(1, 60, 1), updated=1)
    told.read(FIRST)
    assert told.found == {"miscounted"}


@pytest.mark.parametrize(
    ("table", "written", "stored"),
    [
        ("partial", [{"id": 1, "a": 5, "by": 2}], row(1, 5, 2, "x")),
        ("aggregate", [row(1, 5, 2)], row(1, 65, 2)),
        ("versioned", [row(1, 70, 2)], row(1, 70, 2)),
    ],
)
def test_rows_are_as_their_engine_merges_them(
    table: str, written: list[dict[str, Any]], stored: dict[str, Any]
) -> None:
    first = row(1, 60, 1, "x")
    for found, is_right in ((stored, True), ({**stored, "a": 4}, False)):
        told = Told()
        told.write(first, table=table)
        told.write(*written, table=table, inserted=0, updated=1)
        told.read(at("+I", 0, first), at("-U", 1, first), at("+U", 1, found), table=table)
        assert (told.found == set()) is is_right
    for wrong, kept in (("versioned", row(1, 3, 2)), ("first_row", row(1, 70, 2))):
        told = Told()
        told.write(first, table=wrong)
        told.write(kept, table=wrong, inserted=0, updated=1)
        told.read(at("+I", 0, first), at("-U", 1, first), at("+U", 1, kept), table=wrong)
        assert "wrong-merge" in told.found


def test_a_filtered_stream_is_the_changelog_of_the_filtered_table() -> None:
    told = Told(FILTERED)
    told.write(row(1, 60, 1), how="info")
    told.write(row(1, 5, 2), how="info")
    token = told.read(FIRST, scan=[row(1, 60, 1)])
    told.read(at("-D", 4, row(1, 60, 1)), start="resume", begin=token, scan=[])
    assert told.found == set()
    told.read(at("-D", 4, row(1, 5, 2)), start="resume", begin=token, scan=[row(1, 60, 1)])
    assert {"not-resumable", "change-of-absent", "fold-is-not-the-table"} <= told.found


def test_a_stream_from_a_time_has_all_from_then_on() -> None:
    told = Told()
    for by in (1, 2):
        told.write(row(by, 60, by))
    both = at("+I", 0, row(1, 60, 1), "t1"), at("+I", 1, row(2, 60, 2), "t2")
    told.read(*both)
    told.read(both[1], start="time", begin="t1")
    assert told.found == {"not-reliable"}
    told.read(*both, start="time", begin="t2")
    assert told.found == {"not-reliable", "before-its-time"}


def test_rows_are_unique_and_one_seed_replays() -> None:
    for seed in range(20):
        first, again = (
            [*itertools.islice(Changelog(random.Random(seed)).operations(2, random.Random(5)), 200)] for _ in "ab"
        )
        assert first == again
        names = [
            each["by"]
            for write in first
            if write.f == "write"
            for change in write.value
            for each in change["rows"]
            if "by" in each
        ]
        assert len(names) == len(set(names)) > 50


def test_a_snapshot_is_taken_whole_with_a_rest_within_and_with_what_is_written_meanwhile(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
        table = lake.create_table("jepsen.begun", schema, primary_key=["id"], buckets=30)
        table.upsert([{"id": number} for number in range(400)])
        with closing(table.changes("snapshot")) as stream:
            writer = threading.Thread(target=lambda: table.upsert([{"id": 400}]))
            writer.start()
            found = take_begun(stream, 0.05, 2.0, 20.0)
            writer.join()
    parts = [each.snapshot for each in found]
    assert parts == sorted(parts, reverse=True), "changes come behind the snapshot"
    assert sum(parts) > BEGUN_BATCHES
    assert sorted(row["id"] for each in found for row in each.to_pylist()) == [*range(401)]


def test_a_stream_that_gives_nothing_and_does_not_end_has_answered_nothing(tmp_path: Path) -> None:
    with ls.open(tmp_path / "lake") as lake:
        table = lake.create_table("s.t", pa.schema([("id", pa.int64())]))
        table.append([{"id": 1}])
        assert [each.table.num_rows for each in take_to_end(table.changes(until="now"), 20.0)] == [1]
        assert [each.table.num_rows for each in take_to_end(table.changes(), 3.0)] == [1], "without an end"
        with pytest.raises(ls.Unavailable, match="nothing came"):
            take_to_end(table.changes("latest"), 0.3)


def test_some_runs_mostly_begin_with_snapshots() -> None:
    shares = []
    for seed in range(20):
        drawn = [*itertools.islice(Changelog(random.Random(seed)).operations(0, random.Random(seed)), 200)]
        shares.append(sum(each.f == "live" and "rest" in each.value for each in drawn) / len(drawn))
    assert min(shares) > 0
    assert max(shares) > 0.2
    assert sorted(shares)[10] < 0.2, "most runs do not"
