"""Libraries of ours in C, preloaded into processes under test; compiled when they are first asked for."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path


class NoCompiler(RuntimeError):
    """There is no C compiler here, so there is no library."""


def library(source: Path) -> Path:
    """The compiled library of a C file, one for each content. `NoCompiler` says why there is none."""
    name = f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.so"
    for folder in (Path(sys.prefix) / "jepsen", Path(tempfile.gettempdir()) / f"jepsen-{os.getuid()}"):
        if (folder / name).exists():
            return folder / name
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.stat().st_uid == os.getuid():
                return _compiled(source, folder / name)
    raise NoCompiler(f"no folder for the compiled {source.stem} can be written")


def compiler() -> str:
    """The C compiler's path; empty where there is none, or where nothing can be preloaded."""
    found = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), "")
    return found if sys.platform == "linux" else ""


def _compiled(source: Path, target: Path) -> Path:
    program = compiler()
    if not program:
        raise NoCompiler(f"there is no C compiler (cc, gcc or clang) on a Linux here, so there is no {source.stem}")
    aside = target.with_suffix(f".{os.getpid()}-{time.monotonic_ns()}")
    options = ["-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-o", str(aside), str(source), "-lpthread", "-ldl"]
    made = subprocess.run([program, *options], capture_output=True, text=True, check=False)
    if made.returncode:
        raise NoCompiler(f"{source.name} cannot be compiled here: {made.stderr.strip()[:500]}")
    aside.replace(target)
    return target
