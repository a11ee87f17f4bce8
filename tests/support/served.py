"""The one way into a server of the test's own process: its lake, engine, disk and a clock that the test moves."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

import lakestore as ls
from lakestore.client.local import local_transport
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.files.journal_file import FileJournal
from lakestore_server.host.disk import AppendFile, Disk
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from lakestore_server.snapshots.upkeep import BuilderProcess
from lakestore_server.state.catalog_change import CatalogChange, Pointer, SetPointer, TierRecord
from lakestore_server.state.view import TableState
from tests.support.waiting import until
from tests.support.world.clock import HandClock

SCHEMA = pa.schema([("v", pa.int64())])
DAY = 86_400


class Served:
    """One server after the other on a folder, and its client; ends with the block that it is used in."""

    def __init__(
        self,
        folder: Path,
        *,
        disk: Disk | None = None,
        limits: Limits | None = None,
        ports: bool = False,
        believes_clock: bool = True,
        presenter: Callable[[], BuilderProcess] | None = None,
        **settings: Any,
    ) -> None:
        self.clock, self._disk = HandClock(), disk
        duties = {
            "retention_check_seconds": DAY,
            "expiry_check_seconds": DAY,
            "progress_check_seconds": DAY,
        }  # only when the test says so
        given = {"port": 0, "http_port": 0, "lease_grace_seconds": 0.0, **duties, **settings}
        limits = limits or Limits()
        limits = replace(limits, clock_confirm_seconds=0) if believes_clock else limits
        self._settings = Settings(folder, limits=limits, **given)
        self._ports, self._presenter = ports, presenter
        self.start()

    def start(self) -> None:
        """A server on the folder as it is now."""
        presenter = self._presenter() if self._presenter else None
        self.server = Server(self._settings, disk=self._disk, clock=self.clock, presenter=presenter)
        if self._ports:
            self.server.start()
        self.lake = ls.Lake(local_transport(self.server.service), "served")
        self.run = self.server.retention.run_once

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def engine(self) -> Engine:
        """The server's engine."""
        return self.server.engine

    @property
    def disk(self) -> Disk:
        """The disk that the server writes to."""
        return self.engine.disk

    @property
    def journal_file(self) -> AppendFile:
        """The file that the journal is written to."""
        journal = self.engine.loop.journal
        assert isinstance(journal, FileJournal)
        assert journal._file is not None
        return journal._file

    def verbs(self, rpc: str) -> Any:
        """The object whose method answers an RPC, for tests of that object."""
        return getattr(self.server.service.verb(rpc), "__self__")  # noqa: B009 (of a callable that is a method)

    def purge(self, name: str) -> None:
        """Drop a table for good: nothing of it is kept for an undrop. The next checkpoint comes when the test says."""
        self.server.dropped._wake_checkpoint = lambda: None
        self.lake.drop_table(name, purge=True)
        self.server.dropped.run_once()

    def purge_dropped(self, uuid: str) -> None:
        """Remove a dropped table for good, before its grace is over."""
        self.server.dropped._wake_checkpoint = lambda: None
        name = self.engine.view.dropped[uuid].name
        table = pb.TableRequest(table=name, table_uuid=uuid, purge=True)
        self.lake.transport.drop_table(table)
        self.server.dropped.run_once()
        assert uuid not in self.engine.view.dropped

    def checkpoint(self) -> None:
        """A checkpoint now."""
        self.server.upkeep.checkpoint()

    def until_indexed(self) -> None:
        """Wait for an index that is being rebuilt."""
        until(lambda: self.engine.index.ready, "the rebuilt index")

    def restart(self) -> None:
        """An orderly end and a new start."""
        self.close()
        self.start()

    def kill(self) -> None:
        """The process ends: no checkpoint, nothing said."""
        self.lake.close()
        self.server.close(checkpoint=False)

    def open(self, folder: Path, disk: Disk) -> None:
        """Start on what is left."""
        self._settings, self._disk = replace(self._settings, data=folder), disk
        self.start()

    def close(self) -> None:
        """End."""
        self.lake.close()
        self.server.close()

    def state(self, name: str) -> TableState:
        """A table as the server has it."""
        return self.server.engine.view.named(name)

    def append(self, name: str, *values: int) -> str:
        """One commit of these values, a second after the last."""
        self.clock.advance(1)
        return self.lake.table(name).append(pa.table({"v": pa.array(values, pa.int64())}))

    def tier(self, name: str, lsn: int | None = None) -> int:
        """Note a snapshot in the lake at a commit, without writing one; its id."""
        view = self.server.engine.view
        state = view.named(name)
        at = [log.at_lsn(view.lsn if lsn is None else lsn) for log in state.logs]
        snapshot = max([0, *state.tiers]) + 1
        reached = max(p.lsn for p in at)
        ends, sums = tuple(p.end for p in at), tuple(p.live_sum for p in at)
        record = TierRecord(snapshot, ends, sums, reached, 0, schema_id=state.versions.at(reached).schema_id)
        table = state.table
        pointer = view.pointers[table.namespace, table.short_name]
        moved = Pointer(f"{pointer.location}.{snapshot}", pointer.uuid)
        shutil.copyfile(*(place.removeprefix("file://") for place in (pointer.location, moved.location)))
        step = SetPointer(table.namespace, table.short_name, pointer.location, moved, (record,))
        self.server.catalog.ledger.commit(CatalogChange((step,)))
        return snapshot

    def values(self, name: str, start: str = "earliest") -> list[int]:
        """What a change stream gives up to now."""
        stream = self.lake.table(name).changes(start, until="now")
        return [value for batch in stream for value in batch.to_arrow().column("v").to_pylist()]
