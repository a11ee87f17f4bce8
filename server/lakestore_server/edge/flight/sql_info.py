"""Abilities and types of the server, for which Flight SQL drivers ask before they ask for rows. Pure values.

The numbers are the protocol's. `SqlInfo` has a dense union, one child for each kind of value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakestore.release import RELEASE

_VALUES = (
    pa.field("string_value", pa.string()),
    pa.field("bool_value", pa.bool_()),
    pa.field("bigint_value", pa.int64()),
    pa.field("int32_bitmask", pa.int32()),
    pa.field("string_list", pa.list_(pa.field("string_data", pa.string()))),
    pa.field(
        "int32_to_int32_list_map",
        pa.map_(pa.int32(), pa.list_(pa.field("$data$", pa.int32()))),
    ),
)
SQL_INFO = pa.schema(
    [
        pa.field("info_name", pa.uint32(), nullable=False),
        pa.field("value", pa.dense_union(_VALUES), nullable=False),
    ]
)
_STRING, _BOOL, _BIGINT, _MASK, _LIST = range(5)
_NUMBERS = ("abs", "ceil", "exp", "floor", "ln", "log10", "mod", "pi", "pow", "round", "sign", "sqrt", "trunc")
_TEXTS = ("concat", "length", "lower", "ltrim", "replace", "right", "rtrim", "strpos", "substring", "trim", "upper")
_TIMES = ("date_diff", "date_part", "date_trunc", "dayname", "extract", "monthname", "now", "year", "month", "day")
KEYWORDS = ("AT", "TOKEN", "QUALIFY", "PIVOT", "UNPIVOT", "SUMMARIZE", "DESCRIBE")
"""Words of the dialect beyond SQL:2003."""
INFO: dict[int, tuple[int, Any]] = {
    0: (_STRING, "Lakestore"),
    1: (_STRING, RELEASE),
    2: (_STRING, pa.__version__),
    3: (_BOOL, True),  # read-only
    4: (_BOOL, True),  # SQL
    5: (_BOOL, False),  # Substrait
    8: (_MASK, 1),  # transactions, without savepoints
    9: (_BOOL, True),  # cancel
    10: (_BOOL, False),  # bulk ingestion
    11: (_BOOL, False),  # ingestion in transactions
    100: (_MASK, 3_600_000),  # prepared statements live for an hour
    101: (_MASK, 3_600_000),
    500: (_BOOL, False),
    501: (_BOOL, False),
    502: (_BOOL, False),
    503: (_MASK, 1),  # names in any case
    504: (_STRING, '"'),
    505: (_MASK, 1),
    506: (_BOOL, True),
    507: (_MASK, 3),  # nulls last
    508: (_LIST, KEYWORDS),
    509: (_LIST, _NUMBERS),
    510: (_LIST, _TEXTS),
    511: (_LIST, ("coalesce", "ifnull", "nullif")),
    512: (_LIST, _TIMES),
    513: (_STRING, ""),  # patterns have no escape
    514: (_STRING, ""),
    515: (_BOOL, True),
    516: (_BOOL, True),
    518: (_BOOL, True),
    519: (_BOOL, False),
    520: (_BOOL, True),
    521: (_BOOL, True),
    522: (_MASK, 3),
    523: (_BOOL, True),
    524: (_BOOL, True),
    525: (_MASK, 7),
    526: (_MASK, 3),
    527: (_BOOL, False),
    528: (_MASK, 2),  # full outer joins
    529: (_STRING, "database"),
    530: (_STRING, "procedure"),
    531: (_STRING, "catalog"),
    532: (_BOOL, True),
    533: (_MASK, 0),
    534: (_MASK, 0),
    535: (_MASK, 0),
    536: (_BOOL, False),
    537: (_BOOL, False),
    538: (_MASK, 15),
    539: (_BOOL, True),
    540: (_MASK, 3),
    557: (_BIGINT, 1 << 20),
    562: (_MASK, 3),  # one cut for each transaction: repeatable read
    563: (_BOOL, True),
    564: (_MASK, 1 << 3),
    565: (_BOOL, False),
    566: (_BOOL, False),
    567: (_MASK, 1 << 1),
    572: (_BOOL, False),
    573: (_BOOL, False),
    574: (_BOOL, False),
    575: (_BOOL, False),
    576: (_BOOL, False),
}
"""Number to (child of the union, value)."""


def sql_info(numbers: Sequence[int]) -> pa.Table:
    """The answers to some numbers of `SqlInfo`, to all without numbers. An unknown number has no row."""
    asked = [number for number in (numbers or INFO) if number in INFO]
    kinds = [INFO[number][0] for number in asked]
    children: list[list[Any]] = [[] for _ in _VALUES]
    places: list[int] = []
    for number in asked:
        kind, value = INFO[number]
        places.append(len(children[kind]))
        children[kind].append(value)
    arrays = [pa.array(values, field.type) for values, field in zip(children, _VALUES, strict=True)]
    union = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()), pa.array(places, pa.int32()), arrays, [field.name for field in _VALUES]
    )
    return pa.Table.from_arrays([pa.array(asked, pa.uint32()), union], schema=SQL_INFO)


XDBC_TYPES = pa.schema(
    [
        pa.field("type_name", pa.string(), nullable=False),
        pa.field("data_type", pa.int32(), nullable=False),
        ("column_size", pa.int32()),
        ("literal_prefix", pa.string()),
        ("literal_suffix", pa.string()),
        ("create_params", pa.list_(pa.field("item", pa.string(), nullable=False))),
        pa.field("nullable", pa.int32(), nullable=False),
        pa.field("case_sensitive", pa.bool_(), nullable=False),
        pa.field("searchable", pa.int32(), nullable=False),
        ("unsigned_attribute", pa.bool_()),
        pa.field("fixed_prec_scale", pa.bool_(), nullable=False),
        ("auto_increment", pa.bool_()),
        ("local_type_name", pa.string()),
        ("minimum_scale", pa.int32()),
        ("maximum_scale", pa.int32()),
        pa.field("sql_data_type", pa.int32(), nullable=False),
        ("datetime_subcode", pa.int32()),
        ("num_prec_radix", pa.int32()),
        ("interval_precision", pa.int32()),
    ]
)
_NULLABLE, _SEARCHABLE, _BASIC, _DATETIME = 1, 3, 2, 9


@dataclass(frozen=True, slots=True)
class SqlType:
    """One type of the dialect, with its number in JDBC and ODBC."""

    name: str
    number: int
    size: int | None = None
    literal_quote: str | None = None
    parameters: tuple[str, ...] | None = None
    is_unsigned: bool | None = None
    """None: no number."""
    scales: tuple[int, int] | None = None
    subcode: int | None = None
    """The kind of a date or time."""
    radix: int | None = None

    @property
    def row(self) -> tuple[Any, ...]:
        """The row of `XDBC_TYPES`."""
        low, high = self.scales or (None, None)
        is_text = self.name == "VARCHAR"
        general = _DATETIME if self.subcode else self.number
        return (
            *(self.name, self.number, self.size, self.literal_quote, self.literal_quote, self.parameters),
            *(_NULLABLE, is_text, _SEARCHABLE if is_text else _BASIC, self.is_unsigned, False),
            *(None if self.is_unsigned is None else False, None, low, high, general),
            *(self.subcode, self.radix, None),
        )


TYPES = (
    SqlType("BOOLEAN", -7, 1),
    SqlType("TINYINT", -6, 3, is_unsigned=False, scales=(0, 0), radix=10),
    SqlType("BIGINT", -5, 19, is_unsigned=False, scales=(0, 0), radix=10),
    SqlType("BLOB", -4, literal_quote="'"),
    SqlType("DECIMAL", 3, 38, parameters=("precision", "scale"), is_unsigned=False, scales=(0, 38), radix=10),
    SqlType("INTEGER", 4, 10, is_unsigned=False, scales=(0, 0), radix=10),
    SqlType("SMALLINT", 5, 5, is_unsigned=False, scales=(0, 0), radix=10),
    SqlType("FLOAT", 7, 24, is_unsigned=False, radix=2),
    SqlType("DOUBLE", 8, 53, is_unsigned=False, radix=2),
    SqlType("JSON", 12, literal_quote="'"),
    SqlType("UUID", 12, 36, literal_quote="'"),
    SqlType("VARCHAR", 12, literal_quote="'"),
    SqlType("DATE", 91, 10, literal_quote="'", subcode=1),
    SqlType("TIME", 92, 15, literal_quote="'", scales=(0, 6), subcode=2),
    SqlType("TIMESTAMP", 93, 26, literal_quote="'", scales=(0, 6), subcode=3),
    SqlType("TIMESTAMP WITH TIME ZONE", 93, 32, literal_quote="'", scales=(0, 6), subcode=5),
)
"""By number and name, the order that the protocol wants."""


def xdbc_types(number: int | None) -> pa.Table:
    """The types with a number of JDBC, all types for None."""
    rows: Iterable[tuple[Any, ...]] = (each.row for each in TYPES if number is None or each.number == number)
    columns = list(zip(*rows, strict=True)) or [()] * len(XDBC_TYPES)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, XDBC_TYPES, strict=True)]
    return pa.Table.from_arrays(arrays, schema=XDBC_TYPES)


_NAMES = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "large_string": "VARCHAR",
    "binary": "BLOB",
    "large_binary": "BLOB",
    "date32[day]": "DATE",
    "time64[us]": "TIME",
    "timestamp[us]": "TIMESTAMP",
    "timestamp[us, tz=UTC]": "TIMESTAMP WITH TIME ZONE",
}


def sql_name(kind: pa.DataType) -> str:
    """The dialect's name of an Arrow type."""
    if isinstance(kind, pa.BaseExtensionType):
        return {"arrow.uuid": "UUID", "arrow.json": "JSON"}.get(kind.extension_name) or sql_name(kind.storage_type)
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_fixed_size_binary(kind):
        return "BLOB"
    if pa.types.is_struct(kind):
        return f"STRUCT({', '.join(f'{part.name} {sql_name(part.type)}' for part in kind)})"
    if pa.types.is_map(kind):
        return f"MAP({sql_name(kind.key_type)}, {sql_name(kind.item_type)})"
    if pa.types.is_list(kind):
        return f"{sql_name(kind.value_type)}[]"
    return _NAMES.get(str(kind), str(kind).upper())
