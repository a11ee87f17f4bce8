"""The pool of query processes: a process belongs to one principal, and nobody waits without end."""

from __future__ import annotations

import mmap
import os
import resource
import threading
from typing import Any, cast

import pytest

from lakestore.errors import Exhausted
from lakestore.limits import Limits
from lakestore_server.host.quota import share_of
from lakestore_server.queries import pool as module
from lakestore_server.queries.pool import Pool, QueryProcess
from tests.support.waiting import until

LIMITS = Limits(query_processes=2, query_wait_seconds=0, principal_percent=50)
MAPPED_BYTES = 512 << 20


class StandIn:
    """A process that does nothing."""

    pid: int | None = None

    def __init__(self) -> None:
        self.has_ended = self.is_started = False

    def start(self) -> None:
        self.is_started = True

    def kill(self) -> None:
        self.has_ended = True

    def close(self) -> None: ...


def pool_of(most: int = LIMITS.query_processes, share: int | None = None) -> Pool:
    share = share_of(most, LIMITS) if share is None else share
    return Pool(lambda: cast("Any", StandIn()), most=most, share=share, resident_bytes=1 << 40, room_bytes=1 << 20)


def take(pool: Pool, owner: str, generation: int = 0, seconds: float = LIMITS.query_wait_seconds) -> QueryProcess:
    return pool.take(owner, generation, seconds, lambda: False)


def test_a_principal_gets_its_process_again_and_nobody_else_does() -> None:
    pool = pool_of()
    first = take(pool, "ann")
    pool.give_back(first, 0)
    other = take(pool, "bob")
    assert other is not first
    assert take(pool, "ann") is first
    assert pool.size == 2


def test_an_idle_process_makes_room_for_another_principal() -> None:
    pool = pool_of(most=1, share=1)
    first = take(pool, "ann")
    pool.give_back(first, 0)
    second = take(pool, "bob")
    assert second is not first
    assert first.child.has_ended
    assert pool.size == 1


def test_a_process_ends_when_rights_change() -> None:
    pool = pool_of()
    while_busy, idle = take(pool, "ann"), take(pool, "bob")
    pool.give_back(while_busy, 1)
    assert while_busy.child.has_ended
    pool.give_back(idle, 0)
    pool.tend(1)
    assert idle.child.has_ended
    assert pool.size == 0
    fresh = take(pool, "ann", 1)
    pool.give_back(fresh, 1)
    assert take(pool, "ann", 2) is not fresh, "before anybody has looked"


def test_a_process_that_died_idle_is_not_used() -> None:
    pool = pool_of()
    first = take(pool, "ann")
    pool.give_back(first, 0)
    first.child.kill()
    assert take(pool, "ann") is not first


def test_a_question_waits_so_long_for_a_process() -> None:
    pool = pool_of(most=1, share=1)
    first = take(pool, "ann")
    with pytest.raises(Exhausted, match="1 queries run, the limit"):
        take(pool, "bob")
    got: list[QueryProcess] = []
    thread = threading.Thread(target=lambda: got.append(take(pool, "bob", seconds=60)))
    thread.start()
    until(lambda: len(pool._waiting) == 1, "the question waits")
    pool.give_back(first, 0)
    thread.join()
    assert got[0] is not first


def waiting(pool: Pool, owner: str, got: list[tuple[str, QueryProcess]]) -> threading.Thread:
    """A question that waits; `got` has its owner and its process at the end."""
    before = len(pool._waiting)
    thread = threading.Thread(target=lambda: got.append((owner, take(pool, owner, seconds=60))))
    thread.start()
    until(lambda: len(pool._waiting) == before + 1, "the question waits")
    return thread


