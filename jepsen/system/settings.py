"""Settings of a run's server, drawn from its seed: small limits, by which rare paths become common."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

CHOICES: Mapping[str, Sequence[object]] = {
    "LIMITS_JOURNAL_CHECKPOINT_BYTES": (16_384, 65_536, 1_048_576),
    "LIMITS_OVERLAY_CHECKPOINT_KEYS": (50, 1_000, 1_000_000),
    "LIMITS_INDEX_CACHE_KEYS": (0, 20, 2_000_000),
    "LIMITS_SEGMENT_ROWS": (200, 1_000_000),
    "LIMITS_SEGMENT_BYTES": (16_384, 536_870_912),
    "LIMITS_SHARED_SEGMENT_BYTES": (0, 1_048_576),
    "LIMITS_COMPACTION_BYTES": (32_768, 268_435_456),
    "LIMITS_EXTENT_BYTES": (1, 1, 65_536),
    "LIMITS_EXTENT_FILE_PERCENT": (1, 10, 50),
    "LIMITS_COMPRESSED_PERCENT": (0, 0, 80),
    "LIMITS_GROUP_BYTES": (1_000, 4_194_304),
    "LIMITS_CHANGES_BATCH_ROWS": (3, 65_536),
    "LIMITS_FETCH_BATCH_ROWS": (7, 131_072),
    "LIMITS_READ_BATCH_BYTES": (4_096, 16_777_216),
    "LIMITS_FEED_CACHE_BYTES": (0, 67_108_864),
    "LIMITS_DEAD_CACHE_RANGES": (1, 64),
    "LIMITS_CLOCK_CONFIRM_SECONDS": (0, 1, 3),
    "LIMITS_SCRUB_BYTES": (0, 16_777_216),
    "LEASE_GRACE_SECONDS": (0, 60),
    "RETENTION_CHECK_SECONDS": (0.3, 2.0),
    "EXPIRY_CHECK_SECONDS": (0.3, 2.0),
    "REBALANCE_SECONDS": (0.5, 3.0),
    "DRAIN_SECONDS": (2.0, 20.0),
}


def drawn(chance: random.Random) -> dict[str, str]:
    """Variables of the server, each with one of its choices."""
    return {f"LAKESTORE_{name}": str(chance.choice(choices)) for name, choices in CHOICES.items()}
