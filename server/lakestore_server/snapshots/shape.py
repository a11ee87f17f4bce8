"""The format of a table's hot files: the lake's form of one schema version, as an Arrow schema with field ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakestore.iceberg.data_files import arrow_schema
from lakestore.model.table import Table

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """The format of a table's hot files."""

    table: Table
    schema: Json
    """The Iceberg schema of the version."""
    spec: Json
    """The partition spec for files with few partitions."""
    flat: Json
    """The unpartitioned spec for files with many."""

    @property
    def arrow(self) -> pa.Schema:
        """The schema of the files, with field ids at every depth."""
        return arrow_schema(self.schema)
