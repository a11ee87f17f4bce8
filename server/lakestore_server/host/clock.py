"""The clock, and the judgement of the wall clock: what time it is, and whether rows may be deleted by that time.

- Time advances with the monotonic clock and follows the wall clock while the two agree.
- A wall clock that has jumped is trusted after it has agreed with the monotonic clock for `confirm_seconds`, or when an
  operator says so.
- After a start, and when a server begins to lead, time continues from the last commit. A gap of up to `GAP_US_MAX` is
  trusted at once for commits, but not for deleting.

`Judge` is pure: clock values in, `Reading` out. `Timekeeper` reads the machine's clocks for it, for all threads.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

log = logging.getLogger("lakestore.clock")
CONFIRM_SECONDS = 300.0
GAP_US_MAX = 7 * 86_400_000_000
"""The largest gap after the last commit for which the wall clock is trusted at once for commit times."""
SLACK_US, SLACK_US_MAX, SLACK_PER_SECOND_US = 1_000_000, 10_000_000, 1_000
"""Differences of wall and monotonic clock that count as none: a leap second, an NTP step, and drift since they
agreed.
"""
AHEAD_US_MIN = 1_000_000
"""If a stamp is further ahead of the time than this, the time is stored in addition to the stamp."""
_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", None)
_HELD = "row TTL, retention by age and the end of idle names wait"


class Clock(Protocol):
    """A source of time."""

    def now_us(self) -> int:
        """Microseconds since 1970, UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back."""


class RealClock:
    """The machine's clock."""

    def now_us(self) -> int:
        """Wall time."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """Monotonic time, including suspensions if the system has such a clock."""
        return time.monotonic() if _BOOT_TIME is None else time.clock_gettime(_BOOT_TIME)


class Doubt(StrEnum):
    """The reason why the wall clock is not trusted for deleting."""

    NONE = ""
    START = "started"
    """The server has just started, and the clock is near the last commit."""
    AHEAD = "ahead"
    """The wall clock is ahead of the time by the monotonic clock."""
    BEHIND = "behind"
    """The wall clock is behind the time by the monotonic clock."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The judged time."""

    time_us: int
    doubt: Doubt
    offset_us: int
    """Wall clock minus this time."""
    seconds: float
    """Seconds that the doubt, or its absence, has lasted."""

    @property
    def may_delete(self) -> bool:
        """Whether anything may be deleted because of its age."""
        return self.doubt is Doubt.NONE

    def stamp_us(self, last_us: int) -> int:
        """The stamp of the next commit, above the last one. If the last stamp is far ahead of the time, it grows by
        a microsecond.

        Distinct times tell commits apart.
        """
        if self.time_us >= last_us or last_us - self.time_us <= AHEAD_US_MIN:
            return max(self.time_us, last_us)
        return last_us + 1

    def beside_us(self, stamp_us: int) -> int:
        """The time to store with a stamp that is far ahead of it; 0 for other stamps."""
        return self.time_us if self.may_delete and stamp_us - self.time_us > AHEAD_US_MIN else 0


@dataclass(frozen=True, slots=True)
class _Line:
    """A time that advances with the monotonic clock."""

    us: int
    monotonic: float

    def at(self, monotonic: float) -> int:
        return self.us + int((monotonic - self.monotonic) * 1e6)

    def age(self, monotonic: float) -> float:
        return monotonic - self.monotonic

    def has(self, wall_us: int, monotonic: float) -> bool:
        """Whether the wall clock agrees with this time."""
        slack = min(SLACK_US + int(self.age(monotonic) * SLACK_PER_SECOND_US), SLACK_US_MAX)
        return abs(wall_us - self.at(monotonic)) <= slack


