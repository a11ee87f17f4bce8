"""Presented cuts over a real server, with the presenter's process: engines, rights, refusals, kills, leases."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import httpx
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from duckdb_extensions import import_extension
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import BadRequestError, ForbiddenError, NoSuchTableError, RESTError
from pyiceberg.types import IntegerType

import lakestore as ls
from lakestore.client.lake import Lake
from lakestore.limits import Limits
from lakestore_server.edge.presented_rest import verbs
from lakestore_server.host.clock import RealClock
from lakestore_server.snapshots.warehouse import Folders
from tests.support.clickhouse import ClickHouseProcess
from tests.support.engines import DuckDb, Sums, polars, pyiceberg
from tests.support.log_tierer import LogTierer
from tests.support.replicas import LONG_LEASE_SECONDS, Replicas
from tests.support.rights import token_of, write_auth
from tests.support.served import Served
from tests.support.waiting import until

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
LOCAL = pa.schema([("id", pa.int64())])
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::polars.exceptions.PerformanceWarning")
READ_ONLY = "a presented cut is read-only"


class Shop:
    """A served table `shop.orders`, and its catalog."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.served = Served(folder / "data", ports=True, **settings)
        self.served.clock.now_us = RealClock().now_us  # type: ignore[method-assign]
        self.lake: Lake = self.served.lake
        self.orders = self.lake.create_table("shop.orders", SCHEMA, primary_key=["id"])
        self.rows: dict[int, int] = {}

    @property
    def catalog(self) -> str:
        return f"http://{self.served.server.about['http']}/iceberg"

    def write(self, rows: dict[int, int]) -> str:
        """Upsert; the token."""
        self.rows |= rows
        return self.orders.upsert(pa.table({"id": list(rows), "v": list(rows.values())}, schema=SCHEMA))

    @property
    def sums(self) -> Sums:
        return Sums.of_values(self.rows)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    made = Shop(tmp_path_factory.mktemp("shop"))
    made.write({number: number for number in range(20)})
    yield made
    made.served.close()


@pytest.fixture(scope="module")
def duck(shop: Shop) -> Iterator[DuckDb]:
    made = DuckDb(shop.catalog, keeps_files=True)
    yield made
    made.close()


@pytest.fixture
def http(shop: Shop) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{shop.catalog}/v1", timeout=60) as client:
        yield client


def test_engines_that_ask_again_see_each_commit_and_one_past(shop: Shop, duck: DuckDb) -> None:
    token, then = shop.write({1: 100, 50: 5}), shop.sums
    readers = {"duckdb": duck.read, "pyiceberg": pyiceberg(shop.catalog), "polars": polars(shop.catalog)}
    for number in range(5):
        shop.write({number: number + 7, 60 + number: 1})
        for name, read in readers.items():
            assert read("now", "shop.orders") == shop.sums, name
            assert read("now-v3", "shop.orders") == shop.sums, name
            assert read(f"at:{token}", "shop.orders") == then, name
    assert duck.sql(f'SELECT count(*) FROM {duck.attach("now")}.shop."orders@{token}"') == [(then.count,)]


def test_duckdb_takes_each_vector_of_a_file_from_its_place_in_any_order(shop: Shop, duck: DuckDb) -> None:
    """DuckDB 1.5 keeps ranges of files; of one that touches two kept ones it gave the bytes of another."""
    parted = {"format_version": 3, "partition_by": ["p"]}
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("p", pa.int64())])
    table = shop.lake.create_table("shop.parted", schema, primary_key=["id"], buckets=1, lake=parted)
    rows: dict[int, int] = {}

    def write(ids: Sequence[int], v: int) -> str:
        rows.update(dict.fromkeys(ids, v))
        ids_parts = [pa.array(ids, pa.int64()), pa.array([v] * len(ids)), pa.array([each % 5 for each in ids])]
        return str(table.upsert(pa.table(ids_parts, schema=schema)))

    write(range(500), 0)
    read = pyiceberg(shop.catalog)
    assert read("now", "shop.parted") == Sums.of_values(rows)
    found: dict[str, Sums] = {}
    for left in (None, 0, None, 1, None, 2, None, 3, None, 4):  # the vector of one partition stays where it was
        ids = [each for each in range(200) if each % 5 != left and each % 11 != len(found)]
        token = write(ids, len(found) + 1)
        found[token] = Sums.of_values(rows)
        assert read(f"at:{token}", "shop.parted") == found[token]
    for token in (*reversed(found), *found):
        assert duck.read(f"at:{token}", "shop.parted") == found[token]
    shop.lake.drop_table("shop.parted")


