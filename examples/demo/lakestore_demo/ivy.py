"""Fetches Java programs by Maven coordinates, once for this environment, with the Ivy in Spark.

The files are in `<sys.prefix>/<name>/<version>`. The folder gets its name when it is complete, so a failed fetch leaves
nothing, and two processes that fetch at once share one folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from lakestore.errors import Unavailable
from lakestore.java import java
from lakestore.release import wheel_with

FETCH_SECONDS = 600.0
_SETTINGS = """<ivysettings><settings defaultResolver="central"/><resolvers>
<ibiblio name="central" m2compatible="true" usepoms="{poms}"{root}/></resolvers></ivysettings>"""
_MODULE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="lakestore" module={name}/><dependencies>{dependencies}</dependencies></ivy-module>"""
_DEPENDENCY = '<dependency org={group} name={name} rev={version} transitive="{transitive}" conf="default"'
_FILE = '<artifact name={name} type={kind} ext={kind}{classifier} conf="default"/>'


def fetch(
    name: str,
    version: str,
    coordinates: Sequence[str],
    *,
    transitive: bool = True,
    prepare: Callable[[Path], None] | None = None,
) -> Path:
    """Return the folder with the files of `group:artifact:version[:kind[:classifier]]` coordinates.

    With `transitive` it also holds the jars of their dependencies. `prepare` gets the folder before it is renamed.
    Raises `Unavailable` if Java or a file is missing.
    """
    folder = Path(sys.prefix) / name / version
    if (folder / ".ready").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as place:
        files = retrieve(name, coordinates, Path(place), transitive=transitive)
        if prepare is not None:
            prepare(files)
        (files / ".ready").touch()
        if (folder / ".ready").exists():  # another process fetched them meanwhile and may be running them
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        try:
            files.rename(folder)
        except OSError as error:
            if not (folder / ".ready").exists():
                raise Unavailable(f"the jars of {name} cannot be kept in {folder}: {error.strerror}") from error
    return folder


def retrieve(name: str, coordinates: Sequence[str], place: Path, *, transitive: bool) -> Path:
    """Fetch the files into a folder in `place` and return the folder."""
    mirror = os.environ.get("DEFAULT_ARTIFACT_REPOSITORY")  # Spark reads its mirror from the same variable
    settings, module, folder = place / "settings.xml", place / "ivy.xml", place / "jars"
    root = f" root={quoteattr(mirror)}" if mirror else ""
    settings.write_text(_SETTINGS.format(poms=str(transitive).lower(), root=root))
    dependencies = "".join(_dependency(coordinate, transitive) for coordinate in coordinates)
    module.write_text(_MODULE.format(name=quoteattr(name), dependencies=dependencies))
    command = [
        java(), "-jar", str(_ivy(name)), "-settings", str(settings), "-ivy", str(module),
        "-cache", str(place / "cache"), "-confs", "default", "-types", "jar", "bundle", "zip", "tar.gz",
        "-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]", "-warn",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"the jars of {name} were not there after {FETCH_SECONDS:.0f} s") from error
    missing = [artifact for artifact in (c.split(":")[1] for c in coordinates) if not any(folder.glob(f"{artifact}-*"))]
    if done.returncode or missing:
        raise Unavailable(
            f"the jars of {name} cannot be fetched ({_problem(done.stdout + done.stderr)}): let this machine reach"
            " Maven Central, or name a mirror in DEFAULT_ARTIFACT_REPOSITORY"
        )
    return folder


def _dependency(coordinate: str, transitive: bool) -> str:
    group, name, version, *rest = coordinate.split(":")
    dependency = _DEPENDENCY.format(
        group=quoteattr(group), name=quoteattr(name), version=quoteattr(version), transitive=str(transitive).lower()
    )
    if transitive and not rest:
        return f"{dependency}/>"
    kind, classifier = rest[0] if rest else "jar", f" m:classifier={quoteattr(rest[1])}" if len(rest) > 1 else ""
    file = _FILE.format(name=quoteattr(name), kind=quoteattr(kind), classifier=classifier)
    return f"{dependency}>{file}</dependency>"


def _problem(output: str) -> str:
    lines = [line.strip(" \t:") for line in output.splitlines() if line.strip(" \t:")]
    causes = [line for line in lines if "not found" in line or "exception" in line.lower()]
    return next(iter(causes or lines), "Ivy says nothing")


def _ivy(name: str) -> Path:
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise Unavailable(f"the jars of {name} come through Spark: {wheel_with('spark')}")
    jars = sorted((Path(spark.origin).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise Unavailable(f"the jars of {name} cannot be fetched: Spark has no Ivy")
    return jars[-1]
