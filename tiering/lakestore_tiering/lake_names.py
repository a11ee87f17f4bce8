"""The names of lake tables in Spark SQL."""

from __future__ import annotations

from lakestore.model.names import VERSION_MARK
from lakestore.model.table import Table
from lakestore_spark.session import LAKE
from lakestore_spark.types import quoted


def lake_name(table: Table) -> str:
    """The lake table's name in Spark SQL."""
    return f"{LAKE}.{quoted(table.namespace)}.{quoted(table.short_name)}"


def version_name(table: Table) -> str:
    """The name under which the catalog gives the lake table with this schema version, before main has it."""
    return f"{LAKE}.{quoted(table.namespace)}.{quoted(f'{table.short_name}{VERSION_MARK}{table.schema_id}')}"
