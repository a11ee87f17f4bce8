"""The machine that measures, and its pace: a shared machine is half as fast at one moment as at another."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

HASHED_BYTES, GATHERED_BYTES, GATHERS, SYNCED_BYTES = 64 << 20, 256 << 20, 2_000_000, 64 << 20
TIMES = 3
"""The fastest of so many tries counts, of the disk the middle one."""
WHATS = "hashed", "gathered", "synced"
Pace = dict[str, float]


def pace(folder: Path) -> Pace:
    """One core's MB/s of SHA-256, nanoseconds of a random read of memory, MB/s written and synced into a folder."""
    data, words = os.urandom(max(HASHED_BYTES, SYNCED_BYTES)), np.arange(GATHERED_BYTES // 8)
    places = np.random.default_rng(1).integers(0, len(words), GATHERS)
    hashed = HASHED_BYTES / 1e6 / min(_tried(lambda: hashlib.sha256(data[:HASHED_BYTES]).digest()))
    gathered = min(_tried(lambda: words[places])) / GATHERS * 1e9
    synced = SYNCED_BYTES / 1e6 / sorted(_tried(lambda: _synced(folder / "pace", data)))[TIMES // 2]
    return dict(zip(WHATS, (hashed, gathered, synced), strict=True))


def description() -> str:
    """One line about this machine for the head of a table: system, processor, memory, version of Python."""
    processor = next((value for name, value in _lines("/proc/cpuinfo") if name == "model name"), platform.machine())
    memory = next((int(value.split()[0]) for name, value in _lines("/proc/meminfo") if name == "MemTotal"), 0)
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores ({processor}), "
        f"{memory / 1e6:.0f} GB, Python {platform.python_version()}"
    )


def load() -> float:
    """Mean number of processes that wanted a core in the last minute."""
    return round(os.getloadavg()[0], 2)


def _lines(file: str) -> Iterator[tuple[str, str]]:
    for line in Path(file).read_text().splitlines():
        name, _, value = line.partition(":")
        yield name.strip(), value.strip()


def _tried(work: Callable[[], object]) -> list[float]:
    seconds = []
    for _ in range(TIMES):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return seconds


def _synced(file: Path, data: bytes) -> None:
    with file.open("wb") as out:
        out.write(data[:SYNCED_BYTES])
        out.flush()
        os.fsync(out.fileno())
    file.unlink()


def told(paces: Mapping[str, Pace]) -> str:
    """What the parts met, in their order."""
    if not paces:
        return ""
    hashed, gathered, synced = (_listed([each[what] for each in paces.values()]) for what in WHATS)
    return (
        f"before {', '.join(paces)}: SHA-256 {hashed} MB/s; a random read of memory {gathered} ns; "
        f"written and synced {synced} MB/s"
    )


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:,.0f}" for value in values)
