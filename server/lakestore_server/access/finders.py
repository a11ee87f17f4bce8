"""Finders: functions from a request to the tables that it names, used by the rows of `policy`. Pure.

- A finder returns table names, or a pattern for a malformed request: `EVERYTHING`.
- A finder changes nothing.
- A finder does not reveal whether a table exists.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from lakestore.model import names
from lakestore.model.alteration import feed_of
from lakestore_server.access.principals import EVERYTHING

Kind = Literal["own", "other", "absent"]


class TableFacts(Protocol):
    """Facts about objects that a request does not name by a table's name."""

    def table_of(self, uuid: str) -> str | None: ...

    def uuid_of(self, table: str) -> str | None: ...

    def subscribed(self, subscription: str) -> Sequence[str]:
        """The present names of a subscription's tables; for a dropped table its last name."""

    def kind_of(self, table: str) -> Kind:
        """Whether a table of the catalog is ours, foreign or absent."""


@dataclass(frozen=True, slots=True)
class HttpRequestFacts:
    """The parts of an HTTP request on which rights depend: path parameters and body."""

    path: Mapping[str, str]
    body: Mapping[str, Any]


Finder = Callable[[Any, TableFacts], Iterable[str]]


def catalog_target(namespace: Any, table: Any) -> str:
    """A catalog table's name for patterns. A dot inside the namespace matches no pattern."""
    return f"{str(namespace).replace('.', chr(31))}.{table}"


# Finders for RPCs.


def no_table(_: Any, __: TableFacts) -> Sequence[str]:
    """No table."""
    return ()


def fed_tables(request: Any, _: TableFacts) -> Iterable[str]:
    """The tables of the feeds among a request's registers."""
    registers = (getattr(each, "register", each) for each in request.registers)
    return dict.fromkeys(found.table for name in registers if (found := feed_of(name)))


def every_table(_: Any, __: TableFacts) -> Sequence[str]:
    """Every table."""
    return (EVERYTHING,)


def table_field(request: Any, _: TableFacts) -> Sequence[str]:
    """The field `table`."""
    return (request.table,)


def both_names(request: Any, _: TableFacts) -> Sequence[str]:
    """The fields `table` and, if set, `new_name`."""
    return (request.table, request.new_name) if request.new_name else (request.table,)


def branch_names(request: Any, _: TableFacts) -> Sequence[str]:
    """The fields `table` and, if set, `into`."""
    return (request.table, request.into) if request.into else (request.table,)


def adopted_names(request: Any, _: TableFacts) -> Sequence[str]:
    """The fields `source`, without its catalog, and `table`."""
    return (".".join(request.source.split(".")[-2:]), request.table)


def tables_field(request: Any, _: TableFacts) -> Sequence[str]:
    """The field `tables`."""
    return list(request.tables)


def committed_tables(request: Any, known: TableFacts) -> Iterable[str]:
    """The tables of a commit's changes and of the feeds whose registers it moves."""
    changed = (change.table for change in request.changes)
    return dict.fromkeys([*changed, *fed_tables(request, known)])


def change_field(request: Any, _: TableFacts) -> Sequence[str]:
    """The table of the field `change`."""
    return (request.change.table,)


def wanted_field(request: Any, _: TableFacts) -> Iterable[str]:
    """The tables whose rows the answer to a commit shows."""
    return [change.table for change in request.changes if change.want_rows]


def definition_field(request: Any, _: TableFacts) -> Sequence[str]:
    """The table of a definition. An unreadable definition names no table; the verb refuses it later."""
    try:
        return (str(json.loads(request.definition)["name"]),)
    except (ValueError, KeyError, TypeError, RecursionError):
        return (EVERYTHING,)


def uuid_field(request: Any, known: TableFacts) -> Sequence[str]:
    """The table of the uuid. A dropped table has no name, so only a principal with every right learns of it."""
    return (known.table_of(request.table_uuid) or EVERYTHING,)


