"""The whole product on S3Proxy, an S3 server that others wrote. The path has a space and letters beyond ASCII."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector, FileType, S3FileSystem

from jepsen import engines
from jepsen.system.http_proxy import HttpProxy, Trouble, Weather
from jepsen.system.store import SLOW_DOWN
from jepsen.system.store_requests import StoreRequests
from lakestore.errors import Conflict, Unavailable
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.operate.restore import restore
from lakestore_tiering import Tierer, orphans, small_rows
from tests.support.s3proxy import S3ProxyProcess, environment_of
from tests.support.store_lake import StoreLake
from tests.support.waiting import until

pytestmark = pytest.mark.spark
PLACE = "lakestore/lac à côté"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
ROWS = 300


class Bucket:
    """The bucket as another client sees it."""

    def __init__(self, address: str) -> None:
        self._files = S3FileSystem(endpoint_override=address, scheme="http", region="us-east-1")

    def below(self, path: str) -> list[str]:
        """Paths of the objects below a path, by a list."""
        found = self._files.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
        return sorted(each.path for each in found if each.type == FileType.File)

    def put(self, path: str, data: bytes) -> None:
        with self._files.open_output_stream(path) as out:
            out.write(data)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HttpProxy, StoreRequests]]:
    requests = StoreRequests()
    with (
        S3ProxyProcess(tmp_path_factory.mktemp("s3"), stores_files=True, memory="200m") as s3,
        HttpProxy(s3.address, refusal=SLOW_DOWN, watch=requests.note) as proxy,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in environment_of(proxy.address).items():
            patch.setenv(name, value)
        yield proxy, requests


def rows(ids: range, text: str) -> list[dict[str, object]]:
    return [{"id": number, "v": f"{text}{number}"} for number in ids]


def told(found: pa.Table) -> dict[int, str]:
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def test_the_whole_product_runs_on_it(
    store: tuple[HttpProxy, StoreRequests], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, requests = store
    bucket, backup = Bucket(proxy.address), tmp_path / "backup"
    with StoreLake(tmp_path / "data", f"s3://{PLACE}", requests) as on:
        log = on.lake.create_table("shop.log", SCHEMA, buckets=1)
        table = on.lake.create_table("shop.rows", SCHEMA, primary_key=["id"], buckets=2)
        model = dict[int, str]()
        tierer = on.tierer()
        for number in range(2):
            log.append(rows(range(number * ROWS, (number + 1) * ROWS), "l"))
            written = rows(range(number * 100, number * 100 + ROWS), f"{number}-")
            table.upsert(written)
            table.delete([{"id": number * 100 + 5}])
            model |= {int(str(row["id"])): str(row["v"]) for row in written}
            del model[number * 100 + 5]
            assert [each.flushed is not None for each in tierer.run_once(compaction=False)] == [True, True]
        assert engines_agree(on, model)
        (compacted,) = (each.compacted for each in tierer.run_once("shop.rows", compaction=True))
        assert compacted is not None
        with monkeypatch.context() as patch:  # as a large round on a cluster
            patch.setattr(small_rows, "OFFSETS_MAX", 0)
            patch.setattr(tierer.tools.hot, "_is_local", False)
            table.upsert(rows(range(20, 40), "by executors"))
            model |= {number: f"by executors{number}" for number in range(20, 40)}
            (large,) = tierer.run_once("shop.rows", compaction=False)
            assert large.flushed is not None
            assert large.flushed.rows == 20
            assert not [path for path in bucket.below(PLACE) if "/hot-" in path]
        table.upsert(rows(range(5, 10), "hot"))
        model |= {number: f"hot{number}" for number in range(5, 10)}
        assert engines_agree(on, model)
        on.lake.transport.backup(pb.BackupRequest(folder=str(backup)))
        removed_are_gone(on, bucket, tierer)
    restore(backup, tmp_path / "again")
    with StoreLake(tmp_path / "again", f"s3://{PLACE}", requests) as on:
        assert engines_agree(on, model)
        on.lake.table("shop.rows").upsert(rows(range(1_000, 1_010), "new"))
        model |= {number: f"new{number}" for number in range(1_000, 1_010)}
        on.tierer().run_once("shop.rows", compaction=False)
        assert engines_agree(on, model)


def engines_agree(on: StoreLake, model: dict[int, str]) -> bool:
    """Compare Arrow, DuckDB, Spark, and `now` in PyIceberg and DuckDB with the model, and verify both tables."""
    name = "shop.rows"
    assert told(on.lake.table(name).scan().to_arrow()) == model
    assert told(on.lake.sql("SELECT id, v FROM shop.rows").to_arrow()) == model
    spark = on.attached()
    assert {row.id: row.v for row in spark.sql("SELECT id, v FROM shop.rows").collect()} == model
    assert told(engines.load(on.catalog, "now", name).scan().to_arrow()) == model
    assert sorted(engines.by_duckdb(on.catalog, "now", name, columns=("id", "v"))) == sorted(map(list, model.items()))
    assert verify(on.lake.transport, name).same
    assert verify(on.lake.transport, "shop.log").same
    return True


def removed_are_gone(on: StoreLake, bucket: Bucket, tierer: Tierer) -> None:
    """Orphans and the files of a purged table leave the bucket; nothing else does."""
    extra = on.lake.create_table("shop.extra", SCHEMA, primary_key=["id"], buckets=1)
    extra.upsert(rows(range(10), "x"))
    tierer.run_once("shop.extra", compaction=False)
    before = bucket.below(PLACE)
    (folder,) = {path.rpartition("/metadata/")[0] for path in before if "/extra-" in path and "/metadata/" in path}
    bucket.put(f"{folder}/data/left behind é.parquet", b"of a round that broke")
    assert orphans.remove(tierer.tools, on.lake.table("shop.extra").definition, keep_seconds=-60.0) == 1
    assert bucket.below(PLACE) == before
    on.lake.drop_table("shop.extra", purge=True)
    until(lambda: not bucket.below(folder), "the purged files are gone")
    assert bucket.below(PLACE) == [path for path in before if not path.startswith(folder)]


@pytest.mark.long
def test_rounds_go_on_while_answers_are_lost_and_the_store_is_slow(
    store: tuple[HttpProxy, StoreRequests], tmp_path: Path
) -> None:
    proxy, requests = store
    with StoreLake(tmp_path / "data", f"s3://{PLACE} troubled", requests) as on:
        table = on.lake.create_table("shop.rows", SCHEMA, primary_key=["id"], buckets=2)
        log = on.lake.create_table("shop.log", SCHEMA, buckets=1)
        model, tierer, failed = dict[int, str](), on.tierer(), 0
        proxy.breaks(Weather((Trouble.LOSE, Trouble.HIDE, Trouble.REFUSE, Trouble.RESET), 0.15, seed=3))
        for number in range(6):
            table.upsert(rows(range(number * 20, number * 20 + 50), f"{number}-"))
            model |= {key: f"{number}-{key}" for key in range(number * 20, number * 20 + 50)}
            log.append(rows(range(number, number + 1), "l"))
            try:
                tierer.run_once(compaction=False)
            except (Conflict, Unavailable):  # the next round stages the rows again
                failed += 1
        assert sum(proxy.mend().values()) > 20
        assert failed < 6
        tierer.run_once()
        assert engines_agree(on, model)


@pytest.mark.long
def test_writes_go_on_while_the_store_is_away(store: tuple[HttpProxy, StoreRequests], tmp_path: Path) -> None:
    proxy, requests = store
    with StoreLake(tmp_path / "data", f"s3://{PLACE} away", requests) as on:
        table = on.lake.create_table("shop.rows", SCHEMA, primary_key=["id"], buckets=2)
        on.lake.create_table("shop.log", SCHEMA, buckets=1)
        table.upsert(rows(range(10), "a"))
        tierer = on.tierer()
        tierer.run_once(compaction=False)
        proxy.breaks(Weather((Trouble.RESET,), 1.0))
        try:
            table.upsert(rows(range(5, 20), "b"))
            with pytest.raises(Unavailable, match="the object store does not answer for s3://"):
                tierer.run_once("shop.rows", compaction=False)
        finally:
            proxy.mend()
        tierer.run_once("shop.rows", compaction=False)
        model = {number: f"b{number}" if number >= 5 else f"a{number}" for number in range(20)}
        assert engines_agree(on, model)


@pytest.mark.long
def test_two_servers_share_a_warehouse_and_touch_their_own_files_alone(
    store: tuple[HttpProxy, StoreRequests], tmp_path: Path
) -> None:
    proxy, requests = store
    bucket, place = Bucket(proxy.address), f"{PLACE} shared"
    with (
        StoreLake(tmp_path / "a", f"s3://{place}", requests) as one,
        StoreLake(tmp_path / "b", f"s3://{place}", requests) as other,
    ):
        for on, text in ((one, "one"), (other, "other")):
            on.lake.create_table("shop.log", SCHEMA, buckets=1)
            on.lake.create_table("shop.rows", SCHEMA, primary_key=["id"], buckets=2).upsert(rows(range(50), text))
            on.tierer().run_once(compaction=False)
        assert engines_agree(one, {number: f"one{number}" for number in range(50)})
        assert engines_agree(other, {number: f"other{number}" for number in range(50)})
        before = bucket.below(place)
        one.lake.drop_table("shop.log", purge=True)
        until(lambda: len(bucket.below(place)) < len(before), "the purged files are gone")
        assert engines_agree(other, {number: f"other{number}" for number in range(50)})
