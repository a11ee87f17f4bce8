"""The pace of large requests: slower as the journal's room ends, never a stop, and nothing of it without need."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.local import local_transport
from lakestore.errors import Exhausted
from lakestore.limits import DEFAULT
from lakestore_server.commit.priority import CommitPriority, JournalSize, Pace
from lakestore_server.commit.queue import SMALL_BYTES_MAX, CommitQueue
from lakestore_server.commit.request import Task
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.support.served import Served
from tests.support.waiting import until
from tests.support.world.disk import SimDisk

MB = 1_000_000
LIMITS = replace(DEFAULT, journal_checkpoint_bytes=100 * MB, journal_bytes=300 * MB)
REQUEST = 1 * MB
LARGE = SMALL_BYTES_MAX + 1
SLOW = replace(DEFAULT, journal_checkpoint_bytes=4 * MB, journal_bytes=12 * MB, queue_wait_ms=10_000)
CHECKPOINT_SECONDS = 0.8


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
            waits = self.pace.wait(0)
            self.now += waits
            if self.now < end:
                self.waits.append(waits)
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
        run.size.since_checkpoint += 100 * MB
        assert run.pace.wait(100 * MB) == 0.0


def test_what_takes_no_journal_slows_nobody_down() -> None:
    run = Run()
    run.pace.begin()
    assert run.pace.wait(50 * MB) == pytest.approx(0.25), "it is on its way there"
    assert run.pace.wait(0) == 0.0, "it wrote nothing"


def test_a_clock_that_jumps_holds_nobody() -> None:
    run = Run()
    run.pace.begin()
    run.size.since_checkpoint = 150 * MB
    assert run.pace.wait(0) > 0.5
    run.now += 86_400
    assert run.pace.wait(0) == 0.0


@pytest.mark.parametrize("coming", [0, 200 * MB, 300 * MB])
def test_a_room_that_is_used_up_is_waited_for_and_ends_no_commit(coming: int) -> None:
    run = Run()
    run.size.since_checkpoint = 300 * MB - coming
    run.pace.begin()
    assert 1 < run.pace.wait(coming) < 60


class Turns:
    """A queue in which a large request holds the turn of all others, as a checkpoint runs."""

    def __init__(self, monotonic: Callable[[], float] = lambda: 5.0) -> None:
        self.pace = Pace(JournalSize(100 * MB), LIMITS, monotonic)
        self.queue = CommitQueue(LIMITS, self.pace, lambda: None, CommitPriority())
        self.pace.begin()
        self.came: list[str] = []

    def come(self, name: str, seconds: float = 30.0) -> threading.Thread:
        """A large request that has come, and waits."""

        def large() -> None:
            with suppress(Exhausted), self.queue.turn(seconds, lambda: 1.0, LARGE):
                self.came.append(name)

        before, thread = set(self.queue._turns), threading.Thread(target=large)
        thread.start()
        until(lambda: set(self.queue._turns) - before, f"{name} waits")
        return thread


def test_small_requests_go_by_and_large_ones_go_in_their_order_when_the_checkpoint_ends() -> None:
    turns = Turns()
    with turns.queue.turn(0.0, lambda: 1.0, 199 * MB):
        pass  # a request that is refused has taken nothing
    with turns.queue.turn(0.0, lambda: 1.0, 199 * MB):
        threads = [turns.come(name) for name in "abc"]
        with turns.queue.turn(0.0, lambda: 1.0, SMALL_BYTES_MAX):
            turns.queue.await_room(0.0, lambda: 1.0, LARGE)
        time.sleep(0.3)
        assert not turns.came
        turns.pace.end()
        turns.queue.wake()
        for thread in threads:
            thread.join(30.0)
        assert turns.came == ["a", "b", "c"]
    assert turns.queue.held_seconds >= 0.2


def test_one_that_comes_later_does_not_go_before_those_that_wait() -> None:
    turns = Turns()
    with turns.queue.turn(0.0, lambda: 1.0, LARGE):
        thread = turns.come("first")
        turns.pace.end()  # which nobody was told of yet
        with pytest.raises(Exhausted), turns.queue.turn(0.0, lambda: 1.0, LARGE):
            pass
    thread.join(30.0)
    assert turns.came == ["first"]


def test_the_next_one_waits_for_the_pace_itself_when_the_first_one_gives_up() -> None:
    turns = Turns(time.monotonic)
    turns.pace._seconds = 2.0
    with turns.queue.turn(0.0, lambda: 1.0, 100 * MB):
        first, second = turns.come("first", seconds=0.2), turns.come("second")
        first.join(30.0)
        second.join(10.0)
        assert turns.came == ["second"]


def test_a_turn_is_held_by_what_is_on_its_way_and_by_what_waits_to_be_written() -> None:
    turns = Turns()
    with turns.queue.turn(0.0, lambda: 0.05, 100 * MB):
        with pytest.raises(Exhausted) as told, turns.queue.turn(0.0, lambda: 0.05, LARGE):
            pass
        assert told.value.retry_after == pytest.approx(0.5)
        turns.queue.put(Task(lambda: None, nbytes=150 * MB))
    with pytest.raises(Exhausted), turns.queue.turn(0.0, lambda: 0.05, LARGE):
        pass
    turns.queue.take()
    with turns.queue.turn(0.0, lambda: 0.05, LARGE):
        pass


def test_nobody_is_told_to_come_again_long_after_the_checkpoint_may_have_ended() -> None:
    turns = Turns()
    turns.pace._seconds = 600.0
    with (
        turns.queue.turn(0.0, lambda: 0.05, 199 * MB),
        pytest.raises(Exhausted) as told,
        turns.queue.turn(0.0, lambda: 0.05, LARGE),
    ):
        pass
    assert told.value.retry_after == 1.0


def test_a_queue_that_closes_lets_all_go_who_wait_for_their_turns() -> None:
    turns = Turns()
    with turns.queue.turn(0.0, lambda: 1.0, 199 * MB):
        threads = [turns.come(name) for name in "abc"]
        turns.queue.close()
        for thread in threads:
            thread.join(30.0)
            assert not thread.is_alive()


def test_a_server_with_slow_checkpoints_takes_a_bulk_load_without_a_stop(tmp_path: Path) -> None:
    """Other rows than random ones would hardly take journal."""
    disk = SimDisk(tmp_path)
    disk.passing = lambda point: time.sleep(CHECKPOINT_SECONDS * (point is CrashPoint.CHECKPOINT_FROZEN))
    server = Server(Settings(tmp_path, port=0, http_port=0, limits=SLOW), disk=disk)
    with closing(server):
        pace = server.engine.loop.pace
        lake = ls.Lake(local_transport(server.service), "pace")
        table, chance = lake.create_table("t.log", pa.schema([("v", pa.binary())]), buckets=1), random.Random(1)
        full, ended = [], threading.Event()

        def watch() -> None:
            while not ended.wait(0.005):
                full.append(pace.is_full())

        watching = threading.Thread(target=watch)
        watching.start()
        for _ in range(120):
            table.append([{"v": chance.randbytes(REQUEST // 4)}])
        ended.set()
        watching.join()
        assert server.engine.loop.queue.held_seconds > 0, "it was slowed down"
        assert full.count(True) <= len(full) // 4, "and hardly ever stood still"
        assert table.scan().count() == 120


def test_nobody_waits_for_the_end_of_a_checkpoint_that_failed(tmp_path: Path) -> None:
    disk, is_reached, may_fail = SimDisk(tmp_path), threading.Event(), threading.Event()

    def passing(point: CrashPoint) -> None:
        if point is CrashPoint.CHECKPOINT_FROZEN:
            is_reached.set()
            assert may_fail.wait(30)
            raise OSError(28, "No space left on device")

    disk.passing = passing
    with Served(tmp_path, disk=disk, limits=replace(DEFAULT, queue_wait_ms=30_000)) as served:
        loop = served.engine.loop
        loop.pace._seconds = 600.0
        came: list[float] = []

        def fails() -> None:
            with pytest.raises(OSError, match="No space"):
                served.checkpoint()

        def large() -> None:
            with served.engine.turn(LARGE):
                came.append(time.monotonic())

        failing, waiting = threading.Thread(target=fails), threading.Thread(target=large)
        failing.start()
        assert is_reached.wait(30)
        with served.engine.turn(DEFAULT.journal_bytes):
            waiting.start()
            until(lambda: loop.queue._turns, "it waits")
            may_fail.set()
            waiting.join(10)
            assert came, "it was told"
        failing.join(30)
        served.server.close(checkpoint=False)
