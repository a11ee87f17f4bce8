"""Bytes that came and are no whole message: seen by what the kernel counts, and the worst connection goes first."""

from __future__ import annotations

import socket
import sys
import time
from dataclasses import dataclass

import pytest

from lakestore_server.edge.arrivals import SLOW_SECONDS, STRANGERS_BYTES, Arrivals, Connections, Counts
from tests.support.seeds import seeded
from tests.support.waiting import until

MB = 1 << 20


@dataclass(eq=False)
class Call:
    """A call that receives."""

    peer: str
    is_known: bool = True


class World:
    """An account whose kernel is the test."""

    def __init__(self, budget: int = 100 * MB) -> None:
        self.gone: list[Call] = []
        self.arrivals = Arrivals(budget, 64 * MB, lambda call, _: self.gone.append(call))
        self.came: dict[str, int] = {}

    def call(self, peer: str, *, is_known: bool = True) -> Call:
        call = Call(peer, is_known)
        self.arrivals.begins(call)
        return call

    def sends(self, call: Call, nbytes: int) -> None:
        self.came[call.peer] = self.came.get(call.peer, 0) + nbytes

    def look(self, now: float = 1e9) -> list[Call]:
        self.gone = []
        self.arrivals.saw({peer: Counts(0, came) for peer, came in self.came.items()}, now)
        return self.gone


def test_the_connection_that_holds_the_most_and_stands_still_goes_first() -> None:
    world = World()
    still, slow, small = world.call("a"), world.call("b"), world.call("c")
    world.sends(still, 40 * MB)
    world.sends(slow, 50 * MB)
    world.sends(small, 5 * MB)
    assert not world.look()
    world.sends(slow, 8 * MB)
    assert world.look() == [still]
    assert world.arrivals.slow(1e9) == ["a", "b", "c"], "the test's call is not ended"


def test_whole_messages_are_not_held_and_credit_does_not_add_up() -> None:
    """However much a connection sent in whole messages, of whatever size: what it half-sends then is seen."""
    chance = seeded(3)
    world = World()
    call = world.call("a")
    for _ in range(300):
        nbytes = chance.choice((10, 1_000, 100_000, 5 * MB))
        world.sends(call, nbytes + 120 + nbytes // 100)
        world.arrivals.ends(call, nbytes)
        call = world.call("a")
        if chance.random() < 0.3:
            assert not world.look()
    world.look()
    world.sends(call, 101 * MB)
    assert world.look() == [call]


def test_a_stranger_may_hold_next_to_nothing_and_a_known_caller_is_not_looked_at_within_the_budget() -> None:
    world = World(200 * MB)
    stranger, known = world.call("a", is_known=False), world.call("b")
    assert world.arrivals.slow(1e9) == ["a"]
    world.sends(stranger, STRANGERS_BYTES + (32 << 10))
    world.sends(known, 60 * MB)
    assert world.look() == [stranger]


def test_a_message_on_its_way_is_not_looked_at() -> None:
    world = World(1 * MB)
    world.call("a")
    assert not world.arrivals.slow(time.monotonic() + SLOW_SECONDS / 2)
    assert world.arrivals.slow(time.monotonic() + SLOW_SECONDS * 2) == ["a"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's counts are read from /proc")
def test_the_kernel_counts_what_came_and_what_went() -> None:
    kernel = Connections()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            peer = f"ipv4:127.0.0.1:{client.getsockname()[1]}"
            sent = seeded(1).randbytes(10_000)
            client.sendall(sent)
            accepted.sendall(b"x" * 77)
            until(lambda: kernel.counts([peer]).get(peer) == Counts(77, 10_000), "the kernel's counts")
            assert accepted.recv(20_000), "the descriptor is as it was"
    assert not kernel.counts([peer])
