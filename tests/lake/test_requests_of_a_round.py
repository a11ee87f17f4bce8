"""A budget of requests to the object store: of rounds, of cuts that the server presents, and of reads."""

from __future__ import annotations

import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from jepsen import engines
from jepsen.system.store import WAREHOUSE, Store
from jepsen.system.store_requests import CREATE, DELETE, GET, HEAD, LIST, MULTIPART, PUT, Request, by_kind
from lakestore.iceberg import places
from lakestore_tiering import Tierer
from lakestore_tiering.flush import FlushResult
from tests.support.store_lake import StoreLake

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
OF_A_ROUND, OF_A_FILE = 12, 4
"""The bar of issue 14: requests of a round of one table, and further ones for each data or delete file it writes."""


@pytest.fixture
def on(store: Store, tmp_path: Path) -> Iterator[StoreLake]:
    with StoreLake(tmp_path / "data", WAREHOUSE, store.requests) as made:
        yield made


def rows(ids: range, text: str) -> list[dict[str, object]]:
    return [{"id": number, "v": f"{text}{number}"} for number in ids]


def flushed(tierer: Tierer, table: str) -> FlushResult:
    (outcome,) = tierer.run_once(table, compaction=False)
    assert outcome.flushed is not None
    return outcome.flushed


def of(requests: list[Request], table: str) -> dict[str, int]:
    """The requests for files of a table, by kind."""
    return by_kind([each for each in requests if f"/{table}-" in each.key])


def test_a_round_keeps_its_budget(on: StoreLake) -> None:
    log = on.lake.create_table("shop.log", SCHEMA, buckets=1)
    table = on.lake.create_table("shop.rows", SCHEMA, primary_key=["id"], buckets=2)
    log.append(rows(range(1_000), "a"))
    table.upsert(rows(range(1_000), "a"))
    tierer = on.tierer()
    on.requests()
    for name in ("log", "rows"):
        first = flushed(tierer, f"shop.{name}")
        assert (first.files, first.delete_files) == (1, 0)
        # Put: rows, manifest, manifest list. Iceberg reads the list once more to remove what it did not commit.
        assert of(on.requests(), name) == {PUT: 3, HEAD: 1, GET: 1, CREATE: 1}
    table.upsert(rows(range(50, 750), "b"))
    second = flushed(tierer, "shop.rows")
    assert (second.files, second.delete_files, second.deaths) == (1, 1, 700)
    requests = of(on.requests(), "rows")
    # Put: rows, deletes, two manifests, list. Read: the earlier list by Iceberg and by us, its manifest, the new list.
    assert requests == {PUT: 5, HEAD: 4, GET: 4, CREATE: 1}
    for number in range(3):
        table.upsert(rows(range(number * 40, number * 40 + 700), f"c{number}"))
        further = flushed(tierer, "shop.rows")
        requests = of(on.requests(), "rows")
        assert sum(requests.values()) <= OF_A_ROUND + OF_A_FILE * (further.files + further.delete_files)
        assert not {MULTIPART, LIST, DELETE} & requests.keys(), "small files go up at once, and nothing is listed"


def test_a_read_asks_once_for_what_never_changes(on: StoreLake) -> None:
    table = on.lake.create_table("shop.rows", SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(rows(range(1_000), "a"))
    tierer = on.tierer()
    flushed(tierer, "shop.rows")
    table.upsert(rows(range(50, 750), "b"))
    flushed(tierer, "shop.rows")
    places.forget_small_files()
    on.requests()
    for count in (1_000, 1_000):
        assert table.scan().to_arrow().num_rows == count
        requests = on.requests()
        assert max(Counter(each.key for each in requests).values(), default=0) <= 2, "a size and the bytes"
    assert requests == [], "the second scan asks nothing"
    assert table.scan().count() == 1_000
    assert on.requests() == []


def test_a_presented_cut_makes_no_folders_and_no_uploads_in_parts(on: StoreLake, store: Store) -> None:
    table = on.lake.create_table("shop.rows", SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(rows(range(100), "a"))
    on.requests()
    engines.load(on.catalog, "now", "shop.rows")
    assert by_kind(on.requests()) == {PUT: 4}, "rows, manifest, manifest list, metadata"
    table.upsert(rows(range(100), "b"))
    engines.load(on.catalog, "now", "shop.rows")
    assert by_kind(on.requests()) == {HEAD: 1, PUT: 6}
    with urllib.request.urlopen(f"http://{on.server.about['http']}/metrics") as answer:
        metrics = answer.read().decode()
    assert 'lakestore_store_requests_total{kind="put",process="snapshots"} 8.0' in metrics
    assert 'lakestore_store_requests_total{kind="create",process="server"}' in metrics
    assert not [key for key in store.kept.objects.keys() if key.endswith("/")], "no object stands for a folder"
