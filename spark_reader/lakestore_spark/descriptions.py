"""Spark's description of a table, in the columns and types that the table declares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql import DataFrame, Row

from lakestore.model.columns import LAKE_COLUMNS
from lakestore.model.table import Table
from lakestore_spark.types import is_cast, spark_type

_TABLE, _COLUMN, _NAMES = ["col_name", "data_type", "comment"], ["info_name", "info_value"], ["col_name"]


def declared(found: DataFrame, table: Table) -> DataFrame:
    """The answer of DESCRIBE or SHOW COLUMNS for a table at a cut, without system columns; others as they are."""
    if found.columns == _TABLE:
        rows = list(_described(found.collect(), table))
    elif found.columns == _COLUMN:
        rows = list(_one_column(found.collect(), table))
    elif found.columns == _NAMES:
        rows = [tuple(row) for row in found.collect() if row[0] not in LAKE_COLUMNS]
    else:
        return found
    return found.sparkSession.createDataFrame(rows, found.schema)


def _described(rows: Sequence[Row], table: Table) -> Iterator[tuple[str, ...]]:
    """The rows, of which the columns come first, up to an empty one."""
    in_columns = True
    for name, kind, comment in rows:
        in_columns &= bool(name)
        if not in_columns:
            yield name, kind, comment
        elif name not in LAKE_COLUMNS:
            yield name, _declared_type(table, name, kind), comment


def _one_column(rows: Sequence[Row], table: Table) -> Iterator[tuple[str, ...]]:
    said = dict(tuple(row) for row in rows)
    for name, value in rows:
        yield name, _declared_type(table, said.get("col_name", ""), value) if name == "data_type" else value


def _declared_type(table: Table, name: str, shown: str) -> str:
    """The type of a column as the table declares it, where Iceberg shows another."""
    found = next((column for column in table.columns if column.name == name and is_cast(column.type)), None)
    return spark_type(found.type).simpleString() if found else shown
