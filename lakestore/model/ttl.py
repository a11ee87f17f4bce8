"""Expiry of a keyed table's rows by a time column. Rows are deleted as if by a user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakestore.errors import Invalid
from lakestore.model.outside_values import excerpt
from lakestore.model.retention import Retention, parse_retention
from lakestore.model.shapes import SECONDS_MAX

TOMBSTONE_SECONDS = 7 * 86_400


@dataclass(frozen=True, slots=True)
class Ttl:
    """Rows are deleted when the time in `column` is `seconds` ago. Rows without a time stay."""

    column: str
    seconds: int

    def as_dict(self) -> dict[str, Any]:
        return {"column": self.column, "seconds": self.seconds}

    @staticmethod
    def from_dict(data: dict[str, Any] | None) -> Ttl | None:
        return Ttl(data["column"], data["seconds"]) if data else None

    def __str__(self) -> str:
        return f"{span(self.seconds)} after {self.column}"


def span(amount: int) -> str:
    """Format seconds in the largest unit that divides them: 604800 is 7d."""
    return str(Retention(age_seconds=amount)) if amount else "0s"


def parse_ttl(value: Any) -> Ttl | None:
    """Parse a user's `ttl=`: {"column": "created_at", "after": "30d"}, or None."""
    if value is None or isinstance(value, Ttl):
        return value
    if not isinstance(value, dict) or set(value) != {"column", "after"} or not isinstance(value["column"], str):
        raise Invalid(f"ttl {excerpt(value)} is not {{'column': 'created_at', 'after': '30d'}}")
    return Ttl(value["column"], seconds(value["after"], "ttl after"))


def seconds(value: Any, what: str) -> int:
    """Parse a span of time: '30m', '12h', '7d', or seconds."""
    refused = Invalid(f"{what} {excerpt(value)} is not a span of time such as '30m', '12h' or '7d'")
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise refused
    try:
        kept = parse_retention(value)
    except Invalid as error:
        raise refused from error
    if kept is None or kept.age_seconds is None:
        raise refused
    return kept.age_seconds


def check(ttl: Ttl | None, columns: Mapping[str, str], table: str, *, keyed: bool) -> None:
    """Refuse a TTL that does not fit the table's columns (name to type)."""
    if ttl is None:
        return
    if not keyed:
        raise Invalid(f"table {table}: ttl= is for primary-key tables; a log table has retention=")
    if ttl.column not in columns:
        raise Invalid(f"table {table}: ttl column {ttl.column!r} is not there")
    if not columns[ttl.column].startswith(("timestamp", "date")):
        raise Invalid(f"table {table}: ttl column {ttl.column!r} is {columns[ttl.column]}: take a timestamp or a date")
    if type(ttl.seconds) is not int or not 1 <= ttl.seconds <= SECONDS_MAX:
        raise Invalid(f"table {table}: ttl takes a time above zero and up to {span(SECONDS_MAX)}")
