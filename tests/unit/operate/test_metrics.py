"""The metrics page: every figure of a server at work, named and described as Prometheus wants it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lakestore.errors import NotFound
from lakestore.model.table import define
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore_server.main import Server
from lakestore_server.operate import metrics
from lakestore_server.settings import Settings

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
METHODS = rpc.METHODS


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(Settings(tmp_path / "data"))
    yield made
    made.close()


def samples(server: Server) -> dict[tuple[str, ...], float]:
    """(name, label values in order of their names) to value."""
    page = metrics.text(server.sources).decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def write(server: Server, rows: int) -> None:
    """One commit to `a.b`, by the verbs that a port calls."""
    from lakestore.rows import ipc

    data = ipc.encode(SCHEMA, [pa.record_batch([list(range(rows)), ["x"] * rows], schema=SCHEMA)])
    change = pb.Change(table="a.b", kind=pb.UPSERT, rows=data, crc32c=ipc.crc32c(data))
    server.service.watched(METHODS["Commit"])(pb.CommitRequest(changes=[change]))


def test_every_figure_moves_with_what_it_counts(server: Server, tmp_path: Path) -> None:
    table = define("a.b", SCHEMA, primary_key=["id"], buckets=2)
    server.service.watched(METHODS["CreateTable"])(pb.CreateTableRequest(definition=table.to_json()))
    write(server, 10)
    write(server, 10)
    with pytest.raises(NotFound):
        server.service.watched(METHODS["GetTable"])(pb.TableRequest(table="no.such"))
    server.service.watched(METHODS["Plan"])(pb.PlanRequest(tables=["a.b"], lease_seconds=60))
    server.upkeep.checkpoint()
    found = samples(server)
    assert found["lakestore_commits_total",] == 3
    assert found["lakestore_rows_total",] == 20
    assert found["lakestore_commit_seconds_count",] == 2
    assert found["lakestore_commit_group_requests_sum",] == 2
    assert found["lakestore_journal_sync_seconds_count",] == 3
    assert found["lakestore_journal_written_bytes_total",] > 100
    assert found["lakestore_checkpoint_seconds_count",] == 1
    assert found["lakestore_checkpoint_failures_total",] == 0
    assert found["lakestore_checkpoint_age_seconds",] < 60
    assert found["lakestore_index_keys",] == 10
    assert found["lakestore_index_bytes",] > 0
    assert found["lakestore_segments",] == 2
    assert found["lakestore_segment_bytes",] > 100
    assert found["lakestore_disk_free_bytes",] > 0
    assert found["lakestore_leases",] == 1
    assert found["lakestore_lsn",] == 3
    assert found["lakestore_table_rows", "a.b"] == 10
    assert found["lakestore_table_hot_offsets", "a.b"] == 20
    assert 0 < found["lakestore_table_tier_lag_seconds", "a.b"] < 60
    assert found["lakestore_rpc_seconds_count", "ok", "Commit"] == 2
    assert found["lakestore_rpc_seconds_count", "NotFound", "GetTable"] == 1
    assert found["lakestore_catalog_commits_total",] == 0


def test_names_follow_the_rules_of_prometheus(server: Server) -> None:
    for family in metrics.FAMILIES:
        assert re.fullmatch(r"lakestore_[a-z][a-z_]*[a-z]", family.name)
        assert not family.name.endswith(("_total", "_count", "_sum", "_bucket", "_info_info")), family.name
        assert not re.search(r"_(ms|us|kb|mb|minutes|hours)\b", family.name), "base units only"
        assert family.kind != "histogram" or re.search(r"_(seconds|bytes|requests)$", family.name)
        assert family.text.endswith((".", "`_count` is the number of calls."))
    assert len({family.name for family in metrics.FAMILIES}) == len(metrics.FAMILIES)
    page = metrics.text(server.sources).decode()
    for family in metrics.FAMILIES:
        assert f"# HELP {family.name}" in page
        assert f"# TYPE {family.name}" in page


def test_a_refused_catalog_commit_is_counted(server: Server) -> None:
    from lakestore_server.catalog.commits import TableChange
    from lakestore_server.catalog.contents import Name

    with pytest.raises(NotFound):
        server.catalog.commit([TableChange(Name("a", "none"), [], [])])
    assert samples(server)["lakestore_catalog_refusals_total", "NoSuchNamespace"] == 1
