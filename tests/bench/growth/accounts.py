"""Accounts of the machine about a server: bytes that it wrote, memory that it holds, the disk that its folder takes."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.process import ServerProcess

SETTLED_SECONDS = 4.0
"""The index is at rest when its files have been the same for so long."""


def pids(server: ServerProcess) -> list[int]:
    """The server and the processes below it: index and presenter."""
    below = Path(f"/proc/{server.pid}/task/{server.pid}").parent
    children = [each.joinpath("children") for each in below.iterdir()]
    return [server.pid, *(int(pid) for child in children if child.exists() for pid in child.read_text().split())]


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Written:
    """The kernel's account of what processes made it write: `write_bytes` of /proc/<pid>/io of server and children.

    Pages are counted when they are first dirtied; those of a file that is removed before they reach the disk are
    counted too, and known as cancelled.
    """

    nbytes: int
    cancelled: int

    @staticmethod
    def of(server: ServerProcess) -> Written:
        """The sums so far; those of children that ended are in their parent's."""
        total = {"write_bytes": 0, "cancelled_write_bytes": 0}
        for pid in pids(server):
            for line in Path(f"/proc/{pid}/io").read_text().splitlines():
                name, value = line.split(": ")
                if name in total:
                    total[name] += int(value)
        return Written(total["write_bytes"], total["cancelled_write_bytes"])

    def since(self, before: Written) -> Written:
        """The difference."""
        return Written(self.nbytes - before.nbytes, self.cancelled - before.cancelled)


def anonymous_bytes(server: ServerProcess) -> int:
    """Memory of server and children that no file stands behind."""
    return sum(_status(pid, "RssAnon") for pid in pids(server))


def _status(pid: int, name: str) -> int:
    path = Path(f"/proc/{pid}/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def disk_bytes(folder: Path) -> int:
    """Bytes that the files of a folder take on the disk."""
    return sum(size for _, size in _files(folder))


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    for path in folder.rglob("*"):
        try:
            about = path.stat()
        except FileNotFoundError:  # removed meanwhile
            continue
        if path.is_file():
            yield str(path), about.st_blocks * 512


def settle(folder: Path, limit: float) -> bool:
    """Wait until the files of a folder stay as they are; whether they did within the limit."""
    began = same_since = time.perf_counter()
    before: dict[str, int] = {}
    while time.perf_counter() - began < limit:
        now = dict(_files(folder))
        if now != before:
            before, same_since = now, time.perf_counter()
        elif time.perf_counter() - same_since >= SETTLED_SECONDS:
            return True
        time.sleep(0.2)
    return False


def checkpoints(server: ServerProcess) -> tuple[int, float]:
    """(number of checkpoints since the start, the seconds that they took together), by the server's metrics."""
    found = {"lakestore_checkpoint_seconds_count": 0.0, "lakestore_checkpoint_seconds_sum": 0.0}
    with urllib.request.urlopen(f"http://{server.host}:{server.http_port}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            name, _, value = line.rpartition(" ")
            if name in found:
                found[name] = float(value)
    return int(found["lakestore_checkpoint_seconds_count"]), found["lakestore_checkpoint_seconds_sum"]
