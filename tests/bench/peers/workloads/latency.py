"""From the append of a row to a subscriber that has it, at a calm rate and at a busier one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tests.bench.peers.contest import LESS, Measure, Workload
from tests.bench.peers.contestants import fluss, kafka, lakestore

RATES, TURN_SECONDS = (200, 2_000), 5.0
CAUSE = (
    "A subscriber of Lakestore sees a row when it is durable: one write and one sync, 0.25 ms here. The rest is mostly"
    " Python and hand-overs between its threads: a commit of one row takes 0.9 ms of processor time in the client and"
    " 2.3 ms in the server. At 2,000 rows/s several rows share a commit and wait for the one before it."
)


class Delay(Protocol):
    """The methods that this workload calls on a system."""

    def delay(self, name: str, rate: int, seconds: float) -> tuple[float, float]:
        """Median and 99th percentile in milliseconds, of a new log with so many rows a second."""


def _names(rate: int) -> tuple[str, str]:
    return f"{rate:,} rows/s, p50", f"{rate:,} rows/s, p99"


def prepare(system: Delay, scale: float) -> tuple[Delay, float]:
    """Warm the system up."""
    seconds = max(TURN_SECONDS * scale, 0.5)
    for rate in RATES:
        system.delay(f"warm{rate}", rate, seconds)
    return system, seconds


def turn(stage: tuple[Delay, float], number: int) -> Mapping[str, float]:
    """Milliseconds of each rate."""
    system, seconds = stage
    values: dict[str, float] = {}
    for rate in RATES:
        values |= zip(_names(rate), system.delay(f"delay{rate}_{number}", rate, seconds), strict=True)
    return values


WORKLOAD = Workload(
    title="Append to subscriber",
    what=(
        "One producer appends single rows of 8 bytes to a log at a steady rate, one subscriber follows it. Time from"
        " the call of the append to the row in the subscriber's hands, both in one process, for"
        f" {TURN_SECONDS:.0f} s at each rate. The clients of Lakestore and Kafka are Python, Fluss's is Java."
    ),
    measures=[Measure(name, "ms", LESS, 2, CAUSE) for rate in RATES for name in _names(rate)],
    contestants=(
        lakestore.CONTESTANT,
        kafka.contestant(kafka.QUICK, is_synced=True),
        kafka.contestant(kafka.QUICK, is_synced=False),
        fluss.contestant(*fluss.QUICK_ROWS),
    ),
    prepare=prepare,
    turn=turn,
    warm_rounds=1,
)
