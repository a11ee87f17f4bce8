"""A data folder whose path has spaces, signs and letters of other languages: the lake lies in it, backups have it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.operate.restore import restore
from tests.support.served import Served

FOLDER = "données 100% #1"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
COMMITS = 45


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / FOLDER
    made.mkdir()
    return made


def rows(number: int) -> pa.Table:
    return pa.table({"id": [number], "v": ["x"]}, schema=SCHEMA)


def test_the_lake_lies_in_the_data_folder_and_foreign_tables_beside_ours(tmp_path: Path, folder: Path) -> None:
    with Served(folder / "data", ports=True) as served:
        served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1)
        catalog = load_catalog("lake", type="rest", uri=f"http://{served.server.about['http']}/iceberg")
        for number in range(COMMITS):
            with catalog.load_table("a.t").transaction() as change:
                change.set_properties(comment=str(number))
        ours = list((folder / "data" / "warehouse" / "a").glob("t-*/metadata/*.metadata.json"))
        assert len(ours) == 21  # the log keeps 20 beside the current one
        catalog.create_namespace("other")
        foreign = catalog.create_table("other.x", pa.schema([("id", pa.int64())]))
        foreign.append(pa.table({"id": [1, 2]}))
        assert foreign.scan().to_arrow().num_rows == 2
        assert list((folder / "data" / "warehouse" / "other").glob("x-*/data/*.parquet"))
    assert [each.name for each in tmp_path.iterdir()] == [FOLDER]


@pytest.mark.parametrize("target", [FOLDER + " again?", "plain"])
def test_a_backup_has_the_lake_and_is_restored_anywhere(tmp_path: Path, folder: Path, target: str) -> None:
    with Served(folder / "data") as served:
        served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1)
        served.lake.table("a.t").upsert(rows(1))
        served.lake.transport.backup(pb.BackupRequest(folder=str(folder / "backup")))
    assert list((folder / "backup" / "warehouse").rglob("*.metadata.json"))
    restored = restore(folder / "backup", tmp_path / target / "data")
    assert Path(restored.warehouse.removeprefix("file://")) == tmp_path / target / "data" / "warehouse"
    with Served(tmp_path / target / "data") as served:
        pointer = served.engine.view.pointers["a", "t"]
        assert served.server.catalog.stored(pointer).doc["location"].startswith(restored.warehouse)
        assert served.lake.table("a.t").scan().to_arrow().num_rows == 1
