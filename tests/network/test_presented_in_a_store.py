"""Presented files in an object store: no object is left of them, and one that somebody removed is noticed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pyarrow as pa
import pytest

from jepsen import engines
from jepsen.system.store import WAREHOUSE, Store
from lakestore.iceberg import places
from lakestore_server.snapshots.removal import remove_file
from tests.support.served import Served

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
PRESENTED = f"{WAREHOUSE.removeprefix('s3://')}/__presented"


def count(served: Served) -> int:
    found = engines.load(f"http://{served.server.about['http']}/iceberg", "now", "shop.t").scan().to_arrow()
    return int(found.num_rows)


def test_nothing_is_left_of_a_reader_that_is_gone(store: Store, tmp_path: Path) -> None:
    with Served(tmp_path, ports=True, warehouse=WAREHOUSE) as served:
        table = served.lake.create_table("shop.t", SCHEMA, primary_key=["id"], buckets=1)
        table.upsert([{"id": 1, "v": 1}])
        assert count(served) == 1
        store.kept.objects.delete(store.kept.objects.keys(PRESENTED))
        table.upsert([{"id": 2, "v": 1}])
        assert count(served) == 2, "the files that somebody removed are written again"
        served.clock.advance(3_700)
        served.server.presented.sweep()
        assert store.kept.objects.keys(PRESENTED) == []


def test_files_are_removed_from_the_store_that_is_there_now(store: Store) -> None:
    """Another store served this process before, under the same name of a bucket."""
    location = f"{WAREHOUSE}/a.parquet"
    places.write(location, b"1")
    remove_file(location)
    store.close()
    with contextlib.closing(Store()) as later:
        later.tell()
        places.forget_stores()
        places.write(location, b"1")
        remove_file(location)
        assert later.kept.objects.keys() == []


def test_a_small_file_is_asked_for_once_until_it_is_forgotten(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "KEPT_BYTES_MAX", 10)
    small, large = f"{WAREHOUSE}/a b/é", f"{WAREHOUSE}/large"
    places.write(small, b"0123456789")
    places.write(large, b"0123456789+")
    store.requests.take()
    assert places.read(small) == b"0123456789"
    assert places.read_part(small, 2, 3) == b"234"
    assert store.requests.take() == []
    for _ in range(2):
        assert places.read(large) == b"0123456789+"
        assert [each.kind for each in store.requests.take()] == ["head", "get"]
    places.forget_small_files()
    store.kept.objects.delete([small.removeprefix("s3://")])
    with pytest.raises(FileNotFoundError):
        places.read(small)
