"""Warehouses as engines name them, and the prefixes of paths that stand for them. Pure.

`now` and `now-v3` show every table's head, `at:<token or time>` and `at-v3:<…>` one cut of all tables; the forms with
v3 show tables of version 2 as version 3. A prefix is pasted raw into paths by every engine: `now`, `at-<base64url>`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass

from lakestore.errors import Invalid
from lakestore.model import times
from lakestore.model.typed import shown
from lakestore_server.iceberg.errors import NoSuchWarehouse

V3 = 3
LAKE = "lake"
_HEADS = {"now": 0, "now-v3": V3}
_WAREHOUSES = {"at-v3:": ("at-v3-", V3), "at:": ("at-", 0)}
"""Beginning of a warehouse's name to that of its prefix, and the format version to show: 0 for a table's own."""


@dataclass(frozen=True, slots=True)
class Warehouse:
    """A warehouse that presents cuts."""

    position: str
    """A token or a time; empty for each table's head at the moment that it is loaded."""
    format_version: int
    """The version of Iceberg's format to show; 0 for a table's own."""


def prefix_of(name: str, lake: str) -> str:
    """The prefix of a warehouse; empty for the lake, which `lake` is a name of too. Else `NoSuchWarehouse`."""
    if name in ("", LAKE) or name.rstrip("/") == lake:
        return ""
    if name in _HEADS:
        return name
    for begin, (prefix, _) in _WAREHOUSES.items():
        if name.startswith(begin):
            try:
                position = said_position(name.removeprefix(begin))
            except Invalid as error:
                raise NoSuchWarehouse(f"warehouse {shown(name)}: {error.message}") from error
            return prefix + base64.urlsafe_b64encode(position.encode()).rstrip(b"=").decode()
    raise NoSuchWarehouse(
        f"there is no warehouse {shown(name)}: `now` is every table's head, `at:<token or time>` one cut of all tables,"
        " `lake` or none what is tiered"
    )


def of_prefix(prefix: str) -> Warehouse:
    """The warehouse of a prefix, or `NoSuchWarehouse`."""
    if prefix in _HEADS:
        return Warehouse("", _HEADS[prefix])
    for begin, version in _WAREHOUSES.values():
        if prefix.startswith(begin):
            try:
                text = prefix.removeprefix(begin)
                raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
                return Warehouse(times.position_text(raw.decode("ascii")), version)
            except (ValueError, Invalid) as error:
                raise NoSuchWarehouse(
                    f"{shown(prefix)} is no prefix of this catalog: ask /v1/config for one"
                ) from error
    raise NoSuchWarehouse(f"{shown(prefix)} is no prefix of this catalog: ask /v1/config for one")


def said_position(text: str) -> str:
    """A token or a time that came by a URL, in which a space may have become a plus sign, and the other way round."""
    for each in _readings(text):
        if times.micros_of(each) is not None:
            return each
    return times.position_text(text)


def _readings(text: str) -> Iterator[str]:
    yield text
    yield text.replace("+", " ", 1)
    day, space, zone = text.rpartition(" ")
    if space:
        yield f"{day}+{zone}"
        yield f"{day.replace('+', ' ', 1)}+{zone}"
