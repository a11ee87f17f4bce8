"""A backup becomes a further server of its shared journal, whose beginning is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import lakestore as ls
from lakestore.cli.main import cli
from lakestore.errors import Corrupt, Invalid
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.files import data_folder
from lakestore_server.files.backup_manifest import NAME
from lakestore_server.operate import restore
from tests.support.replicas import Replicas
from tests.support.waiting import until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Replicas]:
    """One server with a table, whose backup is in the folder `backup`. Ten rows are in it; the eleventh is later."""
    with Replicas(tmp_path, count=1) as replicas, ls.connect(replicas.address(0)) as lake:
        table = lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=2)
        table.upsert([{"id": n, "v": "before"} for n in range(10)])
        lake.transport.backup(pb.BackupRequest(folder=str(tmp_path / "backup"), without_lake=True))
        table.upsert([{"id": 10, "v": "after"}])
        yield replicas


def command(tmp_path: Path, *options: str) -> Result:
    folders = str(tmp_path / "backup"), "--data", str(tmp_path / "1")
    return CliRunner().invoke(cli, ["restore", *folders, "--replica", *options])


def test_a_restored_replica_follows_and_leads(alone: Replicas, tmp_path: Path) -> None:
    ran = command(tmp_path, "--json")
    assert ran.exit_code == 0, ran.output
    alone.start(1)
    first, second = (server.engine for server in alone.servers)
    assert json.loads(ran.stdout)["timeline"] == first.timeline == second.timeline
    until(lambda: second.view.lsn == first.view.lsn, "the replica has every commit")
    with ls.connect(alone.address(1)) as lake:
        assert sorted(lake.table("a.t").scan().to_arrow()["id"].to_pylist()) == list(range(11))
    alone.depose()
    assert alone.leader() == 1
    with ls.connect(alone.addresses) as lake:
        table = lake.table("a.t")
        table.upsert([{"id": 0, "v": "again"}, {"id": 11, "v": "new"}])
        found = table.lookup([{"id": n} for n in (0, 9, 10, 11)])
    assert found["v"].to_pylist() == ["again", "before", "after", "new"], "the rebuilt index knows every key"


def test_the_command_names_the_journal_and_takes_no_option_for_the_lake(alone: Replicas, tmp_path: Path) -> None:
    assert command(tmp_path, "--without-lake").exit_code == 2
    assert not (tmp_path / "1").exists()
    ran = command(tmp_path)
    assert ran.exit_code == 0
    assert "with the journal and the warehouse of the other servers" in ran.output


def test_a_backup_that_is_damaged_makes_no_folder(alone: Replicas, tmp_path: Path) -> None:
    file = next((tmp_path / "backup" / data_folder.SEGMENTS).rglob(f"*{data_folder.SUFFIX}"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(Corrupt, match="damaged"):
        restore.restore_replica(tmp_path / "backup", tmp_path / "1")
    assert not (tmp_path / "1").exists()


def test_an_unfinished_replica_does_not_start(alone: Replicas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(restore, "_copy_file", fail)
    with pytest.raises(OSError, match="gone"):
        restore.restore_replica(tmp_path / "backup", tmp_path / "1")
    with pytest.raises(Invalid, match="unfinished"):
        alone.start(1)


def test_a_backup_of_a_file_journal_makes_no_replica(tmp_path: Path) -> None:
    with ls.open(tmp_path / "own") as lake:
        lake.create_table("a.t", SCHEMA, primary_key=["id"])
        lake.transport.backup(pb.BackupRequest(folder=str(tmp_path / "backup"), without_lake=True))
    assert (tmp_path / "backup" / NAME).exists()
    with pytest.raises(Invalid, match="in files"):
        restore.restore_replica(tmp_path / "backup", tmp_path / "1")
