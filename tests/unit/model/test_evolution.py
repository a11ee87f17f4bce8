"""Steps between definitions, and rows carried along: columns are told apart by id, never by name."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore import evolution
from lakestore.errors import Invalid
from lakestore.evolution import (
    AddColumn,
    DropColumn,
    MakeOptional,
    MoveColumn,
    RenameColumn,
    SetDefault,
    SetOptions,
    Step,
    WidenColumn,
)
from lakestore.model import table as schema
from lakestore.model.alteration import apply_steps
from lakestore.model.defaults import canonical, scalar
from lakestore.model.table import Table
from lakestore.rows.projection import Projection
from tests.support.seeds import examples

BASE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("small", pa.int8()),
        ("price", pa.decimal128(5, 2)),
        ("day", pa.date32()),
        pa.field("word", pa.string(), nullable=False),
    ]
)


def table(format_version: int = 3) -> Table:
    lake: dict[str, Any] = {
        "partition_by": ["month(day)", "bucket(4, id)"],
        "sort_by": ["price desc"],
        "format_version": format_version,
    }
    return schema.define("shop.orders", BASE, primary_key=["id"], lake=lake)


VALUES: dict[str, list[Any]] = {
    "int8": [None, 0, -7],
    "int64": [None, 1 << 40],
    "float32": [None, 0.1],
    "decimal(6,3)": [None, "1.500"],
    "string": [None, "", "x"],
    "timestamptz": [None, "2026-01-01T00:00:00+00:00"],
}
NAMES = [*BASE.names, "a", "b", "c"]
PLACES: st.SearchStrategy[dict[str, Any]] = st.sampled_from([{}, {"first": True}, *({"after": name} for name in NAMES)])


@st.composite
def any_step(draw: st.DrawFn) -> Step:
    name = draw(st.sampled_from(NAMES))
    kind = draw(st.sampled_from(sorted(VALUES)))
    wide = st.sampled_from(["int16", "int32", "int64", "float64", "decimal(9,2)", "decimal(9,3)"])
    adding: dict[str, Any] = draw(st.fixed_dictionaries({"required": st.booleans(), "new_rows_only": st.booleans()}))
    place: dict[str, Any] = draw(PLACES)
    steps: list[Step] = [
        AddColumn(name, kind, default=draw(st.sampled_from(VALUES[kind])), **adding, **place),
        DropColumn(name),
        RenameColumn(name, draw(st.sampled_from(NAMES))),
        WidenColumn(name, draw(wide)),
        MoveColumn(name, **place),
        MakeOptional(name),
        SetDefault(name, draw(st.sampled_from(VALUES[kind]))),
        SetOptions({"freshness": "7s"}),
    ]
    return draw(st.sampled_from(steps))


def history(steps: list[Step]) -> list[Table]:
    """Every version that the steps which are allowed lead to."""
    tables = [table()]
    for step in steps:
        try:
            tables.append(apply_steps(tables[-1], [step]))
        except Invalid as error:
            assert "shop.orders" in error.message or "column" in error.message
    return tables


def rows_of(definition: Table) -> pa.RecordBatch:
    """Two rows as they are stored; the second is a delete, which only has its key."""
    arrays = []
    for column in definition.columns:
        kind = column.arrow.type
        value = {"id": 3}.get(column.name) or pa.scalar(1 if pa.types.is_integer(kind) else None, kind).as_py()
        arrays.append(pa.array([value, value if column.name == "id" else None], kind))
    system = [pa.array([0, 2], pa.int8()), pa.array([-1, 0], pa.int64())]
    fields = [pa.field("__change", pa.int8()), pa.field("__prev", pa.int64())]
    return pa.RecordBatch.from_arrays([*system, *arrays], schema=pa.schema([*fields, *definition.storage_schema]))


@settings(max_examples=examples(60))
@given(st.lists(any_step(), max_size=15))
def test_projections_compose_and_ids_are_never_used_again(steps: list[Step]) -> None:
    tables = history(steps)
    direct = rows_of(tables[0])
    by_steps = direct
    for before, after in pairwise(tables):
        by_steps = Projection(before, after).batch(by_steps)
        new = {column.id for column in after.columns} - {column.id for column in before.columns}
        assert all(number > before.last_column_id for number in new)
        assert after.last_column_id >= before.last_column_id
        assert after.schema_id - before.schema_id == (after.columns != before.columns)
        assert [after.column(name).id for name in after.primary_key] == [1]
        assert Table.from_json(after.to_json()) == after
    shown = Projection(tables[0], tables[-1]).batch(direct)
    assert shown.equals(by_steps)
    assert shown.schema.equals(pa.schema([direct.schema.field(0), direct.schema.field(1), *tables[-1].storage_schema]))
    shown.validate(full=True)


@given(st.lists(any_step(), max_size=5))
def test_steps_survive_their_json(steps: list[Step]) -> None:
    assert evolution.from_json(evolution.to_json(steps)) == steps


def test_equal_versions_share_their_rows() -> None:
    batch = rows_of(table())
    assert Projection(table(), apply_steps(table(), [SetOptions({"freshness": "9s"})])).batch(batch) is batch
    renamed = apply_steps(table(), [RenameColumn("word", "text")])
    shown = Projection(table(), renamed).batch(batch)
    assert [a.buffers()[1].address for a in shown.columns[:3]] == [b.buffers()[1].address for b in batch.columns[:3]]


def test_a_rename_is_followed_by_keys_partitioning_and_sorting() -> None:
    made = apply_steps(
        table(), [RenameColumn("day", "month"), RenameColumn("id", "bucket"), RenameColumn("price", "desc")]
    )
    assert made.primary_key == made.bucket_key == ("bucket",)
    assert made.lake.partition_by == ("month(month)", "bucket(4, bucket)")
    assert made.lake.sort_by == ("desc desc",)
    assert made.schema_id == 1


def test_a_name_added_anew_is_another_column() -> None:
    again = apply_steps(table(), [DropColumn("small"), AddColumn("small", "int8", after="id")])
    assert again.column("small").id == 6
    shown = Projection(table(), again).batch(rows_of(table()))
    assert shown.column("small").to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (DropColumn("id"), "column 'id' is in the primary key"),
        (DropColumn("day"), "column 'day' is in the lake's partitioning"),
        (DropColumn("price"), "column 'price' is in the lake's sort order"),
        (DropColumn("none"), "has no column 'none'"),
        (MakeOptional("id"), "column 'id' is in the primary key"),
        (WidenColumn("id", "decimal(20,0)"), "column 'id' is int64, which cannot be widened to decimal"),
        (WidenColumn("price", "decimal(9,3)"), "cannot be widened"),
        (WidenColumn("price", "decimal(4,2)"), "cannot be widened"),
        (WidenColumn("word", "binary"), "cannot be widened"),
        (RenameColumn("small", "WORD"), "cannot be called 'WORD'"),
        (RenameColumn("small", "__small"), "'__small' starts with '__'"),
        (AddColumn("Small", "int8"), "same name"),
        (AddColumn("n", "int7"), "type 'int7' is not known"),
        (AddColumn("n", "int8", default=300), "column 'n': the default 300 is no int8"),
        (AddColumn("n", "int8", required=True), "column 'n' is required and needs a default"),
        (AddColumn("n", "int8", required=True, default=1, new_rows_only=True), "column 'n' is required"),
        (AddColumn("n", "int8", after="none"), "has no column 'none'"),
        (AddColumn("n", "int8", after="id", first=True), "two places"),
        (MoveColumn("small"), "say first, or after"),
        (MoveColumn("small", after="small"), "two places"),
        (SetDefault("day", "yesterday"), "column 'day': the default 'yesterday' is no date"),
        (SetOptions({"format_version": 3}), "'format_version' cannot be changed"),
        (SetOptions({"partition_by": [1]}), "'partition_by' is a list of texts"),
        (SetOptions({"partition_by": ["decade(day)"]}), "is not identity, bucket, truncate"),
        (SetOptions({"sort_by": ["none"]}), "has no column 'none'"),
        (SetOptions({"freshness": 5}), "'freshness' cannot be 5"),
        (SetOptions({"freshness": "soon"}), "'soon' is not a duration"),
    ],
)
def test_what_cannot_be_is_refused_by_column_and_rule(step: Step, told: str) -> None:
    with pytest.raises(Invalid) as refused:
        apply_steps(table(), [step])
    assert told in refused.value.message


def test_a_key_stays_as_wide_as_its_bytes() -> None:
    keyed = schema.define("a.b", pa.schema([("id", pa.int32())]), primary_key=["id"])
    with pytest.raises(Invalid, match="bytes and buckets stay"):
        apply_steps(keyed, [WidenColumn("id", "int64")])
    routed = schema.define("a.b", pa.schema([("id", pa.int32())]), bucket_key=["id"])
    with pytest.raises(Invalid, match="bytes and buckets stay"):
        apply_steps(routed, [WidenColumn("id", "int64")])


def test_a_default_for_old_rows_needs_format_version_3() -> None:
    old = table(format_version=2)
    with pytest.raises(Invalid, match=r"column 'n' has a default for the rows that are there.*for new rows only"):
        apply_steps(old, [AddColumn("n", "int8", default=1)])
    with pytest.raises(Invalid, match="add it as optional"):
        apply_steps(old, [AddColumn("n", "int8", required=True, default=1)])
    added = apply_steps(old, [AddColumn("n", "int8", default=1, new_rows_only=True)]).column("n")
    assert (added.default, added.initial) == (1, None)
    added = apply_steps(table(), [AddColumn("n", "int8", required=True, default=1)]).column("n")
    assert (added.default, added.initial, added.required) == (1, 1, True)


@pytest.mark.parametrize(
    ("value", "kind", "stored"),
    [
        (dt.date(2026, 1, 2), "date", "2026-01-02"),
        (dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), "timestamptz", "2026-01-02T03:00:00+00:00"),
        ("2026-01-02T03:00:00+02:00", "timestamptz", "2026-01-02T01:00:00+00:00"),
        ("2026-01-02T03:00:00", "timestamp", "2026-01-02T03:00:00"),
        (Decimal("1.5"), "decimal(5,2)", "1.50"),
        (b"\x01\xff", "binary", "01ff"),
        (True, "bool", True),
        ("", "string", ""),
    ],
)
def test_defaults_are_kept_as_iceberg_writes_them(value: Any, kind: str, stored: Any) -> None:
    assert canonical(value, kind, "c") == stored
    assert canonical(stored, kind, "c") == stored
    assert not scalar(stored, kind, "c").equals(pa.scalar(None, scalar(stored, kind, "c").type))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, "bool"), (True, "int8"), (1.5, "int64"), ("1", "int64"), (float("nan"), "float64"),
        (5, "string"), ("1.234", "decimal(5,2)"), ("2026-01-02T03:00:00", "timestamptz"), ("zz", "binary"),
    ],
)  # fmt: skip
def test_a_default_of_another_type_is_refused(value: Any, kind: str) -> None:
    with pytest.raises(Invalid, match="column 'c'"):
        canonical(value, kind, "c")


def test_a_definition_from_before_versions_opens() -> None:
    data = table().as_dict()
    del data["last_column_id"]
    assert Table.from_dict(data) == table()
    assert replace(table(), last_column_id=9).as_dict()["last_column_id"] == 9
