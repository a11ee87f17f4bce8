"""Clients: connections with recent calls, by port and principal, for the console.

Only the begin of a call is noted, which takes a few hundred nanoseconds. Calls on an open stream count as the stream's.
A connection of the Postgres port is one call and one stream: its queries are in the list of queries.
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
    """`grpc`, `http`, `flight` or `postgres`."""
    principal: str
    """Empty on a server without principals."""
    peer: str
    """The remote address and port."""
    began: float
    """Monotonic seconds of the first call."""
    at: float
    """Monotonic seconds of the last call."""
    call: str
    """Name of the last call."""
    calls: int = 0
    """Calls since the connection was first seen."""
    streams: int = 0


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """A connection as the console shows it."""

    port: str
    principal: str
    peer: str
    call: str
    calls: int
    streams: int
    connected_seconds: float
    silent_seconds: float


class Clients:
    """All connections. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._known: dict[tuple[str, str, str], Client] = {}

    def calls(self, port: str, principal: str, peer: str, call: str) -> None:
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
        """Note that a stream begins; a call of `ends` must follow."""
        self._streams(port, principal, peer, 1)

    def ends(self, port: str, principal: str, peer: str) -> None:
        self._streams(port, principal, peer, -1)

    def _streams(self, port: str, principal: str, peer: str, more: int) -> None:
        with self._lock:
            found = self._known.get((port, principal, peer))
            if found is not None:
                found.streams = max(found.streams + more, 0)
                found.at = self._clock.monotonic()

    def now(self) -> Sequence[ClientStatus]:
        """Connections with an open stream or a call within `KEPT_SECONDS`, oldest first."""
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
