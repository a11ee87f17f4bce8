"""Retention of a table's log by age, bytes or both. Rows outside of it are in the lake."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lakestore.errors import Invalid
from lakestore.model.outside_values import INT64_MAX, excerpt
from lakestore.model.shapes import SECONDS_MAX

_AGE = re.compile(r"([0-9]{1,18})\s*(s|m|h|d)")
_AGE_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_BYTES = re.compile(r"([0-9]{1,18})\s*(B|KB|MB|GB|TB)", re.IGNORECASE)
_BYTE_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_OPTIONS = ("age", "bytes")


@dataclass(frozen=True, slots=True)
class Retention:
    """The part of the log that is kept; None keeps all. Only tiered rows are removed."""

    age_seconds: int | None = None
    """Commits older than this may be removed."""
    bytes: int | None = None
    """Log bytes of all buckets above which the oldest commits may be removed."""

    def as_dict(self) -> dict[str, Any]:
        return {"age_seconds": self.age_seconds, "bytes": self.bytes}

    @staticmethod
    def from_dict(data: dict[str, Any] | None) -> Retention | None:
        """Parse the output of `as_dict`; None keeps everything. Ages of older releases may be out of bounds."""
        if not data:
            return None
        age = data.get("age_seconds")
        return Retention(None if age is None else min(age, SECONDS_MAX), data.get("bytes"))

    def __str__(self) -> str:
        parts = [_shortest(self.age_seconds, _AGE_UNITS)] if self.age_seconds is not None else []
        return " or ".join([*parts, *([_shortest(self.bytes, _BYTE_UNITS)] if self.bytes is not None else [])])


def parse_retention(value: Any) -> Retention | None:
    """Parse a user's `retention=`: "7d", {"age": "7d", "bytes": "10GB"}, or None for all."""
    if value is None or isinstance(value, Retention):
        return value
    if not isinstance(value, dict):
        return Retention(age_seconds=_scaled(value, _AGE, _AGE_UNITS, "'30m', '12h' or '7d'"))
    for name in value:
        if name not in _OPTIONS:
            raise Invalid(f"retention option {excerpt(name)} is not known; known are {', '.join(_OPTIONS)}")
    age, size = value.get("age"), value.get("bytes")
    return Retention(
        None if age is None else _scaled(age, _AGE, _AGE_UNITS, "'30m', '12h' or '7d'"),
        None if size is None else _scaled(size, _BYTES, _BYTE_UNITS, "'500MB' or '10GB'"),
    )


def seconds_of(value: Any) -> int:
    """Parse a time: "7d", or a number of seconds."""
    return _scaled(value, _AGE, _AGE_UNITS, "'30m', '12h' or '7d'")


def byte_count(value: Any) -> int:
    """Parse a number of bytes: "8MB", or a number."""
    return _scaled(value, _BYTES, _BYTE_UNITS, "'500MB' or '10GB'")


def check(retention: Retention | None, table: str) -> None:
    """Raise `Invalid` for a retention that this table cannot have."""
    if retention is None:
        return
    amounts = [amount for amount in (retention.age_seconds, retention.bytes) if amount is not None]
    if not amounts or any(type(amount) is not int or amount < 1 for amount in amounts):
        raise Invalid(f"table {table}: retention takes an age or a number of bytes, each above zero")
    if (retention.age_seconds or 0) > SECONDS_MAX or (retention.bytes or 0) > INT64_MAX:
        raise Invalid(f"table {table}: retention takes an age up to {SECONDS_MAX} s, and bytes up to {INT64_MAX}")


def _shortest(value: int, units: dict[str, int]) -> str:
    unit = next(name for name in reversed(units) if value % units[name] == 0)
    return f"{value // units[unit]}{unit}"


def _scaled(value: Any, pattern: re.Pattern[str], units: dict[str, int], example: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = pattern.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match:
        raise Invalid(f"retention {excerpt(value)} is not an amount such as {example}")
    return int(match[1]) * units[match[2] if match[2] in units else match[2].upper()]
