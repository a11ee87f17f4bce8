"""The reports of the servers that share a journal: where each is, and from where on it needs the log.

- A server that follows reports now and then, in the log itself; claims and beats of the leader are reports too. So
  every server knows the others without a connection to them, and none removes a message that another one needs. A
  checkpoint keeps this knowledge, because the log before it may be gone.
- A server that was not heard for `keep_seconds` no longer holds the log. Only time in which messages were read counts:
  nobody can be heard by a server that is paused, nor while the log itself is away.
- Two processes may say one address, by a mistake in their settings or because one is the other's successor. Each holds
  the log on its own, the successor's forerunner for a minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from lakestore_server.host.clock import Clock
from lakestore_server.state.commit_record import COPIES, Replica

KEEP_SECONDS = 3600.0
REPORT_SECONDS = 10.0
"""Time between two reports of a server that follows."""
SILENT_SECONDS = 60.0
"""A longer time between two messages counts as much. A lease has several messages."""
FORERUNNER_SECONDS = 60.0
"""A process that was not heard for this long is over, if a later one has its address."""
LEASE_SECONDS_MAX = 3600.0
"""The longest lease that settings allow."""
REPLICAS_MAX = 64
"""Processes that are known at most; the one that was heard longest ago is forgotten first."""
ADDRESS_MAX = 300
"""Characters of an address. A name of the network has 253 at most."""
_LARGEST = (1 << 63) - 1


def report_of(replica: Replica) -> bytes:
    """The bytes of a report."""
    about = replica.address, replica.lsn, replica.needs, replica.http, replica.process, replica.warehouse, replica.lease
    return orjson.dumps(about)


@dataclass(frozen=True, slots=True)
class _Heard:
    replica: Replica
    at: float
    """In seconds in which messages were read."""


class Replicas:
    """The reports, by address and process. Thread-safe: each change replaces the mapping."""

    def __init__(self, clock: Clock, keep_seconds: float = KEEP_SECONDS) -> None:
        self._clock, self._keep_seconds = clock, keep_seconds
        self._known: Mapping[tuple[str, str], _Heard] = {}
        self._listened, self._listened_at = 0.0, clock.monotonic()
        """(seconds in which messages were read, time of the last one)."""

    def listen(self) -> float:
        """Note that a message was read; returns the monotonic time."""
        now = self._clock.monotonic()
        self._listened += min(now - self._listened_at, SILENT_SECONDS)
        self._listened_at = now
        return now

    def hear(self, report: bytes) -> Replica | None:
        """Take a report. Bytes of another form are ignored, because anyone can write into the log; so is a report
        without an address, of a command that serves nobody."""
        replica = self._parsed(report, self.listen())
        if replica is None:
            return None
        heard = _Heard(replica, self._listened)
        known = sorted(
            {**self._known, (replica.address, replica.process): heard}.values(), key=lambda each: each.replica.heard
        )
        self._known = {(each.replica.address, each.replica.process): each for each in known[-REPLICAS_MAX:]}
        return replica

    @staticmethod
    def _parsed(report: bytes, now: float) -> Replica | None:
        try:
            address, lsn, needs, *more = orjson.loads(report)  # a newer release may say more
            http, process, warehouse, lease = [*more, *("", "", "", None)[len(more) :]][:4]
            for text in (address, http, process, warehouse):
                if not isinstance(text, str) or len(text) > ADDRESS_MAX or not text.isprintable():
                    return None
            for number, least in ((lsn, COPIES), (needs, 0)):
                if type(number) is not int or not least <= number <= _LARGEST:
                    return None
            if lease is not None:
                lease = min(max(float(lease), 0.0), LEASE_SECONDS_MAX)
        except (ValueError, TypeError):
            return None
        return Replica(address, lsn, needs, now, http, process, warehouse, lease) if address else None

    def present(self, besides: str = "") -> list[Replica]:
        """The servers that were heard not long ago, by address, without one of them. Of two processes with one address
        the one that was heard last."""
        latest: dict[str, Replica] = {}
        for each in sorted(self._present(), key=lambda each: each.replica.heard):
            latest[each.replica.address] = each.replica
        return [each for _, each in sorted(latest.items()) if each.address != besides]

    def _present(self) -> list[_Heard]:
        known = self._known
        latest = dict[str, float]()
        for (address, _), each in known.items():
            latest[address] = max(each.at, latest.get(address, each.at))

        def is_present(each: _Heard) -> bool:
            silence = self._listened - each.at
            has_successor = latest[each.replica.address] > each.at
            return silence <= self._keep_seconds and not (has_successor and silence > FORERUNNER_SECONDS)

        return [each for each in known.values() if is_present(each)]

    def needed(self, position: int, process: str) -> int:
        """The position, or an earlier one that another process needs."""
        return min([position, *(each.replica.needs for each in self._present() if each.replica.process != process)])

    def leases(self) -> list[float | None]:
        """The lease of each process that was heard not long ago, as `Replica.lease`."""
        return [each.replica.lease for each in self._present()]

    def __str__(self) -> str:
        return (b"[%b]" % b",".join(report_of(each.replica) for each in self._present())).decode()

    def restore(self, text: str) -> None:
        """Take what `str` wrote. The time for which a server is kept begins again."""
        for report in orjson.loads(text):
            self.hear(orjson.dumps(report))
