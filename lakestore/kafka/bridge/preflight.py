"""The check of a bridge before it runs: server, brokers, rights, topics, schemas, keys and types of samples.

Nothing is written, and no group is joined.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Denied, LakestoreError, NotFound
from lakestore.kafka.bridge import dead_letters
from lakestore.kafka.bridge.assembly import Assembly, TablePlan
from lakestore.kafka.bridge.cluster import Cluster, TopicFacts, require_topic
from lakestore.kafka.bridge.decode import decoders
from lakestore.kafka.bridge.decode.debezium.event_inference import sample_objects as sampled_events
from lakestore.kafka.bridge.decode.inference import KEY_KINDS, infer_schema, rank
from lakestore.kafka.bridge.expressions import origins
from lakestore.kafka.bridge.outcome import TOMBSTONE, DecodedBlock, MappedBlock, Op, Reject, TableRows
from lakestore.kafka.bridge.records import Records
from lakestore.kafka.bridge.spec import CHANGES, BridgeSpec, SourceSpec, TableSpec, TopicSpec
from lakestore.model import dead_letter_table

if TYPE_CHECKING:
    from lakestore.client.lake import Lake


NAMES_SHOWN = 6
"""Most subjects in the line of a group."""


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    NOTE = "note"
    WARNS = "warns"
    """The bridge would run with unexpected results."""
    STOPS = "stops"
    """The bridge would not run, or would stop."""


ORDER = (Level.STOPS, Level.WARNS, Level.NOTE, Level.OK)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    level: Level
    about: str
    sentence: str
    kind: str = ""
    """A name that findings with one cause share; empty for a single finding."""
    mend: str = ""
    """The command, setting or line of bridge.yaml that fixes it."""


def rank_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Findings by severity, then by kind in order of appearance."""
    kinds = {each.kind: number for number, each in reversed(list(enumerate(findings)))}
    return sorted(findings, key=lambda each: (ORDER.index(each.level), kinds[each.kind] if each.kind else -1))


