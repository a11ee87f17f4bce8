"""Tables at a cut in Spark SQL: tables of the catalog `now` whose name contains the cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.names import POSITION_MARK
from lakestore.model.table import Table
from lakestore_spark.types import declared_sql, quote_name

NOW = "now"


@dataclass(frozen=True, slots=True)
class CutTable:
    """One table at one cut. Spark loads it as an ordinary Iceberg table."""

    table: Table
    token: str

    @property
    def name(self) -> str:
        return f"{NOW}.{quote_name(self.table.namespace)}.{quote_name(self.short_name)}"

    @property
    def short_name(self) -> str:
        return f"{self.table.short_name}{POSITION_MARK}{self.token}"

    def select(self, columns: Sequence[str], shown: Mapping[str, str] | None = None) -> str:
        """A query of columns in the declared types. Catalyst merges it, so filters reach the files. `shown` has other
        names for the table's columns, by which the query uses them."""
        named = {**(shown or {}), **{name: name for name in columns if not shown or name in SYSTEM_TYPES}}
        listed = ", ".join(declared_sql(self.table, column, name) for name, column in named.items())
        return f"SELECT {listed} FROM {self.name}"  # noqa: S608