def test_duckdb_takes_large_vectors_of_a_file_from_their_places(shop: Shop, duck: DuckDb) -> None:
    """DuckDB 1.5 reads on to the next range that it keeps if the gap is not longer than what it reads, up to 1 MB."""
    sizes = (100_000, 100_000, 5_000)
    parted = {"format_version": 3, "partition_by": ["p"]}
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("p", pa.int64())])
    table = shop.lake.create_table("shop.large", schema, primary_key=["id"], buckets=1, lake=parted)
    parts = np.repeat(np.arange(len(sizes)), sizes)
    ids = np.arange(len(parts))

    def write(some: npt.NDArray[np.int64], v: int) -> str:
        columns = [some, np.full(len(some), v), parts[some]]
        return str(table.upsert(pa.table(columns, schema=schema)))

    write(ids, 0)
    assert duck.read("now-v3", "shop.large").count == len(ids)
    chance, rows = np.random.default_rng(37), dict.fromkeys(ids.tolist(), 0)
    for v in range(1, 6):
        some = np.flatnonzero(chance.random(len(ids)) < 0.2)
        token = write(some, v)
        rows |= dict.fromkeys(some.tolist(), v)
        assert duck.read("now-v3", "shop.large") == Sums.of_values(rows)
        assert duck.read(f"at:{token}", "shop.large") == Sums.of_values(rows)
    shop.lake.drop_table("shop.large")


def test_what_is_written_with_stock_engines_is_refused_by_a_sentence(shop: Shop, duck: DuckDb) -> None:
    now = load_catalog("now", type="rest", uri=shop.catalog, warehouse="now")
    table = now.load_table("shop.orders")
    for change in (
        lambda: table.delete("id = 1"),
        lambda: table.update_schema().add_column("x", IntegerType()).commit(),
        lambda: table.transaction().set_properties(a="b").commit_transaction(),
        lambda: now.drop_table("shop.orders"),
        lambda: now.rename_table("shop.orders", "shop.other"),
        lambda: now.create_table("shop.other", LOCAL),
        lambda: now.create_namespace("other"),
        lambda: now.drop_namespace("shop"),
        lambda: now.update_namespace_properties("shop", updates={"a": "b"}),
    ):
        with pytest.raises(ForbiddenError, match=READ_ONLY):
            change()
    name = duck.attach("now")
    for text in (f"DELETE FROM {name}.shop.orders WHERE id = 1", f"CREATE TABLE {name}.shop.other (i int)"):
        with pytest.raises(duckdb.Error, match="403"):
            duck.sql(text)
    assert duck.read("now", "shop.orders") == shop.sums


def test_every_verb_that_writes_is_forbidden_and_every_other_one_is_there(http: httpx.Client) -> None:
    for method, path, _ in verbs():
        url = path.removeprefix("/v1").format(prefix="now", namespace="shop", table="orders", view="v")
        answer = http.request(method, url, json={} if method == "POST" else None)
        if method in ("GET", "HEAD"):
            assert answer.status_code in (200, 204) or path.endswith("/{view}"), (method, path)
        elif path.endswith("/metrics"):
            assert answer.status_code == 204
        else:
            assert (answer.status_code, answer.json()["error"]["type"]) == (403, "ForbiddenException"), (method, path)
            assert READ_ONLY in answer.json()["error"]["message"]


