"""Seeds of random tests: which one a test ran with, and how to run it again."""

from __future__ import annotations

import os
import random

VARIABLE = "LAKESTORE_SEED"


def seed(default: int | str | None = None) -> int | str:
    """The seed of `LAKESTORE_SEED`, else the default, else any; printed, so that a test that fails shows it."""
    given = os.environ.get(VARIABLE) or default
    chosen = random.randrange(1, 1 << 31) if given is None else given
    chosen = int(chosen) if str(chosen).isdecimal() else chosen
    name = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0].rpartition("::")[2].partition("[")[0]
    print(f'seed {chosen}: run again with {VARIABLE}={chosen} make test ARGS="-k {name}"')
    return chosen


def seeded(default: int | str | None = None) -> random.Random:
    """Chances that are the same for the same seed."""
    return random.Random(seed(default))
