"""Facts about the machine."""

from __future__ import annotations

import os
from pathlib import Path

MAPS_DEFAULT = 65_530
"""Linux's default limit of mapped files for a process."""
_MAPS = Path("/proc/sys/vm/max_map_count")
_GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def memory_bytes(group_limit: Path = _GROUP_LIMIT) -> int:
    """Memory that the process may use: the machine's, or less by its control group."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        said = group_limit.read_text().strip()
    except OSError:
        return machine
    return min(machine, int(said)) if said.isdecimal() else machine


def maps_max(said: Path = _MAPS) -> int:
    """The limit of mapped files for a process. Beyond it no checkpoint can map its files."""
    try:
        return int(said.read_text())
    except (OSError, ValueError):
        return MAPS_DEFAULT
