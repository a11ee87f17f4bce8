"""The look for commits that others made at outside catalogs: adopted, or named in the table's status.

- Only the server that leads looks, one table after another.
- A catalog that is away, or a commit that the gate does not adopt, is a problem of its table, not of the duty.
"""

from __future__ import annotations

import logging

from lakestore.errors import LakestoreError
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.outside_tables import is_outside
from lakestore_server.commit.engine import Engine
from lakestore_server.host.worker import Worker

log = logging.getLogger("lakestore.catalog")


class OutsideCheck:
    """The duty `outside-catalogs`."""

    def __init__(self, engine: Engine, catalog: Catalog, check_seconds: float) -> None:
        self._engine, self._catalog = engine, catalog
        self._worker = Worker(
            supervisor=engine.supervisor,
            name="outside-catalogs",
            work=self.run_once,
            failed=_failed,
            every=check_seconds,
            first=0.0,
        )
        self._worker.start()

    def run_once(self) -> None:
        """Look at every table that lives in an outside catalog."""
        if not self._engine.is_leading:
            return
        for state in list(self._engine.view.tables.values()):
            if is_outside(state.table) and not self._worker.is_closing:
                try:
                    self._catalog.look_outside(state.table)
                except LakestoreError as error:
                    log.debug("a look at table %s failed: %s", state.table.name, error.message)

    def close(self) -> None:
        self._worker.close()


def _failed(error: Exception) -> None:
    log.error("the look at outside catalogs failed: %s", error)
