"""The reports of the servers that share a journal: where each is, and from where on it needs the log.

A server that follows reports now and then, in the log itself; claims and beats of the leader are reports too. So every
server knows the others without a connection to them, and none removes a message that another one needs. A checkpoint
keeps this knowledge, because the log before it may be gone. A server that was not heard for `keep_seconds` no longer
holds the log.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from lakestore_server.host.clock import Clock
from lakestore_server.state.commit_record import Replica

KEEP_SECONDS = 3600.0
REPORT_SECONDS = 10.0
"""Time between two reports of a server that follows."""
REPLICAS_MAX = 64
"""Servers that are known at most; the one that was heard longest ago is forgotten first."""


def report_of(replica: Replica) -> bytes:
    """The bytes of a report."""
    return orjson.dumps([replica.address, replica.lsn, replica.needs, replica.http])


class Replicas:
    """The reports, by address. Thread-safe: each change replaces the mapping."""

    def __init__(self, clock: Clock, keep_seconds: float = KEEP_SECONDS) -> None:
        self._clock, self._keep_seconds = clock, keep_seconds
        self._known: Mapping[str, Replica] = {}

    def hear(self, report: bytes) -> str:
        """Take a report; returns its server's address. Bytes of another form are ignored, because anyone can write into
        the log; so is a report without an address, of a command that serves nobody."""
        try:
            address, lsn, needs, *more = orjson.loads(report)  # a newer release may say more
            http = str(more[0]) if more else ""
            replica = Replica(str(address), int(lsn), int(needs), self._clock.monotonic(), http)
        except (ValueError, TypeError):
            return ""
        if not replica.address:
            return ""
        known = sorted({**self._known, replica.address: replica}.values(), key=lambda each: each.heard)
        self._known = {each.address: each for each in known[-REPLICAS_MAX:]}
        return replica.address

    def present(self, besides: str = "") -> list[Replica]:
        """The servers that were heard not long ago, by address, without one of them."""
        since = self._clock.monotonic() - self._keep_seconds
        return [each for _, each in sorted(self._known.items()) if each.heard >= since and each.address != besides]

    def needed(self, position: int, besides: str) -> int:
        """The position, or an earlier one that another server needs."""
        return min([position, *(each.needs for each in self.present(besides))])

    def __str__(self) -> str:
        return orjson.dumps([[each.address, each.lsn, each.needs, each.http] for each in self.present()]).decode()

    def restore(self, text: str) -> None:
        """Take what `str` wrote. The time for which a server is kept begins again."""
        for report in orjson.loads(text):
            self.hear(orjson.dumps(report))
