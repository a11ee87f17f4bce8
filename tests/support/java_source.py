"""Java sources of tests, compiled by Eclipse's compiler, so that a Java without `javac` is enough."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from jepsen.system.jvm import SHORT_LIVED
from lakestore.java import java
from lakestore_demo.ivy import fetch

COMPILER = "3.40.0"
COMPILE_SECONDS = 120.0


def compiled(source: Path, *places: Path) -> str:
    """The class path of a source file and the jars at `places`: jars, or folders of jars. Each text of the file is
    compiled once."""
    return _compiled(f"{source.stem}-{zlib.crc32(source.read_bytes()):08x}", [source], places)


def compiled_tree(name: str, sources: Sequence[Path], *places: Path) -> str:
    """The same for files and folders of a release that `name` tells. A method that does not compile fails when it is
    called."""
    return _compiled(name, sources, places, "-proceedOnError")


def _compiled(name: str, sources: Sequence[Path], places: Sequence[Path], *options: str) -> str:
    jars = (jar for place in places for jar in (sorted(place.glob("*.jar")) if place.is_dir() else [place]))
    class_path = ":".join(map(str, jars))
    classes = Path(sys.prefix) / "java-classes" / name
    if classes.exists():
        return f"{classes}:{class_path}"
    compiler = fetch("ecj", COMPILER, (f"org.eclipse.jdt:ecj:{COMPILER}",), transitive=False)
    classes.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=classes.parent) as place:
        out = Path(place, "classes")
        command = [java(), *SHORT_LIVED, "-jar", str(next(compiler.glob("*.jar"))), "-17", "-nowarn", "-proc:none"]
        command += [*options, "-cp", class_path, "-d", str(out), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
        assert done.returncode == 0 or (options and out.exists()), done.stdout + done.stderr
        if not classes.exists():  # another process may have compiled it meanwhile
            out.rename(classes)
    return f"{classes}:{class_path}"
