"""Table names in the lake's catalog: `orders$3` is `orders` with the schema of version 3.

In a catalog of heads, `orders@<token or time>` is the table at that cut.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from lakestore.model.outside_values import excerpt

VERSION_MARK = "$"
"""Separates table name and version; table names cannot contain it."""
POSITION_MARK = "@"
"""Separates table name and position; table names cannot contain it."""
ADOPTING = "__adopting"
"""End of the name of a table that takes the rows of an adoption. It is not tiered."""
SYSTEM_DATABASE = "lakestore"
"""The database of the system tables. Users make nothing in it."""
UUID_PROPERTY = "lakestore.table-uuid"
"""The property of a lake table that has the uuid of our table."""
PRESENTED = "__presented"
"""Folder of a warehouse with the files of presented cuts; namespaces cannot have this name."""
_NAMES_SHOWN = 20
DROPPED, HIDDEN = "(dropped)", "(no right)"
"""Shown instead of the name of a dropped table, or of one that the reader has no right to see."""


def split_version(name: str) -> tuple[str, int] | None:
    """Split a name such as `orders$3`; None for other names."""
    base, mark, number = name.rpartition(VERSION_MARK)
    return (base, int(number)) if mark and number.isascii() and number.isdecimal() else None


def split_position(name: str) -> tuple[str, str] | None:
    """Split a name such as `orders@2026-11-20T10:00Z`; None for other names."""
    base, mark, position = name.partition(POSITION_MARK)
    return (base, position) if base and mark and position else None


def other_table(name: str) -> str:
    """The error sentence for a request whose table was dropped and replaced under the same name."""
    return f"table {name!r} was dropped, and a new table has its name: open it again"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The most similar known name, ignoring case; None if none is similar."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), by_lower, 1)
    return by_lower[close[0]] if close else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """`: did you mean …?` with the most similar name, or an empty text."""
    close = nearest(name, known)
    return f": did you mean {close}?" if close else ""


def no_column(owner: str, name: str, known: Iterable[str]) -> str:
    """The error sentence about a missing column, with a suggestion or all names."""
    names = list(known)
    more = f", and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    hint = suggestion(name, names) or f"; it has {', '.join(names[:_NAMES_SHOWN])}{more}"
    return f"{owner} has no column {excerpt(name)}{hint}"


def rows_text(count: int, noun: str = "row") -> str:
    """A count in words: 1 row, 2,000 rows."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
