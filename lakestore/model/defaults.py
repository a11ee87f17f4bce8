"""Column defaults: JSON in Iceberg's single-value form, and the Arrow scalar.

Numbers, booleans and texts are themselves; decimals, dates, times and timestamps are texts, bytes are hex.
"""

from __future__ import annotations

import datetime as dt
import math
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.model.decimals import fit_type, round_exact
from lakestore.model.outside_values import excerpt
from lakestore.model.types import arrow_type, is_bytes


def scalar(value: Any, kind: str, column: str) -> pa.Scalar:
    """The Arrow value of a default, given in JSON or Python. Raises `Invalid`."""
    arrow = arrow_type(kind)
    if value is None:
        return pa.scalar(None, arrow)
    if pa.types.is_nested(arrow):
        raise Invalid(f"column {column!r} is {kind} and cannot have a default: only its parts hold single values")
    try:
        return pa.scalar(_python(value, arrow), arrow)
    except (pa.ArrowException, InvalidOperation, TypeError, ValueError, OverflowError) as error:
        raise Invalid(f"column {column!r}: the default {excerpt(value)} is no {kind}") from error


def canonical(value: Any, kind: str, column: str) -> Any:
    """The JSON of a default as its type stores it, so that a later widening does not change it."""
    stored = scalar(value, kind, column).as_py()
    if isinstance(stored, float) and not math.isfinite(stored):
        raise Invalid(f"column {column!r}: the default {excerpt(value)} is not finite")
    if isinstance(stored, bytes):
        return stored.hex()
    if isinstance(stored, Decimal):
        return f"{stored:f}"
    if isinstance(stored, (dt.date, dt.time)):
        return stored.isoformat()
    return stored


def in_lake(value: Any, kind: str, column: str) -> Any:
    """The JSON of a default in the lake's type, where times are numbers."""
    if value is None or not pa.types.is_time(arrow_type(kind)):
        return value
    return scalar(value, kind, column).cast(pa.int64()).as_py()


def _python(value: Any, arrow: pa.DataType) -> Any:
    t = pa.types
    if t.is_boolean(arrow) != isinstance(value, bool):
        raise TypeError("booleans are not numbers")
    if isinstance(value, str):
        return _parsed(value, arrow)
    if t.is_decimal(arrow):
        if isinstance(value, float):
            value = round_exact(Decimal(str(value)), arrow.scale, ROUND_HALF_EVEN)
        return fit_type(value, arrow) if isinstance(value, Decimal) else value
    if t.is_string(arrow):
        raise TypeError("a text is wanted")
    if t.is_integer(arrow) and isinstance(value, float):
        raise TypeError("an integer is wanted")
    return _utc(value, arrow) if isinstance(value, dt.datetime) else value


def _parsed(text: str, arrow: pa.DataType) -> Any:
    t = pa.types
    if t.is_string(arrow):
        return text
    if t.is_decimal(arrow):
        return fit_type(Decimal(text), arrow)
    if is_bytes(arrow):
        return bytes.fromhex(text)
    if t.is_date(arrow):
        return dt.date.fromisoformat(text)
    if t.is_time(arrow):
        return dt.time.fromisoformat(text)
    if t.is_timestamp(arrow):
        return _utc(dt.datetime.fromisoformat(text), arrow)
    raise TypeError("a text is not what the type holds")


def _utc(value: dt.datetime, arrow: pa.DataType) -> dt.datetime:
    if (value.tzinfo is None) != (getattr(arrow, "tz", None) is None):
        raise TypeError("a timestamptz has a time zone, a timestamp has none")
    return value if value.tzinfo is None else value.astimezone(dt.UTC)
