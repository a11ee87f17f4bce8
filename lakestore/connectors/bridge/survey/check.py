"""The check of a bridge before it runs: server, brokers, rights, topics, schemas, and samples against keys and types.

Nothing is written, and no group is joined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lakestore.connectors.bridge import dead_letters
from lakestore.connectors.bridge.assembly import Assembly, Planned
from lakestore.connectors.bridge.outcome import Mapped, Op, TableRows
from lakestore.connectors.bridge.records import Records
from lakestore.connectors.bridge.spec import BridgeSpec, SourceSpec, TableSpec, TopicSpec
from lakestore.connectors.bridge.survey.cluster import Cluster, TopicFacts, require_topic
from lakestore.connectors.bridge.tables import dead_letter_table
from lakestore.errors import LakestoreError, NotFound

if TYPE_CHECKING:
    from lakestore.client.lake import Lake

SAMPLES = 1_000
"""Records of a topic that are looked at, unless the caller says otherwise."""
TOPICS_SAMPLED = 20
"""Topics of one pattern that are sampled."""
PROTOCOL = 5
"""The protocol since which servers have registers."""


class Level(StrEnum):
    """The weight of a finding."""

    OK = "ok"
    NOTE = "note"
    STOPS = "stops"
    """The bridge would not run, or not go on."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    about: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Sampled:
    """Samples of one topic, and the tables that they are for."""

    topic: TopicSpec
    facts: TopicFacts
    records: Records
    planned: Sequence[Planned]


def check(spec: BridgeSpec, lake: Lake, samples: int = SAMPLES) -> Iterator[Finding]:
    """Everything that is found, in order."""
    yield _server(lake)
    assembly = Assembly(spec, lake, writes=False)
    for source in spec.sources.values():
        topics = [topic for topic in spec.topics if topic.source == source.name]
        try:
            with Cluster(source) as cluster:
                yield Finding(Level.OK, f"Kafka at {source.bootstrap}", f"{len(cluster.topics()):,} topics are seen")
                yield from _group(cluster, source)
                for topic in topics:
                    yield from _topic(topic, cluster, source, assembly, lake, samples)
        except LakestoreError as error:
            yield Finding(Level.STOPS, f"Kafka at {source.bootstrap}", error.message)


def _server(lake: Lake) -> Finding:
    server = lake.transport.server
    if server.protocol < PROTOCOL:
        say = f"the server ({server.release or 'an older release'}) has no registers: run it with a newer release"
        return Finding(Level.STOPS, "server", say)
    return Finding(Level.OK, "server", f"release {server.release}")


def _group(cluster: Cluster, source: SourceSpec) -> Iterator[Finding]:
    try:
        cluster.check_group()
        yield Finding(Level.OK, f"group {source.group}", "the user may read in it")
    except LakestoreError as error:
        yield Finding(Level.STOPS, f"group {source.group}", error.message)


def _topic(
    topic: TopicSpec, cluster: Cluster, source: SourceSpec, assembly: Assembly, lake: Lake, samples: int
) -> Iterator[Finding]:
    said = topic.topic or f"pattern {topic.pattern}"
    names = _names(topic, cluster, assembly.spec)
    if not names:
        yield Finding(Level.NOTE, said, "no topic has such a name yet")
    if topic.transactions:
        names = [*names, topic.transactions]
    for name in names[:TOPICS_SAMPLED]:
        try:
            facts = cluster.described(name)
            require_topic(facts, source.bootstrap)
            if name == topic.transactions:
                if facts.partitions != 1:
                    say = f"has {facts.partitions} partitions, and a topic of transactions must have one"
                    yield Finding(Level.STOPS, f"topic {name}", say)
                continue
            records = cluster.sampled(facts, samples)
        except LakestoreError as error:
            yield Finding(Level.STOPS, f"topic {name}", error.message)
            continue
        told = f"{facts.partitions} partitions, {len(records):,} records sampled"
        yield Finding(Level.OK, f"topic {name}", told)
        yield from _samples(topic, name, records, assembly, lake)
    if len(names) > TOPICS_SAMPLED:
        yield Finding(Level.NOTE, said, f"{len(names):,} topics, of which {TOPICS_SAMPLED} were sampled")


def _names(topic: TopicSpec, cluster: Cluster, spec: BridgeSpec) -> Sequence[str]:
    """The topics that the bridge would read by an entry, and not by another one."""
    return [name for name in cluster.named(topic) if spec.entry(name, topic.source) is topic]


def _samples(topic: TopicSpec, name: str, records: Records, assembly: Assembly, lake: Lake) -> Iterator[Finding]:
    try:
        planned = assembly.planned(topic, name, records)
        if not planned:
            say = "the columns are not known: the topic is empty, and neither columns: nor a registry names them"
            yield Finding(Level.NOTE, f"topic {name}", say)
        for each in planned:
            yield from _table(each, lake)
        mapped = assembly.pipeline(topic, name).process(records) if len(records) and planned else None
    except LakestoreError as error:
        yield Finding(Level.STOPS, f"topic {name}", error.message)
        return
    if mapped is not None:
        keys = {each.after.name: each.after.primary_key for each in planned}
        yield from _ends(topic, name, records, mapped, keys)


