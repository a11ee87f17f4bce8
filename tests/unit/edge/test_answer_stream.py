"""A stream of answers makes so many messages before its client takes them, and ends when the last one is taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from lakestore_server.edge.rpc_streams import AnswerStream


class Client:
    """A call whose client takes a message when the test says so."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.waiting: deque[tuple[bytes, Callable[[], None]]] = deque()
        self.statuses: list[Any] = []

    def is_active(self) -> bool:
        return not self.statuses

    def add_callback(self, callback: Callable[[], None]) -> None: ...

    def send(self, data: bytes, then: Callable[[], None]) -> None:
        assert self.is_active()
        self.waiting.append((data, then))

    def finish(self, status: Any) -> None:
        assert not self.waiting, "messages were dropped"
        self.statuses.append(status)

    def take(self) -> None:
        data, then = self.waiting.popleft()
        self.taken.append(data)
        then()


class Caller:
    """The call's rights, which hold."""

    @staticmethod
    def next_item(items: Iterator[bytes]) -> bytes:
        return next(items)

    @staticmethod
    def answer(item: bytes) -> bytes:
        return item


class Inline:
    """Workers that work at once."""

    @staticmethod
    def run(work: Callable[[], None]) -> None:
        work()


@pytest.mark.parametrize(("ahead", "count"), [(1, 1), (1, 4), (3, 2), (3, 3), (3, 7), (3, 0)])
def test_messages_are_made_ahead_and_none_is_dropped(ahead: int, count: int) -> None:
    client, made = Client(), 0

    def items() -> Generator[bytes]:
        nonlocal made
        for number in range(count):
            made += 1
            yield bytes([number])

    parts: dict[str, Any] = {"rpc": client, "call": Caller(), "workers": Inline(), "failed": pytest.fail}
    stream = AnswerStream(items=items(), encode=lambda data: data, ahead=ahead, **parts)
    stream.begin()
    for _ in range(2 * ahead):  # more wakes make no more messages
        stream.wake()
    assert made == min(ahead, count)
    while client.waiting:
        client.take()
        assert made <= len(client.taken) + ahead
    assert client.taken == [bytes([number]) for number in range(count)]
    assert len(client.statuses) == 1
    assert stream.is_over
