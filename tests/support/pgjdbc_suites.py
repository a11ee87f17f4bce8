"""pgjdbc's own tests, from the sources of its release on Maven, run by JUnit against a `WriterProxy`."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from jepsen.system.jvm import SHORT_LIVED
from lakestore.java import java
from lakestore_demo.ivy import fetch
from tests.support.java_source import compiled_tree
from tests.support.postgres import DATABASE, USER
from tests.support.writer_proxy import WriterProxy

VERSION = "42.7.11"
"""The newest release whose sources are served; those of 42.7.14 are not."""
_DRIVER = (f"org.postgresql:postgresql:{VERSION}",)
_SOURCES = (f"org.postgresql:postgresql:{VERSION}:tar.gz:jdbc-src",)
_JARS = (
    "org.junit.platform:junit-platform-console-standalone:1.14.0",
    "org.hamcrest:hamcrest:3.0",
    "uk.org.webcompere:system-stubs-jupiter:2.1.8",
    "uk.org.webcompere:system-stubs-core:2.1.8",
)
_FOLDERS = (
    "test/jdbc2",
    "test/jdbc3",
    "test/jdbc4",
    "test/jdbc42",
    "test/util",
    "test/annotations",
    "test/impl",
    "util",
)
_ISOLATED = re.compile(r"^@Isolated.*\n", re.MULTILINE)
"""JUnit does not run a class with parameters that is isolated. Here nothing runs beside it."""
_PACKAGE = "org.postgresql.test."

Outcomes = Mapping[str, Mapping[str, str]]
"""Class to test to `passed`, `skipped` or `failed: why`. A test of several parameters fails if it fails for one."""


def _unpack(folder: Path) -> None:
    packed = next(folder.glob("*.tar.gz"))
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    packed.unlink()
    for source in folder.glob("*/src/test/java/**/*.java"):
        text = source.read_text()
        if _ISOLATED.search(text):
            source.write_text(_ISOLATED.sub("", text))


def class_path() -> str:
    """The compiled tests and what they need."""
    (place,) = fetch("pgjdbc-tests", VERSION, _SOURCES, transitive=False, prepare=_unpack).glob("postgresql-*")
    sources = place / "src/test/java/org/postgresql"
    files = [*(sources / each for each in _FOLDERS), *sorted((sources / "test").glob("*.java"))]
    jars = fetch("pgjdbc-suites", VERSION, _JARS, transitive=False)
    return compiled_tree(f"pgjdbc-tests-{VERSION}", files, jars, fetch("pgjdbc", VERSION, _DRIVER, transitive=False))


def run(proxy: WriterProxy, classes: Sequence[str], folder: Path, seconds: float) -> Outcomes:
    """The outcomes of test classes, named below `org.postgresql.test`."""
    options = {
        "user.timezone": "UTC",
        "test.url.PGHOST": "127.0.0.1",
        "test.url.PGPORT": proxy.port,
        "test.url.PGDBNAME": DATABASE,
        "user": USER,
        "password": "any",
        "privilegedUser": USER,
        "privilegedPassword": "any",
        "build.properties.relative.path": folder,
        "junit.jupiter.execution.timeout.default": "300s",
    }
    command = [java(), *SHORT_LIVED, "-Xmx512m", *(f"-D{name}={value}" for name, value in options.items())]
    command += ["-cp", class_path(), "org.junit.platform.console.ConsoleLauncher", "execute", "--disable-banner"]
    command += ["--details", "none", "--reports-dir", str(folder)]
    for name in classes:
        command += ["--select-class", f"{_PACKAGE}{name}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    report = folder / "TEST-junit-jupiter.xml"
    assert report.exists(), done.stdout[-3000:] + done.stderr
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for case in ElementTree.parse(report).iter("testcase"):
        tests = found[case.get("classname", "").removeprefix(_PACKAGE)]
        name, outcome = case.get("name", "").partition("(")[0], _outcome(case)
        if not tests.get(name, "").startswith("failed"):
            tests[name] = outcome
    shutil.rmtree(folder)
    return found


def _outcome(case: ElementTree.Element) -> str:
    for kind in ("failure", "error"):
        problem = case.find(kind)
        if problem is not None:
            return f"failed: {problem.get('message') or problem.get('type')}"
    return "skipped" if case.find("skipped") is not None else "passed"
