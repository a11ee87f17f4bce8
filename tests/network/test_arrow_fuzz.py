"""Damaged Arrow streams never crash, hang or bloat the decoder; FUZZ_INPUTS and LAKESTORE_SEED for longer runs."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.seeds import seed

SECONDS_PER_INPUT = 0.05
START_SECONDS = 120


def test_damaged_streams_are_refused_or_walked_through() -> None:
    chosen, count = str(seed(1)), int(os.environ.get("FUZZ_INPUTS", "3000"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.arrow_fuzz", chosen, str(count)],
        capture_output=True,
        text=True,
        timeout=START_SECONDS + count * SECONDS_PER_INPUT,
        check=False,
    )
    last = done.stdout.strip().splitlines()[-1:]
    assert done.returncode == 0, f"{last}, ended with {done.returncode}: {done.stderr[-2000:]}"
    assert last[0].startswith("done: ")
