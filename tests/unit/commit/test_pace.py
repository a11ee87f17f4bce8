"""The pace of large requests: slower as the journal's room ends, never a stop, and nothing of it without need."""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.local import attached
from lakestore.limits import DEFAULT
from lakestore_server.commit.pace import JournalSize, Pace
from lakestore_server.commit.queue import SMALL_BYTES_MAX, CommitQueue
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import RealDisk
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.support.served import Served

MB = 1_000_000
LIMITS = replace(DEFAULT, journal_checkpoint_bytes=100 * MB, journal_bytes=300 * MB)
REQUEST = 1 * MB
SLOW = replace(DEFAULT, journal_checkpoint_bytes=4 * MB, journal_bytes=12 * MB, queue_wait_ms=10_000)
CHECKPOINT_SECONDS = 0.8


class SlowDisk(RealDisk):
    """A disk by which a checkpoint takes long."""

    def reach(self, point: CrashPoint) -> None:
        """Nothing, but for a while."""
        if point is CrashPoint.CHECKPOINT_FROZEN:
            time.sleep(CHECKPOINT_SECONDS)


class FailingDisk(RealDisk):
    """A disk by which a checkpoint fails once it has begun."""

    def reach(self, point: CrashPoint) -> None:
        """Nothing, but for that."""
        if point is CrashPoint.CHECKPOINT_FROZEN:
            raise OSError(28, "No space left on device")


class Run:
    """A producer that is always ready, upon a clock of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.size = JournalSize(100 * MB)
        self.pace = Pace(self.size, LIMITS, lambda: self.now)
        self.waits: list[float] = []

    def checkpoint(self, seconds: float, rate: float) -> None:
        """Write at most at a rate while a checkpoint takes so long."""
        self.pace.begin()
        end = self.now + seconds
        while self.now < end:
            waits = self.pace.wait()
            self.now += waits
            if self.now < end:
                self.waits.append(waits)
                self.pace.take(REQUEST, 0)
                self.size.since_checkpoint += REQUEST
                assert not self.pace.is_full(), "writers stand still"
                self.now += REQUEST / rate
        self.now = end
        self.pace.end()

    def known(self, seconds: float) -> None:
        """Have a checkpoint taken so long, with hardly anything written meanwhile."""
        self.checkpoint(seconds, MB)
        self.waits = []


def test_who_writes_no_faster_than_checkpoints_make_room_waits_for_nothing() -> None:
    run = Run()
    run.known(2.0)
    run.checkpoint(2.0, 70 * MB)
    assert max(run.waits) < 1e-9


@pytest.mark.parametrize("late", [0.5, 1.0, 2.0])
def test_who_writes_faster_is_slowed_down_and_never_stopped(late: float) -> None:
    """Also by a checkpoint that takes longer than the last one."""
    run = Run()
    run.known(2.0)
    run.size.since_checkpoint = 100 * MB
    run.checkpoint(2.0 * late, 1_000 * MB)
    first, last = run.waits[: len(run.waits) // 4], run.waits[-len(run.waits) // 4 :]
    assert max(first) < 0.02
    assert max(last) < LIMITS.queue_wait_ms / 1_000, "a request that waits longer is told to come again"
    if late == 1.0:
        assert run.size.untrimmed > 200 * MB * 0.75, "most of the room is used by then"


def test_one_slow_checkpoint_slows_nobody_down_in_the_next_one() -> None:
    run = Run()
    run.known(1.0)
    run.known(60.0)
    run.checkpoint(1.0, 150 * MB)
    assert max(run.waits) < 1e-9


@pytest.mark.parametrize("begins", [False, True])
def test_no_checkpoint_is_no_pace(begins: bool) -> None:
    """Also none behind one that failed, however long ago that was."""
    run = Run()
    if begins:
        run.pace.begin()
        run.pace.give_up()
        run.now += 3_600
    for _ in range(3):
        run.pace.take(100 * MB, 0)
        assert run.pace.wait() == 0.0


def test_what_waits_to_be_written_takes_room_too() -> None:
    turns = []
    for waiting in (0, 150 * MB):
        run = Run()
        run.pace.begin()
        run.pace.take(REQUEST, waiting)
        turns.append(run.pace.wait())
    assert turns[1] == pytest.approx(4 * turns[0])


def test_small_requests_go_by_and_large_ones_go_when_the_checkpoint_ends() -> None:
    size = JournalSize(100 * MB)
    now = 5.0
    pace = Pace(size, LIMITS, lambda: now)
    queue = CommitQueue(LIMITS, pace, lambda: None)
    pace.begin()
    pace.take(200 * MB, 0)
    came: list[str] = []

    def large() -> None:
        queue.await_room(30.0, lambda: 1.0, SMALL_BYTES_MAX + 1, takes_turn=True)
        came.append("large")

    thread = threading.Thread(target=large)
    thread.start()
    queue.await_room(0.0, lambda: 1.0, SMALL_BYTES_MAX, takes_turn=True)
    queue.await_room(0.0, lambda: 1.0, SMALL_BYTES_MAX + 1)
    thread.join(0.3)
    assert not came
    pace.end()
    queue.wake()
    thread.join(30.0)
    assert came == ["large"]
    assert pace.held_seconds >= 0.2


def test_a_server_with_slow_checkpoints_takes_a_bulk_load_without_a_stop(tmp_path: Path) -> None:
    """Other rows than random ones would hardly take journal."""
    server = Server(Settings(tmp_path, port=0, http_port=0, limits=SLOW), disk=SlowDisk())
    with closing(server):
        pace = server.engine.loop.pace
        lake = ls.Lake(attached(server.service), "pace")
        table = lake.create_table("t.log", pa.schema([("v", pa.binary())]), buckets=1)
        full, ended = [], threading.Event()

        def watch() -> None:
            while not ended.wait(0.005):
                full.append(pace.is_full())

        watching = threading.Thread(target=watch)
        watching.start()
        for _ in range(120):
            table.append([{"v": os.urandom(REQUEST // 4)}])
        ended.set()
        watching.join()
        assert pace.held_seconds > CHECKPOINT_SECONDS, "it was slowed down"
        assert full.count(True) <= len(full) // 20, "and hardly ever stood still"
        assert table.scan().count() == 120


def test_nobody_waits_for_the_end_of_a_checkpoint_that_failed(tmp_path: Path) -> None:
    with Served(tmp_path, disk=FailingDisk()) as served:
        pace = served.engine.loop.pace
        with pytest.raises(OSError, match="No space"):
            served.checkpoint()
        pace.take(DEFAULT.journal_bytes, 0)
        assert not pace.wait()
        served.server.close(checkpoint=False)
