"""A time with a zone goes into columns with a zone, and only there, whatever the rows are written in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Invalid
from tests.support.loading import read
from tests.support.served import Served

ZONED, PLAIN = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("zoned", ZONED),
        ("plain", PLAIN),
        ("clock", pa.time64("us")),
        ("many", pa.list_(ZONED)),
        ("pair", pa.struct([("at", PLAIN)])),
        ("by", pa.map_(pa.string(), ZONED)),
    ]
)
NAIVE, AWARE = datetime(2026, 1, 1, 10), datetime(2026, 1, 1, 10, tzinfo=timezone(timedelta(hours=5)))


@pytest.fixture
def table(served: Served) -> ls.Table:
    return served.lake.create_table("a.b", SCHEMA, primary_key=["id"])


@pytest.mark.parametrize(
    ("name", "value", "path"),
    [
        ("zoned", NAIVE, "zoned"),
        ("plain", AWARE, "plain"),
        ("zoned", pd.Timestamp(NAIVE), "zoned"),
        ("plain", pd.Timestamp(AWARE), "plain"),
        ("clock", time(10, tzinfo=UTC), "clock"),
        ("many", [AWARE, NAIVE], "many.element"),
        ("pair", {"at": AWARE}, "pair.at"),
        ("by", {"k": NAIVE}, "by.value"),
    ],
)
def test_a_time_of_the_other_kind_is_refused_by_column_row_and_rule(
    table: ls.Table, name: str, value: Any, path: str
) -> None:
    rows = [{"id": 1}, {"id": 2, name: value}]
    with pytest.raises(Invalid, match=rf"column '{path}', row 1: .* has (no|a) time zone, which .* does not take: say"):
        table.upsert(rows)
    assert table.scan().count() == 0


def test_times_of_the_right_kind_are_stored_as_they_are(table: ls.Table) -> None:
    row = {"id": 1, "zoned": AWARE, "plain": NAIVE, "clock": time(10), "many": [AWARE], "by": {"k": AWARE}}
    table.upsert([row | {"pair": {"at": NAIVE}}])
    [found] = table.lookup([{"id": 1}]).to_pylist()
    assert (found["zoned"], found["many"], found["by"]) == (AWARE, [AWARE], [("k", AWARE)])
    assert (found["plain"], found["pair"], found["clock"]) == (NAIVE, {"at": NAIVE}, time(10))


@pytest.mark.parametrize(("kind", "wrong"), [(ZONED, NAIVE), (PLAIN, AWARE)])
def test_every_form_of_rows_has_the_same_rule(served: Served, tmp_path: Path, kind: pa.DataType, wrong: Any) -> None:
    schema = pa.schema([("id", pa.int64()), ("ts", kind)])
    table = served.lake.create_table("a.c", schema, primary_key=["id"])
    file = tmp_path / "rows.jsonl"
    file.write_text(f'{{"id": 1, "ts": "{wrong.isoformat()}"}}\n')
    forms: dict[str, Callable[[], Any]] = {
        "dicts": lambda: [{"id": 1, "ts": wrong}],
        "arrow": lambda: pa.table({"id": [1], "ts": [wrong]}),
        "pandas": lambda: pd.DataFrame({"id": [1], "ts": [pd.Timestamp(wrong)]}),
        "json lines": lambda: read(file, schema),
    }
    for form, rows in forms.items():
        with pytest.raises(Invalid, match="ts"):
            pytest.fail(f"{form} was taken: {table.upsert(rows())}")
    assert table.scan().count() == 0


def test_keys_of_look_ups_have_the_rule_too(served: Served) -> None:
    table = served.lake.create_table("a.d", pa.schema([("ts", ZONED)]), primary_key=["ts"])
    table.upsert([{"ts": AWARE}])
    assert table.lookup([{"ts": AWARE.astimezone(UTC)}]).num_rows == 1
    for call in (table.lookup, table.delete, table.insert_if_absent):
        with pytest.raises(Invalid, match=r"column 'ts', row 0: .* has no time zone"):
            call([{"ts": NAIVE}])


def test_a_position_is_no_time_without_a_zone(table: ls.Table, served: Served) -> None:
    calls: list[Callable[[], object]] = [
        lambda: table.scan(at=NAIVE),
        lambda: table.lookup([{"id": 1}], at=NAIVE),
        lambda: table.changes(NAIVE),
        lambda: table.changes(until=NAIVE),
        lambda: served.lake.at(NAIVE),
    ]
    for call in calls:
        with pytest.raises(Invalid, match=r"has no time zone: say datetime\.now"):
            call()
