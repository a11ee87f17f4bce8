"""Rows of tables as histories have them: lists of values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

PLACED = "__bucket", "__offset"
"""The columns that say where a row is."""


def listed(table: pa.Table, *names: str) -> list[list[Any]]:
    """Each row as the list of its values in these columns."""
    columns = (table.column(name).to_pylist() for name in names)
    return [list(row) for row in zip(*columns, strict=True)]
