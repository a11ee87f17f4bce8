"""Paths of this machine as locations of a lake, and back: the one place that does it.

Iceberg's engines take a location literally: Hadoop, DuckDB and PyIceberg neither escape nor unescape it, so `%20` in a
location is a folder whose name has three characters. Three rules:

- a path becomes `file://` and the path as it is, without an escape;
- a path with `#` or `?` stays a path, without `file://`: PyIceberg cuts such a URI off at that sign;
- `file:/a`, `file:///a` and `/a` are the same file.
"""

from __future__ import annotations

import re
from pathlib import Path

SCHEME = "file:"
LOCAL_PATTERN = f"^{SCHEME}/+"
"""A regular expression for what stands before the path, a slash included; for engines that replace by one."""
_CUT_OFF = re.compile(r"[#?]")


def to_uri(path: Path) -> str:
    """The location of a path, which is made absolute."""
    text = path.absolute().as_posix()
    return text if _CUT_OFF.search(text) else f"{SCHEME}//{text}"


def to_path(location: str) -> str | None:
    """The path of a location on this machine; None of one in an object store."""
    if location.startswith(SCHEME):
        return "/" + location[len(SCHEME) :].lstrip("/")
    return None if "://" in location else location


def named(text: str) -> str:
    """The location that a person names by a path or a URI."""
    path = to_path(text)
    return text if path is None else to_uri(Path(path))
