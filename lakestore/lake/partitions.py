"""Partition values of rows: Iceberg's transforms of whole columns, and the rows that have the same ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.lake.values import Json, Value

RowNumbers = npt.NDArray[np.int64]


def groups(rows: pa.Table, spec: Json, schema: Json) -> list[tuple[dict[str, Value], RowNumbers | None]]:
    """The partitions of rows: values by field, as manifests have them, and row numbers, or None for all rows."""
    if not spec["fields"]:
        return [({}, None)]
    raise NotImplementedError
