"""A wall clock of a part's own, that jumps, strobes, stands still and drifts while the part runs.

A library of ours is preloaded, made by `cc` from `clock.c`. libfaketime would do too, and was measured: it reads its
file with every look at the clock, which made the server 50 times slower, or looks once a second and cannot strobe.
"""

from __future__ import annotations

import itertools
import mmap
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from jepsen.system.preload import library

SOURCE = Path(__file__).with_name("clock.c")
STANDS_STILL = -1_000_000
_LAYOUT = struct.Struct("=4q")


class MovedClock:
    """The clock of the processes that are started with its `environment`. For one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """The folder gets the file that those processes look at."""
        self._path = folder / "clock"
        self._path.write_bytes(bytes(_LAYOUT.size))
        with self._path.open("r+b") as file:
            self._seen = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._lock = threading.Lock()
        self._count = 0
        self._strobe: threading.Event | None = None
        self.environment = {"LD_PRELOAD": str(library(SOURCE)), "JEPSEN_CLOCK": str(self._path)}

    def move(self, seconds: float, millionths: int = 0) -> None:
        """From now on the clock is so far ahead, and goes faster by so many millionths."""
        self._end_strobe()
        self._write(seconds, millionths)

    def strobe(self, ahead: Sequence[float], every_seconds: float) -> None:
        """From now on the clock jumps to and fro, so far ahead each time."""
        self._end_strobe()
        over = self._strobe = threading.Event()

        def run() -> None:
            for seconds in itertools.cycle(ahead):
                self._write(seconds, 0)
                if over.wait(every_seconds):
                    return

        self._strober = threading.Thread(target=run, name="strobe", daemon=True)
        self._strober.start()

    def _end_strobe(self) -> None:
        over, self._strobe = self._strobe, None
        if over is not None:
            over.set()
            self._strober.join()

    def _write(self, seconds: float, millionths: int) -> None:
        with self._lock:
            self._count += 2
            self._seen[:8] = struct.pack("=q", self._count - 1)
            self._seen[8:] = struct.pack("=3q", round(seconds * 1e9), time.time_ns(), millionths)
            self._seen[:8] = struct.pack("=q", self._count)

    def ahead(self) -> float:
        """Seconds that it is ahead by now."""
        with self._lock:
            _, add, since, millionths = _LAYOUT.unpack(self._seen[:])
        return float(add + (time.time_ns() - since) * millionths / 1e6) / 1e9

    def mend(self) -> None:
        """True time again."""
        self.move(0.0)
