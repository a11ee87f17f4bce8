"""The bound of a query process's memory: a question beyond it is interrupted, then the process ends."""

from __future__ import annotations

import os
import resource
import threading

import pytest

from lakestore_server.queries import memory_watch as module
from lakestore_server.queries.memory_watch import MemoryWatch
from tests.support.waiting import until


@pytest.fixture
def walls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The walls that were set; none holds for this process."""
    found: list[int] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, wall: found.append(wall[0]))
    return found


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ends of the process, which goes on. The thread of a watch stops at one."""
    found: list[int] = []

    def end(status: int) -> None:
        found.append(status)
        threading.Event().wait()

    monkeypatch.setattr(os, "_exit", end)
    return found


def watch(monkeypatch: pytest.MonkeyPatch, beside: int, interrupts: list[str]) -> MemoryWatch:
    monkeypatch.setattr(module, "BESIDE_BYTES", beside)
    made = MemoryWatch(lambda: interrupts.append("interrupt"))
    made.bound(0)
    return made


def test_the_wall_stands_behind_the_bound(monkeypatch: pytest.MonkeyPatch, walls: list[int]) -> None:
    made = watch(monkeypatch, 1 << 30, [])
    assert walls == [made._most + module.ROOM_BYTES]


@pytest.mark.usefixtures("walls")
def test_a_question_beyond_the_bound_is_interrupted_and_the_next_one_is_not(
    monkeypatch: pytest.MonkeyPatch, exits: list[int]
) -> None:
    interrupts: list[str] = []
    monkeypatch.setattr(module, "GRACE_SECONDS", 60.0)
    made = watch(monkeypatch, -(1 << 40), interrupts)
    made.begin()
    until(lambda: bool(interrupts), "an interrupt")
    assert made.end()
    made._most = 1 << 60
    made.begin()
    assert not made.end()
    assert not exits


@pytest.mark.usefixtures("walls")
def test_a_question_that_keeps_its_memory_ends_the_process(monkeypatch: pytest.MonkeyPatch, exits: list[int]) -> None:
    interrupts: list[str] = []
    monkeypatch.setattr(module, "GRACE_SECONDS", 2.0)
    watch(monkeypatch, -(1 << 40), interrupts).begin()
    until(lambda: bool(exits), "the end of the process")
    assert exits == [module.EXIT_STATUS]
    assert len(interrupts) > 1, "it was interrupted again meanwhile"


@pytest.mark.usefixtures("walls")
def test_a_question_is_not_interrupted_for_the_memory_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupts: list[str] = []
    measured: list[int] = []
    made = watch(monkeypatch, 1 << 40, interrupts)

    def taken() -> int:
        is_late = not made._lock.locked()
        if is_late:  # nothing keeps the question from its end, and the next one from its begin
            made.end()
            made.begin()
        measured.append(1 << 60 if is_late else 0)
        return measured[-1]

    monkeypatch.setattr(made, "_taken", taken)
    made.begin()
    until(lambda: len(measured) > 2, "the third look")
    assert not made.end()
    assert not interrupts


@pytest.mark.usefixtures("walls", "exits")
@pytest.mark.parametrize("error", [MemoryError, OSError])
def test_a_look_that_fails_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    interrupts: list[str] = []
    monkeypatch.setattr(module, "GRACE_SECONDS", 60.0)
    made = watch(monkeypatch, 1 << 40, interrupts)
    failures = [error()]

    def taken() -> int:
        if failures:
            raise failures.pop()
        return 1 << 60

    monkeypatch.setattr(made, "_taken", taken)
    made.begin()
    until(lambda: interrupts, "an interrupt")
    assert made.end()
