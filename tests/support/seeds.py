"""Seeds of random tests. Without a wish a test always draws the same numbers, so `make test` is the same each time.

1. `LAKESTORE_SEED=5` gives every test this seed: it does a run again.
2. `LAKESTORE_EXPLORE=1` draws a new seed for each test that names none, and lets Hypothesis draw new examples.
   `make long` and `make crash` set it. A case that exploration finds becomes an example or a seed in its test.
3. The seed is printed, so a test that fails shows it.
"""

from __future__ import annotations

import itertools
import os
import random

VARIABLE = "LAKESTORE_SEED"
EXPLORE = "LAKESTORE_EXPLORE"
FIXED = 11
"""The seed of a test that names none, unless it explores."""
_SERIALS = itertools.count(1)


def explores() -> bool:
    """Whether tests draw cases that no earlier run had."""
    return os.environ.get(EXPLORE, "") not in ("", "0")


def seed(default: int | str | None = None) -> int | str:
    """The seed of `LAKESTORE_SEED`, else the default, else a new one when exploring, else `FIXED`."""
    given = os.environ.get(VARIABLE) or default
    if given is None:
        given = random.SystemRandom().randrange(1, 1 << 31) if explores() else FIXED
    chosen = int(given) if str(given).isdecimal() else given
    name = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0].rpartition("::")[2].partition("[")[0]
    print(f'seed {chosen}: run again with {VARIABLE}={chosen} make test ARGS="-k {name}"')
    return chosen


def examples(many: int) -> int:
    """The number of examples of a property: `many` if tests explore, else a third. The examples are then the same."""
    return many if explores() else max(many // 3, 5)


def seeded(default: int | str | None = None) -> random.Random:
    """Random numbers that are the same for the same seed."""
    return random.Random(seed(default))


def serial(name: str) -> str:
    """The name with a number that no earlier call of this process got: for topics and groups of one Kafka."""
    return f"{name}.{next(_SERIALS)}"
