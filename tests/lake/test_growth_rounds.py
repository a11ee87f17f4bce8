"""The cost of a round follows its changes, not the files of the table. It is counted, not timed."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.iceberg import offset_cache
from lakestore.iceberg.manifest_entries import Entries
from lakestore_server.main import Server
from lakestore_tiering import Tierer, flush
from tests.support.landed_files import LandedFiles

pytestmark = pytest.mark.spark
NAME = "bench.big"
CHANGED, PARTITIONS, FILES_PER_MANIFEST = 12, 4, 20


@dataclass
class Work:
    """The work of a round, in numbers."""

    manifests: int = 0
    """Manifests that were opened."""
    data_files: int = 0
    """Data files that were opened."""
    described: int = 0
    """Entries of manifests that became objects."""
    spark_jobs: int = 0


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    """The work of rounds from now on."""
    done = Work()
    opened, read, offsets, staged = Entries.opened, Entries.read, offset_cache.read_offsets, flush._staged_by_spark

    def noted_manifest(*given: Any) -> Entries:
        done.manifests += 1
        return opened(*given)

    def noted_entry(self: Entries, place: int) -> Any:
        done.described += 1
        return read(self, place)

    def noted_file(*given: Any) -> Any:
        done.data_files += 1
        return offsets(*given)

    def noted_job(*given: Any) -> Any:
        done.spark_jobs += 1
        return staged(*given)

    monkeypatch.setattr(Entries, "opened", staticmethod(noted_manifest))
    monkeypatch.setattr(Entries, "read", noted_entry)
    monkeypatch.setattr(offset_cache, "read_offsets", noted_file)
    monkeypatch.setattr(flush, "_staged_by_spark", noted_job)
    return done


@pytest.mark.parametrize("count", [200, 800])
def test_a_round_costs_what_changed_however_many_files_there_are(
    lake: ls.Lake, server: Server, spark: SparkSession, work: Work, count: int
) -> None:
    landed = LandedFiles.of(lake, server.about["http"], count, PARTITIONS, files_per_manifest=FILES_PER_MANIFEST)
    table, chance = landed.table, np.random.default_rng(3)
    files = chance.permutation(count)[: 3 * CHANGED].reshape(3, CHANGED)
    with Tierer(lake, spark) as tierer:
        for number, changed in enumerate(files):
            before = astuple(work)
            landed.changed(changed * landed.many.rows)
            (outcome,) = tierer.run_once(NAME, compaction=False)
            assert outcome.flushed is not None
            assert outcome.flushed.deaths == CHANGED
            done = Work(*(now - then for now, then in zip(astuple(work), before, strict=True)))
            new = outcome.flushed.files
            assert new <= PARTITIONS
            assert done.data_files <= CHANGED + new + number * PARTITIONS, "the files of rows that died, and its own"
            assert done.described <= 4 * (CHANGED + new), "a look at every entry is no cost of the changes"
            assert done.spark_jobs == 0
            known = count // FILES_PER_MANIFEST
            assert done.manifests == (known if number == 0 else 2), "the manifests of the last commit alone"
    rows = table.scan(columns=["id"]).to_arrow().column("id").to_numpy()
    assert np.array_equal(np.sort(rows), np.arange(count * landed.many.rows))
    counted = spark.sql(f"SELECT count(*), count(DISTINCT id) FROM lake.{NAME}").collect()[0]
    assert tuple(counted) == (count * landed.many.rows,) * 2
