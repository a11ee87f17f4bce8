"""Tables that a bridge writes to: their keys as the server knows them, and dead letters' tables on first need."""

from __future__ import annotations

import logging
import re

from lakestore.client.lake import Lake
from lakestore.connectors.bridge import dead_letters
from lakestore.connectors.bridge.spec import TableSpec, TopicSpec
from lakestore.connectors.bridge.tables import dead_letter_table
from lakestore.errors import Conflict, Invalid, NotFound
from lakestore.model.table import Table

_LOG = logging.getLogger("lakestore.bridge")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Targets:
    """Tables by name. For one thread."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._keys: dict[str, tuple[str, ...]] = {}
        self._dead: set[str] = set()

    def key(self, table: str) -> tuple[str, ...]:
        """The columns of a table's primary key; empty for a log table."""
        if table not in self._keys:
            self._keys[table] = tuple(self._lake.table(table).definition.primary_key)
        return self._keys[table]

    def dead_letters(self, table: str) -> str:
        """The name of a table's dead letters' table, which is there from now on."""
        name = dead_letters.table_of(table)
        if name not in self._dead:
            try:
                _check_letters(self._lake.table(name).definition, table)
            except NotFound:
                try:
                    self._lake.create(dead_letter_table(table))
                    _LOG.info("made table %s for records that table %s cannot take", name, table)
                except Conflict:  # another process made it
                    self._lake.table(name)
            self._dead.add(name)
        return name

    def forget(self) -> None:
        """Ask the server again."""
        self._keys.clear()
        self._dead.clear()


def _check_letters(found: Table, table: str) -> None:
    if found.primary_key != dead_letters.KEY or not {each.name for each in found.columns} >= {
        *dead_letters.SCHEMA.names
    }:
        raise Invalid(
            f"dead letters of table {table} belong in table {found.name}, which is another kind of table: rename that"
            f" one, or let records for {table} go to a table of another name"
        )


def spec_of(topic: TopicSpec, table: str) -> TableSpec:
    """The part of bridge.yaml that a table of a topic comes from; the first one for a name that fits none."""
    for each in topic.tables:
        pattern = "".join(
            ".+" if number % 2 else re.escape(text) for number, text in enumerate(_PLACEHOLDER.split(each.table))
        )
        if re.fullmatch(pattern, table):
            return each
    return topic.tables[0]
