"""The machine as the server finds it."""

from __future__ import annotations

import os
from pathlib import Path

MAPS_DEFAULT = 65_530
"""Mapped files that Linux allows a process where nobody said otherwise."""
_MAPS = Path("/proc/sys/vm/max_map_count")
_GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def memory_bytes(group_limit: Path = _GROUP_LIMIT) -> int:
    """Memory that the process may take: the machine's, or less where its control group says so."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        said = group_limit.read_text().strip()
    except OSError:
        return machine
    return min(machine, int(said)) if said.isdecimal() else machine


def maps_max(said: Path = _MAPS) -> int:
    """Mapped files that a process may have: beyond that no checkpoint can map what it wrote."""
    try:
        return int(said.read_text())
    except (OSError, ValueError):
        return MAPS_DEFAULT
