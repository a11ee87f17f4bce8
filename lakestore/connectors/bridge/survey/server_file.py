"""A whole bridge.yaml for a Debezium server, from the newest records of all topics that begin with its prefix.

- Topics of tables with a key are one entry with a pattern, so tables that are added later are read too.
- A topic whose events have no key has an entry of its own: a log, and a line with a key that might do.
- Topics of heartbeats, schema changes and other records are left out, and named in a comment.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lakestore.connectors.bridge.formats.debezium.debezium import reason_of
from lakestore.connectors.bridge.formats.decoders import decoder
from lakestore.connectors.bridge.formats.decoders import registry as registry_of
from lakestore.connectors.bridge.mapping.routing import origins
from lakestore.connectors.bridge.outcome import Decoded
from lakestore.connectors.bridge.records import Records
from lakestore.connectors.bridge.spec import CHANGES, Format, SourceSpec, TableSpec, TopicSpec
from lakestore.connectors.bridge.survey.first_file import format_of, json_object, quoted, source_line
from lakestore.connectors.bridge.survey.key_advice import EventKeys, full_rows
from lakestore.errors import Invalid

EVENTS, TRANSACTIONS, EMPTY, OTHER = "change events", "transaction-marker", "no records", "other records"
TABLES_SHOWN = 40
"""Tables that a comment names."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, and what its newest records are."""

    name: str
    kind: str
    """EVENTS, TRANSACTIONS, EMPTY, OTHER, or another reason for which change events leave records out."""
    format: Format = "raw"
    keys: EventKeys | None = None
    template: str = ""
    """The table's name in bridge.yaml."""

    @staticmethod
    def of(records: Records, source: SourceSpec) -> Topic:
        """The topic of samples."""
        if not len(records) or records.values.null_count == len(records):
            return Topic(records.topic, EMPTY)
        form = format_of(records, registry_of(source))
        if form not in CHANGES:
            return Topic(records.topic, _reason(records, form, source) or OTHER, form)
        decoded = decoder(_spec(records.topic, form, source), source).decode(records, None)
        if not len(decoded.record):
            reasons = Counter({reason: len(rows) for reason, rows in decoded.passed.items()})
            return Topic(records.topic, reasons.most_common(1)[0][0] if reasons else OTHER, form)
        return Topic(records.topic, EVENTS, form, EventKeys.of(decoded, records), _template(decoded))


def _spec(topic: str, form: Format, source: SourceSpec) -> TopicSpec:
    return TopicSpec(source.name, topic, target=TableSpec("x.x"), format=form)


def _reason(records: Records, form: Format, source: SourceSpec) -> str:
    """The reason for which records of a Debezium server are no change events; empty for records of others."""
    if form == "json":
        value = json_object(records.values.drop_null()[-1].as_py()) or {}
        payload = value.get("payload", value)
        return reason_of(set(payload)) if isinstance(payload, dict) else ""
    if form == "avro":
        return reason_of(
            {
                part.name
                for part in decoder(_spec(records.topic, form, source), source).decode(records, None).values.type
            }
        )
    return ""


def _template(decoded: Decoded) -> str:
    """`{schema}.{table}`, or `{database}.{table}` of sources that have no schemas; a plain topic's name otherwise."""
    first = next(origins(decoded.origin))[0] if decoded.origin is not None and len(decoded.origin) else {}
    if not first.get("table"):
        return "kafka.{topic}"
    return "{schema}.{table}" if first.get("schema") else "{database}.{table}"


def server_file(source: SourceSpec, prefix: str, topics: Sequence[Topic]) -> str:
    """The text of a bridge.yaml; `Invalid` if no topic has change events."""
    events = [each for each in topics if each.kind == EVENTS]
    if not events:
        there = ", ".join(f"{each.name} ({each.kind})" for each in topics)
        raise Invalid(f"no topic that begins with {prefix}. has change events: there are {there or 'none'}")
    pattern = rf"{re.escape(prefix)}\.[^.]+\..+"
    usual = Counter((each.format, each.template) for each in events).most_common(1)[0][0]
    shared = [
        each for each in events
        if (each.format, each.template) == usual and each.keys and each.keys.key and re.fullmatch(pattern, each.name)
    ]  # fmt: skip
    marks = next((each.name for each in topics if each.kind == TRANSACTIONS), "")
    left = [each for each in topics if each.kind not in (EVENTS, TRANSACTIONS, EMPTY)]
    hidden = [re.escape(each.name.removeprefix(f"{prefix}.")) for each in left if re.fullmatch(pattern, each.name)]
    if hidden:
        pattern = rf"{re.escape(prefix)}\.(?!(?:{'|'.join(hidden)})$)[^.]+\..+"
    lines = [
        f"# The Debezium server {quoted(prefix)}: {len(events):,} topics with change events.",
        *(f"# Left out: {each.name} ({each.kind})" for each in left),
        *(f"# Empty yet: {each.name}" for each in topics if each.kind == EMPTY),
        f"name: {quoted(re.sub(r'[^A-Za-z0-9._-]', '-', prefix))}",
        source_line(source),
        "topics:",
    ]
    if shared:
        lines += [*_tables(shared), *_entry(replace(shared[0], name=""), pattern, marks)]
    for each in events:
        if each not in shared:
            lines += [*_alone(each), *_entry(each, "", marks)]
    return "\n".join(lines) + "\n"


def _tables(shared: Sequence[Topic]) -> Iterator[str]:
    """Comments that name the tables of a pattern and their keys."""
    yield f"  # {len(shared):,} tables, each with the key of its events; tables that are added later are read too:"
    for each in shared[:TABLES_SHOWN]:
        assert each.keys is not None, "shared topics have keys"
        yield f"  #   {each.keys.source or each.name} ({', '.join(each.keys.key)})"
    if len(shared) > TABLES_SHOWN:
        yield f"  #   and {len(shared) - TABLES_SHOWN:,} more"


def _alone(topic: Topic) -> Iterator[str]:
    facts = topic.keys
    if facts is None or facts.key:
        return
    key = ", ".join(facts.unique[:1] or facts.whole) or "..."
    why = f"different in all {facts.rows:,} sampled rows" if facts.unique else "no two rows may be the same"
    yield f"  # {facts.source or topic.name} has no key: each change event is a row of a log with its op."
    yield f"  # For a table of current rows: {full_rows(facts)}, and"
    yield f"  # primary_key: [{key}]     # {why}; or give the source table a primary key"


def _entry(topic: Topic, pattern: str, marks: str) -> list[str]:
    return [
        f"  - pattern: {_single(pattern)}" if pattern else f"  - topic: {quoted(topic.name)}",
        f"    table: {quoted(topic.template)}",
        f"    format: {topic.format}",
        *([f"    transactions: {quoted(marks)}     # source transactions are whole commits"] if marks else []),
        "    start: earliest",
        "    on_error: dlq",
    ]


def _single(text: str) -> str:
    """A text in single quotes, as regular expressions are easiest to read."""
    return "'" + text.replace("'", "''") + "'"
