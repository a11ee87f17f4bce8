"""The tables whose dead letters have records of which no row is known: those that a decoder or a route refuses.

A name without placeholders of a change event's origin is the same for all. Otherwise the origin is looked for, so that
all dead letters of a table lie in one place:

1. in the record itself, if it is JSON,
2. in the rows that the topic had so far, if all of them are of one table,
3. in the topic's name, which is PREFIX.SCHEMA.TABLE or PREFIX.DATABASE.TABLE.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from lakestore.connectors.bridge.mapping.routing import ORIGIN, first_table, names_origin, origins, table_name
from lakestore.connectors.bridge.outcome import Reject
from lakestore.connectors.bridge.records import Records
from lakestore.connectors.bridge.spec import TopicSpec

_Origin = Mapping[str, str | None]
_FIELDS = {"database": ("db",), "schema": ("schema",), "table": ("table", "collection")}
_SEEN_MAX = 2
"""Origins that are remembered: a second one tells that the topic has several."""


class LetterTables:
    """The tables of one topic's dead letters. One thread uses it at a time."""

    def __init__(self, topic: TopicSpec) -> None:
        self._topic = topic
        self._template = topic.tables[0].table
        self._seen: dict[tuple[str | None, ...], _Origin] = {}

    def note(self, origin: pa.StructArray | None) -> None:
        """Remember the origins of rows."""
        if origin is None or not names_origin(self._template) or len(self._seen) >= _SEEN_MAX:
            return
        for found, _ in origins(origin):
            if any(found.values()) and len(self._seen) < _SEEN_MAX:
                self._seen[tuple(found.get(name) for name in ORIGIN)] = found

    def parted(self, records: Records, rejects: Sequence[Reject]) -> dict[str, list[Reject]]:
        """Rejects by the table whose dead letters they are."""
        if not names_origin(self._template):
            return {first_table(self._topic, records.topic): list(rejects)} if rejects else {}
        found: dict[str, list[Reject]] = {}
        for each in rejects:
            origin = _stated(records.values[each.record].as_py()) or self._usual(records.topic)
            found.setdefault(table_name(self._template, records.topic, origin), []).append(each)
        return found

    def _usual(self, topic: str) -> _Origin:
        """The origin of a record that tells none."""
        if len(self._seen) == 1:
            return next(iter(self._seen.values()))
        parts = topic.split(".")
        return {"database": parts[-2], "schema": parts[-2], "table": parts[-1]} if len(parts) > _SEEN_MAX else {}


def _stated(value: bytes | None) -> _Origin | None:
    """The origin that a change event in JSON tells; None for any other record."""
    try:
        event = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    event = event.get("payload", event) if isinstance(event, dict) else None
    source = event.get("source") if isinstance(event, dict) else None
    if not isinstance(source, dict):
        return None
    found = {
        name: next((source[field] for field in fields if isinstance(source.get(field), str)), None)
        for name, fields in _FIELDS.items()
    }
    return found if found["table"] else None
