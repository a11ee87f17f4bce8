"""Large requests give way to small commits that somebody waits for: for a moment, and not for those that come later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.limits import Limits
from lakestore_server.commit import build, priority
from lakestore_server.commit.commit_verbs import CommitVerbs
from lakestore_server.commit.priority import (
    PATIENT_SECONDS_MAX,
    PATIENT_SHARE,
    BackgroundPriority,
    CommitPriority,
    DutyPriority,
    Pace,
    RequestPriority,
)
from lakestore_server.commit.request import Request
from tests.support.served import Served
from tests.support.waiting import until

LONG = 600.0
"""Longer than a test may take: whoever waits so long fails it."""

_BUILD = build.build


def begun(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_large_request_waits_until_the_small_commits_under_way_are_answered() -> None:
    between = CommitPriority()
    first, second = between.under_way(), between.under_way()
    first.__enter__()
    second.__enter__()
    waiting = begun(lambda: between.answered(LONG))
    until(lambda: between._changed._waiters, "it waits")  # type: ignore[attr-defined]
    second.__exit__(None, None, None)
    waiting.join(0.1)
    assert waiting.is_alive(), "the first one is not answered yet"
    later = between.under_way()
    later.__enter__()
    first.__exit__(None, None, None)
    waiting.join(LONG)
    assert not waiting.is_alive(), "one that came later does not count"


def test_nobody_waits_where_no_small_commit_is_under_way() -> None:
    between = CommitPriority()
    with between.under_way():
        pass
    between.answered(LONG)


def test_a_small_commit_that_fails_is_over() -> None:
    between = CommitPriority()
    with suppress(InterruptedError), between.under_way(), between.coming():
        assert between.is_coming
        raise InterruptedError
    assert not between.is_coming
    between.answered(LONG)


def test_who_waits_for_small_commits_is_told_when_none_is_coming() -> None:
    between, told = CommitPriority(), list[bool]()
    between.on_none_coming = lambda: told.append(between.is_coming)
    with suppress(InterruptedError), between.coming():
        with between.coming():
            pass
        assert told == []
        raise InterruptedError
    assert told == [False]


def test_requests_that_are_taken_together_wait_a_limited_time_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority, "GIVEN_SECONDS_MAX", 0.2)
    between = CommitPriority()
    with between.under_way():
        background, began = BackgroundPriority(between), time.monotonic()
        for _ in range(100):
            background.give_way()
        took = time.monotonic() - began
    assert took >= 0.2


def test_large_commits_give_way_and_small_ones_are_seen_before_they_are_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, seen = list[float](), list[int]()
    answered = CommitPriority.answered

    def noted_wait(way: CommitPriority, seconds: float) -> None:
        given.append(seconds)
        answered(way, seconds)

    monkeypatch.setattr(CommitPriority, "answered", noted_wait)
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    with Served(tmp_path / "data") as served:
        way, queued = served.engine.loop.priority, CommitVerbs._queued

        def noted(writes: CommitVerbs, several: Sequence[Request], priority: RequestPriority) -> Iterator[Request]:
            seen.extend([way._coming, len(way._under_way)])
            return queued(writes, several, priority)

        monkeypatch.setattr(CommitVerbs, "_queued", noted)
        table = served.lake.create_table("d.t", schema, primary_key=["id"])
        table.upsert([{"id": 1, "v": "small"}])
        assert (given, seen) == ([], [1, 1])
        table.upsert(pa.table({"id": range(2_000), "v": ["large" * 20] * 2_000}, schema))
        assert len(given) >= 4, "before it is decoded, before its keys are looked up, and at stages of both"
        assert seen[2:] == [0, 0]
        assert not way.is_coming
        assert not way._under_way


def test_a_duty_waits_for_small_commits_a_bounded_share_of_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waits = [0.0], list[float]()

    def answered(_: CommitPriority, seconds: float) -> None:
        waits.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(CommitPriority, "answered", answered)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    duty = DutyPriority(CommitPriority())
    for _ in range(100):
        clock[0] += 0.01
        duty.give_way()
    clock[0] += 10.0
    duty.give_way()
    assert sum(waits[:100]) == pytest.approx(100 * 0.01 * PATIENT_SHARE)
    assert waits[100] == PATIENT_SECONDS_MAX, "however long nothing came"


def test_checkpoints_and_merges_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()
    monkeypatch.setattr(DutyPriority, "give_way", lambda _: asked.append("stage"))
    limits = Limits(segment_rows=10, shared_segment_bytes=0, merge_bytes=0, merge_segments=2)
    with Served(tmp_path / "data", limits=limits) as served:
        table = served.lake.create_table("d.t", pa.schema([("id", pa.int64())]), primary_key=["id"], buckets=1)
        for first in (0, 40_000):
            before = len(asked)
            table.upsert(pa.table({"id": range(first, first + 40_000)}))
            served.checkpoint()
            assert len(asked) > before
        before, merger = len(asked), served.server.upkeep.checkpointer.merger
        merger.run_once()
        assert merger.figures.segments == 2
        assert len(asked) > before


def test_a_checkpoint_does_not_wait_for_commits_that_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small commits are under way while they wait for the room that it makes in a full journal."""
    asked = list[float]()
    with Served(tmp_path / "data") as served:
        table = served.lake.create_table("d.t", pa.schema([("id", pa.int64())]), primary_key=["id"])
        monkeypatch.setattr(CommitPriority, "answered", lambda _, seconds: asked.append(seconds))
        for is_full in (True, False):
            table.upsert(pa.table({"id": range(40_000)}))
            asked.clear()
            with monkeypatch.context() as patched:
                patched.setattr(Pace, "is_full", lambda *_, full=is_full: full)
                served.checkpoint()
            assert bool(asked) is not is_full


