"""One status: what RPC and command line show, metrics count and the console draws are the same figures of one view."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog.metadata_store import MetadataStore, StoredMetadata
from lakestore_server.operate import metrics
from lakestore_server.operate.lake_figures import LakeFigures
from lakestore_server.operate.status import KnownTables
from tests.support.served import SCHEMA, Served

SUMMARY = {
    "total-data-files": "7",
    "total-delete-files": "2",
    "total-position-deletes": "30",
    "total-records": "1000",
    "total-files-size": "odd",
}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as made:
        made.lake.create_table("a.log", SCHEMA, buckets=2, lake={"freshness": "20s"})
        made.lake.create_table("a.keyed", pa.schema([("id", pa.int64())]), primary_key=["id"], buckets=1)
        yield made


def page(served: Served) -> dict[tuple[str, ...], float]:
    text = metrics.text(served.server.sources).decode()
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in found}


def test_rpc_metrics_and_value_tell_the_same(served: Served) -> None:
    served.append("a.log", 1, 2, 3)
    served.tier("a.log")
    served.append("a.log", 4)
    since = served.clock.us
    served.append("a.log", 5)
    served.clock.advance(30)
    value = served.server.service.status.now()
    said = orjson.loads(served.lake.transport.status(pb.StatusRequest()).status)
    free, same = said.pop("disk_free_bytes"), orjson.loads(orjson.dumps(value.as_dict()))
    assert free == pytest.approx(same.pop("disk_free_bytes"), rel=0.2)  # others write to the disk
    assert said == same
    counted = page(served)
    for table in said["tables"]:
        assert counted["lakestore_table_rows", table["name"]] == table["rows"]
        assert counted["lakestore_table_hot_offsets", table["name"]] == table["hot"]
    log = next(each.table for each in value.tables if each.table.name == "a.log")
    assert (log.hot, log.hot_since_us, log.freshness_seconds) == (2, since, 20)
    assert counted["lakestore_table_tier_lag_seconds", "a.log"] == log.hot_seconds(served.clock.us) == 31.0
    assert counted["lakestore_table_tier_lag_seconds", "a.keyed"] == 0.0
    assert counted["lakestore_disk_free_bytes",] == pytest.approx(free, rel=0.2)
    assert counted["lakestore_leases",] == said["leases"] == 0


def test_figures_of_a_table_that_has_not_changed_are_not_made_again(served: Served) -> None:
    known, view = KnownTables(), served.engine.view
    first = dict(zip(view.tables, known.statuses(view, view.tables), strict=True))
    served.append("a.log", 1)
    view = served.engine.view
    second = dict(zip(view.tables, known.statuses(view, view.tables), strict=True))
    same = {status.name: status is first[uuid] for uuid, status in second.items()}
    assert same == {"a.log": False, "a.keyed": True}
    known.statuses(view, [view.names["a.log"]])
    assert known.statuses(view, [view.names["a.keyed"]]) == [second[view.names["a.keyed"]]]


def test_the_lakes_figures_are_those_of_the_newest_snapshot_and_are_read_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = [
        {
            "current-snapshot-id": 2,
            "snapshots": [{"snapshot-id": 1, "timestamp-ms": 5}, {"snapshot-id": 2, "summary": SUMMARY}],
        }
    ]
    assert LakeFigures.from_metadata(docs[0]) == LakeFigures(
        files=7, delete_files=2, deleted_rows=30, rows=1000, bytes=0, oldest_snapshot_ms=5
    )
    assert LakeFigures.from_metadata({"current-snapshot-id": -1, "snapshots": []}) is None
    served.append("a.log", 1)
    loads: list[str] = []
    load = MetadataStore.load

    def counted(store: MetadataStore, place: str) -> StoredMetadata:
        loads.append(place)
        return load(store, place)

    monkeypatch.setattr(MetadataStore, "load", counted)
    lakes, view = served.server.service.status.lakes, served.engine.view
    lakes.look(view)
    lakes.look(view)
    assert len(loads) == len(view.pointers) == 2
    served.tier("a.log")
    lakes.look(served.engine.view)
    assert len(loads) == 3
    assert lakes.figures_of(view.names["a.log"]) is None  # a snapshot that the test only noted
