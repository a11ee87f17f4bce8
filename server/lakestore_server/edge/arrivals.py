"""The account of received bytes that are not yet a whole message: gRPC holds them in memory and does not report
them.

A call may send most of a message and stop. So the bytes that the kernel counts on a connection are compared with the
messages that were taken from it; the difference is held memory.

- Over budget, connections are closed: stalled ones first, then the ones holding the most bytes.
- A connection with health checks alone holds nearly nothing.
- Protocol overhead is allowed for and credit does not accumulate, so a connection may hold some kilobytes more than the
  account shows.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import unquote

_FOLDER = "/proc/self/fd"
_COUNTS = struct.Struct("=120xQQ")
"""Two fields of the kernel's `tcp_info`: our acknowledged bytes, and received bytes."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Bytes of one connection since its start."""

    went: int
    came: int


class Connections:
    """The counts of connections by peer, in gRPC's notation: `ipv4:127.0.0.1:50000`. One thread at a time."""

    def __init__(self) -> None:
        self._found: dict[str, int] = {}
        """Peer to the descriptor of its socket at the last look."""

    def counts(self, peers: Iterable[str]) -> dict[str, Counts]:
        """The counts of connected peers; empty if the system has no counts."""
        asked = list(peers)
        told = {peer: counts for peer in asked if (counts := self._look(peer))}
        if len(told) < len(asked):
            self._find()
            told |= {peer: counts for peer in asked if peer not in told and (counts := self._look(peer))}
        return told

    def _look(self, peer: str) -> Counts | None:
        number = self._found.get(peer)
        if number is None:
            return None
        found = _read(number)
        return found[1] if found and found[0] == peer else None

    def _find(self) -> None:
        self._found = {}
        if not sys.platform.startswith("linux"):
            return
        for name in os.listdir(_FOLDER):
            found = _read(int(name))
            if found:
                self._found[found[0]] = int(name)


def _read(number: int) -> tuple[str, Counts] | None:
    """(peer, counts) of a descriptor that is a TCP connection."""
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return None
        there = socket.socket(fileno=number)
    except OSError:
        return None
    try:
        if there.family not in (socket.AF_INET, socket.AF_INET6) or there.type != socket.SOCK_STREAM:
            return None
        address, port = there.getpeername()[:2]
        told = there.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size)
    except OSError:  # it listens, or was just closed
        return None
    finally:
        there.detach()
    if len(told) < _COUNTS.size:
        return None
    # An IPv6 listener accepts IPv4 too and marks it in the address.
    address = address.removeprefix("::ffff:")
    shown = f"ipv6:[{address}]" if ":" in address else f"ipv4:{address}"
    return f"{shown}:{port}", Counts(*_COUNTS.unpack(told))


def plain(peer: str) -> str:
    """A peer in this module's notation: gRPC escapes the brackets of IPv6."""
    return unquote(peer)


SLOW_SECONDS = 0.5
"""Age from which a receive is checked; a normal message takes less."""
ALL_SECONDS = 60.0
"""Seconds between two checks of every connection, which end credit and forget closed connections."""
LOOK_SHARE = 0.02
"""The largest share of a processor for these checks."""
STILL_BYTES = 16 << 10
"""A connection that got fewer bytes since the last check has stalled."""
STRANGERS_BYTES = 64 << 10
"""The most bytes that a connection without a known caller may hold."""
_PER_CONNECTION, _PER_MESSAGE, _PER_SECOND, _PER_SENT, _PER_TAKEN = 16 << 10, 1 << 10, 200, 0.01, 0.02
"""Allowances for handshakes, headers and frames, pings, windows for sent bytes, frames of received bytes."""


class Receiver(Protocol):
    """A call that receives a message."""

    peer: str
    is_known: bool
    """Whether the caller is authenticated."""


