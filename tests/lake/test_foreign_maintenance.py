"""Random maintenance by stock Spark with no round between its steps: the next round goes on, and every read is right.

`LAKESTORE_SEED` runs one seed again (`tests/support/seeds.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.spark import attach
from lakestore.union.verify import verify
from lakestore_tiering import Tierer, orphans
from tests.support.seeds import seeded

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NAME = "shop.kept"
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
OLD_SECONDS = 10 * 86_400.0
FEW, MANY = 2, 15
Row = tuple[Any, ...]


class Table:
    """The table, a model of its rows, and all that another engine does to it."""

    def __init__(self, lake: ls.Lake, spark: SparkSession, version: int, folder: Path) -> None:
        layout = {"format_version": version, "partition_by": ["bucket(2, id)"] if version == 3 else []}
        self._lake, self._spark, self._folder = lake, spark, folder
        self._table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2, lake=layout)
        self._rows: dict[int, Row] = {}
        self._rng = seeded(11 + version)
        self._branches = 0
        self.did: list[str] = []

    def write(self) -> None:
        """Inserts, updates and deletes."""
        new = {i: (i, f"t{self._rng.random():.6f}") for i in self._rng.sample(range(60), 15)}
        self._table.upsert([dict(zip(SCHEMA.names, row, strict=True)) for row in new.values()])
        self._rows.update(new)
        gone = self._rng.sample(sorted(self._rows), 5)
        self._table.delete([{"id": i} for i in gone])
        for i in gone:
            del self._rows[i]

    def maintain(self) -> None:
        """Some steps in any order."""
        for step in self._rng.choices(self._steps(), k=self._rng.randint(2, 6)):
            self.did.append(step.__name__)
            step()

    def _steps(self) -> list[Callable[[], None]]:
        return [
            self.rewrite_data,
            self.rewrite_data,
            self.rewrite_manifests,
            self.rewrite_deletes,
            self.expire,
            self.expire,
            self.remove_orphans,
            self.branch,
            self.branch_with_rows,
            self.property,
        ]

    def _call(self, procedure: str, **arguments: str) -> None:
        said = ", ".join(f"{name} => {value}" for name, value in {"table": f"'{NAME}'", **arguments}.items())
        self._spark.sql(f"CALL lake.system.{procedure}({said})").collect()

    def rewrite_data(self) -> None:
        self._call("rewrite_data_files", options="map('rewrite-all', 'true')")

    def rewrite_manifests(self) -> None:
        self._call("rewrite_manifests", use_caching="false")

    def rewrite_deletes(self) -> None:
        self._call("rewrite_position_delete_files", options="map('rewrite-all', 'true')")

    def expire(self) -> None:
        self._call("expire_snapshots", retain_last="1", older_than="TIMESTAMP '2100-01-01 00:00:00'")

    def remove_orphans(self) -> None:
        """As if all files were ten days old."""
        self.age()
        self._call("remove_orphan_files")

    def age(self) -> None:
        """Let all files of the lake be old."""
        then = time.time() - OLD_SECONDS
        for path in self._folder.rglob("*"):
            os.utime(path, (then, then))

    def branch(self) -> None:
        self._branches += 1
        self._spark.sql(f"ALTER TABLE lake.{NAME} CREATE BRANCH IF NOT EXISTS b{self._branches % 3}")
        self._spark.sql(f"ALTER TABLE lake.{NAME} CREATE OR REPLACE TAG t{self._branches % 2}")
        self._spark.sql(f"ALTER TABLE lake.{NAME} DROP BRANCH IF EXISTS b{(self._branches + 1) % 3}")

    def branch_with_rows(self) -> None:
        self._spark.sql(f"ALTER TABLE lake.{NAME} CREATE OR REPLACE BRANCH rows")
        self._spark.sql(f"DELETE FROM lake.{NAME}.branch_rows WHERE id % 7 = {self._rng.randrange(7)}")

    def property(self) -> None:
        self._spark.sql(f"ALTER TABLE lake.{NAME} SET TBLPROPERTIES ('user.n'='{self._rng.random()}')")

    def check(self, *, tiered: bool) -> None:
        """Union reads, and after a round the lake alone."""
        expected = sorted(self._rows.values())
        assert _rows(self._table.scan().to_arrow()) == expected, self.did
        if tiered:
            assert _rows(self._spark.sql(f"SELECT * FROM lake.{NAME}").toArrow()) == expected, self.did
            # A lake of its own: its leases end with it, and hold no snapshot that the next expiry would take.
            reads = attach(self._spark, self._lake.address)
            assert _rows(reads.table(NAME).toArrow()) == expected, self.did
            reads.close()
            assert verify(self._lake.transport, NAME).problems() == [], self.did


def _rows(found: pa.Table) -> list[Row]:
    return sorted(tuple(row[name] for name in SCHEMA.names) for row in found.to_pylist())


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("version", "count"),
    [(3, FEW), *(pytest.param(*each, marks=pytest.mark.long) for each in ((2, FEW), (2, MANY), (3, MANY)))],
)
def test_maintenance_by_stock_spark(
    lake: ls.Lake, spark: SparkSession, tmp_path: Path, version: int, count: int
) -> None:
    table = Table(lake, spark, version, tmp_path / "data" / "warehouse")
    with Tierer(lake, spark) as tierer:
        table.write()
        tierer.run_once(compaction=False)
        for number in range(count):
            table.write()
            tierer.run_once(compaction=False)
            table.maintain()
            table.check(tiered=False)
            table.write()
            [outcome] = tierer.run_once(compaction=number % 3 == 1)
            assert outcome.flushed is not None
            table.check(tiered=True)
        table.age()
        orphans.remove(tierer.tools, lake.table(NAME).definition)
        table.check(tiered=True)
    print(table.did)
