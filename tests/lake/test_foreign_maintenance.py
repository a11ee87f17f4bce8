"""Random maintenance by stock Spark with no round between its steps: the next round goes on, and every read is right.

`LAKESTORE_SEED` runs one seed again (`tests/support/seeds.py`).
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.spark import attach
from lakestore.union.verify import verify
from lakestore_server.main import Server
from lakestore_tiering import Tierer, orphans
from tests.support.older_spark import OlderSpark, Refused, older_iceberg
from tests.support.seeds import seeded

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NAME = "shop.kept"
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
OLD_SECONDS = 10 * 86_400.0
FEW, MANY = 2, 15
LOST = "CommitFailedException|ValidationException|plan again|Cannot commit"
"""Words of a procedure whose commit came after another one; stock Spark says them and ends."""
Row = tuple[Any, ...]


class Table:
    """The table, a model of its rows, and all that another engine does to it."""

    def __init__(
        self, lake: ls.Lake, spark: SparkSession, version: int, folder: Path, other: OlderSpark | None = None
    ) -> None:
        """`other` runs the procedures instead of the Spark of this process."""
        self._other = other
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

    def beside(self, rng: random.Random) -> None:
        """One procedure while rounds go on. It may lose to a round. No file is made old: rounds need theirs."""
        step = rng.choice(self.procedures())
        self.did.append(step.__name__)
        try:
            step()
        except (Py4JJavaError, Refused) as error:
            if not re.search(LOST, str(error)) and not self._has_expired(str(error)):
                raise
            self.did.append(f"refused {str(error)[:300]}")

    def _has_expired(self, error: str) -> bool:
        """Whether a procedure lacked a file that our expiry removed at the same time.

        A procedure reads the files of the snapshots that were there when it began, and stock engines have no leases.
        Two stock procedures at once end so too. No snapshot of the table may lack a file.
        """
        gone = re.search(
            r"NotFoundException.*?(/\S+/(?:metadata|data)/\S+?\.(?:avro|parquet|puffin))", error, re.DOTALL
        )
        if gone is None:
            return False
        kinds = {"snapshots": "manifest_list", "all_manifests": "path", "all_files": "file_path"}
        there = [self._spark.sql(f"SELECT {name} FROM lake.{NAME}.{kind}").collect() for kind, name in kinds.items()]
        return not any(row[0].endswith(gone[1]) for rows in there for row in rows)

    def procedures(self) -> list[Callable[[], None]]:
        """The five procedures of Iceberg."""
        return [self.rewrite_data, self.rewrite_manifests, self.rewrite_deletes, self.expire, self.remove_new_orphans]

    def remove_new_orphans(self) -> None:
        """As it is called in practice: it keeps what is younger than three days."""
        self._call("remove_orphan_files")

    def _call(self, procedure: str, **arguments: str) -> None:
        said = ", ".join(f"{name} => {value}" for name, value in {"table": f"'{NAME}'", **arguments}.items())
        statement = f"CALL lake.system.{procedure}({said})"
        if self._other is not None:
            self._other.sql(statement)
        else:
            self._spark.sql(statement).collect()

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


def test_a_round_is_planned_again_if_an_expiry_cut_the_history_that_it_began_on(
    lake: ls.Lake, spark: SparkSession, tmp_path: Path
) -> None:
    table = Table(lake, spark, 2, tmp_path / "data" / "warehouse")

    def cut(point: str) -> None:
        if point == "before-commit" and table.did:
            for step in (table.rewrite_deletes, table.rewrite_data, table.rewrite_data, table.expire):
                step()

    with Tierer(lake, spark, crash=cut) as tierer:
        table.write()
        tierer.run_once(compaction=False)
        table.write()
        table.did.append("cut")
        with pytest.raises(ls.Conflict, match="plan again"):
            tierer.run_once(compaction=False)
        table.did.clear()
        tierer.run_once(compaction=False)
        table.check(tiered=True)


class Beside:
    """A writer and rounds with our compaction in threads of their own, until the block ends."""

    def __init__(self, table: Table, tierer: Tierer) -> None:
        self._table, self._tierer, self._end = table, tierer, threading.Event()
        self._failed: list[BaseException] = []
        self.writes = self.rounds = 0
        self._threads = [threading.Thread(target=self._run, args=(each,)) for each in (self._write, self._tier)]

    def _run(self, step: Callable[[], None]) -> None:
        try:
            while not self._end.wait(0.05):
                step()
        except BaseException as error:
            self._failed.append(error)
            self._end.set()

    def _write(self) -> None:
        self._table.write()
        self.writes += 1

    def _tier(self) -> None:
        with suppress(ls.Conflict):  # the procedure replaced a file of this round; the next round is planned upon it
            self._tierer.run_once(compaction=self.rounds % 3 == 2)
        self.rounds += 1

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for each in self._threads:
            each.join(300)
        if self._failed:
            raise self._failed[0]


SEEDS_BESIDE, STEPS_BESIDE = 5, 20


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("seed", range(SEEDS_BESIDE))
def test_stock_procedures_beside_writers_rounds_and_compaction(
    lake: ls.Lake, spark: SparkSession, tmp_path: Path, version: int, seed: int
) -> None:
    run_beside(Table(lake, spark, version, tmp_path / "data" / "warehouse"), lake, spark, seed)


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_procedures_of_iceberg_1_9_beside_writers_rounds_and_compaction(
    server: Server, lake: ls.Lake, spark: SparkSession, tmp_path: Path
) -> None:
    with older_iceberg(tmp_path, f"http://{server.about['http']}/iceberg") as older:
        run_beside(Table(lake, spark, 2, tmp_path / "data" / "warehouse", older), lake, spark, 0)


def run_beside(table: Table, lake: ls.Lake, spark: SparkSession, seed: int) -> None:
    """Procedures one after the other, while a thread writes and another one runs rounds."""
    rng = seeded(seed)
    with Tierer(lake, spark) as tierer:
        table.write()
        tierer.run_once(compaction=False)
        with Beside(table, tierer) as beside:
            for _ in range(STEPS_BESIDE):
                table.beside(rng)
        assert beside.writes
        assert beside.rounds
        tierer.run_once(compaction=False)
        table.check(tiered=True)
        for procedure in table.procedures():  # without a round beside it none is refused
            procedure()
        table.write()
        tierer.run_once(compaction=False)
        table.check(tiered=True)
    assert sum(each.startswith("refused") for each in table.did) < STEPS_BESIDE, "no procedure ever succeeded"
    print(table.did)
