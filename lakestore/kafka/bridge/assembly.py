"""The tables and pipelines of a bridge.

- A missing table is created at the start if bridge.yaml names its columns, otherwise when the first records of its
  topic arrive.
- Columns that bridge.yaml gained are added. Nothing else is dropped or changed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from lakestore.errors import Conflict, Invalid, NotFound
from lakestore.evolution import Step
from lakestore.kafka.bridge.decode import decoders
from lakestore.kafka.bridge.decode.inference import infer_schema, storable
from lakestore.kafka.bridge.drift.differences import additions
from lakestore.kafka.bridge.drift.watching import Watch
from lakestore.kafka.bridge.expressions import names_origin, origins, table_name
from lakestore.kafka.bridge.map import reads_key_fields
from lakestore.kafka.bridge.outcome import DecodedBlock, MappedBlock
from lakestore.kafka.bridge.pipeline import Pipeline
from lakestore.kafka.bridge.records import Records
from lakestore.kafka.bridge.spec import CHANGES, BridgeSpec, TableSpec, TopicSpec
from lakestore.kafka.bridge.tables import event_paths, op_column, wanted_definition
from lakestore.model.alteration import apply_steps
from lakestore.model.table import Table
from lakestore.model.table_file import WantedColumn, WantedTable, steps_between
from lakestore.model.types import arrow_type

if TYPE_CHECKING:
    from lakestore.client.lake import Lake

REFRESH_SECONDS = 10.0
"""Seconds between checks for altered tables."""
_NO_TABLE = "no-table"
_LOG = logging.getLogger("lakestore.bridge")


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A table that a bridge writes to, as wanted and as it exists."""

    spec: TableSpec
    wanted: WantedTable
    """The definition that bridge.yaml and the records ask for."""
    before: Table | None
    """The existing definition; None: the table does not exist."""
    after: Table
    steps: tuple[Step, ...] = ()


class Assembly:
    """The tables and pipelines of one bridge. Threads may share it if each has its own topic."""

    def __init__(self, spec: BridgeSpec, lake: Lake, *, writes: bool = True) -> None:
        """With `writes` false nothing is created or altered: for plans and checks."""
        self.spec, self._lake, self._writes = spec, lake, writes
        self.tables: dict[str, Table] = {}
        self._lock = threading.Lock()
        self._refreshed = time.monotonic()

    def pipeline(self, topic: TopicSpec, name: str) -> TopicPipeline:
        return TopicPipeline(self, topic, name)

    def watch(self, topic: TopicSpec) -> Watch | None:
        """Return the watch over a topic's tables; None if tables never change."""
        return Watch(self._lake, self.spec.name, topic, self.tables) if self._writes else None

    def plan(self, topic: TopicSpec, name: str, records: Records | None) -> list[TablePlan]:
        """Return the tables of a topic. Raises `Invalid` for a table that cannot exist.

        `records` are samples. A table is left out while neither its name nor its columns can be told.
        """
        told = TableFacts.of(topic, self.spec, name, records)
        found: dict[str, TablePlan] = {}
        for spec in topic.tables:
            for table in told.names(spec):
                there = self._there(table)
                known = (spec.columns or told.schema is not None) and not told.lacks_key(spec)
                if table not in found and (there or known):
                    found[table] = self._planned(spec, table, there, told)
        return list(found.values())

    def _planned(self, spec: TableSpec, name: str, before: Table | None, facts: TableFacts) -> TablePlan:
        log = facts.is_log(spec)
        key = () if spec.primary_key or log else facts.key
        schema = facts.schema
        if before is not None and (facts.lacks_key(spec) or (schema is None and not spec.columns)):
            return TablePlan(spec, WantedTable(name, _kept(before), {}), before, before)
        if log and spec.events == "apply":
            raise Invalid(
                f"the change events of table {name} have no key, so the row that an event changes cannot be found:"
                " say its primary_key, or events: log"
            )
        table = wanted_definition(spec, schema, name=name, key=key, log=log)
        if before is None:
            return TablePlan(spec, table, None, table.definition())
        keys = tuple(table.options.get("primary_key", ()))
        if keys != before.primary_key:
            raise Invalid(
                f"table {name} has the key ({', '.join(before.primary_key)}), and the bridge writes by"
                f" ({', '.join(keys)}): say its primary_key, or name another table"
            )
        if not spec.columns:
            steps: tuple[Step, ...] = ()
            if schema is not None:
                steps = tuple(additions(before, _with_events(schema, table, facts, spec), spec))
            return TablePlan(spec, WantedTable(name, _kept(before), {}), before, apply_steps(before, steps), steps)
        steps = tuple(steps_between(before, _grown(before, table)))
        return TablePlan(spec, table, before, apply_steps(before, steps), steps)

    def _there(self, name: str) -> Table | None:
        try:
            return self._lake.table(name).definition
        except NotFound:
            return None

    def prepare(self, topic: TopicSpec, name: str, records: Records | None) -> bool:
        """Create the tables of a topic, or add their new columns. Returns whether any table is known now."""
        with self._lock:
            planned = self.plan(topic, name, records)
            for each in planned:
                self.tables[each.after.name] = self._made(each) if self._writes else each.after
            return bool(planned)

    def _made(self, planned: TablePlan) -> Table:
        try:
            if planned.before is None:
                return self._lake.create(planned.after).definition
            if planned.before.contract is not None and not planned.spec.columns:
                return planned.before  # the watch alters it, or proposes that
            if planned.steps:
                return self._lake.alter(planned.before, planned.steps)
        except Conflict:  # another member of the group created it first
            return self._lake.table(planned.after.name).definition
        return planned.after

    def refresh(self) -> None:
        """Reload altered tables, at most once per `REFRESH_SECONDS`. Raises `NotFound` if one was dropped."""
        if not self._writes or time.monotonic() - self._refreshed < REFRESH_SECONDS:
            return
        with self._lock:
            self._refreshed = time.monotonic()
            for name, known in list(self.tables.items()):
                found = self._there(name)
                if found is None:
                    raise NotFound(
                        f"table {name} was dropped while the bridge writes to it: create it, or take it out of the file"
                    )
                if found != known:
                    self.tables[name] = found


