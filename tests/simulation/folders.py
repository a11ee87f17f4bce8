"""Folders of runs: in memory where the machine allows it, and of the same length in every process."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
"""A file system in memory, on Linux."""


@contextmanager
def folder() -> Iterator[Path]:
    """An empty folder, which goes with everything in it."""
    made = Path(tempfile.mkdtemp(prefix="lakestore-sim-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
