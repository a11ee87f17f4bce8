"""The lake of a table that is rescaled: by its name, readers see the old table, then the new one, and never go back."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from lakestore.errors import Conflict
from lakestore.union.verify import verify
from lakestore_server.duties import rescales
from lakestore_server.snapshots.presented_tables import LoadRequest
from tests.support.log_tierer import LogTierer
from tests.support.served import DAY, SCHEMA, Served


def lake_rows(catalog: RestCatalog, name: str) -> list[int]:
    return sorted(pa.table(catalog.load_table(name).scan().to_arrow())["v"].to_pylist())


@pytest.mark.parametrize("restarts", [False, True])
def test_the_swap_waits_for_the_lake_of_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, restarts: bool
) -> None:
    monkeypatch.setattr(rescales.RescaleDuty, "wake", lambda _: None)
    with Served(tmp_path / "data", ports=True, rescale_check_seconds=DAY) as served:
        table = served.lake.create_table("lake.log", SCHEMA, buckets=2)
        tierer = LogTierer(served.server, served.lake.transport)
        served.append("lake.log", *range(20))
        tierer.flush("lake.log")
        token = served.append("lake.log", 20, 21)
        uuid = served.state("lake.log").table.uuid
        table.rescale(3, wait=False)
        while (waits := served.server.rescales.step(uuid)) is None:
            pass
        assert waits == "lake", "the lake of the copy has nothing yet"
        progress = table.rescale_progress
        assert progress is not None
        assert (progress.copy, progress.buckets, progress.done) == ("lake.log__rescale", 3, 22)
        served.append("lake.log", 22)
        tierer.flush("lake.log")
        while (waits := served.server.rescales.step(uuid)) is None:
            pass
        catalog = RestCatalog("lake", uri=f"http://{served.server.about['http']}/iceberg")
        assert lake_rows(catalog, "lake.log") == list(range(23))
        old = catalog.load_table("lake.log").metadata.table_uuid
        tierer.flush("lake.log__rescale")
        if restarts:
            served.checkpoint()
            served.restart()
            catalog = RestCatalog("lake", uri=f"http://{served.server.about['http']}/iceberg")
        assert served.server.rescales.step(uuid) == ""
        assert served.state("lake.log").table.buckets == 3
        assert lake_rows(catalog, "lake.log") == list(range(23)), "the new Iceberg table has all that the old one had"
        assert catalog.load_table("lake.log").metadata.table_uuid != old
        assert catalog.list_tables("lake") == [("lake", "log")]
        served.append("lake.log", 23)
        table = served.lake.table("lake.log")
        assert sorted(table.scan().to_arrow()["v"].to_pylist()) == list(range(24))
        assert sorted(table.scan(at=token).to_arrow()["v"].to_pylist()) == list(range(22)), "of the old table's lake"
        LogTierer(served.server, served.lake.transport).flush("lake.log")
        assert lake_rows(catalog, "lake.log") == list(range(24))
        assert verify(served.lake.transport, "lake.log").same


def test_engines_read_positions_from_before_the_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cut has rows of the lake and hot rows of the table that was replaced. Keys would open its folders."""
    monkeypatch.setattr(rescales.RescaleDuty, "wake", lambda _: None)
    with Served(tmp_path / "data", ports=True, rescale_check_seconds=DAY) as served:
        table = served.lake.create_table("lake.log", SCHEMA, buckets=2)
        tierer = LogTierer(served.server, served.lake.transport)
        served.append("lake.log", *range(20))
        tierer.flush("lake.log")
        token, uuid = served.append("lake.log", 20, 21), served.state("lake.log").table.uuid
        table.rescale(3, wait=False)
        while served.server.rescales.step(uuid) is None:
            pass
        tierer.flush("lake.log__rescale")
        assert served.server.rescales.step(uuid) == ""
        cut = RestCatalog("at", uri=f"http://{served.server.about['http']}/iceberg", warehouse=f"at:{token}")
        assert lake_rows(cut, "lake.log") == list(range(22))
        presented = served.server.presented
        before, now = (presented.folders(LoadRequest("lake.log", at)) for at in (token, ""))
        files = cut.load_table("lake.log").inspect.files()["file_path"].to_pylist()
        assert all(any(file.startswith(folder) for folder in before) for file in files)
        assert not set(before) & set(now)


@pytest.mark.parametrize("is_at", [False, True])
def test_the_swap_of_a_branch_needs_its_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_at: bool) -> None:
    monkeypatch.setattr(rescales.RescaleDuty, "wake", lambda _: None)
    with Served(tmp_path / "data", ports=True, rescale_check_seconds=DAY) as served:
        table = served.lake.create_table("lake.log", SCHEMA, buckets=2)
        tierer = LogTierer(served.server, served.lake.transport)
        token = served.append("lake.log", *range(20))
        served.append("lake.log", 20)
        tierer.flush("lake.log")
        uuid = served.state("lake.log").table.uuid
        branch = table.replay("lake.b", at=token if is_at else None, wait=False)
        while served.server.rescales.step(uuid) is None:
            pass
        served.server.rescales.run_once()
        reviewed = table.replay_difference().token
        with pytest.raises(Conflict, match="lakestore tier"):
            table.swap_replay(reviewed)
        tierer.flush("lake.b")
        catalog = RestCatalog("lake", uri=f"http://{served.server.about['http']}/iceberg")
        expected = list(range(20 + (not is_at)))
        assert lake_rows(catalog, "lake.b") == expected
        if is_at:
            branch.append(pa.table({"v": [25]}))
            reviewed = table.replay_difference().token
            with pytest.raises(Conflict, match="lakestore tier"):
                table.swap_replay(reviewed)
            tierer.flush("lake.b")
            expected.append(25)
        table.swap_replay(reviewed)
        assert lake_rows(catalog, "lake.log") == expected
        assert sorted(table.scan(at=token).to_arrow()["v"].to_pylist()) == list(range(20))
        assert catalog.list_tables("lake") == [("lake", "log")]
        served.append("lake.log", 30)
        LogTierer(served.server, served.lake.transport).flush("lake.log")
        assert lake_rows(catalog, "lake.log") == [*expected, 30]
        assert verify(served.lake.transport, "lake.log").same
