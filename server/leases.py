"""Leases of reads: what a plan named stays until its lease is over. In memory.

After a start, the snapshots that were there are held for one grace time: their readers may still be running.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from lakestore.errors import Exhausted, Invalid, PlanExpired, Unavailable
from lakestore.limits import DEFAULT, Limits
from lakestore.server.clock import Clock


@dataclass(slots=True)
class Lease:
    """One read."""

    expires: float
    """Monotonic seconds."""
    snapshots: Mapping[str, int]
    """Table uuid to the lake snapshot it reads."""


class Leases:
    """All leases of a server. Thread-safe."""

    def __init__(
        self,
        clock: Clock,
        held: Mapping[str, frozenset[int]],
        grace_seconds: float,
        limits: Limits = DEFAULT,
    ) -> None:
        self._clock, self._limits = clock, limits
        self._lock = threading.Lock()
        self._leases: dict[str, Lease] = {}
        self._retired: set[tuple[str, int]] = set()
        self._held, self._held_until = held, clock.monotonic() + grace_seconds

    def grant(self, snapshots: Mapping[str, int], seconds: int) -> str:
        """A new lease; its id. `Unavailable` if one of the snapshots is being expired: plan again."""
        name = uuid.uuid4().hex
        with self._lock:
            self._drop_expired()
            if self._retired.intersection(snapshots.items()):
                raise Unavailable("a snapshot expires at this moment: plan again")
            if len(self._leases) >= self._limits.leases:
                raise Exhausted(
                    f"{self._limits.leases} reads run, the limit: try again when one has ended", retry_after=1.0
                )
            self._leases[name] = Lease(self._until(seconds), snapshots)
        return name

    def renew(self, name: str, seconds: int) -> None:
        """Prolong, or `PlanExpired`."""
        with self._lock:
            self._drop_expired()
            if name not in self._leases:
                raise PlanExpired("the read took longer than its lease: plan it again")
            self._leases[name].expires = self._until(seconds)

    def check(self, name: str) -> None:
        """`PlanExpired` unless the lease runs; no lease is asked for by the empty name."""
        if name:
            with self._lock:
                self._drop_expired()
                if name not in self._leases:
                    raise PlanExpired("the read took longer than its lease: plan it again")

    def release(self, name: str) -> None:
        """End a lease; unknown ones are over already."""
        with self._lock:
            self._leases.pop(name, None)

    def retire(self, table_uuid: str, snapshots: frozenset[int]) -> bool:
        """Let no read begin on these snapshots from now on; False, and nothing done, if one is held."""
        with self._lock:
            if snapshots & self._pinned(table_uuid):
                return False
            self._retired.update((table_uuid, snapshot) for snapshot in snapshots)
        return True

    def is_retired(self, table_uuid: str, snapshot: int) -> bool:
        """Whether no read may begin on a snapshot any more."""
        return (table_uuid, snapshot) in self._retired

    def pinned(self, table_uuid: str) -> frozenset[int]:
        """Snapshots of a table that some read holds."""
        with self._lock:
            return self._pinned(table_uuid)

    def _pinned(self, table_uuid: str) -> frozenset[int]:
        self._drop_expired()
        held = {lease.snapshots[table_uuid] for lease in self._leases.values() if table_uuid in lease.snapshots}
        if self._clock.monotonic() < self._held_until:
            held |= self._held.get(table_uuid, frozenset())
        return frozenset(held)

    def _until(self, seconds: int) -> float:
        if not 1 <= seconds <= self._limits.lease_seconds:
            raise Invalid(f"a lease is 1 to {self._limits.lease_seconds} seconds, not {seconds}")
        return self._clock.monotonic() + seconds

    def _drop_expired(self) -> None:
        now = self._clock.monotonic()
        for name in [name for name, lease in self._leases.items() if lease.expires <= now]:
            del self._leases[name]
