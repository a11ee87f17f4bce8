"""The machine: Python, Java, memory, open and mapped files."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator, Mapping
from importlib import metadata

from lakestore.errors import Unavailable
from lakestore.java import java_home, java_version
from lakestore.limits import Limits
from lakestore.release import RELEASE
from lakestore_server.doctor.finding import Finding
from lakestore_server.host import sandbox
from lakestore_server.host.machine import MAPS_DEFAULT, maps_max, memory_bytes
from lakestore_server.operate import memory

PYTHON_MIN = (3, 11)
FILES_MIN = 4_096
"""Open files that a server with a thousand clients and segments wants."""
EXTRAS = {"spark": "pyspark", "kafka": "confluent-kafka", "duckdb": "duckdb"}
"""Extra of the distribution to a library of it."""


def software() -> Iterator[Finding]:
    """Release, Python and the extras that are installed."""
    version = platform.python_version()
    enough = tuple(map(int, platform.python_version_tuple()[:2])) >= PYTHON_MIN
    yield Finding(
        "python",
        "ok" if enough else "failed",
        f"Python {version}, Lakestore {RELEASE}",
        "" if enough else f"install Python {'.'.join(map(str, PYTHON_MIN))} or newer",
    )
    there = {extra: found for extra, library in EXTRAS.items() if (found := _version(library))}
    told = ", ".join(f"{extra} ({EXTRAS[extra]} {found})" for extra, found in there.items())
    yield Finding("extras", "ok", told or "none: the core alone")


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""


def java(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """The Java that Spark would run: tiering needs one, a server does not."""
    try:
        home = java_home(environment)
    except Unavailable as error:
        yield Finding("java", "warning", "none", f"{error}, where `lakestore tier` runs")
    else:
        yield Finding("java", "ok", f"version {java_version(home / 'bin' / 'java')} at {home}")


def limits_of_system(maps: int | None = None, files: int | None = None) -> Iterator[Finding]:
    """Open files and mapped files that a process may have."""
    open_max = files if files is not None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    enough = open_max == resource.RLIM_INFINITY or open_max >= FILES_MIN
    yield Finding(
        "open files",
        "ok" if enough else "warning",
        "no limit" if open_max == resource.RLIM_INFINITY else f"{open_max:,} for each process",
        "" if enough else f"raise it to {FILES_MIN:,} or more: `ulimit -n`, or LimitNOFILE of the systemd unit",
    )
    mapped = maps if maps is not None else maps_max()
    yield Finding(
        "mapped files",
        "ok" if mapped >= MAPS_DEFAULT else "warning",
        f"{mapped:,} for each process",
        "" if mapped >= MAPS_DEFAULT else f"set vm.max_map_count to {MAPS_DEFAULT:,} or more",
    )


def sandbox_of(there: sandbox.Support | None = None) -> Iterator[Finding]:
    """The walls of the operating system around queries of the console."""
    found = sandbox.support() if there is None else there
    remedy = "use a Linux kernel of 5.13 or newer with Landlock and seccomp (docs/internals/sandbox.md)"
    said = f"{found}; no {'; no '.join(found.missing)}" if found.missing else str(found)
    yield Finding("sandbox", "warning" if found.missing else "ok", said, remedy if found.missing else "")


def memory_of(limits: Limits) -> Iterator[Finding]:
    """The memory that the settings allow, against the machine's."""
    there, wanted = memory_bytes(), memory.total(memory.by_settings(limits))
    largest = memory.by_settings(limits)[0]
    fits = wanted <= there
    yield Finding(
        "memory",
        "ok" if fits else "warning",
        f"{there >> 20:,} MB; the settings allow {wanted >> 20:,} MB, and tables add to that",
        "" if fits else f"lower {largest.by}, the largest part, or take a larger machine (docs/sizing.md)",
    )
