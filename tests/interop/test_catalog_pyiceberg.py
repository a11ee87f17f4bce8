"""The catalog over HTTP, as strangers use it: PyIceberg's REST client, DuckDB's extension, and bare requests."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
import uvicorn
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    ForbiddenError,
    NamespaceNotEmptyError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, StringType
from starlette.applications import Starlette
from starlette.routing import Mount

from lakestore.errors import Unavailable
from lakestore_server.edge.catalog_request import Sources
from lakestore_server.edge.iceberg_rest import VERBS, routes
from lakestore_server.state.catalog_change import CatalogChange
from tests.support.catalogs import SCHEMA, World, for_anyone, set_ref, snapshot, world

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "v": pa.array(["a", "b", "c"])})


@pytest.fixture
def lake(tmp_path: Path) -> World:
    """Before it is served."""
    return world(tmp_path)


@pytest.fixture
def url(lake: World) -> Iterator[str]:
    """Where the catalog is served, on a free port."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = for_anyone(Starlette(routes=[Mount("/iceberg", routes=routes(Sources(lake.catalog)))]))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/iceberg"
    server.should_exit = True
    thread.join()
    listener.close()


@pytest.fixture
def catalog(url: str) -> RestCatalog:
    return RestCatalog("lake", uri=url)


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url + "/v1") as client:
        yield client


def test_pyiceberg_creates_appends_branches_and_expires(catalog: RestCatalog) -> None:
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=BucketTransform(4), name="b"))
    fields = (NestedField(1, "id", LongType(), required=False), NestedField(2, "v", StringType(), required=False))
    table = catalog.create_table("db.t", Schema(*fields))
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("db.t", Schema(*fields))
    for _ in range(3):
        table.append(ROWS)
    table.manage_snapshots().create_branch(table.metadata.snapshots[0].snapshot_id, "old").commit()
    with table.update_schema() as change:
        change.add_column("extra", LongType())
    assert table.scan().to_arrow().num_rows == 9
    last = table.metadata.snapshots[1].snapshot_id
    table.maintenance.expire_snapshots().by_id(last).commit()
    again = catalog.load_table("db.t")
    assert again.metadata == table.metadata
    assert len(again.metadata.snapshots) == 2
    assert catalog.list_tables("db") == [("db", "t")]
    assert catalog.table_exists("db.t")
    catalog.create_table("db.p", Schema(*fields), partition_spec=spec)
    catalog.rename_table("db.t", "db.u")
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("db")
    catalog.drop_table("db.u")
    with pytest.raises(NoSuchTableError):
        catalog.load_table("db.u")


def test_pyiceberg_commits_a_staged_creation_with_its_rows(catalog: RestCatalog) -> None:
    with catalog.create_table_transaction("db.t", ROWS.schema) as staged:
        assert not catalog.table_exists("db.t")
        staged.append(ROWS)
    assert catalog.load_table("db.t").scan().to_arrow().num_rows == 3


def test_namespaces(catalog: RestCatalog) -> None:
    catalog.create_namespace("other", {"a": "1"})
    assert sorted(catalog.list_namespaces()) == [("db",), ("other",)]
    summary = catalog.update_namespace_properties("other", removals={"a", "x"}, updates={"b": "2"})
    assert (summary.removed, summary.updated, summary.missing) == (["a"], ["b"], ["x"])
    assert catalog.load_namespace_properties("other") == {"b": "2"}
    catalog.drop_namespace("other")
    assert not catalog.namespace_exists("other")


def test_pyiceberg_is_refused_rows_columns_and_drop_of_our_table(lake: World, catalog: RestCatalog) -> None:
    lake.create_own()
    table = catalog.load_table("db.own")
    rows = ROWS.select(["id", "v"]).cast(
        pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
    )
    count = pa.array([0, 1, 2], pa.int64())
    for name, kind in (("__bucket", pa.int32()), ("__offset", pa.int64()), ("__timestamp", pa.timestamp("us", "UTC"))):
        rows = rows.append_column(pa.field(name, kind, nullable=False), count.cast(kind))
    with pytest.raises(ForbiddenError, match="lakestore write"):
        table.append(rows)
    with pytest.raises(ForbiddenError, match="lakestore apply"), table.update_schema() as change:
        change.add_column("extra", LongType())
    with pytest.raises(ForbiddenError, match=r"lake\.drop_table"):
        catalog.drop_table("db.own")
    assert table.scan().to_arrow().num_rows == 0


