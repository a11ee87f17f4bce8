"""Requests whose answers nobody waits for are all sent, or dropped if nothing can be sent."""

from __future__ import annotations

import _thread
import threading
from contextlib import nullcontext
from queue import SimpleQueue

import pytest

from lakestore.client.partings import Partings
from lakestore.errors import Unavailable
from tests.support.waiting import until

THREADS, EACH = 4, 5_000


def test_all_requests_are_sent_in_the_order_of_each_thread() -> None:
    sent: list[tuple[int, int]] = []
    partings = Partings(lambda thread, number: sent.append((thread, number)))

    def put(thread: int) -> None:
        for number in range(EACH):
            partings.put(thread, number)

    threads = [threading.Thread(target=put, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: len(sent) == THREADS * EACH, "all requests")
    assert sorted(sent, key=lambda pair: pair[0]) == [(t, number) for t in range(THREADS) for number in range(EACH)]


def test_what_waits_without_a_connection_is_dropped_and_later_requests_are_sent() -> None:
    tried, goes_on = list[int](), SimpleQueue[bool]()

    def send(number: int) -> None:
        tried.append(number)
        if not goes_on.get():
            raise Unavailable("no connection")

    partings = Partings(send)
    for number in range(3):
        partings.put(number)
    goes_on.put(False)
    until(lambda: not partings._turn.locked(), "the end of the thread")
    partings.put(3)
    goes_on.put(True)
    until(lambda: not partings._turn.locked(), "the end of the second thread")
    assert tried == [0, 3]


@pytest.mark.parametrize("failure", [MemoryError, KeyboardInterrupt, RuntimeError])
def test_a_request_whose_thread_does_not_start_is_sent_with_the_next(
    monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    def refused(*_: object) -> None:
        raise failure

    sent: list[int] = []
    partings = Partings(sent.append)
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refused)
        with nullcontext() if failure is RuntimeError else pytest.raises(failure):
            partings.put(0)
    partings.put(1)
    until(lambda: sent == [0, 1], "both requests")


@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_closing_sends_what_waits(seconds: float) -> None:
    sent, goes_on = list[int](), SimpleQueue[bool]()

    def send(number: int) -> None:
        sent.append(number)
        goes_on.get()

    partings = Partings(send)
    partings.put(0)
    until(lambda: sent == [0], "the first request")
    partings.put(1)
    closing = threading.Thread(target=partings.close, args=(seconds,))
    closing.start()
    for _ in range(2):
        goes_on.put(True)
    closing.join()
    assert sent == [0, 1]
