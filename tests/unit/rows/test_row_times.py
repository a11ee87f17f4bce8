"""Times of rows: units and zones, rows without a time, closed partitions, and where late rows land."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakestore.model import times
from lakestore.rows.row_times import RowTimes, TimeRules, partition_ends, partition_starts
from tests.unit.model.test_event_time import applied

NOW = datetime(2026, 11, 28, 11, 30, tzinfo=UTC)
STAMP = pa.timestamp("us", tz="UTC")


def micros(moment: datetime) -> int:
    found = times.micros_of(moment.isoformat())
    assert found is not None
    return found


def rules(event: str, late: str = "", **options: Any) -> TimeRules:
    found = TimeRules.of(applied(event, late, **options))
    assert found is not None
    return found


def filled(found: TimeRules, column: str, values: list[Any], kind: pa.DataType, **options: Any) -> RowTimes:
    batch = pa.RecordBatch.from_pydict({"id": pa.array(range(len(values))), column: pa.array(values, kind)})
    return found.fill(batch, micros(NOW), **options)


@pytest.mark.parametrize(
    ("unit", "column", "kind", "value"),
    [
        ("unit: s", "millis", pa.int64(), 1_764_330_601),
        ("unit: ms", "millis", pa.int64(), 1_764_330_601_000),
        ("unit: us", "millis", pa.int64(), 1_764_330_601_000_000),
        ("unit: ns", "millis", pa.int64(), 1_764_330_601_000_000_999),
        ("unit: iso", "text", pa.string(), "2025-11-28T12:50:01+01:00"),
        ("unit: iso, zone: Europe/Berlin", "text", pa.string(), "2025-11-28T12:50:01"),
        ("unit: iso, zone: UTC", "text", pa.string(), " 2025-11-28 11:50:01.0000001 "),
        ("unit: s", "text", pa.string(), "1764330601"),
        ("zone: Asia/Kolkata", "local", pa.timestamp("us"), datetime(2025, 11, 28, 17, 20, 1)),
    ],
)
def test_each_unit_and_zone_gives_the_same_moment(unit: str, column: str, kind: pa.DataType, value: Any) -> None:
    found = filled(rules(f"from: event, column: {column}, {unit}, keep: true"), column, [value], kind)
    assert not found.bad.any()
    assert found.batch.column("_event_time").to_pylist() == [datetime(2025, 11, 28, 11, 50, 1, tzinfo=UTC)]
    assert found.batch.column("_ingest_time").to_pylist() == [NOW]
    assert found.batch.column("_broker_time").to_pylist() == [None]


@pytest.mark.parametrize(
    ("unit", "value", "said"),
    [
        ("iso", "yesterday", "column 'text' holds 'yesterday', which is no event time in iso"),
        ("iso", "1764330601", "column 'text' holds '1764330601', which is no event time in iso"),
        ("iso", "2025-11-28T11:50:01", "which is no event time in iso$"),
        ("iso", "2025-02-30T11:50:01Z", "which is no event time in iso"),
        ("iso", None, "column 'text' has no event time$"),
        ("s", "2025-11-28T11:50:01Z", "which is no event time in s"),
        ("s", "999999999999999999999", "which is no event time in s"),
        ("s", "999999999999", "which is no event time in s"),
    ],
)
def test_a_value_that_is_no_time_is_bad_and_never_now(unit: str, value: str | None, said: str) -> None:
    good = "2025-11-28T11:50:01Z" if unit == "iso" else "1764330601"
    found = filled(rules(f"from: event, column: text, unit: {unit}, keep: true"), "text", [good, value], pa.string())
    assert found.bad.tolist() == [False, True]
    assert found.batch.column("_event_time").null_count == 1
    assert re.search(said, found.reason(1))


def test_only_a_bridge_sends_the_time_of_the_broker() -> None:
    found = rules("from: broker, keep: true")
    sent = filled(found, "_broker_time", [NOW, None], STAMP, from_bridge=True)
    assert (sent.bad.tolist(), sent.batch.column("_broker_time").to_pylist()) == ([False, True], [NOW, None])
    forged = filled(found, "_broker_time", [NOW, NOW], STAMP)
    assert forged.bad.all()
    assert forged.batch.column("_broker_time").null_count == 2
    assert "only a bridge sends one" in forged.reason(0)


def test_times_of_a_client_are_replaced() -> None:
    found = rules("from: ingest, keep: true")
    sent = filled(found, "_ingest_time", [datetime(2000, 1, 1, tzinfo=UTC)], STAMP)
    assert sent.batch.column("_ingest_time").to_pylist() == [NOW]


@pytest.mark.parametrize(("transform", "ends"), [("hour", "11:00"), ("day", "00:00")])
def test_a_row_is_late_once_its_partition_is_closed(transform: str, ends: str) -> None:
    found = rules(
        "from: event, column: at", "policy: drop, closedAfter: 30m", partition_by=(f"{transform}(at)",), key=False
    )
    end = datetime.fromisoformat(f"2026-11-28T{ends}:00+00:00")
    values = [end - timedelta(microseconds=1), end, NOW, NOW + timedelta(days=400)]
    for now, late in ((end + timedelta(minutes=30), False), (end + timedelta(minutes=30, microseconds=1), True)):
        batch = pa.RecordBatch.from_pydict({"id": pa.array(range(4)), "at": pa.array(values, STAMP)})
        made = found.fill(batch, micros(now))
        assert made.late.tolist() == [late, False, False, False]
    assert made.late_partitions() == {"2026-11-28-10" if transform == "hour" else "2026-11-27": 1}
    assert made.late_partitions(np.array([1, 2])) == {}


def test_a_late_row_lands_today_with_its_true_time() -> None:
    found = rules(
        "from: event, column: at", "policy: land_today, closedAfter: 1h", partition_by=("day(_landing_time)",)
    )
    old = datetime(2026, 11, 20, 5, tzinfo=UTC)
    made = filled(found, "at", [old, NOW, None], STAMP)
    assert (made.late.tolist(), made.bad.tolist()) == ([True, False, False], [False, False, True])
    assert made.batch.column("_landing_time").to_pylist()[:2] == [NOW, NOW]
    assert made.batch.column("at").to_pylist()[:2] == [old, NOW]


def test_a_row_that_keeps_its_time_is_neither_bad_nor_late() -> None:
    found = rules("from: event, column: at", "policy: drop, closedAfter: 1h", partition_by=("day(at)",))
    made = filled(found, "at", [None, None], STAMP, kept=np.array([True, False]))
    assert (made.bad.tolist(), made.late.tolist()) == ([False, True], [False, False])
    assert not found.fill(made.batch.slice(0, 0), micros(NOW)).bad.any()


@pytest.mark.parametrize("transform", ["hour", "day", "month", "year"])
def test_partitions_are_those_of_iceberg(transform: str) -> None:
    from pyiceberg.transforms import parse_transform
    from pyiceberg.types import TimestamptzType

    moments = np.array([-1, 0, micros(NOW), micros(datetime(1969, 2, 28, 23, tzinfo=UTC)), micros(NOW) * 10], np.int64)
    value = parse_transform(transform).transform(TimestamptzType())
    starts, ends = partition_starts(moments, transform), partition_ends(moments, transform)
    for moment, start, end in zip(moments.tolist(), starts.tolist(), ends.tolist(), strict=True):
        number = value(moment)
        assert number is not None
        assert value(start) == number == value(end - 1)
        assert (value(start - 1), value(end)) == (number - 1, number + 1)
