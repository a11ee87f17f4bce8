"""Rows as lines of JSON, and keys of the command line as values.

Decimals, dates and times are texts, bytes are hex, structs are objects. A map is an object with text keys.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lakestore.model.types import is_bytes, parts


def by_hand(kind: pa.DataType) -> bool:
    """True if Arrow's JSON reader does not know the type, reads another form of it, or reads it unsafely."""
    t = pa.types
    return bool(t.is_nested(kind) or t.is_time(kind) or t.is_decimal(kind) or is_bytes(kind))


def python_value(value: Any, kind: pa.DataType) -> Any:
    """The Python value of a JSON value. A value that does not fit is returned unchanged; the table refuses it."""
    t = pa.types
    if value is None:
        return None
    if t.is_struct(kind):
        kinds = {part.name: part.type for part in kind}
        return {name: python_value(part, kinds[name]) if name in kinds else part for name, part in value.items()}
    if t.is_list(kind):
        return [python_value(part, kind.value_type) for part in value]
    if t.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(_key(key, kind.key_type), python_value(part, kind.item_type)) for key, part in pairs]
    if isinstance(value, str):
        return _parsed(value, kind)
    return float(value) if t.is_floating(kind) and isinstance(value, Decimal | int) else value


def _key(text: Any, kind: pa.DataType) -> Any:
    if isinstance(text, str) and pa.types.is_integer(kind):
        return int(text)
    if isinstance(text, str) and pa.types.is_boolean(kind):
        return {"true": True, "false": False}.get(text, text)
    return python_value(text, kind)


def _parsed(text: str, kind: pa.DataType) -> Any:
    t = pa.types
    readers: list[tuple[Callable[[pa.DataType], bool], Callable[[str], Any]]] = [
        (t.is_decimal, Decimal),
        (t.is_date, dt.date.fromisoformat),
        (t.is_time, dt.time.fromisoformat),
        (t.is_timestamp, dt.datetime.fromisoformat),
        (t.is_binary, bytes.fromhex),
        (t.is_fixed_size_binary, bytes.fromhex),
    ]
    for is_one, reader in readers:
        if is_one(kind):
            value = reader(text)
            if t.is_timestamp(kind) and (value.tzinfo is None) != (kind.tz is None):
                raise ValueError(f"{text!r} has {'a' if value.tzinfo else 'no'} time zone, which {kind} does not take")
            return value
    return text


def lines(batch: pa.RecordBatch | pa.Table) -> Iterator[str]:
    """One line of JSON for each row."""
    keyed = any(_has_map(field.type) for field in batch.schema)
    for row in batch.to_pylist(maps_as_pydicts="strict") if keyed else batch.to_pylist():
        yield json.dumps(_texts(row) if keyed else row, default=plain, ensure_ascii=False)


def _has_map(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind)) or any(_has_map(part.type) for part in parts(kind))


def _texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key if isinstance(key, str) else _key_text(key): _texts(part) for key, part in value.items()}
    return [_texts(part) for part in value] if isinstance(value, list) else value


def _key_text(key: Any) -> str:
    return json.dumps(key) if isinstance(key, bool) else str(plain(key))


def plain(value: Any) -> Any:
    """Convert decimals, dates and times to text, bytes to hex."""
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
