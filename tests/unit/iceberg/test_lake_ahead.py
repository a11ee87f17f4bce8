"""After a restore the lake may be ahead of the log: noticed, said, and neither tiered into nor read."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.client.lake import Lake
from lakestore.client.local import local_transport
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog.commits import TableChange
from lakestore_server.catalog.contents import Name
from lakestore_server.catalog.errors import Forbidden
from lakestore_server.main import Server
from lakestore_server.operate.restore import restore
from lakestore_server.settings import Settings
from tests.support.catalogs import tier

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])


class World:
    """A server with a lake whose tier commits are made by hand."""

    def __init__(self, server: Server) -> None:
        self.server = server
        transport = local_transport(server.service)
        self.lake = Lake(transport, "here")

    def append(self, rows: int) -> None:
        """One commit."""
        self.lake.table("a.log").append(pa.table({"id": range(rows), "n": [0] * rows}, schema=SCHEMA))

    def tier(self, number: int, parent: int | None, start: int) -> None:
        """Tier everything, as a tierer that holds the newest epoch."""
        state = self.server.engine.view.named("a.log")
        head = state.logs[0].at_head
        epoch = self.server.engine.view.tierer_epoch
        updates = tier(number, parent, [start], [head.end], epoch=epoch, sums=[head.live_sum], records=head.live_rows)
        updates[0]["snapshot"]["timestamp-ms"] = time.time_ns() // 1_000_000
        self.server.catalog.commit([TableChange(Name("a", "log"), [], updates)])

    def snapshot(self) -> int:
        """The lake snapshot that a read would use."""
        answer = self.server.service.verb("Plan")(pb.PlanRequest(tables=["a.log"]))
        found: int = answer.tables[0].snapshot_id
        return found

    @property
    def uuid(self) -> str:
        """Of the table."""
        return self.server.engine.view.named("a.log").table.uuid


@contextmanager
def serving(tmp_path: Path, data: str) -> Iterator[World]:
    """A server on a folder, with the one warehouse of the test."""
    server = Server(Settings(tmp_path / data, warehouse=str(tmp_path / "warehouse"), lease_grace_seconds=0.0))
    try:
        yield World(server)
    finally:
        server.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A backup with one tier commit at offset 10, and a lake that went on to 15 after it, with a log at 15."""
    with serving(tmp_path, "data") as world:
        world.lake.create_table("a.log", SCHEMA, buckets=1)
        world.server.service.verb("AcquireTierer")(pb.TiererRequest(holder="test", seconds=60))
        world.append(10)
        world.tier(1, None, 0)
        world.append(2)
        world.server.service.verb("Backup")(pb.BackupRequest(folder=str(tmp_path / "backup")))
        world.append(3)
        shutil.copytree(tmp_path / "warehouse", tmp_path / "warehouse-before")
        world.tier(2, 1, 10)
    restore(tmp_path / "backup", tmp_path / "restored")
    return tmp_path


def newer(folder: Path) -> list[Path]:
    """The metadata files that the backup does not know."""
    before = {path.name for path in (folder / "warehouse-before").rglob("*.metadata.json")}
    return [path for path in (folder / "warehouse").rglob("*.metadata.json") if path.name not in before]


def test_a_lake_that_is_ahead_is_noticed_and_nothing_is_tiered_into_it(folder: Path) -> None:
    with serving(folder, "restored") as world:
        (sentence,) = world.server.engine.lake_ahead.values()
        assert "a.log is ahead of this server" in sentence
        assert "tier point [15], the log ends at [12]" in sentence
        status = json.loads(world.server.service.verb("Status")(pb.StatusRequest()).status)
        assert status["tables"][0]["lake_ahead"] == sentence
        world.append(1)
        with pytest.raises(Forbidden, match="is ahead of this server"):
            world.tier(3, 1, 10)


def test_reads_do_without_a_lake_that_is_ahead(folder: Path) -> None:
    """Its older snapshots may have lost their files; the log has all rows."""
    for path in (folder / "warehouse").rglob("*.avro"):
        path.unlink()
    with serving(folder, "restored") as world:
        assert world.snapshot() == 0
        assert world.lake.table("a.log").scan().count() == 12


def test_retention_drops_nothing_whose_copy_in_the_lake_may_be_gone(folder: Path) -> None:
    with serving(folder, "restored") as world:
        world.lake.table("a.log").alter(retention={"bytes": 1})
        world.server.upkeep.checkpoint()
        world.server.retention.run_once()
        assert world.server.engine.view.named("a.log").starts() == (0,)
        decision = world.server.retention.decision(world.uuid)
        assert decision is not None
        assert "restore" in decision.holders()


def test_it_stays_noticed_when_the_log_has_grown_beyond_it(folder: Path) -> None:
    with serving(folder, "restored") as world:
        world.append(50)
    with serving(folder, "restored") as world:
        assert world.uuid in world.server.engine.lake_ahead
        assert world.snapshot() == 0


def test_it_goes_on_once_the_newer_metadata_is_moved_away(folder: Path) -> None:
    (path,) = newer(folder)
    path.rename(folder / path.name)
    with serving(folder, "restored") as world:
        assert world.server.engine.lake_ahead == {}
        assert world.snapshot() == 1
        world.append(1)
        world.tier(3, 1, 10)
        assert world.snapshot() == 3
    with serving(folder, "restored") as world:
        assert world.server.engine.lake_ahead == {}, "what this history writes is its own"


def test_a_lake_that_did_not_move_is_gone_on_with(folder: Path) -> None:
    shutil.rmtree(folder / "warehouse")
    (folder / "warehouse-before").rename(folder / "warehouse")
    with serving(folder, "restored") as world:
        assert world.server.engine.lake_ahead == {}
        assert world.snapshot() == 1


def test_a_server_that_was_never_restored_takes_its_own_orphans_for_nothing(folder: Path) -> None:
    """A commit that was cut off leaves a metadata file that no pointer names."""
    with serving(folder, "data") as world:
        (path,) = newer(folder)
        path.with_name("00099-orphan.metadata.json").write_bytes(path.read_bytes())
        world.append(1)
    with serving(folder, "data") as world:
        assert world.server.engine.lake_ahead == {}
        assert world.snapshot() == 2


def test_metadata_that_the_pointer_names_and_is_gone_is_noticed_too(folder: Path) -> None:
    """What came later removed it: the lake cannot be read at the backup's state."""
    known = {path.name for path in (folder / "warehouse-before").rglob("*.metadata.json")}
    for path in (folder / "warehouse").rglob("*.metadata.json"):
        if path.name in known:
            path.unlink()
    with serving(folder, "restored") as world:
        assert world.uuid in world.server.engine.lake_ahead
        assert world.lake.table("a.log").scan().count() == 12
