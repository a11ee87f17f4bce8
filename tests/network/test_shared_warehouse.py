"""Servers of one journal have one warehouse: its mark is written before the first commit and read at each start."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lakestore as ls
from lakestore.cli.main import cli
from lakestore.errors import Corrupt, Invalid, Unavailable
from lakestore.model import file_uri
from lakestore_server.catalog.metadata_store import LocalStorage
from lakestore_server.catalog.warehouse_mark import NAME, WarehouseMark
from lakestore_server.duties import warehouse_check
from lakestore_server.duties.warehouse_check import WarehouseCheck
from lakestore_server.host.clock import RealClock
from tests.support.replicas import Replicas
from tests.support.waiting import until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Replicas]:
    """One server with a commit."""
    with Replicas(tmp_path, count=1) as replicas:
        with ls.connect(replicas.address(0)) as lake:
            lake.create_table("a.t", SCHEMA, buckets=1)
        yield replicas


def test_the_first_leader_writes_the_mark_before_its_first_commit(tmp_path: Path) -> None:
    with Replicas(tmp_path, count=1) as replicas:
        assert (tmp_path / "warehouse" / NAME).exists()
        assert replicas.servers[0].engine.view.lsn == 0


def test_a_server_on_another_warehouse_is_refused(alone: Replicas, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=rf"other lake lacks {NAME}, which the first server of this journal wrote"):
        alone.start_on(tmp_path / "b", warehouse=tmp_path / "other lake")
    alone.start_on(tmp_path / "b")


def test_a_server_on_the_warehouse_of_another_journal_is_refused(alone: Replicas, tmp_path: Path) -> None:
    mark = tmp_path / "warehouse" / NAME
    mark.write_bytes(mark.read_bytes().replace(alone.servers[0].engine.timeline.encode(), b"0123456789ab"))
    with pytest.raises(Invalid, match="belongs to another journal"):
        alone.start(1)
    mark.write_bytes(b"{")
    with pytest.raises(Corrupt, match="is damaged"):
        alone.start(1)


def test_a_folder_that_is_mounted_elsewhere_is_refused_unless_both_paths_lead_there(
    alone: Replicas, tmp_path: Path
) -> None:
    shutil.copytree(tmp_path / "warehouse", tmp_path / "mounted elsewhere")
    with pytest.raises(Invalid, match="mount it at the same path, and name it alike"):
        alone.start_on(tmp_path / "b", warehouse=tmp_path / "mounted elsewhere")
    (tmp_path / "link").symlink_to(tmp_path / "warehouse")
    alone.start_on(tmp_path / "b", warehouse=tmp_path / "link")


def test_a_server_that_started_before_the_first_commit_ends_on_another_warehouse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warehouse_check, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(warehouse_check, "LACK_SECONDS", 0.0)
    with Replicas(tmp_path, count=1) as replicas:
        replicas.start_on(tmp_path / "b", warehouse=tmp_path / "other")
        replicas.start_on(tmp_path / "c")
        with ls.connect(replicas.address(0)) as lake:
            lake.create_table("a.t", SCHEMA, buckets=1)
        until(lambda: replicas.fatal, "the end of the server")
        (number, error), *_ = replicas.fatal
        assert number == 1
        assert f"the warehouse {uri_of(tmp_path / 'other')} lacks" in str(error)


def uri_of(folder: Path) -> str:
    return file_uri.to_uri(folder)


def test_the_second_leader_before_the_first_commit_is_refused_on_another_warehouse(tmp_path: Path) -> None:
    """Else each of two warehouses has the mark of this journal, and half of the tiered rows."""
    with Replicas(tmp_path, count=1) as replicas:
        replicas.start_on(tmp_path / "b", warehouse=tmp_path / "other")
        journal = replicas.servers[1].engine.loop.journal
        until(lambda: journal.leaders_warehouse, "a beat that names the mark")
        replicas.ends[0].is_cut = True
        until(lambda: replicas.fatal, "the end of the second server")
        (number, error), *_ = replicas.fatal
        assert number == 1
        assert "is not that of the server that led this journal before" in str(error)
        assert not (tmp_path / "other" / NAME).exists()


def test_a_server_whose_warehouse_has_another_mark_of_this_journal_ends(alone: Replicas, tmp_path: Path) -> None:
    """As a release before wrote it there."""
    (tmp_path / "other").mkdir()
    mark = (tmp_path / "warehouse" / NAME).read_text()
    other = orjson.dumps({**orjson.loads(mark), "id": "another", "warehouse": uri_of(tmp_path / "other")})
    (tmp_path / "other" / NAME).write_bytes(other)
    journal = alone.servers[0].engine.loop.journal
    until(lambda: any(each.warehouse for each in journal.replicas), "a beat that names the mark")
    with pytest.raises(Invalid, match="two warehouses have a"):
        alone.start_on(tmp_path / "b", warehouse=tmp_path / "other")


class SilentStorage(LocalStorage):
    """A folder that does not answer for a while."""

    silent = 0

    def read(self, location: str) -> bytes:
        self.silent -= 1
        if self.silent >= 0:
            raise OSError("the store did not answer")
        return super().read(location)


def test_a_warehouse_that_does_not_answer_refuses_nothing_and_is_asked_again(alone: Replicas, tmp_path: Path) -> None:
    engine, uri = alone.servers[0].engine, uri_of(tmp_path / "other")
    wrong: list[Exception] = []
    storage = SilentStorage(uri)
    check = WarehouseCheck(engine, WarehouseMark(storage, uri, engine.timeline), RealClock(), wrong.append)
    storage.silent = 2
    check._worker.start = lambda: None  # type: ignore[method-assign]
    check.check_start()
    with pytest.raises(Unavailable):
        check.run_once()
    assert not wrong
    check.run_once()
    assert not wrong, "a mounted folder may show the mark late"
    check._lacks_since = -1e9
    check.run_once()
    assert [type(error) for error in wrong] == [Invalid]


def test_a_first_leader_waits_for_a_warehouse_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It follows again, so another server may lead, and does not end."""
    refused = list[str]()

    def read(storage: LocalStorage, location: str) -> bytes:
        if location.endswith(NAME) and len(refused) < 3:
            refused.append(location)
            raise OSError("the store did not answer")
        return plain(storage, location)

    plain = LocalStorage.read
    monkeypatch.setattr(LocalStorage, "read", read)
    with Replicas(tmp_path, count=1) as replicas:
        assert len(refused) == 3
        assert not replicas.fatal
        assert (tmp_path / "warehouse" / NAME).exists()
        with ls.connect(replicas.address(0)) as lake:
            lake.create_table("a.t", SCHEMA, buckets=1)


def test_a_mark_that_a_crash_left_empty_is_written_again(tmp_path: Path) -> None:
    uri = uri_of(tmp_path)
    mark = WarehouseMark(LocalStorage(uri), uri, "one")
    (tmp_path / NAME).write_bytes(b"")
    assert not mark.is_there()
    mark.put()
    assert mark.is_there()
    with pytest.raises(Invalid, match="another journal"):
        WarehouseMark(LocalStorage(uri), uri, "two").put()


def test_doctor_misses_the_warehouse_of_a_shared_journal(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(f"data: {tmp_path}/data\njournal: {{kind: kafka, bootstrap: 'localhost:1'}}\n")
    ran = CliRunner().invoke(cli, ["doctor", "--offline", "-c", str(config)])
    assert ran.exit_code == 1
    assert "journal.kind is kafka and warehouse is not set" in " ".join(ran.output.split())
