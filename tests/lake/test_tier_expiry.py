"""Rows that expire go from the lake as other deleted rows do, whatever the merge engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.client.writer import change as wire_change
from lakestore.limits import Limits
from lakestore.spark import SparkLake
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from lakestore_tiering import Tierer
from tests.model.engines import BASE, SPECS, IdRow, Mirror, Spec, batch_of, by_id
from tests.model.engines_harness import KINDS
from tests.model.merging import Key, Row
from tests.support.seeds import seeded

pytestmark = pytest.mark.spark
FAR = datetime(2100, 1, 1)


@pytest.fixture(name="server")
def _server(tmp_path: Path) -> Iterator[Server]:
    """One whose rows expire when the test says."""
    settings = Settings(
        tmp_path / "data",
        port=0,
        http_port=0,
        lease_grace_seconds=0.0,
        expiry_check_seconds=86_400.0,
        limits=Limits(clock_confirm_seconds=0),
    )
    running = Server(settings)
    running.start()
    yield running
    running.close()


def value(rng: random.Random, kind: pa.DataType) -> Any:
    """One of few, so that keys meet."""
    if pa.types.is_integer(kind):
        return rng.randint(-2, 3)
    if pa.types.is_timestamp(kind):
        return rng.choice([None, BASE, FAR])
    return rng.choice(["", "x", "y\0"])


def rows(rng: random.Random, spec: Spec, kind: str) -> list[Row]:
    named = [name for name in spec.free if rng.random() < 0.7]
    if kind == "delete":
        named = named[:1] if spec.options.get("merge") == "partial" else []
    columns = [*spec.keys, *spec.always, *named]
    return [{name: value(rng, spec.columns[name][0]) for name in columns} for _ in range(rng.randint(1, 6))]


def write(lake: ls.Lake, rng: random.Random, mirrors: dict[str, Mirror]) -> None:
    for name, mirror in mirrors.items():
        for _ in range(4):
            kind = rng.choice(["upsert", "upsert", "upsert", "delete", "insert"])
            sent = rows(rng, SPECS[name], kind)
            change = wire_change(name, KINDS[kind], [batch_of(sent, mirror.table)], 0)
            [result] = lake.transport.commit(pb.CommitRequest(changes=[change])).results
            expected = mirror.apply(kind, sent, BASE)
            assert (result.inserted, result.updated) == (expected["inserted"], expected["updated"])


def by_key(mirror: Mirror, found: list[dict[str, Any]]) -> dict[Key, IdRow]:
    listed = [by_id(row, mirror.table) for row in found]
    keyed = {mirror.key_of(row): row for row in listed}
    assert len(keyed) == len(listed), "a row twice"
    return keyed


def expire(server: Server, mirrors: dict[str, Mirror]) -> None:
    server.expiry.run_once()
    for mirror in mirrors.values():
        mirror.expire(datetime.now(UTC).replace(tzinfo=None))


def test_expired_rows_leave_union_read_and_lake(
    server: Server, lake: ls.Lake, spark: SparkSession, spark_lake: SparkLake
) -> None:
    """Tiered before they expire, or never tiered; and those that come again."""
    rng = seeded(5)
    mirrors = {
        name: Mirror.of(lake.create_table(name, SPECS[name].schema, **SPECS[name].options).definition)
        for name in ("e.upsert", "e.partial", "e.versioned")
    }
    with Tierer(lake, spark) as tierer:
        write(lake, rng, mirrors)
        tierer.run_once()
        write(lake, rng, mirrors)
        expire(server, mirrors)
        write(lake, rng, mirrors)
        expire(server, mirrors)
        for name, mirror in mirrors.items():
            assert by_key(mirror, lake.table(name).scan().to_arrow().to_pylist()) == mirror.live(), name
            assert by_key(mirror, spark_lake.table(name).toArrow().to_pylist()) == mirror.live(), name
        tierer.run_once()
    for name, mirror in mirrors.items():
        figures = server.expiry.figures(server.engine.view.named(name))
        assert figures is not None
        assert figures.expired > 0
        assert spark.sql(f"SELECT * FROM lake.{name}").count() == len(mirror.live()), name
        assert verify(lake.transport, name).problems() == [], name
