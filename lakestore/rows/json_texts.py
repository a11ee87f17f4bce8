"""Writes Arrow columns as JSON texts, column by column, without a Python loop over rows.

Only bytes, and texts with characters that JSON escapes, need a loop. Two styles write times, bytes and maps
differently. Both write numbers without a JSON form as texts: "NaN", "Infinity".
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.model.types import is_bytes

Cells = list[list[str | None]]
"""Rows of texts. None is null."""


def rows_of(table: pa.Table | pa.RecordBatch, chars_max: int) -> Cells:
    """The rows of a table as texts. A text longer than `chars_max` ends in an ellipsis."""
    columns = [_texts(column, chars_max) for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _texts(column: pa.Array | pa.ChunkedArray, chars_max: int) -> Sequence[str | None]:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return [_cut(value, chars_max) for value in array.to_pylist()]
    try:
        texts = values(array, PLAIN).to_pylist()
    except pa.ArrowNotImplementedError:  # types that tables do not have, such as DuckDB's intervals
        return [None if value is None else _cut(str(value), chars_max) for value in array.to_pylist()]
    valid = array.is_valid().to_pylist()
    return [_cut(_plain(text), chars_max) if is_valid else None for text, is_valid in zip(texts, valid, strict=True)]


def _plain(text: str) -> str:
    """A JSON string without quotes; other JSON unchanged."""
    return str(json.loads(text)) if text.startswith('"') else text


def _cut(text: str | None, chars_max: int) -> str | None:
    return text if text is None or len(text) <= chars_max else f"{text[:chars_max]}…"


_ESCAPED = r'["\\\x00-\x1f]'
_NULL = "null"


@dataclass(frozen=True, slots=True)
class Style:
    """The form of types that JSON does not have."""

    numbers_of_time: bool
    """True: dates are days, times and timestamps without zone are microseconds. False: ISO 8601 texts."""
    bytes_text: Callable[[bytes], str]
    maps_as_pairs: bool
    """True: maps without text keys are lists of [key, value]. False: objects with keys as texts."""


def _base64(value: bytes) -> str:
    return b64encode(value).decode("ascii")


CONNECT = Style(numbers_of_time=True, bytes_text=_base64, maps_as_pairs=True)
"""The style of Debezium's connectors and Kafka Connect's JSON converter."""
PLAIN = Style(numbers_of_time=False, bytes_text=bytes.hex, maps_as_pairs=False)
"""The style of `lakestore read --json`."""


def objects(names: Sequence[str], columns: Sequence[pa.Array], style: Style, *, front: str = "{") -> pa.Array:
    """The JSON object of each row. `front` is the beginning of the object."""
    parts: list[Any] = [front]
    for number, (name, column) in enumerate(zip(names, columns, strict=True)):
        parts += [f"{',' if number else ''}{json.dumps(name, ensure_ascii=False)}:", values(column, style)]
    return joined(*parts, "}")


def joined(*parts: Any) -> pa.Array:
    """Concatenate texts row by row."""
    return pc.binary_join_element_wise(*parts, "")


def values(array: pa.Array, style: Style) -> pa.Array:
    """The JSON text of each value; `null` for null."""
    kind = array.type
    t = pa.types
    if t.is_struct(kind):
        text = _or_null(array, objects([part.name for part in kind], array.flatten(), style))
    elif t.is_list(kind):
        text = _or_null(array, joined("[", _listed(array, values(_inside(array, array.values), style)), "]"))
    elif t.is_map(kind):
        text = _or_null(array, _map(array, style))
    else:
        text = _scalar(array, style)
    return text.fill_null(_NULL) if text.null_count else text


def _scalar(array: pa.Array, style: Style) -> pa.Array:
    kind = array.type
    t = pa.types
    if t.is_string(kind):
        return _quoted(array)
    if t.is_floating(kind):
        return _floats(array)
    if t.is_decimal(kind):
        return _in_quotes(_decimals(array))
    if t.is_temporal(kind):
        return _times(array, style)
    if is_bytes(kind):
        shown = [None if value is None else style.bytes_text(value) for value in array.to_pylist()]
        return _in_quotes(pa.array(shown, pa.string()))
    return array.cast(pa.string())


def _quoted(array: pa.Array) -> pa.Array:
    text = _in_quotes(array)
    special = pc.match_substring_regex(array, _ESCAPED).fill_null(False)
    if not special.true_count:
        return text
    escaped = [json.dumps(value, ensure_ascii=False) for value in array.filter(special).to_pylist()]
    return pc.replace_with_mask(text, special, pa.array(escaped, pa.string()))


def _in_quotes(text: pa.Array) -> pa.Array:
    return joined('"', text, '"')


def _floats(array: pa.Array) -> pa.Array:
    text = array.cast(pa.string())
    whole = pc.match_substring_regex(text, r"^-?\d+$").fill_null(False)
    if whole.true_count:
        text = pc.if_else(whole, joined(text, ".0"), text)
    if pc.is_finite(array).false_count:
        for said, written in (("nan", '"NaN"'), ("inf", '"Infinity"'), ("-inf", '"-Infinity"')):
            text = pc.if_else(pc.equal(text, said), written, text)
    return text


def _decimals(array: pa.Array) -> pa.Array:
    text = array.cast(pa.string())
    short = pc.match_substring(text, "E").fill_null(False)
    if not short.true_count:
        return text
    return pc.replace_with_mask(text, short, pa.array([f"{value:f}" for value in array.filter(short).to_pylist()]))


def _times(array: pa.Array, style: Style) -> pa.Array:
    kind = array.type
    if pa.types.is_timestamp(kind) and (kind.tz is not None or not style.numbers_of_time):
        return _in_quotes(pc.replace_substring(array.cast(pa.string()), " ", "T"))
    if style.numbers_of_time:
        whole = pa.int32() if pa.types.is_date(kind) else pa.int64()
        return array.cast(whole).cast(pa.string())
    return _in_quotes(array.cast(pa.string()))


def _or_null(array: pa.Array, text: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), text, None) if array.null_count else text


def _inside(array: pa.Array, held: pa.Array) -> pa.Array:
    """The values inside the lists or maps of an array. They may be a slice of its child."""
    start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return held.slice(start, end - start)


def _listed(array: pa.Array, texts: pa.Array) -> pa.Array:
    """Join the texts of each list by commas."""
    offsets = array.offsets.to_numpy()
    whole = pa.ListArray.from_arrays(pa.array((offsets - offsets[0]).astype(np.int32)), texts)
    return pc.binary_join(whole, ",")


def _map(array: pa.Array, style: Style) -> pa.Array:
    keys = values(_inside(array, array.keys), style)
    items = values(_inside(array, array.items), style)
    named = pa.types.is_string(array.type.key_type)
    if style.maps_as_pairs and not named:
        return joined("[", _listed(array, joined("[", keys, ",", items, "]")), "]")
    if not named:
        keys = pc.if_else(pc.starts_with(keys, '"'), keys, _in_quotes(keys))
    return joined("{", _listed(array, joined(keys, ":", items)), "}")
