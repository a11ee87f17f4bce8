"""Names of tables in the lake's catalog: `orders$3` is the table `orders` with the schema of its version 3."""

from __future__ import annotations

VERSION_MARK = "$"
"""Between a table's name and the number of a version; no name of a table holds the mark."""


def parted(name: str) -> tuple[str, int] | None:
    """The table's name and the version's number of a name such as `orders$3`; None for any other name."""
    base, mark, number = name.rpartition(VERSION_MARK)
    return (base, int(number)) if mark and number.isascii() and number.isdecimal() else None
