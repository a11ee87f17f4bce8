"""Names of tables in the lake's catalog: `orders$3` is the table `orders` with the schema of its version 3.

Where a catalog shows a table's head, `orders@<token or time>` is the table at that cut.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from lakestore.model.typed import shown

VERSION_MARK = "$"
"""Between a table's name and the number of a version; no name of a table holds the mark."""
POSITION_MARK = "@"
"""Between a table's name and a position; no name of a table of ours holds the mark."""
PRESENTED = "__presented"
"""The folder of a warehouse with the files of presented cuts; no namespace has the name."""
_NAMES_SHOWN = 20
"""Names of columns in an error."""
DROPPED, HIDDEN = "(dropped)", "(no right)"
"""In place of the name of a table that is no more, or that the reader may not know of; no table has such a name."""


def parted(name: str) -> tuple[str, int] | None:
    """The table's name and the version's number of a name such as `orders$3`; None for any other name."""
    base, mark, number = name.rpartition(VERSION_MARK)
    return (base, int(number)) if mark and number.isascii() and number.isdecimal() else None


def positioned(name: str) -> tuple[str, str] | None:
    """The table's name and the position of a name such as `orders@2026-11-20T10:00Z`; None for any other name."""
    base, mark, position = name.partition(POSITION_MARK)
    return (base, position) if base and mark and position else None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like another one, whatever their case; None if none is."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), by_lower, 1)
    return by_lower[close[0]] if close else None


def meant(name: str, known: Iterable[str]) -> str:
    """`: did you mean …?` with the name that is most like an unknown one, else nothing."""
    close = nearest(name, known)
    return f": did you mean {close}?" if close else ""


def no_column(owner: str, name: str, known: Iterable[str]) -> str:
    """The sentence about a column that a table or a file does not have: with the name that was meant, or all names."""
    names = list(known)
    more = f", and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    hint = meant(name, names) or f"; it has {', '.join(names[:_NAMES_SHOWN])}{more}"
    return f"{owner} has no column {shown(name)}{hint}"


def rows_text(count: int, noun: str = "row") -> str:
    """A number of rows in words: 1 row, 2,000 rows."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
