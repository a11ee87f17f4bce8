"""Servers that tests run beside ours, fetched by their Maven coordinates once for this environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
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
    maven = _maven(name)
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


_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>lakestore</groupId><artifactId>{name}</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>"""


def resolved(name: str, version: str, coordinates: Sequence[str]) -> Path:
    """Return the folder with the jars of `group:artifact:version` coordinates and of everything that they need.

    The jars are fetched once for this environment. `MavenError` if Maven is missing or cannot reach its repository.
    """
    folder = Path(sys.prefix) / name / version
    if (folder / ".ready").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as place:
        parts = (coordinate.split(":") for coordinate in coordinates)
        dependencies = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{number}</version>"
            "</dependency>"
            for group, artifact, number in parts
        )
        Path(place, "pom.xml").write_text(_POM.format(name=name, dependencies=dependencies))
        command = [_maven(name), "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        command.append(f"-DoutputDirectory={place}/jars")
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, cwd=place, check=False)
        if done.returncode:
            raise MavenError(f"the jars of {name} cannot be fetched: {done.stdout[-1000:]}")
        Path(place, "jars", ".ready").touch()
        if not (folder / ".ready").exists():  # another process may have fetched them meanwhile
            shutil.rmtree(folder, ignore_errors=True)
            Path(place, "jars").rename(folder)
    return folder


def _maven(name: str) -> str:
    maven = shutil.which("mvn")
    if maven is None:
        raise MavenError(f"Maven is needed to fetch {name}: install it (mvn)")
    return maven