class TopicPipeline:
    """A pipeline that creates its tables when their first records arrive. One thread uses it at a time."""

    def __init__(self, assembly: Assembly, topic: TopicSpec, name: str) -> None:
        source = assembly.spec.sources[topic.source]
        topic = _of_one(topic, name)
        self._assembly, self._topic, self._name = assembly, topic, name
        decoder = decoders.decoder(topic, source)
        keys = decoders.key_decoder(topic, source, reads_fields=reads_key_fields(topic))
        self._pipeline = Pipeline(
            topic=topic, tables=assembly.tables, decoder=decoder, keys=keys, drift=assembly.watch(topic)
        )
        named = all(each.columns for each in topic.tables)
        self._is_ready = named and assembly.prepare(topic, name, None)

    def process(self, records: Records, /) -> MappedBlock:
        if not self._is_ready:
            self._is_ready = self._assembly.prepare(self._topic, self._name, records)
        self._assembly.refresh()
        mapped = self._pipeline.process(records)
        if any(each.code == _NO_TABLE for rejects in mapped.rejects.values() for each in rejects):
            self._assembly.prepare(self._topic, self._name, records)
            mapped = self._pipeline.process(records)
        return mapped

    def learn(self, records: Records, /) -> None:
        """Remember the records before the next block; decoders need them."""
        self._pipeline.learn(records)


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts about a topic's tables, from its schema and its samples."""

    topic: str
    schema: pa.Schema | None
    key: tuple[str, ...]
    origins: tuple[dict[str, str | None], ...]
    is_changes: bool
    has_rows: bool

    @staticmethod
    def of(topic: TopicSpec, bridge: BridgeSpec, name: str, records: Records | None) -> TableFacts:
        """Ask the registry and the samples, unless bridge.yaml says everything."""
        decoder = decoders.decoder(_of_one(topic, name), bridge.sources[topic.source])
        decoded: DecodedBlock | None = None
        schema: pa.Schema | None = None
        if records is not None and len(records):
            if topic.format == "json" and topic.wire != "confluent":
                found = infer_schema(records)
                schema = found.schema
                for path, (kind, many) in found.odd.items():
                    text = (
                        "topic %s: field %s is %s, which %d of the first %d records do not fit: they are dead letters"
                    )
                    _LOG.info(text, name, path, kind, many, found.records)
            else:
                decoded = decoder.decode(records, None)
        schema = decoder.schema() if schema is None else schema
        if schema is None and decoded is not None and len(decoded.values):
            schema = pa.schema(list(decoded.values.type))
        if schema is not None and not len(schema):
            schema = None
        key = decoded.key_names if decoded is not None else ()
        return TableFacts(
            name,
            None if schema is None else storable(schema, key),
            tuple(key),
            tuple(_origins(decoded)),
            topic.format in CHANGES,
            decoded is not None and bool(len(decoded.record)),
        )

    def lacks_key(self, spec: TableSpec) -> bool:
        """Whether the table's key is the key of change events and no event was seen yet."""
        return self.is_changes and not spec.primary_key and not self.has_rows

    def is_log(self, spec: TableSpec) -> bool:
        """Whether each change event becomes a row of its own."""
        return self.is_changes and (spec.events == "log" or not (spec.primary_key or self.key))

    def names(self, spec: TableSpec) -> Sequence[str]:
        """The full table names of a spec that are known so far."""
        if not names_origin(spec.table):
            return (table_name(spec.table, self.topic),)
        return tuple(dict.fromkeys(table_name(spec.table, self.topic, origin) for origin in self.origins))


def _with_events(schema: pa.Schema, table: WantedTable, facts: TableFacts, spec: TableSpec) -> pa.Schema:
    names = event_paths(spec, op=op_column(schema.names)) if facts.is_log(spec) else event_paths(spec)
    for each in table.columns:
        if each.name in names:
            schema = schema.append(pa.field(each.name, arrow_type(each.type)))
    return schema


def _of_one(topic: TopicSpec, name: str) -> TopicSpec:
    return replace(topic, topic=name, pattern="") if topic.pattern else topic


def _origins(decoded: DecodedBlock | None) -> Iterator[dict[str, str | None]]:
    if decoded is not None and decoded.origin is not None:
        yield from (origin for origin, _ in origins(decoded.origin) if any(origin.values()))


def _kept(table: Table) -> tuple[WantedColumn, ...]:
    return tuple(WantedColumn(each.name, each.type, each.required, each.default) for each in table.columns)


def _grown(before: Table, table: WantedTable) -> WantedTable:
    there = {each.name for each in before.columns}
    added = tuple(replace(each, required=False) for each in table.columns if each.name not in there)
    options = {"primary_key": list(before.primary_key)} if before.keyed else {}
    return WantedTable(before.name, (*_kept(before), *added), options)
