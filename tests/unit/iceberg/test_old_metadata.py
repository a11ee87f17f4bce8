"""Metadata files that a running read may still open stay; all others that fell out of the log go."""

from __future__ import annotations

import gzip
from pathlib import Path

import orjson
import pytest

from lakestore.errors import Corrupt
from lakestore.iceberg import metadata_files
from lakestore.union import lake_snapshot
from lakestore_server.catalog import locations, our_tables
from lakestore_server.catalog.commits import OldMetadata, TableChange
from lakestore_server.catalog.contents import Name
from lakestore_server.catalog.metadata_store import LocalStorage, MetadataStore
from lakestore_server.catalog.relocation import Relocation
from tests.support.catalogs import World, world
from tests.support.log_tierer import LogTierer
from tests.support.served import SCHEMA, Served


@pytest.fixture(autouse=True)
def two_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(our_tables, "PREVIOUS_VERSIONS", 2)


@pytest.fixture
def lake(tmp_path: Path) -> World:
    return world(tmp_path)


def set_property(number: int) -> dict[str, object]:
    return {"action": "set-properties", "updates": {"n": str(number)}}


def files(lake: World) -> set[str]:
    folder = Path(locations.plain(lake.load("own")["location"])) / "metadata"
    return {path.name for path in folder.iterdir()}


def test_a_file_that_a_read_holds_goes_after_the_read(lake: World) -> None:
    lake.create_own()
    held = lake.ledger.pointers("db")["own"].location
    lake.ledger.held_metadata.add(held)
    for number in range(5):
        lake.commit("own", set_property(number))
    assert held.rsplit("/", 1)[1] in files(lake)
    assert len(files(lake)) == 4
    lake.ledger.held_metadata.clear()
    lake.commit("own", set_property(9))
    assert len(files(lake)) == 3


@pytest.mark.parametrize("suffix", [".gz.metadata.json", ".metadata.json"])
def test_a_compressed_metadata_file_is_served_and_read(lake: World, tmp_path: Path, suffix: str) -> None:
    """Iceberg's `write.metadata.compression-codec=gzip`: engines of an outside catalog may write such files."""
    lake.create_own()
    doc = lake.load("own")
    location = str(tmp_path / f"a b é{suffix}")
    Path(location).write_bytes(gzip.compress(orjson.dumps(doc)))
    stored = MetadataStore(LocalStorage(lake.warehouse)).load(location)
    assert stored.doc == doc
    assert orjson.loads(stored.data) == doc, "answers have the bytes as they are"
    assert lake_snapshot.metadata(location).document == doc
    moved: dict[str, bytes] = {}
    place = str(Path(location).parent)
    made = Relocation(place, f"{place}2", lambda name: Path(name).read_bytes(), moved.__setitem__).move(location)
    assert metadata_files.parsed(moved[made])["table-uuid"] == doc["table-uuid"]
    assert metadata_files.is_compressed(moved[made]), "PyIceberg goes by the name of the file"
    Path(location).write_bytes(gzip.compress(orjson.dumps(doc))[:40])
    with pytest.raises(Corrupt, match="its gzip is damaged"):
        MetadataStore(LocalStorage(lake.warehouse)).load(location)


def test_files_that_a_stopped_server_left_go(lake: World) -> None:
    lake.create_own()
    for number in range(5):
        lake.commit("own", set_property(number))
    folder = Path(locations.plain(lake.load("own")["location"])) / "metadata"
    for name in ("00001-never-named.metadata.json", "00099-of-another-history.metadata.json", "00001-x.avro"):
        (folder / name).write_text("{}")
    before = files(lake)
    again = OldMetadata(lake.ledger, MetadataStore(LocalStorage(lake.warehouse)))
    again.look_once(lake.catalog.load(Name("db", "own")))
    assert before - files(lake) == {"00001-never-named.metadata.json"}


def test_after_a_start_files_of_before_are_held_for_a_grace_time(tmp_path: Path) -> None:
    name = Name("shop", "log")

    def commit(served: Served, times: int) -> set[str]:
        for number in range(times):
            served.server.catalog.commit([TableChange(name, (), (set_property(number + times),))])
        return {path.name[:5] for path in (tmp_path / "warehouse").rglob("*.metadata.json")}

    with Served(tmp_path, lease_grace_seconds=60.0) as served:
        served.lake.create_table("shop.log", SCHEMA)
        before = {f"{number:05d}" for number in (28, 29, 30)}
        assert commit(served, 30) == before
        served.restart()
        assert commit(served, 40) == before | {f"{number:05d}" for number in (68, 69, 70)}
        served.clock.advance(61)
        assert commit(served, 1) == {f"{number:05d}" for number in (69, 70, 71)}


def test_clients_are_not_told_to_remove_them(lake: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyIceberg would, and knows of no lease."""
    told = {"write.metadata.delete-after-commit.enabled": "true"}
    of = our_tables.properties_of
    with monkeypatch.context() as earlier:
        earlier.setattr(our_tables, "properties_of", lambda table: of(table) | told)
        lake.create_own()
    assert told.items() <= lake.load("own")["properties"].items()
    lake.commit("own", set_property(1))
    assert "write.metadata.delete-after-commit.enabled" not in lake.load("own")["properties"]


def test_a_read_opens_the_lake_long_after_its_plan(tmp_path: Path) -> None:
    with Served(tmp_path, ports=True) as served:
        served.lake.create_table("shop.log", SCHEMA)
        served.append("shop.log", *range(10))
        LogTierer(served.server, served.lake.transport).flush("shop.log")
        held = served.lake.table("shop.log").scan().to_reader()
        name = Name("shop", "log")
        for number in range(5):
            served.server.catalog.commit([TableChange(name, (), (set_property(number),))])
        assert held.read_all().num_rows == 10