class Judge:
    """The state machine. One thread at a time. `monotonic` must not decrease between calls."""

    def __init__(self, wall_us: int, monotonic: float, last_us: int, confirm_seconds: float = CONFIRM_SECONDS) -> None:
        """`last_us` is the time of the last commit, 0 if there was none."""
        self._confirm_seconds = confirm_seconds
        is_near = not last_us or 0 <= wall_us - last_us <= GAP_US_MAX
        self._line = _Line(wall_us if is_near else last_us, monotonic)
        """The time, anchored when the wall clock last agreed with it."""
        self._is_confirmed = False
        """Whether a wall clock was confirmed on this line."""
        self._jumped: _Line | None = None
        """The wall clock's own line, since it left ours."""
        self._since = monotonic

    def read(self, wall_us: int, monotonic: float) -> Reading:
        """The time now."""
        if self._line.has(wall_us, monotonic):
            return self._agreed(wall_us, monotonic)
        if self._jumped is None or not self._jumped.has(wall_us, monotonic):
            if self._jumped is None:
                self._since = monotonic
            self._jumped = _Line(wall_us, monotonic)
        if self._jumped.age(monotonic) >= self._confirm_seconds:
            return self.accept(wall_us, monotonic)
        now_us = self._line.at(monotonic)
        doubt = Doubt.AHEAD if wall_us > now_us else Doubt.BEHIND
        return Reading(now_us, doubt, wall_us - now_us, monotonic - self._since)

    def _agreed(self, wall_us: int, monotonic: float) -> Reading:
        if self._jumped is not None:
            self._jumped, self._since = None, monotonic
            if not self._is_confirmed:
                self._line = _Line(wall_us, monotonic)
        if self._line.age(monotonic) >= self._confirm_seconds:
            if not self._is_confirmed:
                self._since = monotonic
            self._line, self._is_confirmed = _Line(wall_us, monotonic), True
        doubt = Doubt.NONE if self._is_confirmed else Doubt.START
        return Reading(wall_us, doubt, 0, monotonic - self._since)

    def accept(self, wall_us: int, monotonic: float) -> Reading:
        """Trust the wall clock from now on."""
        if self._jumped is not None or not self._is_confirmed:
            self._since = monotonic
        self._line, self._jumped, self._is_confirmed = _Line(wall_us, monotonic), None, True
        return Reading(wall_us, Doubt.NONE, 0, monotonic - self._since)


class Timekeeper:
    """The time of a server. Thread-safe. The lock is held for arithmetic only."""

    def __init__(self, clock: Clock, last_us: int, confirm_seconds: float = CONFIRM_SECONDS) -> None:
        self._clock, self._confirm_seconds = clock, confirm_seconds
        self._lock = threading.Lock()
        self.begin(last_us)

    def begin(self, last_us: int) -> None:
        """Forget what the wall clock showed, because the last commits have their times from another clock."""
        with self._lock:
            self._judge = Judge(self._clock.now_us(), self._clock.monotonic(), last_us, self._confirm_seconds)
            self._said = Doubt.NONE

    def read(self) -> Reading:
        """The time now."""
        with self._lock:
            found = self._judge.read(self._clock.now_us(), self._clock.monotonic())
            before, self._said = self._said, found.doubt
        if found.doubt is not before:
            self._say(found)
        return found

    def accept(self) -> Reading:
        """Trust the wall clock, because an operator says so."""
        with self._lock:
            found = self._judge.accept(self._clock.now_us(), self._clock.monotonic())
            self._said = found.doubt
        log.warning("the clock is accepted as an operator says: it is right, and rows may be deleted by it")
        return found

    def deleting_us(self, stamp_us: int) -> int:
        """The time for deleting by age. If nothing may be deleted, a time before all commits."""
        found = self.read()
        return min(found.time_us, stamp_us) if found.may_delete else -(1 << 62)

    def sentence(self, found: Reading) -> str:
        """A sentence about the clock's state and what ends it; empty if there is no doubt."""
        if found.doubt is Doubt.NONE:
            return ""
        if found.doubt is Doubt.START:
            return f"the clock has not yet been watched for {self._confirm_seconds:.0f} s since the start: {_HELD}"
        return (
            f"the clock is {abs(found.offset_us) / 1e6:.0f} s {found.doubt} of the time since the last commits: it is "
            f"believed once it has stood for {self._confirm_seconds:.0f} s, or at once by `lakestore clock --accept`; "
            f"until then {_HELD}"
        )

    def _say(self, found: Reading) -> None:
        if found.doubt is Doubt.NONE:
            log.info("the clock is confirmed")
        elif found.doubt is not Doubt.START:
            log.warning("%s", self.sentence(found))