def test_a_load_with_nothing_new_is_told_so(http: httpx.Client, shop: Shop) -> None:
    path = "/now/namespaces/shop/tables/orders"
    first = http.get(path)
    etag = first.headers["etag"]
    same = http.get(path, headers={"if-none-match": etag})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", etag)
    assert http.get(path, params={"snapshots": "refs"}).json().keys() == first.json().keys()
    shop.write({1: 1})
    newer = http.get(path, headers={"if-none-match": etag})
    assert (newer.status_code, newer.headers["etag"] != etag) == (200, True)


NO_PREFIX = ["nope", "at-", "at-_", "at-x!", "NOW", "at-v3-", "now%20", "at-%C3%BC", "at-" + "A" * 9_000]


@pytest.mark.parametrize("prefix", NO_PREFIX, ids=range(len(NO_PREFIX)))
def test_a_prefix_that_is_none_is_not_found(http: httpx.Client, prefix: str) -> None:
    for path in ("namespaces", "namespaces/shop/tables/orders", "namespaces/shop/tables"):
        answer = http.get(f"/{prefix}/{path}")
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "NoSuchWarehouseException")
    assert http.post(f"/{prefix}/namespaces", json={}).status_code == 404


def test_warehouses_that_are_none_are_not_found_with_a_sentence(shop: Shop, http: httpx.Client) -> None:
    for name in ("foo", "at:", "at:yesterday", "at:2026-13-01"):
        answer = http.get("/config", params={"warehouse": name})
        assert answer.status_code == 404
        assert name in answer.json()["error"]["message"]
    with pytest.raises(RESTError, match="there is no warehouse 'foo'"):
        load_catalog("x", type="rest", uri=shop.catalog, warehouse="foo")


def test_names_that_are_no_tables_of_now(shop: Shop, http: httpx.Client) -> None:
    now = load_catalog("now", type="rest", uri=shop.catalog, warehouse="now")
    for name in ("shop.orders$7", "shop.none", "shop.none@2026-01-01", "none.orders"):
        with pytest.raises(NoSuchTableError):
            now.load_table(name)
    for name in ("orders@x", "orders@2999-01-01"):
        assert http.get(f"/now/namespaces/shop/tables/{name}").status_code == 400
    with pytest.raises(BadRequestError, match="ahead of the server's clock"):
        load_catalog("t", type="rest", uri=shop.catalog, warehouse="at:2999-01-01").load_table("shop.orders")
    assert http.get("/now/namespaces/shop/tables/orders", headers={"x": "y" * 40_000}).status_code in (400, 431)
    for seconds in ("0", "-1", "x", "9" * 30, "1.5", "86401", "60"):
        answer = http.get("/now/namespaces/shop/tables/orders", headers={"X-Lakestore-Lease-Seconds": seconds})
        assert answer.status_code == (200 if seconds == "60" else 400), answer.text


def test_tables_of_others_are_shown_now_and_at_no_position(shop: Shop) -> None:
    lake = load_catalog("lake", type="rest", uri=shop.catalog, warehouse="lake")
    lake.create_table("shop.free", LOCAL).append(pa.table({"id": pa.array([1, 2], pa.int64())}))
    now = load_catalog("now", type="rest", uri=shop.catalog, warehouse="now")
    assert now.load_table("shop.free").scan().to_arrow().num_rows == 2
    assert now.list_tables("shop") == [("shop", "free"), ("shop", "orders")]
    token = shop.write({1: 3})
    at = load_catalog("at", type="rest", uri=shop.catalog, warehouse=f"at:{token}")
    assert at.list_tables("shop") == [("shop", "orders")]
    with pytest.raises(NoSuchTableError, match="not a table of Lakestore's"):
        at.load_table("shop.free")
    with pytest.raises(ForbiddenError):
        now.load_table("shop.free").append(pa.table({"id": pa.array([3], pa.int64())}))
    lake.drop_table("shop.free")


