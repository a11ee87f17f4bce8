"""Look-ups of rows by key in a table of 1 M keys: many at once, and one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from tests.bench.peers.contest import LESS, Measure, Workload
from tests.bench.peers.contestants import fluss, lakestore
from tests.bench.peers.contestants.fluss import QUICK_LOOKUPS
from tests.bench.peers.workloads.upserts import BUCKETS, Keyed

KEYS, TURN_SECONDS, SINGLES = 1_000_000, 4.0, 2_000
CAUSE = (
    "Client and server are Python. A call takes 0.47 ms of processor time in the client and as much in the server, most"
    " of it gRPC and hand-overs between threads."
)
MANY, HALF, TAIL = "look-ups of many keys at once", "one look-up, p50", "one look-up, p99"


class Lookups(Keyed, Protocol):
    """The methods that this workload calls on a system."""

    def lookups(self, name: str, keys: int, seconds: float) -> tuple[int, float]:
        """Rows and seconds of look-ups of uniform keys for about so many seconds, as many at once as serves it."""

    def singles(self, name: str, keys: int, count: int) -> tuple[float, float]:
        """Median and 99th percentile in milliseconds of look-ups, each begun when the one before has its answer."""


class Stage(NamedTuple):
    """A filled system, and the work of a turn."""

    system: Lookups
    keys: int
    seconds: float
    singles: int


def prepare(system: Lookups, scale: float) -> Stage:
    """Fill the table."""
    stage = Stage(system, int(KEYS * scale), max(TURN_SECONDS * scale, 0.5), max(int(SINGLES * scale), 100))
    system.make_keyed("whole", BUCKETS)
    system.insert("whole", 0, stage.keys)
    system.lookups("whole", stage.keys, stage.seconds)
    system.singles("whole", stage.keys, stage.singles)
    return stage


def turn(stage: Stage, _: int) -> Mapping[str, float]:
    """Keys a second, and milliseconds."""
    rows, seconds = stage.system.lookups("whole", stage.keys, stage.seconds)
    half, tail = stage.system.singles("whole", stage.keys, stage.singles)
    return {MANY: rows / seconds, HALF: half, TAIL: tail}


WORKLOAD = Workload(
    title="Look-ups, 1 M keys",
    what=(
        f"One client looks up uniform keys of a table with {KEYS:,} keys in {BUCKETS} buckets, which all exist: for"
        f" {TURN_SECONDS:.0f} s as many at once as serves the system (Lakestore: calls of 1,000 keys, one after the"
        f" other; Fluss: 20,000 under way), then {SINGLES:,} one after the other. Lakestore's client is Python, Fluss's"
        " is Java."
    ),
    measures=(Measure(MANY, "keys/s"), Measure(HALF, "ms", LESS, 2, CAUSE), Measure(TAIL, "ms", LESS, 2, CAUSE)),
    contestants=(lakestore.CONTESTANT, fluss.contestant(QUICK_LOOKUPS)),
    prepare=prepare,
    turn=turn,
)
