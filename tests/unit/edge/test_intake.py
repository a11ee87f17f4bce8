"""Messages of a stream of commits: what comes while others are taken is taken together, within bounds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lakestore.errors import Invalid, LakestoreError
from lakestore_server.commit.durable import Bell
from lakestore_server.edge.rpc_streams import TOGETHER_BYTES, TOGETHER_MAX, Intake
from lakestore_server.host.quota import BufferPool

ROOM = 10


class FakeCall:
    """A call, its stream and the threads of its port: each of them does what the test says, when it says so."""

    def __init__(self) -> None:
        self.asked: list[Callable[[bytes | None], None]] = []
        self.work: list[Callable[[], None]] = []
        self.taken: list[list[Any]] = []
        self.ends: list[LakestoreError | None] = []
        self.during: Callable[[], None] = lambda: None
        self.takes, self.room = True, Bell()
        self.permits = threading.Semaphore(ROOM)
        stream: Any = self
        self.intake = Intake(
            rpc=stream, stream=stream, request=self.parsed, workers=stream, ahead=self.permits, slabs=BufferPool(0)
        )

    def receive(self, came: Callable[[bytes | None], None]) -> None:
        self.asked.append(came)

    def run(self, work: Callable[[], None]) -> None:
        self.work.append(work)

    def has_room(self, in_hand: int) -> bool:
        return in_hand < 16

    def parsed(self, data: Any) -> bytes:
        if bytes(data) == b"bad":
            raise Invalid("bad")
        return bytes(data)

    def take(self, requests: Sequence[bytes]) -> None:
        during, self.during = self.during, lambda: None
        during()
        self.taken.append([request[:9] for request in requests])

    def end(self, error: LakestoreError | None = None) -> None:
        self.ends.append(error)

    def comes(self, *messages: bytes | None) -> int:
        """Hand over messages as long as they are asked for; the number of those."""
        for number, message in enumerate(messages):
            if not self.asked:
                return number
            self.asked.pop()(message)
        return len(messages)

    @property
    def free(self) -> int:
        """The permits that nobody holds."""
        return self.permits._value


@pytest.fixture
def call() -> FakeCall:
    made = FakeCall()
    made.intake.ask()
    return made


def test_what_comes_meanwhile_is_taken_together(call: FakeCall) -> None:
    came: list[int] = []
    call.during = lambda: came.append(call.comes(*(b"%d" % number for number in range(1, 20))))
    assert call.comes(b"0") == 1
    call.work.pop()()
    assert came == [TOGETHER_MAX - 1]
    assert call.taken == [[b"0"], [b"%d" % number for number in range(1, TOGETHER_MAX)]]
    assert not call.work
    assert call.free == ROOM, "what is coming now is the first one in hand"
    assert len(call.asked) == 1
    assert call.comes(None) == 1
    assert call.ends == [None]
    assert call.free == ROOM


def test_of_large_messages_two_are_in_hand(call: FakeCall) -> None:
    large = bytes(TOGETHER_BYTES)
    came: list[int] = []
    call.during = lambda: came.append(call.comes(large, large, large))
    call.comes(large)
    call.work.pop()()
    assert came == [1]
    assert [len(each) for each in call.taken] == [1, 1]
    assert call.free == ROOM


def test_without_room_at_the_port_one_is_in_hand(call: FakeCall) -> None:
    for _ in range(ROOM):
        call.permits.acquire()
    came: list[int] = []
    call.during = lambda: came.append(call.comes(b"1", b"2"))
    call.comes(b"0")
    call.work.pop()()
    assert came == [0]
    assert call.taken == [[b"0"]]
    assert len(call.asked) == 1, "it is asked again once there is nothing in hand"
    assert call.free == 0


@pytest.mark.parametrize("ends_with", [2, 3])
def test_an_end_that_comes_meanwhile_waits_for_what_came_before_it(call: FakeCall, ends_with: int) -> None:
    call.during = lambda: (call.comes(*[b"x"] * (ends_with - 1), None), None)[1]
    call.comes(b"0")
    call.work.pop()()
    assert sum(map(len, call.taken)) == ends_with
    assert call.ends == [None]
    assert not call.asked, "nothing comes behind the end"
    assert call.free == ROOM


def test_a_message_that_cannot_be_read_ends_the_stream_behind_those_before_it(call: FakeCall) -> None:
    call.during = lambda: (call.comes(b"1", b"bad", b"3"), None)[1]
    call.comes(b"0")
    call.work.pop()()
    assert call.taken == [[b"0"], [b"1"]]
    assert [str(error) for error in call.ends] == ["bad"]
    assert call.free == ROOM


def test_two_threads_never_take_at_once(call: FakeCall) -> None:
    """A message that comes just when the last ones were taken begins a turn of its own."""
    call.comes(b"0")
    call.work.pop()()
    call.during = lambda: (call.comes(b"2"), None)[1]
    call.comes(b"1")
    (turn,) = call.work
    call.work.clear()
    turn()
    assert call.taken == [[b"0"], [b"1"], [b"2"]]
    assert not call.work
