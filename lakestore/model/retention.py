"""Retention of a table's log: by the age of its commits, by its bytes, or both. Rows that fall out are in the lake."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lakestore.errors import Invalid
from lakestore.model.shapes import SECONDS_MAX
from lakestore.model.typed import INT64_MAX, shown

_AGE = re.compile(r"([0-9]{1,18})\s*(s|m|h|d)")
_AGE_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_BYTES = re.compile(r"([0-9]{1,18})\s*(B|KB|MB|GB|TB)", re.IGNORECASE)
_BYTE_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_OPTIONS = ("age", "bytes")


@dataclass(frozen=True, slots=True)
class Retention:
    """The part of its log that a table keeps; None keeps everything. Only rows that are in the lake ever go."""

    age_seconds: int | None = None
    """Commits older than this may go."""
    bytes: int | None = None
    """Beyond this many bytes of log, all buckets together, the oldest may go."""

    def as_dict(self) -> dict[str, Any]:
        """The stored form."""
        return {"age_seconds": self.age_seconds, "bytes": self.bytes}

    @staticmethod
    def from_dict(data: dict[str, Any] | None) -> Retention | None:
        """The retention that `as_dict` gave; None for a table that keeps everything. An age was not always bounded."""
        if not data:
            return None
        age = data.get("age_seconds")
        return Retention(None if age is None else min(age, SECONDS_MAX), data.get("bytes"))

    def __str__(self) -> str:
        parts = [_shortest(self.age_seconds, _AGE_UNITS)] if self.age_seconds is not None else []
        return " or ".join([*parts, *([_shortest(self.bytes, _BYTE_UNITS)] if self.bytes is not None else [])])


def parsed(value: Any) -> Retention | None:
    """A user's `retention=`: "7d", {"age": "7d", "bytes": "10GB"}, or None for all."""
    if value is None or isinstance(value, Retention):
        return value
    if not isinstance(value, dict):
        return Retention(age_seconds=_scaled(value, _AGE, _AGE_UNITS, "'30m', '12h' or '7d'"))
    for name in value:
        if name not in _OPTIONS:
            raise Invalid(f"retention option {shown(name)} is not known; known are {', '.join(_OPTIONS)}")
    age, size = value.get("age"), value.get("bytes")
    return Retention(
        None if age is None else _scaled(age, _AGE, _AGE_UNITS, "'30m', '12h' or '7d'"),
        None if size is None else _scaled(size, _BYTES, _BYTE_UNITS, "'500MB' or '10GB'"),
    )


def byte_count(value: Any) -> int:
    """A number of bytes as users write it: "8MB", or a number."""
    return _scaled(value, _BYTES, _BYTE_UNITS, "'500MB' or '10GB'")


def check(retention: Retention | None, table: str) -> None:
    """`Invalid` for a retention that this table cannot have."""
    if retention is None:
        return
    amounts = [amount for amount in (retention.age_seconds, retention.bytes) if amount is not None]
    if not amounts or any(type(amount) is not int or amount < 1 for amount in amounts):
        raise Invalid(f"table {table}: retention takes an age or a number of bytes, each above zero")
    if (retention.age_seconds or 0) > SECONDS_MAX or (retention.bytes or 0) > INT64_MAX:
        raise Invalid(f"table {table}: retention takes an age up to {SECONDS_MAX} s, and bytes up to {INT64_MAX}")


def _shortest(value: int, units: dict[str, int]) -> str:
    """The value in the largest unit that divides it, as `parsed` reads it."""
    unit = next(name for name in reversed(units) if value % units[name] == 0)
    return f"{value // units[unit]}{unit}"


def _scaled(value: Any, pattern: re.Pattern[str], units: dict[str, int], example: str) -> int:
    """A number with its unit; a bare number is seconds or bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = pattern.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match:
        raise Invalid(f"retention {shown(value)} is not an amount such as {example}")
    return int(match[1]) * units[match[2] if match[2] in units else match[2].upper()]
