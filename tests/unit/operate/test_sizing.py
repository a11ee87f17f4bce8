"""The calculator of sizes: rules that hold for every workload, a week's churn, and its command."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore.cli import sizing as command
from lakestore.cli.main import cli
from lakestore.errors import Invalid
from lakestore.rows.keys import INDEX_KEY_BYTES_MAX
from lakestore_server.host.disk import RealDisk
from lakestore_server.index.entry import key_hash, table_prefix
from lakestore_server.index.keys import ByteKeys, IndexKeys, NumberKeys
from lakestore_server.index.levels import due
from lakestore_server.index.run_store import write
from lakestore_server.index.run_writer import RunWriter
from lakestore_server.operate.sizing import Bucket, Life, Runs, Workload, simulate, sized
from tests.bench.growth import measured, pages
from tests.bench.growth.rows import KINDS

DAY = 86_400


def test_a_week_of_churn_has_a_bounded_disk() -> None:
    life = Life(keys=2.5e6, rate=2_500, stored_bytes=57, checkpoint_rows=1e6, retention_seconds=DAY / 4)
    found = simulate(life, 7 * DAY)
    log = life.rate * life.retention_seconds
    assert len(found.rows_by_day) == 7
    across = life.buckets * life.limits.merged_segment_bytes / life.stored_bytes  # a segment there stays whole
    assert found.rows_most <= log + 2.2 * life.keys + across
    assert found.rows_by_day[-1] <= 1.01 * found.rows_by_day[0]
    assert found.entries_most <= 3.4
    assert found.runs_most <= 12
    assert found.entries_written <= 6.5


def test_without_a_retention_the_log_grows_by_the_rate() -> None:
    found = simulate(Life(keys=1e6, rate=1_000, stored_bytes=57, checkpoint_rows=1e6), 3 * DAY)
    growth = [after - before for before, after in zip(found.rows_by_day, found.rows_by_day[1:], strict=False)]
    assert growth == pytest.approx([DAY * 1_000] * len(growth), rel=0.02)


def test_the_live_part_of_segments_is_what_drawing_keys_gives() -> None:
    keys, updates, chance = 2_000, 6_000, random.Random(5)
    bucket = Bucket(Life(keys=keys, rate=1, stored_bytes=57, checkpoint_rows=500, buckets=1))
    bucket.fill()
    newest = dict(enumerate(range(keys)))
    for at in range(updates):
        newest[chance.randrange(keys)] = keys + at
    for _ in range(updates // 500):
        bucket.cut(500)
    expected = bucket.live()
    assert expected.sum() == pytest.approx(keys, rel=0.01)
    for start, end, live in zip(bucket.starts, bucket.ends, expected, strict=True):
        drawn = sum(start <= offset < end for offset in newest.values())
        assert live == pytest.approx(drawn, abs=5 * math.sqrt(drawn + 1))


def test_runs_stay_few_and_hold_every_key_once_or_more() -> None:
    runs = Runs(1e6)
    for _ in range(200):
        runs.add(5_000)
        assert 1e6 <= sum(runs.sizes) <= 2.01e6
        assert len(runs.sizes) <= 18
        assert due([round(size) for size in runs.sizes]) == 0


def test_entries_are_written_few_times() -> None:
    life = simulate(Life(keys=1e7, rate=1e5, stored_bytes=85, checkpoint_rows=1e6), 2_000)
    assert life.entries_written < 2.2
    assert life.entries_most <= 3.2


@settings(max_examples=10, deadline=None)
@given(
    rows=st.floats(1e3, 1e9),
    rate=st.floats(1, 1e6),
    row_bytes=st.floats(1, 1e4),
    key_bytes=st.sampled_from([0, 4, 8, 30]),
    retention=st.sampled_from([3_600.0, math.inf]),
)
def test_sizes_are_finite_and_grow_with_the_rows(
    rows: float, rate: float, row_bytes: float, key_bytes: int, retention: float
) -> None:
    def of(count: float) -> Workload:
        return Workload(rows=count, rate=rate, row_bytes=row_bytes, key_bytes=key_bytes, retention_seconds=retention)

    seconds = 50 * of(rows).checkpoint_rows / rate
    small, large = sized(of(rows), seconds), sized(of(4 * rows), seconds)
    for found in (small, large):
        assert all(math.isfinite(each.value) and each.value >= 0 for each in found.figures)
        assert [each.share for each in found.breaking] == sorted((b.share for b in found.breaking), reverse=True)
        parts = [each.value for each in found.figures if each.part == "writes"]
        assert parts[-1] == pytest.approx(sum(parts[:-1]))
    for name in ("segments", "index at rest", "index at most"):
        assert large.value("disk", name) >= 0.99 * small.value("disk", name)


def test_the_command_says_what_breaks_first_and_every_constant_with_its_source() -> None:
    asked = ["--rows", "1B", "--rate", "100k", "--retention", "1d", "--seconds", "3600", "--memory", "24GB"]
    shown = CliRunner().invoke(cli, ["sizing", *asked], catch_exceptions=False).output
    first = shown.partition("what breaks")[2].splitlines()[1]
    assert "index in half of the memory" in first
    told = json.loads(CliRunner().invoke(cli, ["sizing", *asked, "--json"], catch_exceptions=False).output)
    assert told["breaking"][0]["share"] > 1
    assert all(each["source"] for each in told["constants"])
    index = next(each for each in told["figures"] if each["name"] == "index at rest")
    assert index["value"] == 17.5e9


@pytest.mark.parametrize(("key_bytes", "kind"), [(8, ""), (8, "bytes"), (16, ""), (36, ""), (2_000, "")])
def test_an_entry_of_the_index_takes_what_a_run_of_it_takes(tmp_path: Path, key_bytes: int, kind: str) -> None:
    workload = Workload(rows=1.0, rate=1.0, key_bytes=key_bytes, key_kind=kind)
    count, prefix, disk = 20_000, table_prefix(1), RealDisk()
    if workload.has_number_keys:
        keys: IndexKeys = NumberKeys(prefix, 8, np.arange(count, dtype=np.uint64))
    else:  # a longer key is kept by its hash
        width = min(key_bytes, INDEX_KEY_BYTES_MAX - len(prefix))
        keys = ByteKeys([prefix + b"%0*d" % (width, n) for n in range(count)])
    writer = RunWriter(disk, tmp_path / "1.run", key_hash(bytes(32)), 1)
    write(writer, keys, np.arange(count))
    writer.finish()
    assert workload.entry_bytes == pytest.approx(writer.size / count, rel=0.015)


def test_what_is_calculated_is_what_the_bench_measured() -> None:
    """Of every number of keys of both kinds that the store has."""
    found = [each for kind in KINDS for each in measured.known(kind).values() if each.upsert > 0]
    assert {each.key for each in found} == set(KINDS)
    for each in found:
        asked = pages.workload(each)
        told = sized(asked, each.upsert_seconds)
        assert told.value("disk", "index at rest") == pytest.approx(each.index_bytes, rel=0.05)
        assert told.value("disk", "index at most") >= each.index_bytes_upserted
        # One merge of all runs falls into the minute, or just beside it.
        merge = told.value("disk", "index at most") / (asked.rate * each.upsert_seconds * asked.row_bytes)
        assert abs(told.value("writes", "in all") - each.upsert_written) < 0.3 * each.upsert_written + merge


def test_the_page_has_the_tables_that_code_and_store_give() -> None:
    assert pages.PAGE.read_text() == pages.page(pages.PAGE.read_text()), "run `make bench growth ARGS=\"--keys ''\"`"


@pytest.mark.parametrize("text", ["", "-5", "0", "5x", "nan", "1e400", "M"])
def test_numbers_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="--rows"):
        command.number(text, {"": 1, "m": 10**6}, "--rows")


@pytest.mark.parametrize(
    ("name", "value"), [("rows", 0.0), ("rate", -1.0), ("row_bytes", math.nan), ("buckets", 0), ("key_kind", "x")]
)
def test_workloads_that_make_no_sense_are_refused(name: str, value: Any) -> None:
    with pytest.raises(Invalid, match=name):
        replace(Workload(rows=1.0, rate=1.0), **{name: value})