def test_a_large_commit_that_is_being_made_lets_a_small_one_go_first_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, small = list[int](), list[Future[str]]()

    def built_with(group: Sequence[Request], *rest: Any) -> build.BuiltCommit:
        """Has a small commit come while a large one is made."""
        rows = sum(change.batch.num_rows for request in group for change in request.changes)
        built.append(rows)
        if rows > 1:
            small.append(pool.submit(others.upsert, [{"id": -len(small)}]))
            until(lambda: len(queue) > 0, "the small request")
        return _BUILD(group, *rest)

    schema = pa.schema([("id", pa.int64())])
    with Served(tmp_path / "data") as served, ThreadPoolExecutor(2) as pool:
        queue = served.engine.loop.queue
        table = served.lake.create_table("d.t", schema, primary_key=["id"])
        others = served.lake.create_table("d.small", schema, primary_key=["id"])
        monkeypatch.setattr(build, "build", built_with)
        table.upsert(pa.table({"id": range(20_000)}))
        held = [served.lake.at(each.result(LONG)).scan("d.t").to_arrow().num_rows for each in small]
        assert built == [20_000, 1, 20_000, 1]
        assert held == [0, 20_000], "one small commit is before it, the other one behind it"


def test_a_small_commit_does_not_wait_for_itself_whatever_its_rows_become(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few columns of a wide table are a small message, and rows of all its columns."""
    asked = list[float]()
    monkeypatch.setattr(CommitPriority, "answered", lambda _, seconds: asked.append(seconds))
    wide = pa.schema([("id", pa.int64()), *((f"v{number}", pa.int64()) for number in range(60))])
    with Served(tmp_path / "data") as served:
        table = served.lake.create_table("d.wide", wide, primary_key=["id"])
        table.upsert(pa.table({"id": range(300), "v0": range(300)}))
        with served.lake.table("d.wide").writer() as writer:  # nobody waits for each of these, and they wait for nobody
            writer.upsert([{"id": id, "v0": id} for id in range(300, 310)])
        assert table.scan().count() == 310
        assert asked == []
