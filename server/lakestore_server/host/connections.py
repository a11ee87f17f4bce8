"""Connections of this process as the kernel counts them: the bytes that came on each, and that went.

A library may own the sockets. They are found by the address of their other end, and only looked at: no descriptor is
duplicated or closed, for closing any descriptor of a file would give up the locks on it.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

_FOLDER = "/proc/self/fd"
_COUNTS = struct.Struct("=120xQQ")
"""Two fields of the kernel's `tcp_info`: bytes of ours that were acknowledged, and bytes that came."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Bytes of one connection since it began."""

    went: int
    came: int


class Connections:
    """The counts of connections by peer, written as gRPC writes them: `ipv4:127.0.0.1:50000`. One thread at a time."""

    def __init__(self) -> None:
        self._found: dict[str, int] = {}
        """Peer to the descriptor that was its socket when last looked at."""

    def counts(self, peers: Iterable[str]) -> dict[str, Counts]:
        """The counts of those peers that are connected; of none where the system does not tell."""
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
    """(peer, counts) of a descriptor that is a connection of TCP."""
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
    except OSError:  # it listens, or was closed a moment ago
        return None
    finally:
        there.detach()
    if len(told) < _COUNTS.size:
        return None
    # A listener of IPv6 takes IPv4 as well, and then says so in the address.
    address = address.removeprefix("::ffff:")
    shown = f"ipv6:[{address}]" if ":" in address else f"ipv4:{address}"
    return f"{shown}:{port}", Counts(*_COUNTS.unpack(told))


def plain(peer: str) -> str:
    """A peer as it is written here: gRPC writes the brackets of IPv6 as a URL has them."""
    return unquote(peer)
