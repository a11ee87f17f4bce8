"""Tables at a cut as Spark SQL names them: a table of the catalog `now` whose name says the cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakestore.model.names import POSITION_MARK
from lakestore.model.table import Table
from lakestore_spark.types import quoted, shown

NOW = "now"
"""Spark's name of the catalog that presents cuts."""


@dataclass(frozen=True, slots=True)
class CutTable:
    """One table at one cut; Spark loads it as an ordinary Iceberg table."""

    table: Table
    """The definition at the cut."""
    token: str

    @property
    def name(self) -> str:
        """The name in Spark SQL, quoted."""
        return f"{NOW}.{quoted(self.table.namespace)}.{quoted(self.short_name)}"

    @property
    def short_name(self) -> str:
        """The name inside its namespace."""
        return f"{self.table.short_name}{POSITION_MARK}{self.token}"

    def select(self, columns: Sequence[str]) -> str:
        """The query of these columns, system columns among them, in the declared types.

        Catalyst merges it with the query around: a filter on a column that is shown as it lies reaches the files.
        """
        return f"SELECT {', '.join(shown(self.table, name) for name in columns)} FROM {self.name}"  # noqa: S608
