"""The object store of the runs, with the product before it: what S3 promises, and answers that are lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from email.message import Message
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector, S3FileSystem

import lakestore as ls
from jepsen import engines
from jepsen.system import System
from jepsen.system.http_proxy import WRITES, Trouble, Weather
from jepsen.system.store import WAREHOUSE, Store
from lakestore_server.catalog import metadata_store
from lakestore_server.catalog.metadata_store import ObjectStorage

PLACE = f"{WAREHOUSE}/t/metadata/1.json"
MANY = 1_001
"""Keys of more than one page."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(metadata_store, "PAUSE_SECONDS", 0.01)
    made = Store()
    made.tell()
    yield made
    made.close()


def _breaks(store: Store, *kinds: Trouble, methods: frozenset[str] = frozenset(), share: float = 0.6) -> None:
    store.proxy.breaks(Weather(kinds, share, 0.05, methods, seed=1))


def test_it_fences(store: Store) -> None:
    storage = ObjectStorage(WAREHOUSE)
    storage.write_new(PLACE, b"1")
    with pytest.raises(FileExistsError):
        storage.write_new(PLACE, b"2")
    assert storage.read(PLACE) == b"1"


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in ("lose", "hide") else pytest.mark.long) for kind in Trouble],
)
def test_no_trouble_of_a_store_fails_a_write_or_writes_twice(store: Store, kind: Trouble) -> None:
    storage = ObjectStorage(WAREHOUSE)
    _breaks(store, kind)
    for number in range(2):
        storage.write_new(f"{PLACE}.{number}", f"{number}".encode() * 100)
        assert storage.read(f"{PLACE}.{number}") == f"{number}".encode() * 100
    assert sorted(storage.names(f"{WAREHOUSE}/t/metadata")) == [f"1.json.{number}" for number in range(2)]
    with pytest.raises(FileExistsError):
        storage.write_new(f"{PLACE}.0", b"somebody else's")
    storage.remove_below(f"{WAREHOUSE}/t")
    assert sum(store.proxy.mend().values())
    assert store.kept.objects.keys() == []


def test_a_store_that_is_away_is_an_error_of_files(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_store, "TRIES_SECONDS", 0.05)
    monkeypatch.setattr(metadata_store, "TRY_SECONDS", timedelta(seconds=0.05))
    storage = ObjectStorage(WAREHOUSE)
    with pytest.raises(FileNotFoundError):
        storage.read(PLACE)
    _breaks(store, Trouble.RESET, share=1.0)
    for call in (lambda: storage.read(PLACE), lambda: storage.write_new(PLACE, b"1"), lambda: storage.names(WAREHOUSE)):
        with pytest.raises(OSError, match="did not answer"):
            call()


def test_lists_have_pages_and_folders(store: Store) -> None:
    storage = ObjectStorage(WAREHOUSE)
    for number in range(MANY):
        store.kept.objects.put(f"lakestore/warehouse/t/{number:04}", b"", Message())
    storage.write_new(f"{WAREHOUSE}/t/sub/x", b"1")
    storage.write_new(f"{WAREHOUSE}/t2/x", b"1")
    assert len(storage.names(f"{WAREHOUSE}/t")) == MANY
    storage.remove_below(f"{WAREHOUSE}/t")
    assert store.kept.objects.keys() == ["lakestore/warehouse/t2/x"]


def test_another_client_than_ours_agrees_with_it(store: Store) -> None:
    """Arrow writes in parts, makes folders' markers, reads ranges, and deletes many at once."""
    files = S3FileSystem(endpoint_override=store.proxy.address, scheme="http", region="us-east-1")
    folder, data = "lakestore/other", random.Random(1).randbytes(11 << 20)
    files.create_dir(f"{folder}/deep")
    with files.open_output_stream(f"{folder}/deep/big") as out:
        out.write(data)
    assert files.open_input_file(f"{folder}/deep/big").read() == data
    with files.open_input_file(f"{folder}/deep/big") as file:
        assert file.read_at(10, 6 << 20) == data[6 << 20 :][:10]
    found = files.get_file_info(FileSelector(folder, recursive=True))
    assert {(each.base_name, each.size) for each in found if each.is_file} == {("big", len(data))}
    files.delete_dir(f"{folder}/deep")
    assert [key for key in store.kept.objects.keys() if "deep" in key] == []


def test_tables_are_made_and_dropped_while_answers_are_lost(store: Store, tmp_path: Path) -> None:
    with ls.open(tmp_path, warehouse=WAREHOUSE) as lake:
        _breaks(store, Trouble.LOSE, Trouble.HIDE, Trouble.REPEAT, methods=WRITES, share=0.5)
        for number in range(3):
            table = lake.create_table(f"shop.t{number}", pa.schema([("id", pa.int64())]))
            table.append([{"id": number}])
        lake.drop_table("shop.t0")
        assert sum(store.proxy.mend().values())
        assert {table.name for table in lake.tables()} == {f"shop.t{number}" for number in range(1, 3)}
        assert lake.table("shop.t2").scan().to_arrow()["id"].to_pylist() == [2]


@pytest.mark.long
def test_an_engine_reads_now_from_a_store(tmp_path: Path) -> None:
    """The SDK of AWS prints, and the presenting process's pipe has to stay clean of that."""
    with System(tmp_path, frozenset({"store"}), {}) as system:
        lake = system.connect(0)
        lake.create_table("shop.t", pa.schema([("id", pa.int64())])).append([{"id": 1}])
        found = engines.load(system.catalog, "now", "shop.t").scan().to_arrow()
        assert found["id"].to_pylist() == [1]
        lake.close()
