"""Clients: the connections that called lately, by port and principal, as the console shows them.

Only the beginning of a call is noted, in a few hundred nanoseconds; small calls on an open stream are that stream's.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from lakestore_server.host.clock import Clock

KEPT_SECONDS = 300.0
CLIENTS_MAX = 10_000


@dataclass(slots=True)
class Client:
    """A connection."""

    port: str
    """grpc or http."""
    principal: str
    """Empty where the server asks nobody who they are."""
    peer: str
    """The address and port of its other end."""
    began: float
    """Monotonic seconds, as `at`."""
    at: float
    """The last call."""
    call: str
    """Its name."""
    calls: int = 0
    """Since the connection was first seen."""
    streams: int = 0
    """Open streams."""


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """A connection as it is told of."""

    port: str
    principal: str
    peer: str
    call: str
    calls: int
    streams: int
    connected_seconds: float
    silent_seconds: float


class Clients:
    """All of them. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._known: dict[tuple[str, str, str], Client] = {}

    def calls(self, port: str, principal: str, peer: str, call: str) -> None:
        """Note a call."""
        now, key = self._clock.monotonic(), (port, principal, peer)
        with self._lock:
            found = self._known.get(key)
            if found is None:
                if len(self._known) >= CLIENTS_MAX:
                    self._forget(now, 0.0)
                found = self._known[key] = Client(port, principal, peer, now, now, call)
            found.at, found.call = now, call
            found.calls += 1

    def opens(self, port: str, principal: str, peer: str) -> None:
        """Note that a stream begins; `ends` follows."""
        self._streams(port, principal, peer, 1)

    def ends(self, port: str, principal: str, peer: str) -> None:
        """Note that a stream has ended."""
        self._streams(port, principal, peer, -1)

    def _streams(self, port: str, principal: str, peer: str, more: int) -> None:
        with self._lock:
            found = self._known.get((port, principal, peer))
            if found is not None:
                found.streams = max(found.streams + more, 0)
                found.at = self._clock.monotonic()

    def now(self) -> Sequence[ClientStatus]:
        """The connections that have a stream or called within `KEPT_SECONDS`, the longest known first."""
        now = self._clock.monotonic()
        with self._lock:
            self._forget(now, KEPT_SECONDS)
            return [
                ClientStatus(
                    each.port,
                    each.principal,
                    each.peer,
                    each.call,
                    each.calls,
                    each.streams,
                    round(now - each.began, 1),
                    round(now - each.at, 1),
                )
                for each in self._known.values()
            ]

    def _forget(self, now: float, seconds: float) -> None:
        self._known = {
            key: each for key, each in self._known.items() if each.streams or now - each.at < max(seconds, 1e-9)
        }