def test_a_table_that_came_later_is_at_no_earlier_position(shop: Shop) -> None:
    token = shop.write({1: 4})
    shop.lake.create_table("shop.later", SCHEMA)
    at = load_catalog("at", type="rest", uri=shop.catalog, warehouse=f"at:{token}")
    assert at.list_tables("shop") == [("shop", "orders")]
    with pytest.raises(NoSuchTableError, match="did not exist"):
        at.load_table("shop.later")
    now = load_catalog("now", type="rest", uri=shop.catalog, warehouse="now")
    assert now.load_table("shop.later").scan().to_arrow().num_rows == 0
    shop.lake.drop_table("shop.later")


def test_a_killed_presenter_keeps_nobody_from_reading(shop: Shop, duck: DuckDb) -> None:
    shop.write({1: 5})
    assert duck.read("now", "shop.orders") == shop.sums
    pid = shop.served.server.presented._presenter.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    shop.write({2: 6, 70: 7})
    assert duck.read("now", "shop.orders") == shop.sums


def test_a_reader_goes_on_over_a_restart_of_the_server(tmp_path: Path) -> None:
    shop = Shop(tmp_path, lease_grace_seconds=3_600.0)
    shop.write({1: 1, 2: 2})
    loaded = load_catalog("now", type="rest", uri=shop.catalog, warehouse="now").load_table("shop.orders")
    shop.served.restart()
    try:
        assert loaded.scan().to_arrow().num_rows == 2
        shop.served.server.presented.sweep()
        assert loaded.scan().to_arrow().num_rows == 2
        again = pyiceberg(shop.catalog)("now", "shop.orders")
        assert again == shop.sums
    finally:
        shop.served.close()


def test_expiry_by_another_engine_leaves_out_what_a_presented_cut_is_made_of(shop: Shop) -> None:
    table = shop.lake.create_table("shop.visits", LOCAL, buckets=1)
    tierer = LogTierer(shop.served.server, shop.lake.transport)
    for number in range(3):
        table.append([{"id": number}])
        tierer.flush("shop.visits")
        if number == 0:
            load_catalog("now", type="rest", uri=shop.catalog, warehouse="now").load_table("shop.visits")
    lake = load_catalog("lake", type="rest", uri=shop.catalog).load_table("shop.visits")
    first, _, last = (snapshot.snapshot_id for snapshot in lake.snapshots())
    assert lake.refs()[f"lakestore-pin-{first}"].snapshot_id == first
    lake.maintenance.expire_snapshots().older_than(datetime(2100, 1, 1)).commit()
    assert {snapshot.snapshot_id for snapshot in lake.refresh().snapshots()} == {first, last}
    shop.lake.drop_table("shop.visits")


def test_who_may_not_read_may_not_load(tmp_path: Path) -> None:
    grants = {"root": {"*": ["admin"]}, "reader": {"shop.orders": ["read"]}, "other": {"shop.x": ["read"]}}
    shop = Shop(tmp_path, auth=str(write_auth(tmp_path / "auth.yaml", grants)), limits=Limits())
    token = shop.write({1: 1})
    paths = {name: f"/now/namespaces/shop/tables/{name}" for name in ("orders", f"orders@{token}")}
    try:
        for who, status in (("reader", 200), ("other", 403), ("nobody", 401)):
            with httpx.Client(base_url=f"{shop.catalog}/v1", headers=_bearer(who), timeout=60) as http:
                assert {http.get(path).status_code for path in paths.values()} == {status}
                nothing = 204 if status == 200 else status
                assert {http.head(path).status_code for path in paths.values()} == {nothing}
                assert http.post(paths["orders"] + "/metrics", json={}).status_code == nothing
                if who == "other":
                    assert http.get("/now/namespaces/shop/tables").json()["identifiers"] == []
        said = {"credential": f"reader:{token_of('reader')}", "oauth2-server-uri": f"{shop.catalog}/v1/oauth/tokens"}
        now = load_catalog("now", type="rest", uri=shop.catalog, warehouse="now", **said)
        assert now.load_table("shop.orders").scan().to_arrow().num_rows == 1
    finally:
        shop.served.close()


def _bearer(who: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token_of(who)}"}


