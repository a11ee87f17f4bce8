"""A stream of small calls whose connection is gone ends, although gRPC does not end it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from lakestore.client import grpc as client
from lakestore.client.grpc import SmallCalls
from lakestore.errors import Unavailable
from lakestore.wire.rpc import grpc
from tests.support.waiting import until

State = grpc.ChannelConnectivity


class SilentChannel:
    """A channel whose streams neither answer nor end before it is closed."""

    def __init__(self) -> None:
        self.told: list[Callable[[State], None]] = []
        self.opened = 0
        self.closed = threading.Event()

    def subscribe(self, callback: Callable[[State], None]) -> None:
        self.told.append(callback)

    def stream_stream(self, *_: Any) -> Callable[..., Iterator[Any]]:
        def replies() -> Iterator[Any]:
            self.closed.wait()
            yield from ()

        def opened(requests: Iterator[Any], metadata: Any) -> Iterator[Any]:
            self.opened += 1
            return replies()

        return opened


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentChannel]:
    monkeypatch.setattr(client, "LOST_SECONDS", 0.02)
    found = SilentChannel()
    yield found
    found.closed.set()


def in_background(calls: SmallCalls, outcomes: list[Any], seconds: float = 60.0) -> threading.Thread:
    def call() -> None:
        try:
            outcomes.append(calls.call("Commit", b"", seconds, ()))
        except Unavailable as error:
            outcomes.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_a_call_ends_when_the_connection_of_its_stream_is_lost(channel: SilentChannel) -> None:
    calls, outcomes = SmallCalls(cast("grpc.Channel", channel)), list[Any]()
    thread = in_background(calls, outcomes)
    until(lambda: bool(channel.told), "the subscription")
    for state in (State.IDLE, State.CONNECTING, State.READY, State.IDLE, State.TRANSIENT_FAILURE, State.READY):
        channel.told[0](state)
    thread.join()
    assert "was lost" in outcomes[0].message
    in_background(calls, outcomes, 0.05).join()
    assert (channel.opened, len(channel.told)) == (2, 1)
    assert "in time" in outcomes[1].message


@pytest.mark.parametrize("states", [(), (State.CONNECTING, State.TRANSIENT_FAILURE, State.READY)])
def test_a_call_waits_while_its_connection_is_not_lost(channel: SilentChannel, states: tuple[State, ...]) -> None:
    calls, outcomes = SmallCalls(cast("grpc.Channel", channel)), list[Any]()
    thread = in_background(calls, outcomes, 0.3)
    until(lambda: bool(channel.told), "the subscription")
    for state in states:
        channel.told[0](state)
    thread.join()
    assert "in time" in outcomes[0].message
