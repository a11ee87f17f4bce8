"""Converts local paths to lake locations and back.

Iceberg's engines take a location literally: Hadoop, DuckDB and PyIceberg neither escape nor unescape, so `%20` in a
location is a folder whose name has three characters.

- A path becomes `file://` and the unescaped path.
- A path with `#` or `?` stays a path, because PyIceberg cuts a URI at that sign.
- `file:/a`, `file:///a` and `/a` are the same file.
"""

from __future__ import annotations

import re
from pathlib import Path

SCHEME = "file:"
LOCAL_PATTERN = f"^{SCHEME}/+"
"""Regular expression for the prefix of a path, including a slash; replace it by one slash."""
_CUT_OFF = re.compile(r"[#?]")


def to_uri(path: Path) -> str:
    """The location of a path, made absolute."""
    text = path.absolute().as_posix()
    return text if _CUT_OFF.search(text) else f"{SCHEME}//{text}"


def to_path(location: str) -> str | None:
    """The local path of a location; None for an object store."""
    if location.startswith(SCHEME):
        return "/" + location[len(SCHEME) :].lstrip("/")
    return None if "://" in location else location


def user_location(text: str) -> str:
    """The location of a path or URI that a user wrote."""
    path = to_path(text)
    return text if path is None else to_uri(Path(path))