def _printed(shop: Shop, engine: str) -> list[str]:
    from click.testing import CliRunner

    from lakestore.cli.main import cli

    address = shop.served.server.about["grpc"]
    result = CliRunner().invoke(cli, ["connect", engine, "--server", address, "--table", "shop.orders"])
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_printed_lines_of_duckdb_run(shop: Shop) -> None:
    text = re.sub(r"--.*", "", "\n".join(_printed(shop, "duckdb"))).replace("INSTALL iceberg; ", "")
    with duckdb.connect() as connection:
        for name in ("avro", "httpfs", "iceberg"):
            import_extension(name, con=connection)
        said = [connection.execute(part).fetchall() for part in text.split(";") if part.strip()]
    assert said[-3:] == [[(len(shop.rows),)], [(len(shop.rows),)], [(0,)]]


@pytest.mark.parametrize("engine", ["pyiceberg", "polars"])
def test_printed_lines_of_python_run(shop: Shop, engine: str) -> None:
    *head, now, earlier, lake = _printed(shop, engine)
    known: dict[str, Any] = {}
    exec("\n".join(head), known)
    counts = [len(eval(line, known)) for line in (now, earlier, lake)]
    assert counts == [len(shop.rows), len(shop.rows), 0]


def test_printed_lines_of_clickhouse_run(shop: Shop) -> None:
    text = re.sub(r"--.*", "", "\n".join(_printed(shop, "clickhouse")))
    with ClickHouseProcess() as clickhouse:
        said = [clickhouse.rows(part) for part in text.split(";") if part.strip()]
    assert said[-3:-1] == [[[len(shop.rows)]], [[len(shop.rows)]]]


def test_a_server_touches_what_its_own_history_presented_alone(shop: Shop) -> None:
    """Other servers may share the warehouse; a restored one follows the history that it was restored from."""
    presented = shop.served.engine.folder / "warehouse" / "__presented"
    uuid, run = "11111111-2222-3333-4444-555555555555", "0123456789abcdef"
    for history in ("of-another", "restored-from"):
        (presented / history / uuid / run).mkdir(parents=True)
    folders = Folders(shop.served.server.catalog.warehouse, shop.served.engine.timeline, "restored-from")
    pyiceberg(shop.catalog)("now", "shop.orders")
    assert shop.orders.definition.uuid in folders.tables()
    assert uuid not in folders.tables()
    folders.remove_former()
    assert {each.name for each in presented.iterdir()} == {shop.served.engine.timeline, "of-another"}
    shutil.rmtree(presented / "of-another")


def test_nothing_is_left_of_a_reader_that_is_gone(shop: Shop) -> None:
    served = shop.served
    folder = served.engine.folder / "warehouse" / "__presented" / served.engine.timeline
    pyiceberg(shop.catalog)("now", "shop.orders")
    assert any(each.is_file() for each in folder.rglob("*"))
    served.clock.advance(3_700)
    served.server.presented.sweep()
    left = [each for each in folder.rglob("*") if each.is_file() and "indexes" not in each.parts]
    assert left == []
    assert pyiceberg(shop.catalog)("now", "shop.orders") == shop.sums


def test_servers_of_one_journal_remove_their_own_presented_files_alone(tmp_path: Path) -> None:
    with Replicas(tmp_path, count=2, lease_seconds=LONG_LEASE_SECONDS, lease_grace_seconds=0) as replicas:
        with ls.connect(replicas.addresses) as lake:
            lake.create_table("shop.orders", SCHEMA, primary_key=["id"]).upsert([{"id": 1, "v": 2}])
        until(lambda: len({server.engine.view.lsn for server in replicas.servers}) == 1, "the row at both")
        there = {"type": "rest", "warehouse": "now"}
        tables = [
            load_catalog("reader", uri=f"http://{replicas.http(number)}/iceberg", **there).load_table("shop.orders")
            for number in range(2)
        ]
        for server in replicas.servers:
            server.presented.sweep()
        for table in tables:
            assert table.scan(selected_fields=("id", "v")).to_arrow().to_pylist() == [{"id": 1, "v": 2}]
