"""Threads of duties give way, those with short work begin soon, and what they begin is as usual."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lakestore_server.host import priority
from lakestore_server.host.supervisor import Supervisor
from lakestore_server.host.worker import Worker
from tests.support.served import Served
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
GET_TURN = {"x86_64": 315, "aarch64": 275}


def niceness(thread: int | None = None) -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id() if thread is None else thread)


def turn(thread: int) -> int:
    """The turn that a thread has asked for, in nanoseconds; whatever the kernel says of others."""
    found = ctypes.create_string_buffer(priority.ATTRIBUTES.size)
    number = GET_TURN[platform.machine()]
    assert ctypes.CDLL(None).syscall(number, thread, found, priority.ATTRIBUTES.size, 0) == 0
    return int(priority.ATTRIBUTES.unpack(found.raw)[5])


def in_a_thread(work: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_the_work_of_a_duty_gives_way_to_who_asked_for_it() -> None:
    found, over = list[int](), threading.Event()

    def work() -> None:
        found.append(niceness())
        over.set()

    duty = Worker(supervisor=Supervisor(), name="duty", work=work, failed=lambda _: None)
    duty.start()
    duty.wake()
    assert over.wait(10)
    duty.close()
    assert found == [min(niceness() + priority.NICE, 19)]


def gives_way(thread: int | None, before: int) -> bool:
    return niceness(thread) == min(before + priority.NICE, 19)


def has_short_turns(thread: int | None) -> bool:
    return turn(thread or 0) == priority.TURN_NS


def knows_turns() -> bool:
    def work() -> bool:
        priority.take_short_turns()
        return turn(0) == priority.TURN_NS

    return platform.machine() in GET_TURN and bool(in_a_thread(work))


def test_the_threads_of_a_server_have_the_priority_of_their_work(tmp_path: Path) -> None:
    before = niceness()
    with Served(tmp_path):
        threads = {thread.name: thread.native_id for thread in threading.enumerate()}
        assert niceness(threads["commit-loop"]) == niceness(threads["journal-sync"]) == before
        for duty in ("checkpoint", "merging", "index-merge"):
            until(partial(gives_way, threads[duty], before), f"way given by {duty}")
        if knows_turns():
            for name in ("commit-loop", "journal-sync"):
                until(partial(has_short_turns, threads[name]), f"short turns of {name}")
            assert turn(threads["checkpoint"] or 0) != priority.TURN_NS
    assert niceness() == before


def test_a_thread_that_is_begun_by_one_of_short_turns_has_usual_ones() -> None:
    if not knows_turns():
        pytest.skip("the kernel gives all threads one turn")

    def work() -> object:
        priority.take_short_turns()
        return in_a_thread(lambda: turn(0)), niceness()

    assert in_a_thread(work) != (priority.TURN_NS, niceness())
