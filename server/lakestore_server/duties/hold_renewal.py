"""Renews what the leader holds of the lake for the reads that run at this server, while it follows.

A lease whose snapshot the leader does not hold any more ends: its read is planned again. A leader that cannot be asked
ends no lease, because the next one expires nothing for as long as a hold lasts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from lakestore.errors import LakestoreError
from lakestore_server.commit.engine import Engine
from lakestore_server.host.worker import Worker
from lakestore_server.read.leader_holds import LeaderHolds
from lakestore_server.read.leases import Leases

log = logging.getLogger("lakestore.leases")
ROUNDS = 4
"""Renewals within one hold."""


class HoldRenewal:
    """One round at a time, in its own thread or by `run_once`."""

    def __init__(self, engine: Engine, leases: Leases, holds: LeaderHolds, on_close: Callable[[], None]) -> None:
        self._engine, self._leases, self._holds, self._on_close = engine, leases, holds, on_close
        self._worker = Worker(
            supervisor=engine.supervisor,
            name="hold-renewal",
            work=self.run_once,
            failed=_failed,
            every=holds.seconds / ROUNDS,
        )

    def start(self) -> None:
        self._worker.start()

    def close(self) -> None:
        self._worker.close()
        self._on_close()

    def run_once(self) -> None:
        """Renew all holds of running reads, and end the leases whose holds are gone."""
        if self._engine.is_leading:
            return
        try:
            lost = self._holds.renew(self._leases.needs())
        except LakestoreError as error:
            log.warning("the leader cannot be asked to keep snapshots for reads of this server: %s", error.message)
            return
        if lost:
            log.warning("%d snapshots, files or cuts of running reads are gone: the reads are planned again", len(lost))
            self._leases.lose(lost)


def _failed(error: Exception) -> None:
    log.error("snapshots of running reads are not renewed: %s", error)