def test_duckdb_reads_a_table(catalog: RestCatalog, url: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    extensions = pytest.importorskip("duckdb_extensions")
    catalog.create_table("db.t", ROWS.schema).append(ROWS)
    for name in ("httpfs", "avro", "iceberg"):
        extensions.import_extension(name)
    with duckdb.connect() as session:
        session.execute("LOAD httpfs; LOAD avro; LOAD iceberg")
        session.execute(f"ATTACH 'lake' AS lake (TYPE ICEBERG, ENDPOINT '{url}', AUTHORIZATION_TYPE 'none')")
        assert session.execute("SELECT count(*), sum(id) FROM lake.db.t").fetchone() == (3, 6)


def _problem(response: httpx.Response) -> tuple[int, str]:
    error = response.json()["error"]
    assert error["code"] == response.status_code
    assert error["message"]
    return response.status_code, error["type"]


def test_errors_are_those_of_the_protocol(lake: World, http: httpx.Client) -> None:
    lake.create_free("t")
    lake.create_own()
    tables = "/namespaces/db/tables"
    stale = {"requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 9}], "updates": []}
    asked: list[tuple[httpx.Response, int, str]] = [
        (http.get("/namespaces/none"), 404, "NoSuchNamespaceException"),
        (http.get("/namespaces/db%1Fdeep"), 404, "NoSuchNamespaceException"),
        (http.get("/namespaces/db%1Ft/tables/branch_x"), 404, "NoSuchTableException"),
        (http.get(tables + "/none"), 404, "NoSuchTableException"),
        (http.get("/namespaces/db/views/v"), 404, "NoSuchViewException"),
        (http.post("/namespaces", json={"namespace": ["db"]}), 409, "AlreadyExistsException"),
        (http.post("/namespaces", json={"namespace": ["a", "b"]}), 400, "BadRequestException"),
        (http.post(tables, content=b"{"), 400, "BadRequestException"),
        (http.post(tables, content=b"[]"), 400, "BadRequestException"),
        (http.post(tables, json={"name": "t", "schema": SCHEMA}), 409, "AlreadyExistsException"),
        (http.post(tables, json={"name": "n", "schema": {}}), 400, "BadRequestException"),
        (http.post(tables + "/t", json={"updates": [{"action": "what"}]}), 400, "BadRequestException"),
        (http.post(tables + "/t", json={"updates": [3]}), 400, "BadRequestException"),
        (http.post(tables + "/t", json=stale), 409, "CommitFailedException"),
        (http.delete(tables + "/own"), 403, "ForbiddenException"),
        (http.delete(tables + "/own?purgeRequested=true"), 403, "ForbiddenException"),
    ]
    for response, code, kind in asked:
        assert _problem(response) == (code, kind), response.request.url
    assert http.head(tables + "/t").status_code == 204
    assert http.head(tables + "/none").status_code == 404
    assert http.post(tables + "/t/metrics", json={}).status_code == 204
    assert http.get("/namespaces/db/views").json() == {"identifiers": []}


def test_config_lists_every_endpoint(http: httpx.Client) -> None:
    endpoints = http.get("/config").json()["endpoints"]
    assert len(endpoints) == len(VERBS) - 1  # less itself
    assert "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}" in endpoints
    assert "POST /v1/{prefix}/transactions/commit" in endpoints


def test_refs_only_loads_leave_history_out(lake: World, http: httpx.Client) -> None:
    lake.create_free("t")
    lake.commit("t", snapshot(1, None, 1), set_ref("main", 1))
    lake.commit("t", snapshot(2, 1, 2), set_ref("main", 2))
    path = "/namespaces/db/tables/t"
    assert [each["snapshot-id"] for each in http.get(path).json()["metadata"]["snapshots"]] == [1, 2]
    refs = http.get(path, params={"snapshots": "refs"}).json()
    assert [each["snapshot-id"] for each in refs["metadata"]["snapshots"]] == [2]


def test_lists_come_in_pages_when_asked(lake: World, http: httpx.Client) -> None:
    names = [f"t{number}" for number in range(7)]
    for name in names:
        lake.create_free(name)
        lake.catalog.create_namespace(name, {})
    for path, key in (("/namespaces/db/tables", "identifiers"), ("/namespaces", "namespaces")):
        whole = http.get(path).json()
        assert "next-page-token" not in whole
        found: list[Any] = []
        more: str | None = ""
        while more is not None:
            page = http.get(path, params={"pageSize": 3, "pageToken": more}).json()
            assert len(page[key]) <= 3
            found, more = found + page[key], page["next-page-token"]
        assert found == whole[key]
        assert http.get(path, params={"pageToken": ""}).json() == {**whole, "next-page-token": None}
        wrong: list[dict[str, str]] = [
            {"pageSize": "0"},
            {"pageSize": "x"},
            {"pageToken": "\xff"},
            {"pageToken": "_w=="},
        ]
        for bad in wrong:
            assert _problem(http.get(path, params=bad)) == (400, "BadRequestException"), bad


def test_purge_takes_the_files(lake: World, http: httpx.Client, tmp_path: Path) -> None:
    lake.create_free("t")
    assert _problem(http.delete("/namespaces/db/tables/t?purgeRequested=maybe"))[0] == 400
    assert http.delete("/namespaces/db/tables/t?purgeRequested=true").status_code == 204
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_transactions_and_idempotency_keys(lake: World, http: httpx.Client) -> None:
    lake.create_free("a")
    lake.create_free("b")
    changes = [
        {
            "identifier": {"namespace": ["db"], "name": name},
            "requirements": [],
            "updates": [{"action": "set-properties", "updates": {"n": "1"}}],
        }
        for name in ("a", "b")
    ]
    for _ in range(2):
        answer = http.post("/transactions/commit", json={"table-changes": changes}, headers={"Idempotency-Key": "k1"})
        assert answer.status_code == 204
    assert sum(bool(change.idempotency_key) for change in lake.ledger.changes) == 1
    other = http.post("/namespaces", json={"namespace": ["more"]}, headers={"Idempotency-Key": "k1"})
    assert other.status_code == 200
    assert http.head("/namespaces/more").status_code == 204, "a key belongs to one request"
    too_long = http.post("/transactions/commit", json={}, headers={"Idempotency-Key": "k" * 200})
    assert _problem(too_long)[0] == 400


@pytest.mark.parametrize("error", [Unavailable("journal", applied="unknown"), OSError("disk")])
def test_after_the_journal_began_only_unknown_is_said(
    lake: World, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    lake.create_free("t")

    def fails(change: CatalogChange) -> None:
        raise error

    monkeypatch.setattr(lake.ledger, "commit", fails)
    body: dict[str, Any] = {"updates": [{"action": "set-properties", "updates": {"n": "1"}}]}
    assert _problem(http.post("/namespaces/db/tables/t", json=body)) == (500, "CommitStateUnknownException")
