"""The sections of event time and late data: what they say, the columns that they need, and faults with their lines."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from lakestore.errors import Invalid
from lakestore.evolution import SetContract, SetOptions
from lakestore.model.alteration import apply_steps
from lakestore.model.contract.contract import Contract
from lakestore.model.contract.event_time import EventTime
from lakestore.model.contract.late_data import LateData, partition_column, partition_transform, time_columns
from lakestore.model.table import Table, define

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("text", pa.string()),
        ("millis", pa.int64()),
        ("flag", pa.bool_()),
    ]
)
KEPT = ("_event_time", "_broker_time", "_ingest_time")


def document(event: str, late: str = "") -> str:
    lines = [
        "apiVersion: v3.2.0",
        "kind: DataContract",
        "id: orders",
        "version: 1.0.0",
        "schema:",
        "  - name: orders",
        "    properties:",
        *[f"      - {{name: {name}}}" for name in SCHEMA.names],
        "    customProperties:",
        *([f"      - {{property: lakestore.eventTime, value: {{{event}}}}}"] if event else []),
        *([f"      - {{property: lakestore.lateData, value: {{{late}}}}}"] if late else []),
    ]
    return "\n".join(lines)


def applied(event: str, late: str = "", *, partition_by: tuple[str, ...] = (), key: bool = True) -> Table:
    table = define("shop.orders", SCHEMA, primary_key=["id"] if key else None)
    steps = [SetContract(document(event, late), "orders")]
    options = [SetOptions(lake={"partition_by": partition_by})] if partition_by else []
    return apply_steps(table, [*options, *steps])


def contract_of(table: Table) -> Contract:
    assert table.contract is not None
    return table.contract


def test_kept_times_are_columns_that_the_contract_adds() -> None:
    table = applied("from: event, column: text, unit: iso, zone: UTC, keep: true", partition_by=("day(_event_time)",))
    assert [column.name for column in table.columns[-3:]] == list(KEPT)
    assert {(column.type, column.required) for column in table.columns[-3:]} == {("timestamptz", False)}
    section = EventTime.of(contract_of(table))
    assert section == EventTime("event", "text", "iso", "UTC", keep=True)
    again = apply_steps(table, [SetContract(contract_of(table).document + "\n# more", "orders")])
    assert again.columns == table.columns


@pytest.mark.parametrize(
    ("event", "column"),
    [
        ("from: event, column: at", "at"),
        ("from: event, column: text, unit: iso, keep: true", "_event_time"),
        ("from: broker, keep: true", "_broker_time"),
        ("from: ingest, keep: true", "_ingest_time"),
        ("from: ingest", "__timestamp"),
    ],
)
def test_the_chosen_time_is_a_column(event: str, column: str) -> None:
    table = applied(event)
    assert partition_column(contract_of(table), table) == column


def test_late_rows_that_land_today_have_a_column_for_it() -> None:
    table = applied(
        "from: event, column: at", "policy: land_today, closedAfter: 6h", partition_by=("day(_landing_time)",)
    )
    contract = contract_of(table)
    assert time_columns(contract) == ("_landing_time",)
    assert LateData.of(contract) == LateData("land_today", 6 * 3_600_000_000)
    assert partition_transform(table, "_landing_time") == "day"


def test_the_finest_transform_is_the_partition() -> None:
    options = ("month(at)", "hour(at)", "bucket(4, id)")
    table = applied("from: event, column: at", "policy: drop, closedAfter: 1d", partition_by=options)
    assert partition_transform(table, "at") == "hour"


def test_a_renamed_column_keeps_its_time() -> None:
    table = applied("from: event, column: at")
    renamed = replace(table, columns=tuple(replace(c, name="happened") if c.name == "at" else c for c in table.columns))
    assert partition_column(contract_of(renamed), renamed) == "happened"


EVENT, LATE, LINE = "from: event, column: at", "policy: drop, closedAfter: 1d", "line 1[56]: .*"


@pytest.mark.parametrize(
    ("event", "late", "partition_by", "said"),
    [
        ("from: evnet, column: at", "", (), "has from: 'evnet', which is none of event, broker, ingest"),
        ("from: event", "", (), "has no column"),
        ("from: event, column: nope", "", (), "'nope', which is not in properties of the schema entry 'orders'"),
        ("from: event, column: flag, keep: true", "", (), "'flag', which is bool and holds no time"),
        ("from: event, column: at, unit: ms", "", (), "'at', which is timestamptz and needs no unit"),
        ("from: event, column: local, keep: true", "", (), "'local', which is timestamp and needs a zone and no unit"),
        ("from: event, column: text, keep: true", "", (), "'text', which is string and needs a unit"),
        ("from: event, column: millis, unit: iso, keep: true", "", (), "int64 and needs a unit of s, ms, us, ns"),
        ("from: event, column: millis, unit: ms", "", (), "'millis', which is no timestamptz: add keep: true"),
        ("from: event, column: at, zone: Mars/Olympus", "", (), "'Mars/Olympus', which is no time zone"),
        ("from: event, column: at, keep: 1", "", (), "has keep: 1, which is neither true nor false"),
        ("from: event, column: at, unti: ms", "", (), "'unti', which is not known"),
        ("from: broker", "", (), "a column only with keep: true"),
        ("from: broker, column: at, keep: true", "", ("day(at)",), "time in _broker_time, .* partitioned by day.at."),
        (EVENT, "policy: later, closedAfter: 1d", ("day(at)",), "'later', which is none of rewrite, land_today"),
        (EVENT, "policy: drop", ("day(at)",), "has no closedAfter"),
        (EVENT, "policy: drop, closedAfter: soon", ("day(at)",), "'soon', which is no span of time"),
        (EVENT, LATE, (), "needs partitions of at, .* by nothing: say partition_by: .day.at.."),
        (EVENT, "policy: land_today, closedAfter: 1d", ("day(at)",), "needs partitions of _landing_time"),
        ("", LATE, (), "needs lakestore.eventTime"),
        ("from: ingest", LATE, (), "needs lakestore.eventTime with from: event or from: broker"),
    ],
)
def test_a_fault_is_named_with_its_line(event: str, late: str, partition_by: tuple[str, ...], said: str) -> None:
    with pytest.raises(Invalid, match=LINE + said):
        applied(event, late, partition_by=partition_by)


def test_a_table_that_skips_unchanged_rows_keeps_no_times() -> None:
    table = define("shop.orders", SCHEMA, primary_key=["id"], skip_unchanged=True)
    with pytest.raises(Invalid, match=LINE + r"table shop\.orders skips unchanged rows"):
        apply_steps(table, [SetContract(document("from: ingest, keep: true"), "orders")])
    assert apply_steps(table, [SetContract(document(EVENT), "orders")]).contract


def test_a_column_of_another_type_is_no_kept_time() -> None:
    table = define("shop.orders", SCHEMA.append(pa.field("_ingest_time", pa.string())), primary_key=["id"])
    with pytest.raises(Invalid, match=r"'_ingest_time', which is in table shop\.orders and is no optional timestamptz"):
        apply_steps(table, [SetContract(document("from: ingest, keep: true"), "orders")])