def groups(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings grouped by severity and kind, most severe first."""
    found: dict[tuple[object, ...], list[Finding]] = {}
    for number, each in enumerate(rank_findings(findings)):
        key = (each.level, each.kind) if each.kind else (each.level, number)
        found.setdefault(key, []).append(each)
    return list(found.values())


def lines(findings: Sequence[Finding], *, whole: bool = False) -> Iterator[str]:
    """The text of a check. With `whole` each finding has a line of its own."""
    for group in [[each] for each in rank_findings(findings)] if whole else groups(findings):
        first = group[0]
        about = first.about if len(group) == 1 else _abouts(group)
        yield f"{first.level:<6} {about}: {first.sentence}"
        if first.mend:
            for number, text in enumerate(first.mend.splitlines()):
                yield f"{'':<6}   {'mend: ' if not number else '      '}{text}"


def summary(findings: Sequence[Finding]) -> str:
    """The last line of a check."""
    count = {level: sum(each.level is level for each in findings) for level in Level}
    stops = f"{count[Level.STOPS]:,} of {len(findings):,} findings would stop the bridge"
    said = [
        stops if count[Level.STOPS] else "nothing stops the bridge",
        *([f"{count[Level.WARNS]:,} warnings"] if count[Level.WARNS] else []),
        *([f"{count[Level.NOTE]:,} notes"] if count[Level.NOTE] else []),
    ]
    return ", ".join(said)


def _abouts(group: Sequence[Finding]) -> str:
    noun = group[0].about.partition(" ")[0]
    names = list(dict.fromkeys(each.about.partition(" ")[2] for each in group))
    if any(each.about.partition(" ")[0] != noun for each in group) or len(names) == 1:
        return f"{group[0].about} and {len(group) - 1:,} more findings like this"
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return f"{len(names):,} {noun}s ({', '.join(names[:NAMES_SHOWN])}{more}), as {group[0].about}"


POSTGRES = "postgresql"
_UPDATE, _DELETE = r'"op"\s*:\s*"u"', r'"op"\s*:\s*"d"'
_NO_BEFORE = r'"before"\s*:\s*null'


@dataclass(frozen=True, slots=True)
class EventKeys:
    """Facts about the keys of sampled change events."""

    key: tuple[str, ...]
    unique: tuple[str, ...]
    """Fields that differ in all sampled rows, likeliest key first."""
    whole: tuple[str, ...]
    """Fields that are never null in the samples."""
    rows: int
    """Sampled inserts and snapshot rows."""
    sends_before: bool | None
    """Whether updates include the previous row; None: no update was sampled, or the format hides it."""
    connector: str
    source: str

    @staticmethod
    def of(decoded: DecodedBlock, records: Records) -> EventKeys:
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


def _source_table(decoded: DecodedBlock) -> str:
    if decoded.origin is None or not len(decoded.origin):
        return ""
    first = next(origins(decoded.origin))[0]
    return ".".join(part for part in (first.get("schema") or first.get("database"), first.get("table")) if part)


def findings(planned: TablePlan, facts: EventKeys, topic: str, partitions: int) -> Iterator[Finding]:
    """Findings about the key of one table of change events."""
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
    """The setting that makes the source send the full previous row."""
    table = facts.source or "TABLE"
    if facts.connector in (POSTGRES, ""):
        return f"in PostgreSQL: ALTER TABLE {table} REPLICA IDENTITY FULL"
    return f"let the connector send the row before each change of {table}"


def offer(facts: EventKeys, topic: str, spec: TableSpec) -> str:
    """The ways to a table of current rows if the events have no key."""
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


SAMPLES = 1_000
"""Records of a topic that are looked at, unless the caller says otherwise."""
TOPICS_SAMPLED = 20
"""Topics of one pattern that are sampled."""
PROTOCOL = 5
"""The protocol since which servers have registers."""
_USUAL = {TOMBSTONE, "heartbeat", "transaction-marker", "schema-change", "message"}
"""Reasons that are normal for skipped records."""
_TYPED = {"wrong-type", "not-a-number", "out-of-range", "bad-base64", "unsure-decimal", "mixed-array"}
"""Codes of values that a column of another type would accept."""
_SEND_TRUNCATES = '"skipped.operations": "none" in the connector, and truncate: follow in bridge.yaml'
_TRUNCATE = rb'"op"\s*:\s*"t"'


@dataclass(frozen=True, slots=True)
class TopicSamples:
    """Samples of one topic, and the tables that they are for."""

    topic: TopicSpec
    facts: TopicFacts
    records: Records
    planned: Sequence[TablePlan]
    keys: EventKeys | None
    """Facts about the keys of change events; None for other records, and without samples."""

    def logs(self) -> Iterator[tuple[str, str]]:
        """Tables that become logs because their events have no key, with the ways to a table of current rows."""
        for each in self.planned:
            if self.keys is not None and not each.after.keyed and each.spec.events != "log":
                yield each.after.name, offer(self.keys, self.facts.name, each.spec)


def check(spec: BridgeSpec, lake: Lake, samples: int = SAMPLES) -> Iterator[Finding]:
    """Yield all findings in the order of the checks."""
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
        return Finding(Level.STOPS, "server", say, mend="pip install --upgrade lakestore, where the server runs")
    return Finding(Level.OK, "server", f"release {server.release}")


def _group(cluster: Cluster, source: SourceSpec) -> Iterator[Finding]:
    try:
        cluster.check_group()
        yield Finding(Level.OK, f"group {source.group}", "the user may read in it")
    except LakestoreError as error:
        yield Finding(
            Level.STOPS, f"group {source.group}", error.message, mend=_right(error, source, "group", source.group)
        )


def _right(error: LakestoreError, source: SourceSpec, kind: str, name: str) -> str:
    if not isinstance(error, Denied):
        return ""
    user = source.options.get("sasl.username", "USER")
    return (
        f"kafka-acls.sh --bootstrap-server {source.bootstrap} --add --allow-principal User:{user} --operation Read"
        f" --{kind} {name}"
    )


def _topic(
    topic: TopicSpec, cluster: Cluster, source: SourceSpec, assembly: Assembly, lake: Lake, samples: int
) -> Iterator[Finding]:
    said = topic.topic or f"pattern {topic.pattern}"
    names = _names(topic, cluster, assembly.spec)
    if not names:
        yield Finding(Level.NOTE, said, "no topic has such a name yet", "no-topic")
    seen_truncate = False
    if topic.transactions:
        names = [*names, topic.transactions]
    for name in names[:TOPICS_SAMPLED]:
        try:
            facts = cluster.describe(name)
            require_topic(facts, source.bootstrap)
            if name == topic.transactions:
                if facts.partitions != 1:
                    say = f"has {facts.partitions} partitions, and a topic of transactions must have one"
                    yield Finding(Level.STOPS, f"topic {name}", say)
                continue
            records = cluster.sample(facts, samples)
        except LakestoreError as error:
            mend = _right(error, source, "topic", name)
            yield Finding(Level.STOPS, f"topic {name}", error.message, f"topic-{error.kind}", mend)
            continue
        told = f"{facts.partitions} partitions, {len(records):,} records sampled"
        yield Finding(Level.OK, f"topic {name}", told, "sampled")
        yield from _samples(topic, name, records, assembly, lake)
        yield from _keys(topic, name, records, assembly, facts)
        yield from mixed_fields(topic, name, records)
        if facts.partitions > 1 and any(table.truncate == "follow" for table in topic.tables):
            say = f"has {facts.partitions} partitions, so the order of a TRUNCATE and other events is lost"
            mend = "a topic of one partition, or truncate: ignore"
            yield Finding(Level.WARNS, f"topic {name}", say, "truncate-order", mend)
        seen_truncate |= bool(pc.any(pc.match_substring_regex(records.values, _TRUNCATE)).as_py())
    if topic.format in CHANGES and not seen_truncate:
        say = "Debezium sends no TRUNCATE unless it is told to, so rows that a TRUNCATE removes stay here"
        yield Finding(Level.NOTE, said, say, "truncate", _SEND_TRUNCATES)
    if len(names) > TOPICS_SAMPLED:
        yield Finding(Level.NOTE, said, f"{len(names):,} topics; {TOPICS_SAMPLED} of them were sampled")


def _keys(topic: TopicSpec, name: str, records: Records, assembly: Assembly, facts: TopicFacts) -> Iterator[Finding]:
    try:
        keys = event_keys(topic, name, records, assembly.spec)
        planned = assembly.plan(topic, name, records) if keys is not None else ()
    except LakestoreError:
        return  # reported with the samples
    for each in planned:
        if keys is not None:
            yield from findings(each, keys, name, facts.partitions)


def mixed_fields(topic: TopicSpec, name: str, records: Records) -> Iterator[Finding]:
    """Fields that are text because too many samples have another type."""
    if any(table.columns for table in topic.tables) or topic.format not in ("json", "debezium-json"):
        return
    found: dict[str, tuple[str, int, int]] = {}
    if topic.format == "json":
        facts = infer_schema(records)
        found = {field: (str(kind), odd, facts.records) for field, (kind, odd) in facts.mixed.items()}
    else:  # records with a schema have no such fields at their top
        fields = sampled_events(records.values, ("after",)).fields
        found = {field: several for field, each in fields.items() if (several := each.mixed) is not None}
    for field, (kind, odd, count) in found.items():
        say = f"{field} is text, for {odd:,} of {count:,} sampled values are no {kind}"
        mend = f"columns: with its type there make dead letters of these; {{name: {field}, type: string}} keeps it text"
        yield Finding(Level.WARNS, f"topic {name}", say, "mixed", mend)


def event_keys(topic: TopicSpec, name: str, records: Records, spec: BridgeSpec) -> EventKeys | None:
    """Facts about the keys of a topic's change events; None without change events."""
    if topic.format not in CHANGES or not len(records):
        return None
    of_one = replace(topic, topic=name, pattern="")
    decoded = decoders.decoder(of_one, spec.sources[topic.source]).decode(records, None)
    return EventKeys.of(decoded, records) if len(decoded.record) else None


def _names(topic: TopicSpec, cluster: Cluster, spec: BridgeSpec) -> Sequence[str]:
    return [name for name in cluster.topics_of(topic) if spec.entry(name, topic.source) is topic]


def _samples(topic: TopicSpec, name: str, records: Records, assembly: Assembly, lake: Lake) -> Iterator[Finding]:
    try:
        planned = assembly.plan(topic, name, records)
        if not planned:
            say = "the columns are not known: the topic is empty, and neither columns: nor a registry names them"
            yield Finding(Level.NOTE, f"topic {name}", say, "no-columns")
        for each in planned:
            yield from _table(each, lake)
        mapped = assembly.pipeline(topic, name).process(records) if len(records) and planned else None
    except LakestoreError as error:
        yield Finding(Level.STOPS, f"topic {name}", error.message)
        return
    if mapped is not None:
        keys = {each.after.name: each.after.primary_key for each in planned}
        yield from _ends(topic, name, records, mapped, keys)


def _table(planned: TablePlan, lake: Lake) -> Iterator[Finding]:
    about = f"table {planned.after.name}"
    try:
        if planned.before is None:
            lake.create(planned.after, check_only=True)
            yield Finding(Level.OK, about, "will be made (see --plan)", "made")
        elif planned.steps:
            lake.alter(planned.before, planned.steps, check_only=True)
            yield Finding(Level.OK, about, f"will get {len(planned.steps)} columns (see --plan)", "grows")
        else:
            yield Finding(Level.OK, about, "is there", "there")
        if planned.spec.on_error == "dlq":
            letters = dead_letter_table.definition(planned.after.name)
            try:
                lake.table(letters.name)
            except NotFound:
                lake.create(letters, check_only=True)
    except LakestoreError as error:
        yield Finding(Level.STOPS, about, error.message)


def _ends(
    topic: TopicSpec, name: str, records: Records, mapped: MappedBlock, keys: Mapping[str, Sequence[str]]
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
            level = {"fail": Level.STOPS, "dlq": Level.WARNS, "skip": Level.WARNS}[spec.on_error]
            yield Finding(level, f"topic {name}", say, f"reject-{code}", _mend(_field_of(example), table, code))
    for reason, numbers in mapped.passed.items():
        say = f"{len(numbers):,} of {count:,} sampled records are left out: {reason}"
        level = Level.OK if reason in _USUAL else Level.NOTE
        yield Finding(level, f"topic {name}", say, f"passed-{reason}")
    for rows in mapped.tables:
        yield from _rows(rows, keys.get(rows.table, ()), changes=topic.format in CHANGES)
    if mapped.extra:
        told = ", ".join(f"{field} ({kind})" for field, kind in list(mapped.extra.items())[:10])
        mend = "name them under columns:, or leave columns: out to take all fields"
        yield Finding(Level.NOTE, f"topic {name}", f"no column takes the fields {told}", "extra", mend)


def _end(spec: TableSpec, table: str) -> str:
    ends = {
        "dlq": f"would go to {dead_letters.table_of(table)}",
        "fail": "would end the bridge",
        "skip": "would be skipped",
    }
    return ends[spec.on_error]


def _field_of(reject: Reject) -> str:
    return reject.path.removeprefix("value.").removeprefix("after.")


def _mend(path: str, table: str, code: str) -> str:
    see = f"once it runs: lakestore dlq show {table} --code {code}, mend, lakestore dlq replay"
    field = re.fullmatch(r"[A-Za-z_]\w*", path)
    return (
        f"columns: with {{name: {path}, type: string}} takes any value of it; {see}"
        if field and code in _TYPED
        else see
    )


def _rows(rows: TableRows, key: Sequence[str], *, changes: bool) -> Iterator[Finding]:
    usual = Level.OK if changes else Level.NOTE
    puts = rows.batch.filter(pa.array(rows.op == Op.PUT))
    about, count = f"table {rows.table}", puts.num_rows
    for name, lacking in _lacking(puts, rows.kept).items():
        if lacking == count > 0:
            say = f"none of {count:,} sampled records has {name}: is its path right?"
            yield Finding(Level.NOTE, about, say, "never")
        elif lacking:
            yield Finding(usual, about, f"{lacking:,} of {count:,} sampled records lack {name}", "lacks")
    if key and count:
        repeated = _repeated(puts, key)
        say = (
            f"{100 * repeated / count:.0f} % of sampled keys ({', '.join(key)}) repeat"
            if repeated
            else (f"all {count:,} sampled keys ({', '.join(key)}) are different")
        )
        yield Finding(usual if repeated else Level.OK, about, say, "repeats")


def _lacking(puts: pa.RecordBatch, kept: Mapping[str, pa.BooleanArray]) -> dict[str, int]:
    return {
        name: column.null_count
        for name, column in zip(puts.schema.names, puts.columns, strict=True)
        if column.null_count and name not in kept
    }


def _repeated(puts: pa.RecordBatch, key: Sequence[str]) -> int:
    table = pa.Table.from_batches([puts.select(list(key))])
    different: int = table.group_by(list(key)).aggregate([]).num_rows
    return int(puts.num_rows) - different


def sample_topics(spec: BridgeSpec, lake: Lake, samples: int = SAMPLES) -> Iterator[TopicSamples]:
    """Existing topics with their samples and the tables that they need, for a plan."""
    assembly = Assembly(spec, lake, writes=False)
    for source in spec.sources.values():
        with Cluster(source) as cluster:
            for topic in (each for each in spec.topics if each.source == source.name):
                for name in _names(topic, cluster, spec)[:TOPICS_SAMPLED]:
                    facts = cluster.describe(name)
                    require_topic(facts, source.bootstrap)
                    needs = not all(table.columns for table in topic.tables) or "{" in topic.tables[0].table
                    records = cluster.sample(facts, samples) if needs else _none(facts)
                    planned = assembly.plan(topic, name, records)
                    yield TopicSamples(topic, facts, records, planned, event_keys(topic, name, records, spec))


def _none(facts: TopicFacts) -> Records:
    nothing = np.array([], np.int64)
    empty = pa.array([], pa.binary())
    return Records(facts.name, facts.id, nothing, nothing, nothing, empty, empty)
