"""The world itself: the same seed is the same run, what never ends is told, and time is nobody else's."""

from __future__ import annotations

import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import pytest

from lakestore_server.host import priority
from tests.simulation.case import SIMULATED
from tests.simulation.threads import installed
from tests.simulation.world import Process, Stuck, World

ROOT = Path(__file__).resolve().parents[2]
TELL = """
import pathlib, sys
from tests.simulation.case import Case, run
for workload in sys.argv[2:]:
    pathlib.Path(sys.argv[1], workload).write_text(run(Case("0", workload)).text())
"""


def told(folder: Path, hash_seed: str, workloads: Sequence[str]) -> dict[str, list[str]]:
    """The lines that another process writes of a run of each workload, in this order."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", TELL, str(folder), *workloads]
    subprocess.run(command, env=environment, cwd=ROOT, check=True)
    return {path.name: path.read_text().splitlines() for path in folder.iterdir()}


@pytest.mark.timeout(900)  # 30 s of a processor for all, which a busy machine spreads over minutes
@pytest.mark.parametrize("part", [3, pytest.param(1, marks=pytest.mark.long)])
def test_the_same_seed_is_the_same_run_in_two_processes_byte_by_byte_whatever_ran_before(
    tmp_path: Path, part: int
) -> None:
    """Sets of texts have another order in the second process. The short form takes every third workload."""
    some = SIMULATED[::part]
    first, second = told(tmp_path / "first", "1", some), told(tmp_path / "second", "3", some[::-1])
    assert first.keys() == second.keys() == set(some)
    assert len({"".join(lines) for lines in first.values()}) == len(first), "workloads differ"
    for workload, lines in first.items():
        differing = [pair for pair in zip_longest(lines, second[workload]) if pair[0] != pair[1]]
        assert differing[:1] == [], f"the first line in which {workload} differs"


def test_a_deadlock_is_told_with_the_place_where_each_task_waits() -> None:
    world = World("deadlock", preempt=0.5)

    def both() -> None:
        one, two = threading.Lock(), threading.Lock()

        def take(first: threading.Lock, second: threading.Lock) -> None:
            with first:
                time.sleep(1.0)
                with second:
                    pass

        threads = [
            threading.Thread(target=take, args=given, name=name)
            for name, given in (("forth", (one, two)), ("back", (two, one)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with installed(world), pytest.raises(Stuck, match="every task waits") as stuck:
        world.run(both)
    assert "forth" in str(stuck.value)
    assert "back" in str(stuck.value)


def test_a_run_without_an_end_is_told() -> None:
    world = World("endless", steps_max=1_000)

    def spin() -> None:
        while True:
            time.sleep(0.0)

    with installed(world), pytest.raises(Stuck, match="does not end"):
        world.run(spin)


def test_hours_pass_at_once_and_only_within_the_world() -> None:
    world = World("time")
    passed: list[tuple[float, float]] = []
    woken: list[bool] = []

    def wait() -> None:
        began = time.monotonic(), time.time()
        time.sleep(36_000.0)
        passed.append((time.monotonic() - began[0], time.time() - began[1]))
        event = threading.Event()
        woken.append(event.wait(100.0))
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        with pytest.raises(queue.Empty):
            waiting.get(timeout=5.0)

    with installed(world):
        world.run(wait)
    assert passed[0] == pytest.approx((36_000.0, 36_000.0), abs=0.1)
    assert woken == [False]


def test_a_task_that_gives_way_leaves_the_priority_of_this_thread() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    world = World("priority")
    with installed(world):
        world.run(priority.give_way)
        world.run(priority.take_short_turns)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_chance_within_the_world_is_the_seeds() -> None:
    drawn = []
    for _ in range(2):
        world = World("chance")
        with installed(world):
            world.run(lambda: drawn.append((os.urandom(8), random.SystemRandom().random())))
    assert drawn[0] == drawn[1]
    assert os.urandom(8) != drawn[0][0]


def test_the_tasks_of_a_process_that_is_killed_end_and_their_locks_are_nobodys_business() -> None:
    world, seen = World("kill"), []

    def main() -> None:
        process = Process("victim")

        def work() -> None:
            lock = threading.Condition()
            try:
                with lock:
                    seen.append("waits")
                    lock.wait()
            finally:
                seen.append("unwound")

        world.spawn("work", process, work)
        time.sleep(1.0)
        world.kill(process)
        seen.append("killed")

    with installed(world):
        world.run(main)
    assert seen == ["waits", "unwound", "killed"]


def test_a_process_that_is_stopped_does_nothing_until_it_goes_on() -> None:
    world, seen = World("pause"), []

    def main() -> None:
        process = Process("stopped")

        def work() -> None:
            while True:
                time.sleep(0.1)
                seen.append(time.monotonic())

        world.spawn("work", process, work)
        time.sleep(1.0)
        world.pause(process)
        before = len(seen)
        time.sleep(10.0)
        assert len(seen) == before
        world.resume(process)
        time.sleep(1.0)
        assert len(seen) > before

    with installed(world):
        world.run(main)
