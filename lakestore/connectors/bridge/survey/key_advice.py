"""Advice about the keys of change events, from samples of their topic.

- Events of a table without a key make a log. Advice offers a key: fields that differ in all sampled rows.
- A declared key that the events do not have needs the row before each change, or old rows stay behind.
- A version from the row is not sent with a delete, unless the whole row before it is.
- Records without a key are spread over the partitions of a topic, so their order is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.connectors.bridge.assembly import Planned
from lakestore.connectors.bridge.formats.json.inference import KEY_KINDS, rank
from lakestore.connectors.bridge.mapping.routing import origins
from lakestore.connectors.bridge.outcome import Decoded, Op
from lakestore.connectors.bridge.records import Records
from lakestore.connectors.bridge.spec import TableSpec
from lakestore.connectors.bridge.survey.findings import Finding, Level

POSTGRES = "postgresql"
_UPDATE, _DELETE = r'"op"\s*:\s*"u"', r'"op"\s*:\s*"d"'
_NO_BEFORE = r'"before"\s*:\s*null'


@dataclass(frozen=True, slots=True)
class EventKeys:
    """Facts about the keys of sampled change events."""

    key: tuple[str, ...]
    """The fields of the events' own key."""
    unique: tuple[str, ...]
    """Fields that differ in all sampled rows, the likeliest key first."""
    whole: tuple[str, ...]
    """Fields that no sampled row has null."""
    rows: int
    """Sampled inserts and snapshot rows."""
    sends_before: bool | None
    """Whether updates bring the row before them; None if no update was sampled, or the format hides it."""
    connector: str
    source: str
    """The source's table, as in `app.orders`."""

    @staticmethod
    def of(decoded: Decoded, records: Records) -> EventKeys:
        """The facts that samples tell."""
        envelope = decoded.envelope
        new = np.zeros(len(decoded.record), bool)
        connector = ""
        if envelope is not None and decoded.op is not None:
            ops = pc.struct_field(envelope, "op")
            new = pc.is_in(ops, value_set=pa.array(["c", "r"])).to_numpy(zero_copy_only=False) & (decoded.op == Op.PUT)
            names = pc.struct_field(pc.struct_field(envelope, "source"), "connector").drop_null()
            connector = names[0].as_py() if len(names) else ""
        rows = decoded.values.filter(pa.array(new))
        topic = records.topic.rpartition(".")[2].lower()
        whole = [part.name for part in rows.type if not pc.struct_field(rows, part.name).null_count]
        unique = [name for name in whole if _is_unique(pc.struct_field(rows, name))]
        return EventKeys(
            decoded.key_names,
            tuple(sorted(unique, key=lambda name: rank(name.lower(), topic))),
            tuple(whole),
            len(rows),
            _sends_before(records.values),
            connector,
            _source_table(decoded),
        )


def _is_unique(column: pa.Array) -> bool:
    if not any(is_one(column.type) for is_one in KEY_KINDS):
        return False
    return len(column) > 1 and len(column.unique()) == len(column)


def _sends_before(values: pa.BinaryArray) -> bool | None:
    updates = values.filter(pc.match_substring_regex(values, _UPDATE).fill_null(False))
    if not len(updates):
        return None
    return not pc.any(pc.match_substring_regex(updates, _NO_BEFORE)).as_py()


def _source_table(decoded: Decoded) -> str:
    if decoded.origin is None or not len(decoded.origin):
        return ""
    first = next(origins(decoded.origin))[0]
    return ".".join(part for part in (first.get("schema") or first.get("database"), first.get("table")) if part)


def findings(planned: Planned, facts: EventKeys, topic: str, partitions: int) -> Iterator[Finding]:
    """Things to know about the key of one table of change events."""
    about, spec = f"table {planned.after.name}", planned.spec
    declared = set(spec.primary_key)
    if not facts.key and not declared and spec.events != "log":
        say = (
            "its change events have no key, so it is a log: each event is a row with its op, and none replaces another"
        )
        yield Finding(Level.WARNS, about, say, "keyless", offer(facts, topic, spec))
    if not planned.after.keyed:
        return
    if spec.events != "log" and declared - set(facts.key) and facts.sends_before is not True:
        say = (
            f"its key ({', '.join(spec.primary_key)}) is not that of the events ({', '.join(facts.key) or 'none'}), and"
            " updates do not bring the row before them: one that changes the key leaves the old row"
        )
        yield Finding(Level.WARNS, about, say, "other-key", full_rows(facts))
    if not facts.key and partitions > 1 and not spec.version:
        say = f"its records have no key, so they are spread over {partitions} partitions, and their order is lost"
        mend = "a topic of one partition, or version: with a column {name: pos, type: int64, from: position}"
        yield Finding(Level.WARNS, about, say, "order", mend)
    if spec.version and _of_row(spec) and facts.connector == POSTGRES and facts.sends_before is not True:
        say = f"its version {spec.version!r} is a value of the row, which a delete does not bring: it is a dead letter"
        yield Finding(
            Level.WARNS, about, say, "version", f"{full_rows(facts)}\nor version: with a column from: position"
        )


def _of_row(spec: TableSpec) -> bool:
    source = next((each.source for each in spec.columns if each.name == spec.version), "")
    return source in ("", "value") or source.startswith("value.")


def full_rows(facts: EventKeys) -> str:
    """The way to have the source send whole rows as they were before a change."""
    table = facts.source or "TABLE"
    if facts.connector in (POSTGRES, ""):
        return f"in PostgreSQL: ALTER TABLE {table} REPLICA IDENTITY FULL"
    return f"let the connector send the row before each change of {table}"


def offer(facts: EventKeys, topic: str, spec: TableSpec) -> str:
    """The ways to a table of current rows, of events without a key."""
    candidates: Sequence[str] = facts.unique[:1] or facts.whole
    if facts.unique:
        why = f"different in all {facts.rows:,} sampled rows"
    elif facts.whole:
        why = "all columns that are never null, if no two rows are the same"
    else:
        why = "columns that are never null and together unique"
    key = ", ".join(candidates) or "…"
    full = "" if facts.sends_before else f"{full_rows(facts)}, and "
    return (
        f"give {facts.source or 'the source table'} a primary key; or {full}in an entry of its own: topic: {topic},"
        f" table: {spec.table}, primary_key: [{key}]  ({why})\nor say events: log, if a log is wanted"
    )
