"""Leases of a session's plans, renewed by a daemon thread.

A lease is short, so a dead session's snapshots are free within a minute. It is renewed until it is older than
`keep_seconds`. Afterwards its DataFrame fails with `PlanExpired` and returns no partial rows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from lakestore import limits
from lakestore.errors import LakestoreError
from lakestore.union.cut import Transport
from lakestore.v1.lakestore_pb2 import LeaseRequest

LEASE_SECONDS = 60
RENEWALS_PER_LEASE = 3


class SessionLeases:
    """Leases of one session, renewed until `close` or until they are too old. Thread-safe."""

    def __init__(
        self,
        transport: Transport,
        *,
        keep_seconds: float = limits.LEASE_SECONDS_DEFAULT,
        on_release: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._keep_seconds = keep_seconds
        self._on_release = on_release
        self._clock = clock
        self._until: dict[str, float] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, lease: str) -> None:
        if not lease:
            return
        with self._lock:
            self._until[lease] = self._clock() + self._keep_seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lakestore-leases", daemon=True)
                self._thread.start()

    def renew(self) -> None:
        """Renew all leases and release those that are too old."""
        now = self._clock()
        with self._lock:
            held = list(self._until.items())
        for lease, until in held:
            if until <= now:
                self.release(lease)
            else:
                # A failed renewal shows up as PlanExpired when the plan's rows are fetched.
                with suppress(LakestoreError):
                    self._transport.renew_lease(LeaseRequest(lease=lease, seconds=LEASE_SECONDS))

    def release(self, lease: str) -> None:
        with self._lock:
            self._until.pop(lease, None)
        self._on_release(lease)
        with suppress(LakestoreError):
            self._transport.release_lease(LeaseRequest(lease=lease))

    def close(self) -> None:
        """Release all leases. Idempotent."""
        self._closed.set()
        with self._lock:
            held = list(self._until)
        for lease in held:
            self.release(lease)

    def _run(self) -> None:
        while not self._closed.wait(LEASE_SECONDS / RENEWALS_PER_LEASE):
            self.renew()