def _table(planned: Planned, lake: Lake) -> Iterator[Finding]:
    """Whether a table could be made or altered, and that of its dead letters made, by the server's own word."""
    about = f"table {planned.after.name}"
    try:
        if planned.before is None:
            lake.create(planned.after, check_only=True)
            yield Finding(Level.OK, about, "will be made (see --plan)")
        elif planned.steps:
            lake.alter(planned.before, planned.steps, check_only=True)
            yield Finding(Level.OK, about, f"will get {len(planned.steps)} columns (see --plan)")
        else:
            yield Finding(Level.OK, about, "is there")
        if planned.spec.on_error == "dlq":
            letters = dead_letter_table(planned.after.name)
            try:
                lake.table(letters.name)
            except NotFound:
                lake.create(letters, check_only=True)
    except LakestoreError as error:
        yield Finding(Level.STOPS, about, error.message)


def _ends(
    topic: TopicSpec, name: str, records: Records, mapped: Mapped, keys: Mapping[str, Sequence[str]]
) -> Iterator[Finding]:
    count = len(records)
    specs = {rows.table: rows.spec for rows in mapped.tables}
    for table, rejects in mapped.rejects.items():
        spec = specs.get(table, topic.tables[0])
        for code, many in Counter(each.code for each in rejects).most_common():
            example = next(each for each in rejects if each.code == code)
            place = f"partition {records.partition[example.record]}, offset {records.offset[example.record]:,}"
            say = (
                f"{many:,} of {count:,} sampled records {_end(spec, table)}: {code}, as at {place}: {example.sentence}"
            )
            yield Finding(Level.STOPS if spec.on_error == "fail" else Level.NOTE, f"topic {name}", say)
    for reason, numbers in mapped.passed.items():
        say = f"{len(numbers):,} of {count:,} sampled records are left out: {reason}"
        yield Finding(Level.NOTE, f"topic {name}", say)
    for rows in mapped.tables:
        yield from _rows(rows, keys.get(rows.table, ()))
    if mapped.extra:
        told = ", ".join(f"{field} ({kind})" for field, kind in list(mapped.extra.items())[:10])
        yield Finding(Level.NOTE, f"topic {name}", f"no column takes the fields {told}")


def _end(spec: TableSpec, table: str) -> str:
    ends = {
        "dlq": f"would go to {dead_letters.table_of(table)}",
        "fail": "would end the bridge",
        "skip": "would be skipped",
    }
    return ends[spec.on_error]


def _rows(rows: TableRows, key: Sequence[str]) -> Iterator[Finding]:
    puts = rows.batch.filter(pa.array(rows.op == Op.PUT))
    about, count = f"table {rows.table}", puts.num_rows
    for name, lacking in _lacking(puts, rows.kept).items():
        if lacking == count > 0:
            say = f"none of {count:,} sampled records has {name}: is its path right?"
            yield Finding(Level.NOTE, about, say)
        elif lacking:
            yield Finding(Level.NOTE, about, f"{lacking:,} of {count:,} sampled records lack {name}")
    if key and count:
        repeated = _repeated(puts, key)
        say = (
            f"{100 * repeated / count:.0f} % of sampled keys ({', '.join(key)}) repeat"
            if repeated
            else (f"all {count:,} sampled keys ({', '.join(key)}) are different")
        )
        yield Finding(Level.NOTE if repeated else Level.OK, about, say)


def _lacking(puts: pa.RecordBatch, kept: Mapping[str, pa.BooleanArray]) -> dict[str, int]:
    """Column to the rows that have no value, but for columns that their source did not send."""
    return {
        name: column.null_count
        for name, column in zip(puts.schema.names, puts.columns, strict=True)
        if column.null_count and name not in kept
    }


def _repeated(puts: pa.RecordBatch, key: Sequence[str]) -> int:
    """Rows whose key another row before had."""
    table = pa.Table.from_batches([puts.select(list(key))])
    different: int = table.group_by(list(key)).aggregate([]).num_rows
    return int(puts.num_rows) - different


def sampled(spec: BridgeSpec, lake: Lake, samples: int = SAMPLES) -> Iterator[Sampled]:
    """The topics that there are with their samples, and the tables that they would need: for a plan."""
    assembly = Assembly(spec, lake, writes=False)
    for source in spec.sources.values():
        with Cluster(source) as cluster:
            for topic in (each for each in spec.topics if each.source == source.name):
                for name in _names(topic, cluster, spec)[:TOPICS_SAMPLED]:
                    facts = cluster.described(name)
                    require_topic(facts, source.bootstrap)
                    needs = not all(table.columns for table in topic.tables) or "{" in topic.tables[0].table
                    records = cluster.sampled(facts, samples) if needs else _none(facts)
                    yield Sampled(topic, facts, records, assembly.planned(topic, name, records))


def _none(facts: TopicFacts) -> Records:
    nothing = np.array([], np.int64)
    empty = pa.array([], pa.binary())
    return Records(facts.name, facts.id, nothing, nothing, nothing, empty, empty)