def test_a_principal_at_its_share_gets_more_while_nobody_with_fewer_waits() -> None:
    pool = pool_of()
    first, second = take(pool, "ann"), take(pool, "ann")
    with pytest.raises(Exhausted, match="ann has 2 of them"):
        take(pool, "ann")
    got: list[tuple[str, QueryProcess]] = []
    threads = [waiting(pool, owner, got) for owner in ("ann", "ann", "bob")]
    for number, (process, owner) in enumerate([(first, "bob"), (second, "ann")], 1):
        pool.give_back(process, 0)
        until(lambda: len(got) == number, "a process for the next one")  # noqa: B023
        assert got[-1][0] == owner, "bob has none, and ann asked first"
    pool.give_back(got[0][1], 0)
    for thread in threads:
        thread.join()
    assert [owner for owner, _ in got] == ["bob", "ann", "ann"]


def test_a_session_with_an_unfinished_answer_does_not_wait_for_itself() -> None:
    pool = pool_of(most=1)
    first = take(pool, "ann")
    nested = pool.take("ann", 0, 0, lambda: False, held=1)
    with pytest.raises(Exhausted, match="try again"):
        pool.take("ann", 0, 0, lambda: False, held=1)
    with pytest.raises(Exhausted, match="the session holds 2 unfinished answers"):
        pool.take("ann", 0, 0, lambda: False, held=2)
    pool.give_back(nested, 0)
    assert nested.child.has_ended, "there is room for one process"
    got: list[tuple[str, QueryProcess]] = []
    thread = waiting(pool, "bob", got)
    pool.give_back(pool.take("cid", 0, 0, lambda: False, held=1), 0)
    assert not got, "bob waits for the one process"
    pool.give_back(first, 0)
    thread.join()
    assert pool.size == 1


def test_ten_questions_of_one_principal_are_all_answered() -> None:
    pool = pool_of(most=4)
    got: list[int] = []

    def ask(number: int) -> None:
        process = take(pool, "ann", seconds=60)
        got.append(number)
        pool.give_back(process, 0)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(10))
    assert pool.size <= 4


def test_a_cancelled_question_stops_waiting() -> None:
    pool, errors, is_over = pool_of(most=1, share=1), list[Exception](), threading.Event()
    take(pool, "ann")

    def wait() -> None:
        try:
            pool.take("bob", 0, 600, is_over.is_set)
        except Exhausted as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: len(pool._waiting) == 1, "the question waits")
    is_over.set()
    pool.wake()
    thread.join()
    assert len(errors) == 1


def test_an_unused_process_is_ready_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(most=3, share=3)
    pool.warm()
    (ready,) = pool._idle
    assert cast("StandIn", ready.child).is_started
    assert take(pool, "ann") is ready
    pool.tend(0)
    assert [each.owner for each in pool._idle] == [None]
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.0)
    pool._warm_until = 0.0
    pool.give_back(ready, 0)
    pool.tend(0)
    assert pool.size == 0


def test_a_worn_process_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of()
    first = take(pool, "ann")
    monkeypatch.setattr(module, "QUESTIONS_MAX", 1)
    pool.give_back(first, 0)
    assert first.child.has_ended
    second = take(pool, "ann")
    monkeypatch.setattr(module, "QUESTIONS_MAX", 10)
    monkeypatch.setattr(QueryProcess, "resident_bytes", lambda _: 1 << 50)
    pool.give_back(second, 0)
    assert second.child.has_ended
    monkeypatch.undo()
    third = take(pool, "ann")
    monkeypatch.setattr(QueryProcess, "room_bytes", lambda _: 1 << 10)
    pool.give_back(third, 0)
    assert third.child.has_ended


def test_memory_that_stays_mapped_takes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "prlimit", lambda *_: (1 << 40, 1 << 40))
    child = StandIn()
    child.pid = os.getpid()
    process = QueryProcess(cast("Any", child))
    before = process.room_bytes()
    with mmap.mmap(-1, MAPPED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS):  # as of freed memory: no page of it
        assert before - process.room_bytes() > MAPPED_BYTES // 2


def test_a_closed_pool_ends_everything() -> None:
    pool = pool_of()
    busy, idle = take(pool, "ann"), take(pool, "bob")
    pool.give_back(idle, 0)
    pool.close()
    assert busy.child.has_ended
    assert idle.child.has_ended
    with pytest.raises(Exhausted):
        take(pool, "ann")
    pool.discard(busy)
    assert pool.size == 0
