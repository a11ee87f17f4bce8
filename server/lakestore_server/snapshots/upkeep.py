"""The end of presented files: of cuts whose leases are over, of presenters that have ended, of tables that are gone.

What an earlier life of the server presented stays for the grace time of leases, for its readers are not known.
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
"""Between two looks at the folders while nothing ends."""


class SnapshotBuilder(Protocol):
    """The process that writes files."""

    @property
    def runs(self) -> Sequence[str]:
        """Its lives, the newest last."""

    @property
    def pid(self) -> int | None:
        """Its number; None if none runs."""

    def start(self) -> None:
        """Start it."""

    def present(self, request: messages.BuildRequest, fetch: Fetch) -> messages.BuiltFiles:
        """The files of a cut."""

    def forget(self, cut_ids: Sequence[int]) -> None:
        """Let go of the files of these cuts."""

    def keep_tables(self, uuids: Collection[str]) -> None:
        """Remove what is kept of other tables than these."""

    def close(self) -> None:
        """End it."""


class Upkeep:
    """The upkeep of one warehouse. Thread-safe."""

    def __init__(
        self,
        *,
        engine: Engine,
        leases: Leases,
        clock: Clock,
        held: HeldCuts,
        folders: Folders,
        presenter: SnapshotBuilder,
        turn: threading.Lock,
    ) -> None:
        """`turn` is held by whoever talks with the presenter: no cut is forgotten while it is presented anew."""
        self._engine, self._leases, self._clock = engine, leases, clock
        self._held, self._folders, self._presenter, self._turn = held, folders, presenter, turn
        self._is_old, self._next_look, self._has_looked = True, float("-inf"), False
        self.usage = Usage()
        """The files that lie there, as of the last look, and the bytes that were written since."""

    def written(self, nbytes: int) -> None:
        """Note that files were written."""
        self.usage, self._is_old = Usage(self.usage.files, self.usage.bytes + nbytes), True

    def sweep(self) -> None:
        """Let go of cuts whose leases are over, and remove what no cut of this server's life names."""
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

    def measure(self) -> Usage:
        """The files that lie there, by a look at them if there may be others since the last one."""
        if self._is_old:
            self._is_old = False  # before the look: files that are written during it make the figures old again
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
