"""Values as the texts of a page's cells: what JSON lines show, texts without quotes, and long ones cut."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from lakestore.rows import json_texts

Cells = list[list[str | None]]
"""Rows of texts; None is a null."""


def rows_of(table: pa.Table | pa.RecordBatch, chars_max: int) -> Cells:
    """The rows of a table; a text beyond so many characters ends in an ellipsis."""
    columns = [_texts(column, chars_max) for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _texts(column: pa.Array | pa.ChunkedArray, chars_max: int) -> Sequence[str | None]:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return [_cut(value, chars_max) for value in array.to_pylist()]
    try:
        texts = json_texts.values(array, json_texts.PLAIN).to_pylist()
    except pa.ArrowNotImplementedError:  # types that tables do not have, such as DuckDB's intervals
        return [None if value is None else _cut(str(value), chars_max) for value in array.to_pylist()]
    valid = array.is_valid().to_pylist()
    return [_cut(_plain(text), chars_max) if is_valid else None for text, is_valid in zip(texts, valid, strict=True)]


def _plain(text: str) -> str:
    """A JSON text without its quotes; other JSON as it is."""
    return str(json.loads(text)) if text.startswith('"') else text


def _cut(text: str | None, chars_max: int) -> str | None:
    return text if text is None or len(text) <= chars_max else f"{text[:chars_max]}…"
