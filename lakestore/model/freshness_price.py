"""The price of a table's freshness: the cost of an hour with it, computed from the rounds that the lake remembers.

Rounds that come less often have more changes each. So four laws, fitted to the table's rounds, say what a round costs:

1. Files: changes fall upon places (files, partitions) at random. N changes meet G places of G: `G (1 - (1 - 1/G)^N)`.
   G is chosen so that the mean round has the files that it had. The same holds for delete files, with a G of its own.
2. Seconds: a part for each round, and a part for each change.
3. Bytes: a part for each file, of at most 16 KB, and a part for each change.
4. Rewrites: their seconds and bytes go with the files that rounds write, since a rewrite begins at a number of files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from lakestore.errors import Invalid

BANDS = (1, 10, 60, 300, 900, 3600)
"""The freshness of each line, in seconds."""
ROUNDS_MIN = 5
"""The least number of rounds for a price."""
REQUESTS_PER_ROUND, REQUESTS_PER_FILE = 8, 3
"""Requests of a round to an object store, the server's among them; tests/lake/test_requests_of_a_round.py counts 14 for
two files and 17 for three.
"""
PAUSE_SECONDS = 0.05
"""The shortest pause between two rounds of a table."""
FILE_BYTES_MAX = 16 << 10
"""The most that a file has beside its rows. Rounds of one size do not tell that from the bytes of rows."""
ROUNDS_KEPT = 5
"""Number of a table's last rounds. The tierer expects the next round to take as long as the longest of them."""
REST_SHARE = 0.25
"""The least time between the beginnings of two rounds, as a share of the freshness."""
_PLACES_MAX = 1e9
_STEPS = 20


@dataclass(frozen=True, slots=True)
class PastRound:
    """One round, from the summary of its snapshot."""

    at: float
    """Seconds of its commit since 1970."""
    seconds: float
    """From the plan to the commit; 0 for a round of an older release, which did not say."""
    changes: int
    files: int
    delete_files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PastRewrite:
    """One compaction, from the summary of its snapshot."""

    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Price:
    """The cost of a freshness in an hour."""

    freshness: int
    """Seconds."""
    rounds: float
    files: float
    """Data files and delete files that rounds write."""
    requests: float
    """To an object store. A folder gets none."""
    bytes: float
    """Written by rounds."""
    rewrite_seconds: float
    rewrite_bytes: float
    age: float
    """Seconds after which a change is in the lake, at most; above the freshness if rounds take longer than that."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The load that the remembered rounds had."""

    rounds: int
    seconds: float
    """Between the first and the last of them."""
    changes: float
    """In a second."""


def priced(
    rounds: Sequence[PastRound], rewrites: Sequence[PastRewrite], bands: Sequence[int]
) -> tuple[Rate, list[Price]]:
    """The load and the price of each freshness. Raises `Invalid` if there are too few rounds.

    The first round only marks the time at which the others begin.
    """
    later = rounds[1:]
    span = rounds[-1].at - rounds[0].at if rounds else 0.0
    if len(later) >= ROUNDS_MIN and span <= 0:
        raise Invalid(
            f"the last of the {len(rounds)} rounds that the lake remembers is not later than the first, because a clock"
            " was set back between them: ask again after some more rounds"
        )
    if len(later) < ROUNDS_MIN:
        raise Invalid(
            f"the lake remembers {len(rounds)} rounds of the table, and a price needs {ROUNDS_MIN + 1}: let `lakestore"
            " tier` run beside the table's usual load for a while, then ask again"
        )
    rate = Rate(len(later), span, sum(each.changes for each in later) / span)
    laws = _Laws(later, rewrites)
    return rate, [laws.price(band, rate.changes) for band in bands]


class _Laws:
    """The laws of a table's rounds."""

    def __init__(self, rounds: Sequence[PastRound], rewrites: Sequence[PastRewrite]) -> None:
        changes = [float(each.changes) for each in rounds]
        mean = fmean(changes)
        self._files = _Places(mean, fmean(each.files for each in rounds))
        self._deletes = _Places(mean, fmean(each.delete_files for each in rounds))
        timed = [each for each in rounds if each.seconds > 0]
        self._seconds = _line([float(each.changes) for each in timed], [each.seconds for each in timed])
        longest = [max(each.seconds for each in timed[at : at + ROUNDS_KEPT]) for at in range(len(timed))]
        self._slack = fmean(longest) - fmean(each.seconds for each in timed) if timed else 0.0
        files = [float(each.files + each.delete_files) for each in rounds]
        self._bytes = _plane(files, changes, [float(each.bytes) for each in rounds], FILE_BYTES_MAX)
        written = sum(files)
        self._rewrite_seconds = sum(each.seconds for each in rewrites) / written if written else 0.0
        self._rewrite_bytes = sum(each.bytes for each in rewrites) / written if written else 0.0

    def price(self, freshness: int, rate: float) -> Price:
        interval, took = float(freshness), 0.0
        for _ in range(_STEPS):  # a round's length depends on its changes, and they on the length
            took = self._seconds(rate * interval)
            interval = max(freshness - took - self._slack, freshness * REST_SHARE, took + PAUSE_SECONDS)
        changes, rounds = rate * interval, 3600 / interval
        files, deletes = self._files.met(changes), self._deletes.met(changes)
        written = files + deletes
        return Price(
            freshness,
            rounds,
            rounds * written,
            rounds * (REQUESTS_PER_ROUND + REQUESTS_PER_FILE * written),
            rounds * self._bytes(written, changes),
            rounds * written * self._rewrite_seconds,
            rounds * written * self._rewrite_bytes,
            interval + took + self._slack,
        )


class _Places:
    """Places at which changes fall at random; fitted to the mean round."""

    def __init__(self, changes: float, met: float) -> None:
        self._per_change = met / changes if changes else 0.0
        self._count = _PLACES_MAX
        if met == 0 or met >= changes:
            return
        low, high = met, _PLACES_MAX
        for _ in range(100):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if _met(middle, changes) < met else (low, middle)
        self._count = high

    def met(self, changes: float) -> float:
        """Places that so many changes meet."""
        if self._count >= _PLACES_MAX:
            return self._per_change * changes
        return _met(self._count, changes)


def _met(places: float, changes: float) -> float:
    if places <= 1:
        return min(changes, 1.0)
    return -places * math.expm1(changes * math.log1p(-1 / places))


def _line(xs: Sequence[float], ys: Sequence[float]) -> Callable[[float], float]:
    """The line nearest to the points that never falls and is never below zero."""
    if not xs:
        return lambda x: 0.0
    x_mean, y_mean = fmean(xs), fmean(ys)
    spread = sum((x - x_mean) ** 2 for x in xs)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
    slope = min(max(slope, 0.0), y_mean / x_mean if x_mean else 0.0)
    return lambda x: y_mean + slope * (x - x_mean)


def _plane(
    us: Sequence[float], vs: Sequence[float], ys: Sequence[float], most: float
) -> Callable[[float, float], float]:
    """`a u + b v` nearest to the points, with neither below zero and `a` at most `most`."""
    uu, vv, uv = _dot(us, us), _dot(vs, vs), _dot(us, vs)
    det = uu * vv - uv * uv
    a = (_dot(us, ys) * vv - _dot(vs, ys) * uv) / det if det > 1e-6 * uu * vv else 0.0
    a = min(max(a, 0.0), most, sum(ys) / sum(us) if sum(us) else 0.0)
    b = (sum(ys) - a * sum(us)) / sum(vs) if sum(vs) else 0.0
    return lambda u, v: a * u + b * v


def _dot(xs: Sequence[float], ys: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(xs, ys, strict=True))
