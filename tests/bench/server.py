"""A server process for a bench, with rows as the peers' page describes them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("score", pa.float64()),
        ("count", pa.int32()),
        ("at", pa.timestamp("us")),
    ]
)
"""bigint, 16 characters, double, int, timestamp: 44 bytes."""
_NAMES = pa.array([f"name-{i:011d}" for i in range(100_000)])


def rows(ids: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Rows with these ids, at most 100,000."""
    count = len(ids)
    numbers = np.arange(count)
    return pa.record_batch(
        [
            pa.array(ids),
            _NAMES.slice(0, count),
            pa.array(numbers * 0.5),
            pa.array(numbers.astype(np.int32)),
            pa.array(numbers, pa.timestamp("us")),
        ],
        schema=SCHEMA,
    )


class ServerProcess:
    """`lakestore serve` on free ports."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.start()

    def start(self) -> None:
        """Start, and wait for its ports."""
        command = [sys.executable, "-m", "lakestore.server.main", "--data", str(self.data)]
        flags = ["--port", "0", "--http-port", "0", "--lease-grace-seconds", "0"]
        self._process = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True)
        if self._process.stdout is None:
            raise AssertionError("the server has no output")
        line = self._process.stdout.readline()
        found = re.search(r"gRPC on (\S+), .* on http://(\S+)", line)
        if found is None:
            raise AssertionError(f"the server did not start: {line!r}")
        self.address, self.http = found[1], found[2]

    def kill(self) -> None:
        """kill -9."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End it in order."""
        self._process.terminate()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()
