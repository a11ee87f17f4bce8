"""Declared types: one grammar, one Arrow type, one Iceberg type; what cannot be kept is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore import limits
from lakestore.errors import Invalid
from lakestore.limits import Limits
from lakestore.model import columns, types
from lakestore.model import table as schema
from lakestore_server.catalog import our_tables, schemas

SCALARS = ["bool", "int8", "int64", "uint8", "uint16", "uint32", "float32", "string", "binary", "date", "time"]
SCALARS += ["timestamp", "timestamptz", "decimal(12,2)", "fixed(16)"]
FIELDS = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=3, unique_by=str.lower)


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    part = st.tuples(inner, st.sampled_from(["", " not null"])).map("".join)
    keys = st.sampled_from([name for name in SCALARS if not name.startswith("float")])

    def struct(names: list[str]) -> st.SearchStrategy[str]:
        quoted = ["`" + name.replace("`", "``") + "`" for name in names]
        inside = st.tuples(*(part for _ in quoted))
        return inside.map(lambda kinds: f"struct<{', '.join(map(': '.join, zip(quoted, kinds, strict=True)))}>")

    return st.one_of(
        part.map(lambda p: f"list<{p}>"),
        st.tuples(keys, part).map(lambda pair: f"map<{pair[0]}, {pair[1]}>"),
        FIELDS.flatmap(struct),
    )


NAMES = st.recursive(st.sampled_from(SCALARS), _nested, max_leaves=6)


@given(NAMES)
def test_a_type_and_its_name_are_one(name: str) -> None:
    types.check("c", name)
    known = types.canonical(name)
    assert types.canonical(known) == known
    assert types.arrow_type(known) == types.arrow_type(name)


@given(NAMES, NAMES)
def test_the_lake_schema_has_an_id_for_every_field(one: str, other: str) -> None:
    fields = pa.schema([("a", types.arrow_type(one)), ("b", types.arrow_type(other))])
    table = schema.define("d.t", fields, buckets=1)
    assert schema.Table.from_json(table.to_json()) == table
    lake = our_tables.schema_of(table)
    schemas.check_schema(lake, 2)
    wanted = {number for column in schema.lake_schema(table) for number in (column.id, *column.nested)}
    assert schemas.field_ids(lake) == wanted
    assert schemas.same_schema(lake, our_tables.schema_of(table))
    assert table.last_column_id == max(wanted - set(columns.LAKE_FIELD_IDS.values()))


def test_iceberg_types_are_golden() -> None:
    name = "struct<a: uint8 not null, b: list<time>, c: map<string, struct<x: fixed(4)> not null>>"
    assert types.iceberg_type(name, (2, 3, 4, 5, 6, 7, 8)) == {
        "type": "struct",
        "fields": [
            {"id": 2, "name": "a", "required": True, "type": "int"},
            {
                "id": 3,
                "name": "b",
                "required": False,
                "type": {"type": "list", "element-id": 4, "element-required": False, "element": "long"},
            },
            {
                "id": 5,
                "name": "c",
                "required": False,
                "type": {
                    "type": "map",
                    "key-id": 6,
                    "key": "string",
                    "value-id": 7,
                    "value-required": True,
                    "value": {
                        "type": "struct",
                        "fields": [{"id": 8, "name": "x", "required": False, "type": "fixed[4]"}],
                    },
                },
            },
        ],
    }
    assert types.iceberg_type("uint32") == "long"
    assert types.iceberg_type("decimal(12,2)") == "decimal(12, 2)"


def test_schemas_that_differ_inside_differ() -> None:
    def of(name: str) -> schemas.Json:
        return our_tables.schema_of(schema.define("d.t", pa.schema([("a", types.arrow_type(name))]), buckets=1))

    base = of("struct<x: int64, y: list<string>>")
    for other in ("struct<x: int64, y: list<string not null>>", "struct<y: list<string>, x: int64>", "list<string>"):
        assert not schemas.same_schema(base, of(other)), other


@pytest.mark.parametrize(
    ("handed", "kept"),
    [
        (pa.large_list(pa.large_string()), "list<string>"),
        (pa.list_view(pa.field("x", pa.string_view(), nullable=False)), "list<string not null>"),
        (pa.list_(pa.time32("ms"), 3), "list<time>"),
        (pa.dictionary(pa.int8(), pa.large_binary()), "binary"),
        (pa.struct([("a b", pa.time64("ns"))]), "struct<`a b`: time>"),
        (pa.map_(pa.string(), pa.decimal256(20, 2)), "map<string, decimal(20,2)>"),
        (pa.uuid(), "fixed(16)"),
        (pa.struct([pa.field("a", pa.date64(), nullable=False)]), "struct<a: date not null>"),
    ],
)
def test_other_layouts_have_our_names(handed: pa.DataType, kept: str) -> None:
    assert types.type_name(handed, "c") == kept


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (pa.uint64(), "decimal\\(20,0\\)"),
        (pa.list_(pa.uint64()), "'c.element'.*int64"),
        (pa.struct([("a", pa.duration("s"))]), "'c.a' has type duration"),
        (pa.struct([]), "tables do not store"),
        (pa.float16(), "tables do not store"),
        (pa.binary(limits.FIXED_BYTES_MAX + 1), "tables do not store"),
    ],
)
def test_types_that_are_not_kept_are_refused_by_place(kind: pa.DataType, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        types.type_name(kind, "c")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("uint64", "decimal\\(20,0\\)"),
        ("list<uint64>", "decimal\\(20,0\\)"),
        ("list", "'<' is expected, not 'its end'"),
        ("list<int64", "'>' is expected"),
        ("list<int64>>", "too much"),
        ("list<int64 not>", "ends|'null'|after"),
        ("struct<>", "not a name"),
        ("struct<a int64>", "':' is expected"),
        ("map<string>", "',' is expected"),
        ("decimal(39,2)", "1 to 38 digits"),
        ("fixed(0)", "1 to 65536 bytes"),
        ("int64;", "not understood"),
        ("varchar", "is not known"),
        ("x" * (limits.TYPE_CHARS_MAX + 1), "at most"),
        ("list<" * 40 + "int64" + ">" * 40, "nests deeper than 32"),
    ],
)
def test_names_that_are_no_types_say_where(name: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        types.arrow_type(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("struct<a: int64, A: int64>", "two fields have the same name"),
        ("map<list<int8>, int8>", "'c'.*keys of a map"),
        ("map<float64, int64>", "keys of a map"),
        ("struct<`" + "x" * 300 + "`: int64>", "1 to 255 characters"),
        ("list<list<list<int64>>>", "deeper than 2"),
        ("struct<a: int8, b: int8, c: int8, d: int8>", "4 fields inside, more than 3"),
    ],
)
def test_types_that_are_not_sound_are_refused(name: str, says: str) -> None:
    small = Limits(nesting_depth=2, nested_fields=3)
    with pytest.raises(Invalid, match=says):
        types.check("c", name, small)


def test_deep_arrow_types_are_refused_before_they_are_walked() -> None:
    kind: pa.DataType = pa.int64()
    for _ in range(60):
        kind = pa.list_(kind)
    with pytest.raises(Invalid, match="nests deeper"):
        types.type_name(kind, "c")


@pytest.mark.parametrize(
    "options", [{"primary_key": ["l"]}, {"bucket_key": ["l"]}, {"lake": {"partition_by": "bucket(4, l)"}}]
)
def test_nested_columns_neither_key_nor_partition(options: dict[str, object]) -> None:
    fields = pa.schema([("l", pa.list_(pa.int64())), ("i", pa.int64())])
    with pytest.raises(Invalid, match="'l' is nested"):
        schema.define("d.t", fields, **options)  # type: ignore[arg-type]


def test_ids_that_do_not_fit_are_refused() -> None:
    table = schema.define("d.t", pa.schema([("a", pa.list_(pa.int64())), ("b", pa.int64())]), buckets=1)
    a, b = table.columns
    for pair in ((replace(a, nested=()), b), (replace(a, nested=(2,)), b), (replace(a, id=0), b)):
        with pytest.raises(Invalid, match="id"):
            schema.check(replace(table, columns=pair))
    with pytest.raises(Invalid, match="last_column_id"):
        schema.check(replace(table, last_column_id=2))