# Finders for tables that a call reads by uuid, under their present names.


def present_uuid(request: Any, known: TableFacts) -> Sequence[str]:
    """The table of the field `table_uuid`; empty once the table is removed."""
    name = known.table_of(request.table_uuid)
    return () if name is None else (name,)


def present_stream(request: Any, known: TableFacts) -> Sequence[str]:
    """The tables of a change stream, after `ownership.bound` has set their uuids, and of its subscription."""
    tables = [name for uuid in request.table_uuids if uuid and (name := known.table_of(uuid)) is not None]
    return [*tables, *present_subscription(request, known)]


def present_subscription(request: Any, known: TableFacts) -> Sequence[str]:
    """The tables of the subscription in the request, if any."""
    return known.subscribed(request.subscription) if request.subscription else ()


# Finders for HTTP requests. A malformed request needs the right on everything.


def path_table(asked: HttpRequestFacts, _: TableFacts) -> Sequence[str]:
    """A catalog table in the path."""
    return (catalog_target(asked.path["namespace"], asked.path["table"]),)


def path_view(asked: HttpRequestFacts, _: TableFacts) -> Sequence[str]:
    """A SQL view in the path."""
    return (catalog_target(asked.path["namespace"], asked.path["view"]),)


def unversioned(target: str, known: TableFacts) -> str:
    """The table of a name in the lake: `shop.orders$3` is a version of our table `shop.orders`."""
    parted = names.split_version(target)
    return parted[0] if parted and known.kind_of(parted[0]) == "own" else target


def uncut(target: str, known: TableFacts) -> str:
    """The table of a name under a prefix. `shop.orders@<position>` is a cut of our table `shop.orders`, and
    `shop.orders$3` has its columns by the names of version 3, unless a table has the whole name."""
    if known.kind_of(target) != "absent":
        return target
    parted = names.split_position(target)
    base = unversioned(parted[0] if parted else target, known)
    return base if known.kind_of(base) == "own" else target


def path_name(asked: HttpRequestFacts, _: TableFacts) -> Sequence[str]:
    """Our table in the path."""
    return (asked.path["table"],)


def path_namespace(asked: HttpRequestFacts, _: TableFacts) -> Sequence[str]:
    """Every table of the namespace in the path."""
    return (catalog_target(asked.path["namespace"], EVERYTHING),)


def body_namespace(asked: HttpRequestFacts, _: TableFacts) -> Sequence[str]:
    """Every table of the namespace in the body."""
    levels = asked.body.get("namespace")
    if not isinstance(levels, list) or len(levels) != 1 or not isinstance(levels[0], str):
        return (EVERYTHING,)
    return (catalog_target(levels[0], EVERYTHING),)


def body_name(asked: HttpRequestFacts, _: TableFacts) -> Sequence[str]:
    """The table with the name in the body, in the namespace of the path."""
    name = asked.body.get("name")
    return (catalog_target(asked.path["namespace"], name if isinstance(name, str) else EVERYTHING),)


def identifier(said: Any) -> str:
    """The table of a table identifier, or `EVERYTHING`."""
    try:
        (level,), name = said["namespace"], said["name"]
    except (TypeError, KeyError, ValueError):
        return EVERYTHING
    return catalog_target(level, name) if isinstance(level, str) and isinstance(name, str) else EVERYTHING


def body_rename(asked: HttpRequestFacts, _: TableFacts) -> Sequence[str]:
    """Source and destination in the body."""
    return (identifier(asked.body.get("source")), identifier(asked.body.get("destination")))


def body_changes(asked: HttpRequestFacts, _: TableFacts) -> Sequence[str]:
    """The tables of the changes in the body."""
    changes = asked.body.get("table-changes")
    if not isinstance(changes, list) or not changes:
        return (EVERYTHING,)
    return [identifier(each.get("identifier")) if isinstance(each, dict) else EVERYTHING for each in changes]
