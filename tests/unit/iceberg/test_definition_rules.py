"""Whatever `create` and `alter` accept, Iceberg's Java library builds: schema, names, partitions and their values."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore import evolution
from lakestore.errors import Invalid
from lakestore.model.alteration import apply_steps
from lakestore.model.table import Table, define
from lakestore_server.catalog import metadata_updates, our_tables, tables
from lakestore_server.catalog.schemas import Json
from tests.support.iceberg_judge import build_refusal
from tests.support.seeds import examples
from tests.support.served import Served

UUID = "11111111-2222-4333-8444-555555555555"
NOW = 1_700_000_000_000
TYPES = {
    "i8": pa.int8(), "i32": pa.int32(), "id": pa.int64(), "u32": pa.uint32(), "f": pa.float32(),
    "d": pa.float64(), "b": pa.bool_(), "s": pa.string(), "dt": pa.date32(), "tm": pa.time64("us"),
    "ts": pa.timestamp("us"), "tz": pa.timestamp("us", tz="UTC"), "ns": pa.timestamp("ns"), "by": pa.binary(),
    "fx": pa.binary(4), "m": pa.decimal128(38, 2), "n": pa.decimal128(9, 9),
    "a": pa.struct([("b", pa.string()), ("ts_day", pa.int64())]), "l": pa.list_(pa.struct([("x", pa.int64())])),
    "p": pa.map_(pa.string(), pa.struct([("x", pa.int64()), ("K", pa.int64())])),
}  # fmt: skip
SCHEMA = pa.schema([pa.field(name, kind, nullable=name != "id") for name, kind in TYPES.items() if name != "ns"])
TRANSFORMS = ("{}", "identity({})", "year({})", "month({})", "day({})", "hour({})", "bucket(4, {})", "truncate(7, {})")


def table(*parts: str, schema: pa.Schema = SCHEMA, version: int = 2) -> Table:
    """A new table as `create` makes it."""
    made = define("a.t", schema, primary_key=["id"], buckets=1, lake={"partition_by": parts, "format_version": version})
    made = replace(made, uuid=UUID)
    tables.check_new(made)
    return made


def metadata_of(first: Table, version: Table | None = None) -> Json:
    """The lake's metadata of the first version, or of a later one upon it."""
    doc = our_tables.first_metadata(first, "file:///w", NOW)
    updates = our_tables.version_updates(version, doc) if version else ()
    return metadata_updates.updated(doc, updates, now_ms=NOW, base_location=None)


@pytest.mark.parametrize("version", [2, 3])
def test_each_transform_of_each_type_is_built_or_refused(version: int) -> None:
    taken = set()
    for name, kind in TYPES.items():
        if name == "ns" and version == 2:
            continue
        schema = pa.schema(
            [pa.field("id", pa.int64(), nullable=False)] + ([pa.field(name, kind)] if name != "id" else [])
        )
        for text in TRANSFORMS:
            part = text.format(name)
            try:
                made = table(part, schema=schema, version=version)
            except Invalid:
                continue
            assert build_refusal(metadata_of(made)) == "", part
            taken.add(part)
    assert {"id", "bucket(4, fx)", "day(ts)", "hour(tz)", "truncate(7, s)", "m", "bucket(4, m)", "by", "tm"} <= taken
    assert len(taken) >= 60


@pytest.mark.parametrize(
    "parts",
    [
        ["fx"], ["bucket(4, d)"], ["bucket(4, b)"], ["day(s)"], ["hour(dt)"], ["day(tm)"], ["truncate(2, d)"],
        ["truncate(2, fx)"], ["truncate(2, ts)"], ["bucket(0, id)"], ["truncate(0, s)"], ["truncate(7, m)"],
        ["bucket(2, id)", "bucket(4, id)"], ["day(ts)", "day(ts)"], ["id", "id"],
    ],
)  # fmt: skip
def test_partitions_that_no_engine_can_open_are_refused(parts: list[str]) -> None:
    with pytest.raises(Invalid, match=r"partition"):
        table(*parts)


def test_java_writes_an_identity_of_fixed_that_it_cannot_read() -> None:
    """The reason for the rule: when a new release of Iceberg reads it, the rule can go."""
    made = replace(table("bucket(4, fx)"), lake=replace(table().lake, partition_by=("fx",)))
    assert build_refusal(metadata_of(made))


@pytest.mark.parametrize("name", ["a.b", "A.B", "l.element", "l.element.x", "p.key", "P.Value.x"])
def test_a_column_with_the_name_of_a_nested_field_is_refused(name: str) -> None:
    first = table()
    with pytest.raises(Invalid, match=r"same name|another field of its struct is|is not a field of a struct"):
        tables.check_version(first, apply_steps(first, [evolution.AddColumn(name, "int64")]))
    with pytest.raises(Invalid, match="same name"):
        tables.check_version(first, apply_steps(first, [evolution.RenameColumn("s", name)]))
    with pytest.raises(Invalid, match="same name"):
        table(schema=SCHEMA.append(pa.field(name, pa.int64())))


def test_the_server_refuses_and_the_table_goes_on(served: Served) -> None:
    plain = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("fx", TYPES["fx"])])
    with pytest.raises(Invalid, match="'fx' has no values"):
        served.lake.create_table("a.t", plain, primary_key=["id"], lake={"partition_by": ["fx"]})
    made = served.lake.create_table("a.t", plain.append(pa.field("a", TYPES["a"])), primary_key=["id"], buckets=1)
    with pytest.raises(Invalid, match="same name"):
        made.alter(evolution.RenameColumn("fx", "a.b"))
    made.alter(evolution.AddColumn("c", "int64"))


NAMES = st.sampled_from(
    (*TYPES, "c", "c.d", "a.b", "ts_day", "a.ts_day", "id_bucket", "s_trunc", "l.element", "p.x", "l.x", "TS")
)
PART = st.tuples(
    st.sampled_from(TRANSFORMS), st.sampled_from([name for name in TYPES if name not in ("a", "l", "p")])
).map(lambda pair: pair[0].format(pair[1]))
STEPS = st.one_of(
    st.builds(evolution.AddColumn, NAMES, st.sampled_from(("int64", "struct<b: int64, d: string>", "list<string>"))),
    st.builds(evolution.RenameColumn, NAMES, NAMES),
    st.builds(evolution.DropColumn, NAMES),
    st.builds(evolution.WidenColumn, NAMES, st.sampled_from(("int64", "float64", "decimal(20, 9)"))),
)


@given(
    st.lists(st.sampled_from([name for name in TYPES if name != "id"]), unique=True, max_size=6),
    st.lists(PART, max_size=3),
    st.lists(STEPS, max_size=6),
    st.sampled_from((2, 3)),
)
@settings(max_examples=examples(150))
def test_java_builds_what_create_and_alter_accept(
    names: list[str], parts: list[str], steps: list[evolution.Step], version: int
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)] + [pa.field(name, TYPES[name]) for name in names])
    try:
        first = table(*parts, schema=schema, version=version)
    except Invalid:
        return
    assert build_refusal(metadata_of(first)) == ""
    current = first
    for step in steps:
        try:
            made = apply_steps(current, [step])
            tables.check_version(first, made)
        except Invalid:
            continue
        current = made
        assert build_refusal(metadata_of(first, current)) == ""
