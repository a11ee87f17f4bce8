"""Parts of bridge.yaml that decide what change events become."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lakestore.connectors.bridge.paths import Path
from lakestore.connectors.bridge.spec import TableSpec, Tombstone, TopicSpec, Truncate

_TRUNCATES: tuple[Truncate, ...] = ("refuse", "follow", "ignore")
_TOMBSTONES: tuple[Tombstone, ...] = ("dlq", "delete", "ignore")


@dataclass(frozen=True, slots=True)
class Policy:
    """Ends of records that have no row."""

    truncate: Truncate = "refuse"
    tombstone: Tombstone = "delete"
    """Tombstones that are not behind a delete."""
    key: tuple[str, ...] = ()
    """Fields of rows that the file names as a table's key; empty where that is the key of the events."""

    @staticmethod
    def of(topic: TopicSpec) -> Policy:
        """The strictest of the topic's tables, for such records name none."""
        truncates, tombstones = zip(*((table.truncate, table.tombstone) for table in topic.tables), strict=True)
        return Policy(
            next(policy for policy in _TRUNCATES if policy in truncates),
            next(policy for policy in _TOMBSTONES if policy in tombstones),
            tuple(dict.fromkeys(name for table in topic.tables if table.events != "log" for name in _key_of(table))),
        )


def _key_of(table: TableSpec) -> Iterator[str]:
    """The fields that a table's declared key comes from."""
    said = {column.name: column for column in table.columns}
    for name in table.primary_key:
        column = said.get(name)
        path = Path.of(column.source) if column and column.source else Path("value", (name,))
        if path.root == "value" and path.parts and not (column and column.expression):
            yield path.parts[0]
