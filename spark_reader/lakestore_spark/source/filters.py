"""Spark's filters as conditions of ours: only those that mean exactly the same; the others Spark evaluates itself.

A comparison of floats that a NaN would pass is left to Spark, and so are times of the day, which Spark sees as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as spark

from lakestore.errors import Invalid
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore.rows import condition_text

_SIGNS: dict[type[spark.Filter], str] = {
    spark.EqualTo: "=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
}
_PATTERNS: dict[type[spark.Filter], tuple[str, str]] = {
    spark.StringStartsWith: ("", "%"),
    spark.StringEndsWith: ("%", ""),
    spark.StringContains: ("%", "%"),
}
_OF_PATTERNS = frozenset("%_\\")


def pushed(filters: Iterable[spark.Filter], table: Table) -> tuple[list[str], list[spark.Filter]]:
    """The conditions that filters of a table's rows mean, and the filters that Spark has to evaluate."""
    texts: list[str] = []
    left: list[spark.Filter] = []
    for each in filters:
        text = _text(each, table)
        if text is None or not _is_known(" AND ".join([*texts, text]), table):
            left.append(each)
        else:
            texts.append(text)
    return texts, left


def _is_known(text: str, table: Table) -> bool:
    try:
        condition_text.parse(text, table)
    except Invalid:
        return False  # too many comparisons, or a value of another type: Spark evaluates it as well
    return True


def _text(each: spark.Filter, table: Table) -> str | None:
    """A filter as a condition; None where none means the same."""
    if isinstance(each, spark.Not):
        # Only of what is unknown for null in both: NOT of a test for null is the other test.
        inner = _text(each.child, table)
        return None if inner is None or _floats(each.child, table) else f"NOT ({inner})"
    attribute: Sequence[str] = getattr(each, "attribute", ())
    kind = _kind(attribute, table)
    if kind is None:
        return None
    name = f'"{attribute[0]}"'
    if isinstance(each, spark.IsNull | spark.IsNotNull):
        return f"{name} IS {'NOT ' if isinstance(each, spark.IsNotNull) else ''}NULL"
    if isinstance(each, spark.In):
        values = [_literal(value, kind) for value in each.value]
        known = [value for value in values if value is not None]
        return f"{name} IN ({', '.join(known)})" if known and len(known) == len(values) else None
    if type(each) in _PATTERNS:
        return _like(name, each, kind)
    sign, value = _SIGNS.get(type(each)), _literal(getattr(each, "value", None), kind)
    if sign is None or value is None or (pa.types.is_floating(kind) and ">" in sign):
        return None
    return f"{name} {sign} {value}"


def _like(name: str, each: spark.Filter, kind: pa.DataType) -> str | None:
    before, after = _PATTERNS[type(each)]
    value = getattr(each, "value", None)
    if not isinstance(value, str) or _OF_PATTERNS & set(value) or not pa.types.is_string(kind):
        return None
    return f"{name} LIKE {_quoted(before + value + after)}"


def _floats(each: spark.Filter, table: Table) -> bool:
    """Whether a filter compares floats: the opposite of what a NaN fails, it passes."""
    kind = _kind(getattr(each, "attribute", ()), table)
    return kind is not None and pa.types.is_floating(kind)


def _kind(attribute: Sequence[str], table: Table) -> pa.DataType | None:
    """The type of a filter's column; None for what is no plain column."""
    if len(attribute) != 1:
        return None
    name = attribute[0].lower()
    found = [column.arrow.type for column in table.columns if column.name.lower() == name]
    if not found and name in SYSTEM_TYPES:
        found = [SYSTEM_TYPES[name]]
    return found[0] if found else None


def _literal(value: Any, kind: pa.DataType) -> str | None:
    """A value of Spark's as it stands in a condition on a column; None where that would be another value."""
    if isinstance(value, bool):
        return str(value).upper() if pa.types.is_boolean(kind) else None
    if isinstance(value, int):
        return str(value) if pa.types.is_integer(kind) else None
    if isinstance(value, float):
        return repr(value) if pa.types.is_float64(kind) and math.isfinite(value) else None
    if isinstance(value, Decimal):
        return format(value, "f") if pa.types.is_decimal(kind) and value.is_finite() else None
    if isinstance(value, str):
        return _quoted(value) if pa.types.is_string(kind) else None
    if isinstance(value, datetime):
        same = pa.types.is_timestamp(kind) and (kind.tz is None) == (value.tzinfo is None)
        return _quoted(value.isoformat()) if same else None
    if isinstance(value, date):
        return _quoted(value.isoformat()) if pa.types.is_date(kind) else None
    return None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
