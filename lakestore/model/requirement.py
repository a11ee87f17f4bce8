"""A requirement: the time through which the data of a read must be complete, or how fresh. docs/time.md tells exactly.

A feed is a register of the name `complete/TABLE/FEED`, whose value is the time through which it is complete.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from lakestore.errors import Invalid
from lakestore.model import times
from lakestore.model.ttl import seconds
from lakestore.model.typed import shown

Freshness = str | int | float | timedelta
"""A span of time: `60s`, `5m`, seconds, a timedelta."""
Through = str | datetime
"""A time with a zone, or the text of a time, which is UTC where it names no zone."""
_SPAN_US_MAX = 1 << 56
_FEED = re.compile(r"(?:[^/]+/)?complete/(?P<table>[^/.]+\.[^/.]+)/(?P<feed>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Requirement:
    """The demands on the data of a read; a zero demands nothing."""

    through_us: int = 0
    """The time through which it must be complete, in microseconds since 1970."""
    freshness_us: int = 0
    """It must be complete through the server's time less this, in microseconds."""
    wait_seconds: float = 0.0
    """For how long a read of the head may wait for that."""

    @staticmethod
    def of(freshness: Freshness | None, through: Through | None, wait_seconds: float = 0.0) -> Requirement | None:
        """The requirement that a user's words are; None where nothing is demanded."""
        if freshness is None and through is None:
            return None
        asked = 0 if through is None else max(_through_us(through), 1)
        return Requirement(asked, 0 if freshness is None else _span_us(freshness), wait_seconds)

    def as_of(self, now_us: int) -> Requirement:
        """The same with a freshness as it is meant at this time of the server."""
        if not self.freshness_us:
            return self
        return Requirement(max(self.through_us, now_us - self.freshness_us), 0, self.wait_seconds)


class FeedName(NamedTuple):
    """A table and one of its feeds."""

    table: str
    feed: str


def feed_of(register: str) -> FeedName | None:
    """The feed that a register is, one of a principal's own too; None for any other register."""
    found = _FEED.fullmatch(register) if "complete/" in register else None
    return FeedName(found["table"], found["feed"]) if found else None


def _through_us(through: Any) -> int:
    found = times.micros_of(times.position_text(through))
    if found is None:
        raise Invalid(f"require_complete_through {shown(str(through))} is no time such as '2026-11-20T10:00Z'")
    return found


def _span_us(freshness: Any) -> int:
    said = Invalid(f"require_freshness {shown(str(freshness))} is no span of time above zero such as '60s' or '5m'")
    if isinstance(freshness, timedelta):
        found = freshness // timedelta(microseconds=1)
    elif isinstance(freshness, str):
        try:
            found = seconds(freshness, "require_freshness") * 1_000_000
        except Invalid as error:
            raise said from error
    elif isinstance(freshness, (int, float)) and not isinstance(freshness, bool) and 0 < freshness < _SPAN_US_MAX:
        found = round(freshness * 1_000_000)
    else:
        raise said
    if not 0 < found <= _SPAN_US_MAX:
        raise said
    return found
