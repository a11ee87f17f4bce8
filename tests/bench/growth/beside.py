"""`python -m tests.bench.growth.beside ADDRESS TABLE KEYS SECONDS KIND`: a second producer, in a process of its own.

Commits ten rows of random keys, again and again with pauses, and prints how long each commit took, as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence

import lakestore
from tests.bench.growth.rows import Rows

PAUSE_SECONDS = 0.05
COMMIT_ROWS = 10


def begun(address: str, table: str, keys: int, seconds: float, kind: str) -> subprocess.Popen[str]:
    """The process, which has begun."""
    command = [sys.executable, "-m", "tests.bench.growth.beside", address, table, str(keys), str(seconds), kind]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str], seconds: float) -> list[float]:
    """The milliseconds of each commit."""
    said, _ = process.communicate(timeout=seconds)
    if process.returncode:
        raise subprocess.SubprocessError(f"the second producer ended with {process.returncode}")
    found: list[float] = json.loads(said)
    return found


def main(address: str, name: str, keys: str, seconds: str, kind: str) -> None:
    """Commit for so many seconds."""
    rows, took = Rows(9, kind), []
    with lakestore.connect(address) as lake:
        table = lake.table(name)
        end = time.perf_counter() + float(seconds)
        while (began := time.perf_counter()) < end:
            table.upsert(rows.uniform(int(keys), COMMIT_ROWS))
            took.append(round((time.perf_counter() - began) * 1e3, 3))
            time.sleep(PAUSE_SECONDS)
    sys.stdout.write(json.dumps(took))


def _run(arguments: Sequence[str]) -> None:
    main(*arguments)


if __name__ == "__main__":
    _run(sys.argv[1:])