@dataclass(slots=True)
class _Connection:
    """One connection's account."""

    since: dict[Receiver, float] = field(default_factory=dict)
    """Receiving calls and their begin, oldest first."""
    taken: int = _PER_CONNECTION
    """Bytes of whole messages, with the allowances."""
    seen: Counts = field(default_factory=lambda: Counts(0, 0))
    seen_taken: int = 0
    seen_at: float = 0.0
    held: float = 0.0
    is_still: bool = False

    def saw(self, counts: Counts, now: float) -> None:
        came, went = counts.came - self.seen.came, counts.went - self.seen.went
        taken = self.taken - self.seen_taken
        seconds = now - self.seen_at if self.seen_at else 0.0
        allowed = taken * (1 + _PER_TAKEN) + went * _PER_SENT + seconds * _PER_SECOND
        self.held = max(0.0, self.held + came - allowed)
        self.is_still = came < STILL_BYTES
        self.seen, self.seen_taken, self.seen_at = counts, self.taken, now

    @property
    def is_strange(self) -> bool:
        return not any(call.is_known for call in self.since)


class Arrivals:
    """The account of one port. Thread-safe."""

    def __init__(self, budget: int, message_bytes: int, refuse: Callable[[Any, str], None]) -> None:
        self._budget, self._message_bytes, self._refuse = budget, message_bytes, refuse
        self._lock = threading.Lock()
        self._connections: dict[str, _Connection] = {}
        self._kernel = Connections()
        self._is_looking = False
        self._due = self._all_due = 0.0

    def begins(self, call: Receiver) -> None:
        with self._lock:
            self._connections.setdefault(call.peer, _Connection()).since[call] = time.monotonic()

    def ends(self, call: Receiver, nbytes: int) -> None:
        """A message of `nbytes` came, or the call ended without one."""
        with self._lock:
            found = self._connections[call.peer]
            found.since.pop(call, None)
            found.taken += nbytes + _PER_MESSAGE

    def slow(self, now: float) -> list[str]:
        """The connections to check; empty while their possible bytes are within the budget."""
        with self._lock:
            slow = {
                peer: found
                for peer, found in self._connections.items()
                if found.since and now - next(iter(found.since.values())) >= SLOW_SECONDS
            }
        most = sum(len(found.since) for found in slow.values()) * self._message_bytes
        return [peer for peer, found in slow.items() if most > self._budget or found.is_strange]

    def saw(self, counts: Mapping[str, Counts | None], now: float) -> None:
        """Record the kernel's counts of connections and refuse calls beyond the budget."""
        gone: list[Receiver] = []
        with self._lock:
            for peer, count in counts.items():
                if count is not None:
                    self._connections[peer].saw(count, now)
                elif not self._connections[peer].since:
                    del self._connections[peer]
            found = [each for peer, each in self._connections.items() if counts.get(peer) and each.since]
            for each in found:
                if each.is_strange and each.held > STRANGERS_BYTES:
                    gone += self._drop(each)
            found.sort(key=lambda each: (each.is_still, each.held))
            total = sum(each.held for each in found)
            while total > self._budget:
                worst = found.pop()
                total -= worst.held
                gone += self._drop(worst)
        for call in gone:
            self._refuse(call, "the server is at its limit of bytes of unfinished messages")

    def tick(self, now: float, run: Callable[[Callable[[], None]], None]) -> None:
        """Check connections if it is time, in a thread that `run` provides."""
        if self._is_looking or now < self._due:
            return
        if now >= self._all_due:
            self._all_due = now + ALL_SECONDS
            with self._lock:
                peers = list(self._connections)
        else:
            peers = self.slow(now)
        if peers:
            self._is_looking = True
            run(lambda: self._look(peers))

    def _look(self, peers: list[str]) -> None:
        began = time.monotonic()
        told = self._kernel.counts([plain(peer) for peer in peers])
        ended = time.monotonic()
        self._due, self._is_looking = ended + (ended - began) / LOOK_SHARE, False
        self.saw({peer: told.get(plain(peer)) for peer in peers}, ended)

    @staticmethod
    def _drop(found: _Connection) -> list[Receiver]:
        """The receiving calls of a connection, which hold its bytes."""
        found.held = 0.0
        return list(found.since)
