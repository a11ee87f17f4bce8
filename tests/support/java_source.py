"""Java sources of tests, compiled by Eclipse's compiler, so that a Java without `javac` is enough."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

from jepsen.system.jvm import SHORT_LIVED
from lakestore.java import java
from lakestore_demo.ivy import fetch

COMPILER = "3.40.0"
COMPILE_SECONDS = 120.0


def compiled(source: Path, *places: Path) -> str:
    """The class path of a source file and the jars at `places`: jars, or folders of jars. Each text of the file is
    compiled once."""
    jars = (jar for place in places for jar in (sorted(place.glob("*.jar")) if place.is_dir() else [place]))
    class_path = ":".join(map(str, jars))
    classes = Path(sys.prefix) / "java-classes" / f"{source.stem}-{zlib.crc32(source.read_bytes()):08x}"
    if classes.exists():
        return f"{classes}:{class_path}"
    compiler = fetch("ecj", COMPILER, (f"org.eclipse.jdt:ecj:{COMPILER}",), transitive=False)
    classes.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=classes.parent) as place:
        out = Path(place, "classes")
        command = [java(), *SHORT_LIVED, "-jar", str(next(compiler.glob("*.jar"))), "-17", "-nowarn", "-proc:none"]
        command += ["-cp", class_path, "-d", str(out), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        if not classes.exists():  # another process may have compiled it meanwhile
            out.rename(classes)
    return f"{classes}:{class_path}"
