"""Times of users, ISO 8601 text or datetime, distinguished from tokens.

A text without a zone is UTC. A datetime without a zone is refused, because Python takes it as local time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from lakestore.errors import Invalid
from lakestore.model.outside_values import excerpt
from lakestore.model.token import Token, position_of

At = str | datetime | Token
"""A cut: a token, a time with a zone, or a text of a time, which is UTC without a zone."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAMES = ("earliest", "latest", "snapshot")


def micros_of(text: str) -> int | None:
    """Microseconds since 1970 of an ISO 8601 time; None for other texts, such as tokens."""
    try:
        return (_zoned(datetime.fromisoformat(text)).astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):  # the calendar's first and last hours have no UTC time in some zones
        return None


def moment_of(micros: int) -> datetime:
    """The UTC time of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=micros)


def text_of(micros: int) -> str:
    """A time for people."""
    return moment_of(micros).isoformat()


def position_text(value: Any) -> str:
    """A token or time for the wire. Raises `Invalid`."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise Invalid(f"{value!r} has no time zone: say datetime.now(UTC), or value.astimezone()")
        return value.isoformat()
    text = str(value)
    if micros_of(text) is None:
        try:
            position_of(text)
        except Invalid as error:
            raise Invalid(
                f"{excerpt(text)} is neither a position token nor a time such as '2026-11-20T10:00Z'"
            ) from error
    return text


def start_text(value: Any) -> str:
    """The start of a change stream for the wire."""
    if isinstance(value, str) and value in _NAMES:
        return value
    if not value:
        raise Invalid("start= is 'earliest', 'latest', 'snapshot', a token or a time")
    return _told(value, f"start {excerpt(str(value))} is not 'earliest', 'latest', 'snapshot', a token or a time")


def until_text(value: Any) -> str:
    """The end of a change stream for the wire; empty if it has none."""
    if not value or value == "now":
        return str(value or "")
    return _told(value, f"until {excerpt(str(value))} is not 'now', a token or a time that has been")


def _told(value: Any, sentence: str) -> str:
    if isinstance(value, datetime):
        return position_text(value)
    try:
        return position_text(value)
    except Invalid as error:
        raise Invalid(f"{sentence}, such as '2026-11-20T10:00Z'") from error


def _zoned(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
