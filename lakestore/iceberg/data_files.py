"""Parquet data files of the lake, written by Arrow: schema with field ids, and the entry for a manifest.

1. A file has the types of the lake's schema, and a field id at every depth.
2. Its entry holds the metrics of its columns, like entries of Iceberg's own writers.
3. The rows keep the order in which they came. A file declares no sort order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakestore.errors import Internal
from lakestore.iceberg import places
from lakestore.iceberg.field_ids import FIELD_ID
from lakestore.iceberg.manifests import DATA, File
from lakestore.iceberg.values import Json, Value, metrics

GROUP_ROWS = 1 << 17
"""Rows of a row group."""
FEW_ROWS = 16
"""A file of up to this number of rows gets no dictionaries."""
WHOLE_BYTES = 16 << 20
"""Bytes of rows in memory up to which a file for an object store is built in memory and goes up at once."""
SAMPLE_ROWS = 512
"""About the number of rows that show whether the values of a column repeat."""

_PRIMITIVE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "string": pa.string(),
    "binary": pa.binary(),
}


def arrow_schema(schema: Json) -> pa.Schema:
    """The Arrow schema of files with an Iceberg schema."""
    return pa.schema([_field(part) for part in schema["fields"]])


def _field(part: Json) -> pa.Field:
    """A column. Parts of a nested column are optional: Arrow refuses to write required parts of a null struct."""
    metadata = {FIELD_ID: str(part["id"]).encode()}
    return pa.field(part["name"], _arrow(part["type"]), nullable=not part["required"], metadata=metadata)


def _part(name: str, number: int, kind: Any, *, nullable: bool = True) -> pa.Field:
    return pa.field(name, _arrow(kind), nullable=nullable, metadata={FIELD_ID: str(number).encode()})


def _arrow(kind: Any) -> pa.DataType:
    if not isinstance(kind, str):
        if kind["type"] == "struct":
            return pa.struct([_part(part["name"], part["id"], part["type"]) for part in kind["fields"]])
        if kind["type"] == "list":
            return pa.list_(_part("element", kind["element-id"], kind["element"]))
        key = _part("key", kind["key-id"], kind["key"], nullable=False)
        return pa.map_(key, _part("value", kind["value-id"], kind["value"]))
    if kind in _PRIMITIVE:
        return _PRIMITIVE[kind]
    numbers = [int(number) for number in kind.partition("(" if "(" in kind else "[")[2].rstrip(")]").split(",")]
    if kind.startswith("decimal"):
        return pa.decimal128(*numbers)
    if kind.startswith("fixed"):
        return pa.binary(numbers[0])
    raise Internal(f"the lake's type {kind} is none of a table of ours")


def write(rows: pa.Table, location: str, spec_id: int, partition: Mapping[str, Value]) -> File:
    """Write rows of one partition to a new file, in the types of `arrow_schema`. Returns the entry for a manifest."""
    footers: list[pq.FileMetaData] = []
    if places.is_in_store(location) and rows.nbytes <= WHOLE_BYTES:
        sink = pa.BufferOutputStream()
        size = _encode(rows, sink, footers)
        places.write(location, sink.getvalue())
    else:
        with places.store_errors(location), places.create(location) as stream:
            size = _encode(rows, stream, footers)
    (footer,) = footers
    return File(
        content=DATA,
        path=location,
        format="PARQUET",
        spec_id=spec_id,
        partition=partition,
        rows=rows.num_rows,
        bytes=size,
        metrics=metrics(rows),
        split_offsets=tuple(_begin(footer.row_group(group)) for group in range(footer.num_row_groups)),
        sort_order_id=0,
    )


def _encode(rows: pa.Table, sink: pa.NativeFile, footers: list[pq.FileMetaData]) -> int:
    """Write rows as Parquet and add the footer to the list. Returns the size."""
    with pq.ParquetWriter(
        sink,
        rows.schema,
        compression="zstd",
        use_dictionary=_repeating(rows),
        write_statistics=_ordered(rows),
        store_schema=False,
        metadata_collector=footers,
    ) as writer:
        writer.write_table(rows, row_group_size=GROUP_ROWS)
        writer.close()
        return int(sink.tell())


def _ordered(rows: pa.Table) -> list[str]:
    """The Parquet columns that get statistics: all but columns with NaN and nested floats.

    The upper bound leaves NaN out. An engine that orders NaN above every number would skip row groups by it. Nested
    floats are not searched for NaN.
    """
    nan = {
        field.name
        for field, column in zip(rows.schema, rows.columns, strict=True)
        if pa.types.is_floating(field.type) and pc.any(pc.is_nan(column)).as_py()
    }
    return [
        path for field in rows.schema if field.name not in nan for path in _leaves(field.name, field.type, nested=False)
    ]


def _leaves(path: str, kind: pa.DataType, *, nested: bool) -> Iterator[str]:
    """The Parquet paths of a column, without nested floats."""
    if pa.types.is_struct(kind):
        for part in kind:
            yield from _leaves(f"{path}.{part.name}", part.type, nested=True)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type, nested=True)
        yield from _leaves(f"{path}.key_value.value", kind.item_type, nested=True)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{path}.list.element", kind.value_type, nested=True)
    elif not (nested and pa.types.is_floating(kind)):
        yield path


def _repeating(rows: pa.Table) -> list[str]:
    """The columns whose values repeat, by a sample. Dictionaries of other columns cost more than all else."""
    if rows.num_rows <= FEW_ROWS:
        return []
    step = max(rows.num_rows // SAMPLE_ROWS, 1)
    sample = rows.take(pa.array(np.arange(0, rows.num_rows, step)))
    plain = [field.name for field in rows.schema if not pa.types.is_nested(field.type)]
    return [name for name in plain if 2 * pc.count_distinct(sample[name]).as_py() <= sample.num_rows]


def _begin(group: pq.RowGroupMetaData) -> int:
    first = group.column(0)
    return int(first.dictionary_page_offset if first.has_dictionary_page else first.data_page_offset)
