"""Removes presented files: of cuts whose leases have expired, of earlier runs of the builder, and of dropped tables.

Files of an earlier run of the server stay for the grace time of leases, because their readers are not known.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Protocol

from lakestore_server.commit.engine import Engine
from lakestore_server.host.clock import Clock
from lakestore_server.read.leases import Leases
from lakestore_server.snapshots import messages
from lakestore_server.snapshots.held_cuts import HeldCuts
from lakestore_server.snapshots.warehouse import Folders, Usage
from lakestore_server.snapshots.worker_client import Fetch

LOOK_SECONDS = 60.0
"""Seconds between two scans of the folders while no lease ends."""


class BuilderProcess(Protocol):
    """The process that writes files."""

    @property
    def runs(self) -> Sequence[str]:
        """Its runs, the newest last."""

    @property
    def pid(self) -> int | None:
        """Its process id; None if it does not run."""

    def start(self) -> None: ...

    def present(self, request: messages.BuildRequest, fetch: Fetch) -> messages.BuiltFiles: ...

    def forget(self, cut_ids: Sequence[int]) -> None:
        """Forget the files of these cuts."""

    def keep_tables(self, uuids: Collection[str]) -> None:
        """Remove what is kept for other tables than these."""

    def close(self) -> None: ...


class SnapshotUpkeep:
    """The upkeep of one warehouse. Thread-safe."""

    def __init__(
        self,
        *,
        engine: Engine,
        leases: Leases,
        clock: Clock,
        held: HeldCuts,
        folders: Folders,
        presenter: BuilderProcess,
        turn: threading.Lock,
    ) -> None:
        """`turn` is held by whoever talks to the builder, so no cut is forgotten while it is built again."""
        self._engine, self._leases, self._clock = engine, leases, clock
        self._held, self._folders, self._presenter, self._turn = held, folders, presenter, turn
        self._is_old, self._next_look, self._has_looked = True, float("-inf"), False
        self.usage = Usage()
        """The files of the last scan, and the bytes written since."""

    def written(self, nbytes: int) -> None:
        """Record that files were written."""
        self.usage, self._is_old = Usage(self.usage.files, self.usage.bytes + nbytes), True

    def sweep(self) -> None:
        """Forget cuts whose leases have expired, and remove files that no cut of this run uses."""
        with self._turn:
            over, now = self._held.take_over(), self._clock.monotonic()
            if over:
                self._presenter.forget([cut.key.snapshot_id for cut in over])
                for location in [location for cut in over for location in cut.documents]:
                    self._folders.remove_document(location)
            if over or self._is_old or now >= self._next_look:
                self._remove_unheld()
                self._is_old, self._next_look = True, now + LOOK_SECONDS
                self.measure()

    def forget_table(self, table_uuid: str, *, cut_off: bool) -> int:
        """Remove all files of a table; with `cut_off` also the ones of held cuts. Returns the number of held cuts."""
        with self._turn:
            held = [cut for cut in self._held.cuts() if cut.key.table_uuid == table_uuid]
            if (held or self._leases.in_grace) and not cut_off:
                return max(len(held), 1)
            self._presenter.forget(self._held.dropped(lambda cut: cut.key.table_uuid == table_uuid))
            self._presenter.keep_tables(self._engine.view.tables.keys() - {table_uuid})
            if table_uuid in self._folders.tables():
                self._folders.remove_table(table_uuid)
            self._is_old = True
        return 0

    def measure(self) -> Usage:
        """The number and size of the files. Scans the folders if they may have changed since the last scan."""
        if self._is_old:
            self._is_old = False  # set before the scan: files that are written during it make the figures old again
            try:
                self.usage = self._folders.usage()
            except BaseException:
                self._is_old = True
                raise
        return self.usage

    def _remove_unheld(self) -> None:
        known, in_grace = self._engine.view.tables, self._leases.in_grace
        if not in_grace:
            self._folders.remove_former()
        self._presenter.keep_tables(known.keys())
        tables = self._folders.tables()
        there = {(uuid, run) for uuid in tables for run in self._folders.runs(uuid)}
        self._presenter.forget(self._held.dropped(lambda cut: (cut.key.table_uuid, cut.run) not in there))
        held = {(cut.key.table_uuid, cut.run) for cut in self._held.cuts()}
        mine = self._presenter.runs
        living = mine[-1] if mine and self._presenter.pid is not None else ""
        for uuid in tables:
            if not self._has_looked:
                self._folders.remove_indexes(uuid)
            runs = {run for place, run in there if place == uuid}
            kept = {run for run in runs if (uuid, run) in held or (in_grace and run not in mine)}
            if uuid not in known and not kept and not in_grace:
                self._folders.remove_table(uuid)
                continue
            for run in runs - kept - {living}:
                self._folders.remove_run(uuid, run)
        self._has_looked = True
