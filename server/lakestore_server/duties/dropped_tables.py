"""The duty of dropped tables: removes what is left of a table after its drop grace, or at once on request.

- First a commit makes the drop final; then the lake files are removed; then a commit forgets the table, and the next
  checkpoint frees segments and index.
- After a crash the duty continues with what is left.
- The duty waits for reads that lease a lake snapshot or a range of the log. A clock in doubt ends no drop grace.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from lakestore.errors import Conflict, LakestoreError, Unavailable
from lakestore_server.catalog import catalog
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.commit.engine import Engine
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.worker import Worker
from lakestore_server.read.leases import Leases
from lakestore_server.state.catalog_change import DROPPED, DropPointer
from lakestore_server.state.commit_record import CommitRecord, Shelving
from lakestore_server.state.state import State
from lakestore_server.state.view import DroppedTable

log = logging.getLogger("lakestore.dropped")


class DroppedTables:
    """One round at a time, in its own thread or by `run_once`."""

    def __init__(
        self,
        engine: Engine,
        leases: Leases,
        catalog: Catalog,
        check_seconds: float,
        wake_checkpoint: Callable[[], None],
    ) -> None:
        self._engine, self._leases, self._catalog = engine, leases, catalog
        self._wake_checkpoint = wake_checkpoint
        self._running = threading.Lock()
        self._duty = Worker(
            supervisor=engine.supervisor, name="dropped-tables", work=self.run_once, failed=_failed, every=check_seconds
        )
        self._duty.start()

    def wake(self) -> None:
        self._duty.wake()

    def close(self) -> None:
        self._duty.close()

    def run_once(self) -> None:
        with self._running:
            if not self._engine.is_leading:
                return
            now = self._engine.time.read()
            for uuid, held in sorted(self._engine.view.dropped.items()):
                is_over = now.may_delete and held.until_us <= now.time_us
                if self._duty.is_closing or not (is_over or not held.until_us):
                    continue
                if held.until_us and not self._begun(uuid, held):
                    continue
                if self._leases.is_read(uuid):
                    continue
                self._remove(uuid, held)

    def _begun(self, uuid: str, held: DroppedTable) -> bool:
        def plan(state: State, record: CommitRecord) -> None:
            if state.view.dropped.get(uuid, held).until_us != held.until_us or uuid not in state.view.dropped:
                raise Conflict("it is there again")
            record.shelve.append(Shelving(uuid, 0))

        try:
            self._engine.operate(plan)
        except Conflict:
            return False
        return True

    def _remove(self, uuid: str, held: DroppedTable) -> None:
        pointer = self._engine.view.pointers.get((DROPPED, uuid))
        try:
            is_kept = self._catalog.is_kept_outside(held.state.table)
        except Unavailable as error:
            log.info("dropped table %s is removed later: %s", held.name, error.message)
            return
        self._engine.reach(CrashPoint.PURGE_BEGUN)
        if pointer is not None and not is_kept:
            self._catalog.purge(pointer)
        self._engine.reach(CrashPoint.PURGED_FROM_LAKE)

        def plan(state: State, record: CommitRecord) -> None:
            record.drop.append(uuid)
            if (DROPPED, uuid) in state.view.pointers:
                catalog.add_steps(state.view, record, DropPointer(DROPPED, uuid))

        self._engine.operate(plan)
        log.info("the rest of dropped table %s is removed", held.name)
        self._wake_checkpoint()


def _failed(error: Exception) -> None:
    said = error.message if isinstance(error, LakestoreError) else str(error)
    log.error("dropped tables are removed later: %s", said)
