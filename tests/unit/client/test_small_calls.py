"""A stream of small calls that gives no sign of life ends, although gRPC does not end it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, cast

import pytest

from lakestore.client import grpc as client
from lakestore.client.grpc import SmallCalls
from lakestore.errors import Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.rpc import grpc
from tests.support.waiting import until


class SlowChannel:
    """A channel whose streams answer no call. They give signs of life, or none, as gRPC's core forgets a stream."""

    def __init__(self, *, is_alive: bool) -> None:
        self._is_alive = is_alive
        self.opened, self.pings = 0, 0
        self._replies: list[SimpleQueue[pb.Reply | None]] = []

    def stream_stream(self, *_: Any) -> Callable[..., Iterator[pb.Reply]]:
        def opened(requests: Iterator[pb.Ask], metadata: Any) -> Iterator[pb.Reply]:
            self.opened += 1
            return self._answers(requests)

        return opened

    def _answers(self, requests: Iterator[pb.Ask]) -> Iterator[pb.Reply]:
        for ask in requests:
            self.pings += not ask.method
            if not ask.method and self._is_alive:
                yield pb.Reply(id=ask.id)


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PING_SECONDS", 0.01)
    monkeypatch.setattr(client, "LOST_SECONDS", 60.0)
    monkeypatch.setattr(client, "IDLE_SECONDS", 0.5)


def failure(calls: SmallCalls, seconds: float) -> str:
    with pytest.raises(Unavailable) as caught:
        calls.call("Commit", b"", seconds, ())
    return caught.value.message


def test_the_calls_of_a_lost_stream_end_and_the_next_call_opens_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LOST_SECONDS", 0.05)
    channel = SlowChannel(is_alive=False)
    calls = SmallCalls(cast("grpc.Channel", channel))
    assert "was lost" in failure(calls, 60.0)
    assert "was lost" in failure(calls, 60.0)
    until(lambda: (channel.opened, channel.pings) == (2, 2), "the second ping")


def test_a_call_that_takes_its_time_is_waited_for() -> None:
    channel = SlowChannel(is_alive=True)
    calls = SmallCalls(cast("grpc.Channel", channel))
    until(lambda: "in time" in failure(calls, 0.5) and channel.pings > 1, "two pings")
    assert channel.opened == 1
