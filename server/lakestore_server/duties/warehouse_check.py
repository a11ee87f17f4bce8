"""The check that all servers of a shared journal have the same warehouse, by the journal's mark in it.

- A start is refused without the right mark, unless the journal has no commit yet. The first leader then writes the mark
  before its first commit.
- A server that started before the first commit looks again until it has seen the mark. It ends if the mark stays away.
- Claims, beats and reports name the mark's random id. A server ends if the leader has another one: two servers on two
  warehouses may each have written a mark before the first commit.
- A warehouse that does not answer refuses nothing: rows that are not tiered do not need it. The look is repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from lakestore.errors import Corrupt, Invalid, Unavailable
from lakestore_server.catalog.warehouse_mark import WarehouseMark
from lakestore_server.commit.engine import Engine
from lakestore_server.files import data_folder
from lakestore_server.host.clock import Clock
from lakestore_server.host.worker import Worker

log = logging.getLogger("lakestore.warehouse")
LOOK_SECONDS = 5.0
LACK_SECONDS = 60.0
"""Time for which a running server lets the mark be away: a mounted folder may show a new file late."""


class WarehouseCheck:
    """The check of one server."""

    def __init__(
        self, engine: Engine, mark: WarehouseMark, clock: Clock, on_wrong: Callable[[Exception], None]
    ) -> None:
        """`on_wrong` is called if a running server turns out to be on another warehouse."""
        self._engine, self._mark, self._clock, self._on_wrong = engine, mark, clock, on_wrong
        self._is_right = False
        self._lacks_since: float | None = None
        self._worker = Worker(
            supervisor=engine.supervisor,
            name="warehouse-check",
            work=self.run_once,
            failed=_not_looked,
            every=LOOK_SECONDS,
            first=0.0,
        )

    def check_start(self) -> None:
        """`Invalid` or `Corrupt` if this server must not start with its warehouse. Later looks follow by themselves."""
        try:
            self._look()
            if not self._is_right and self._engine.view.lsn:
                raise self._mark.lack()
            self._compare()
        except Unavailable as error:
            _not_looked(error)
        self._worker.start()

    def begin_to_lead(self) -> None:
        """Write the mark before the first commit of all; on the commit loop."""
        if not self._engine.view.lsn and not self._is_right:
            if not self._mark.is_there():
                if self._engine.loop.journal.leaders_warehouse:
                    raise self._mark.differs()
                self._mark.put()
            self._is_right = True
        self._compare()

    def run_once(self) -> None:
        """One look, until the mark was seen, and a comparison with the leader's mark."""
        try:
            if not self._is_right and self._engine.view.lsn:
                self._look()
                if not self._is_right:
                    self._check_lack(self._mark.lack())
            self._compare()
        except (Invalid, Corrupt) as error:
            log.critical("%s", error)
            self._on_wrong(error)

    def _look(self) -> None:
        """Look for the mark. A folder whose journal was moved into a log names the warehouse for all later servers."""
        disk, folder = self._engine.disk, self._engine.folder
        is_moved = data_folder.MOVED in disk.list(folder)
        self._is_right = self._mark.is_there()
        if is_moved and not self._is_right:
            self._mark.put()
            self._is_right = True
        if is_moved:
            disk.remove(folder / data_folder.MOVED)
            disk.sync_folder(folder)

    def _compare(self) -> None:
        """Name the mark to the other servers; `Invalid` if the last leader has named another one. Two servers could
        each have written a mark, if the first one led and ended before the first commit."""
        journal = self._engine.loop.journal
        journal.warehouse = self._mark.id
        if self._mark.id and journal.leaders_warehouse not in ("", self._mark.id):
            raise self._mark.differs()

    def _check_lack(self, lack: Invalid) -> None:
        now = self._clock.monotonic()
        self._lacks_since = now if self._lacks_since is None else self._lacks_since
        if now - self._lacks_since >= LACK_SECONDS:
            raise lack

    def close(self) -> None:
        self._worker.close()


def _not_looked(error: Exception) -> None:
    log.warning("it is not known yet whether the warehouse is that of the other servers: %s", error)
