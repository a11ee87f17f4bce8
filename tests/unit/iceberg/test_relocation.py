"""Lake files for another place: what metadata names is found, and is the same table where it was moved to."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import StaticTable
from pyiceberg.table.puffin import PuffinFile

from lakestore.errors import Corrupt
from lakestore.iceberg import puffin
from lakestore.iceberg.avro import AvroFile
from lakestore.iceberg.manifest_entries import Entries
from lakestore.model.file_uri import to_path, to_uri
from lakestore_server.catalog.relocation import Relocation, named
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture(name="lake")
def _lake(tmp_path: Path) -> Any:
    """A table of PyIceberg with snapshots that have most files in common."""
    with Served(tmp_path / "data", ports=True, warehouse=str(tmp_path / "old")) as served:
        catalog = RestCatalog("lake", uri=f"http://{served.server.about['http']}/iceberg")
        catalog.create_namespace("a")
        table = catalog.create_table("a.t", SCHEMA)
        table.append(pa.table({"id": range(100), "v": ["x"] * 100}, schema=SCHEMA))
        table.append(pa.table({"id": range(100, 200), "v": ["y"] * 100}, schema=SCHEMA))
        table.delete("id = 7")
        return StaticTable.from_metadata(table.metadata_location)


def read(location: str) -> bytes:
    return Path(str(to_path(location))).read_bytes()


def save(location: str, data: bytes) -> None:
    Path(str(to_path(location))).write_bytes(data)


def test_what_metadata_names_is_found(lake: Any, tmp_path: Path) -> None:
    found = list(named(lake.metadata_location, read))
    there = {to_uri(path) for path in (tmp_path / "old").rglob("*") if path.is_file()}
    older = {entry.metadata_file for entry in lake.metadata.metadata_log}
    assert set(found) == there - older
    assert len({place for place in found if place.endswith(".parquet")}) == 3


def test_a_file_is_not_decoded_to_be_named(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(named(lake.metadata_location, read))

    def refused(*_: Any) -> Any:
        raise AssertionError("of a hundred thousand files it takes seconds")

    monkeypatch.setattr(AvroFile, "decode", refused)
    monkeypatch.setattr(Entries, "read", refused)
    assert list(named(lake.metadata_location, read)) == found


def test_avro_files_stay_what_they_are(lake: Any, tmp_path: Path) -> None:
    files = [path for path in (tmp_path / "old").rglob("*.avro")]
    assert len(files) >= 5
    for path in files:
        file = AvroFile.decode(path.read_bytes(), path.name)
        for codec in (b"null", b"deflate", b"zstandard"):
            again = AvroFile({**file.meta, "avro.codec": codec}, file.sync, file.records)
            assert AvroFile.decode(again.encode(), "again") == again
        for end in range(0, path.stat().st_size, 97):
            with pytest.raises(Corrupt):
                AvroFile.decode(path.read_bytes()[:end], path.name)


@pytest.mark.parametrize("folder", ["new", "new#1"])
def test_a_moved_table_is_the_same_table(lake: Any, tmp_path: Path, folder: str) -> None:
    before = {s.snapshot_id: lake.scan(snapshot_id=s.snapshot_id).to_arrow() for s in lake.metadata.snapshots}
    shutil.copytree(tmp_path / "old", tmp_path / folder)
    moved = Relocation(to_uri(tmp_path / "old"), to_uri(tmp_path / folder), read, save).move(lake.metadata_location)
    shutil.rmtree(tmp_path / "old")
    there = StaticTable.from_metadata(moved)
    assert there.location().startswith(to_uri(tmp_path / folder))
    for snapshot, rows in before.items():
        assert there.scan(snapshot_id=snapshot).to_arrow().sort_by("id") == rows.sort_by("id")
    assert set(named(moved, read)) == {
        to_uri(path)
        for path in (tmp_path / folder).rglob("*")
        if path.is_file() and ("metadata.json" not in path.name or path.name in moved)
    }


def test_position_deletes_and_vectors_name_the_files_of_the_new_place(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
            pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
        ]
    )
    paths = [f"file:{tmp_path}/old/t/{n}.parquet" for n in (1, 1, 2)]
    out = pa.BufferOutputStream()
    pq.write_table(pa.table({"file_path": paths, "pos": [1, 5, 3]}, schema=schema), out)
    mover = Relocation(f"file://{tmp_path}/old", f"file://{tmp_path}/new", read, save)
    made = pq.read_table(pa.BufferReader(mover._position_deletes(out.getvalue().to_pybytes())))
    assert made.schema.equals(schema, check_metadata=True)
    assert made["file_path"].to_pylist() == [f"file://{tmp_path}/new/t/{n}.parquet" for n in (1, 1, 2)]
    assert made["pos"].to_pylist() == [1, 5, 3]
    assert mover._bound(2_147_483_546, paths[0].encode()) == f"file://{tmp_path}/new/t/1.parquet".encode()
    assert mover._bound(2_147_483_546, b"file:/tmp/cut-off") is None


def test_an_entry_of_deletes_has_the_size_and_the_paths_of_what_was_written(tmp_path: Path) -> None:
    old, new = f"file://{tmp_path}/old", f"file://{tmp_path}/new"
    blob = {"type": "deletion-vector-v1", "fields": [], "snapshot-id": -1, "sequence-number": -1, "offset": 4}
    blob |= {"length": 3, "properties": {"referenced-data-file": f"{old}/t/1.parquet", "cardinality": "1"}}
    footer = orjson.dumps({"blobs": [blob], "properties": {}})
    data = b"PFA1" + b"abc" + b"PFA1" + footer + struct.pack("<iI", len(footer), 0) + b"PFA1"
    saved: dict[str, bytes] = {}
    mover = Relocation(old, new, lambda _: data, saved.__setitem__)
    bounds = {2_147_483_546: f"{old}/t/1.parquet".encode(), 1: b"x"}
    entry: dict[str, Any] = {
        "status": 1,
        "data_file": {
            "content": 1,
            "file_path": f"{old}/t/d.puffin",
            "file_format": "puffin",
            "file_size_in_bytes": len(data),
            "referenced_data_file": f"{old}/t/1.parquet",
            "lower_bounds": bounds,
            "upper_bounds": None,
        },
    }
    mover._entry(entry)
    (made,) = saved.values()
    assert list(saved) == [f"{new}/t/d.puffin"]
    assert entry["data_file"]["file_size_in_bytes"] == len(made)
    assert entry["data_file"]["referenced_data_file"] == f"{new}/t/1.parquet"
    assert entry["data_file"]["lower_bounds"] == {**bounds, 2_147_483_546: f"{new}/t/1.parquet".encode()}
    (found,) = PuffinFile(made).footer.blobs
    assert found.properties["referenced-data-file"] == f"{new}/t/1.parquet"
    assert PuffinFile(made).get_blob_payload(found) == b"abc"
    with pytest.raises(Corrupt, match="no Puffin file"):
        puffin.moved(data[:-1] + b"?", "x", mover.place)
