"""Where a script finds the checkout and its commands, and the folder that it may fill."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
LAKESTORE = str(Path(sys.executable).parent / "lakestore")
# A server takes no variable LAKESTORE_… that is no setting: those started here must not see this one.
WORK = Path(os.environ.pop("LAKESTORE_REPRO_WORK", "") or tempfile.mkdtemp(prefix="lakestore-repro-")).resolve()


def room(name: str) -> Path:
    """A folder of WORK, made if it is not there."""
    folder = WORK / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
