"""Servers that tests run beside ours, fetched by their Maven coordinates once for this environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

FETCH_SECONDS = 600.0


class MavenError(RuntimeError):
    """A server cannot be fetched."""


def fetched(name: str, version: str, artifacts: Sequence[str], then: Callable[[Path], None] | None = None) -> Path:
    """The folder of a program's artifacts; `then` makes the folder ready, where there is more to do."""
    folder = Path(sys.prefix) / name / version
    if (folder / ".ready").exists():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise MavenError(f"Maven is needed to fetch {name}: install it (mvn)")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for artifact in artifacts:
        copy = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
        done = subprocess.run(copy, capture_output=True, text=True, timeout=FETCH_SECONDS, cwd=folder, check=False)
        if done.returncode:
            raise MavenError(f"{artifact} cannot be fetched: {done.stdout[-1000:]}")
    if then is not None:
        then(folder)
    (folder / ".ready").touch()
    return folder
