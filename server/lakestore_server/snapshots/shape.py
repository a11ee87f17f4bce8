"""The form of a table's hot files: one version of it as the lake has it, as an Arrow schema with field ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakestore.iceberg.data_files import arrow_schema
from lakestore.model.table import Table

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of a table's files: its version at a cut as the lake has it."""

    table: Table
    schema: Json
    """Iceberg's schema of the version."""
    spec: Json
    """The partition spec of few partitions."""
    flat: Json
    """The unpartitioned spec of many."""

    @property
    def arrow(self) -> pa.Schema:
        """The schema of the files, with field ids at every depth."""
        return arrow_schema(self.schema)
