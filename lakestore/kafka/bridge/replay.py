"""Replay: dead letters pass the bridge again, after bridge.yaml, a table or a schema was fixed.

- The rows and the deletion of their dead letters are one commit, so each dead letter is replayed once.
- Rows carry the positions of their records: a later record of the same key wins, and the older one counts as
  superseded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Exhausted, Invalid, Violated
from lakestore.kafka.bridge import dead_letters
from lakestore.kafka.bridge.carry_over import carry_over, live_rows
from lakestore.kafka.bridge.commit import Targets, empty
from lakestore.kafka.bridge.consumer import Pipeline
from lakestore.kafka.bridge.dead_letters import STORED, RemovalLease, ReplayCounts, Selection, check_order, chunks
from lakestore.kafka.bridge.outcome import MappedBlock, Op, Reject, Stage, TableRows
from lakestore.kafka.bridge.records import Headers, Ints, Records
from lakestore.kafka.bridge.spec import POSITION, BridgeSpec, TopicSpec
from lakestore.kafka.bridge.writing import Step, steps_of

if TYPE_CHECKING:
    from lakestore.client.commit import Commit
    from lakestore.client.lake import Lake
    from lakestore.model.table import Table

_GONE = "value-gone"


class Topics(Protocol):
    """The current topics of the dead letters."""

    def has(self, topic: TopicSpec, name: str, identity: str) -> bool: ...

    def whole(
        self, topic: TopicSpec, name: str, identity: str, offsets: Mapping[int, Sequence[int]]
    ) -> Mapping[tuple[int, int], bytes | None]:
        """Partition and offset to the full value, for dead letters whose values were cut."""


class Replay:
    """A replay of one table's dead letters. `run` is called once."""

    def __init__(
        self,
        lake: Lake,
        spec: BridgeSpec,
        table: str,
        pipeline: Callable[[TopicSpec, str], Pipeline],
        topics: Topics,
        *,
        overwrite: bool = False,
        progress: Callable[[ReplayCounts], None] = lambda _: None,
    ) -> None:
        """`overwrite` allows keyed tables without an order, in which replayed rows replace later ones."""
        self._lake, self._spec, self._table = lake, spec, table.removesuffix(dead_letters.SUFFIX)
        self._make, self._topics, self._overwrite, self._progress = pipeline, topics, overwrite, progress
        self._targets = Targets(lake)
        self._pipelines: dict[tuple[str, str], Pipeline] = {}
        self._tables: dict[str, Table] = {}
        self._counts = ReplayCounts()

    def run(self, selection: Selection) -> ReplayCounts:
        """Replay the selected dead letters of this bridge that exist now."""
        chosen = Selection(selection.codes, selection.stages, selection.where, self._spec.name)
        columns = [*dead_letters.SCHEMA.names, STORED]
        with RemovalLease(self._lake, self._table) as taking:
            for chunk in chunks(self._lake, taking.letters, chosen, columns):
                for letters in _by_topic(chunk):
                    self._replay(letters, taking)
                self._progress(self._counts)
        return self._counts

    def _replay(self, letters: pa.RecordBatch, taking: RemovalLease) -> None:
        records, gone = self._records(letters)
        if gone:
            lost = np.array([each.record for each in gone], np.int64)
            rest = np.setdiff1d(np.arange(len(records)), lost)
            again = [replace(each, record=number) for number, each in enumerate(gone)]
            some = letters.take(pa.array(lost))
            self._commit(some, MappedBlock((), {self._table: again}, {}), taking)
            letters, records = letters.take(pa.array(rest)), records.take(rest)
        if len(records):
            self._replay_whole(letters, records, taking)

    def _replay_whole(self, letters: pa.RecordBatch, records: Records, taking: RemovalLease) -> None:
        mapped = self._pipeline(records.topic, records.topic_id).process(records)
        for rows in mapped.tables:
            check_order(self._definition(rows.table), overwrite=self._overwrite)
        for table, record in mapped.truncates.items():
            empty(self._lake, table, records, record)
        try:
            self._commit(letters, mapped, taking)
        except (Invalid, Exhausted) as error:
            if len(letters) > 1:
                middle = np.arange(len(letters)) < len(letters) // 2
                for half in (np.flatnonzero(middle), np.flatnonzero(~middle)):
                    self._replay_whole(letters.take(pa.array(half)), records.take(half), taking)
            elif isinstance(error, Exhausted):
                raise
            else:
                broken = error.changes[0] if isinstance(error, Violated) and error.changes else None
                refused = Reject(0, Stage.APPLY, "refused", error.message)
                if broken is not None:
                    refused = Reject(0, Stage.CONTRACT, broken.rule, broken.sentence)
                self._commit(letters, MappedBlock((), {self._table: [refused]}, {}), taking)

    def _topic(self, name: str, identity: str) -> TopicSpec:
        """The entry that read a topic. If several sources have a topic of this name, its id decides."""
        found = [entry for source in self._spec.sources if (entry := self._spec.entry(name, source)) is not None]
        if not found:
            raise Invalid(f"the file says nothing about topic {name!r}, but table {self._table} has dead letters of it")
        if len(found) == 1:
            return found[0]
        for entry in found:
            if self._topics.has(entry, name, identity):
                return entry
        raise Invalid(
            f"table {self._table} has dead letters of topic {name!r} with the id {identity}, and none of the"
            f" {len(found)} sources that may have the topic has this id: leave the other sources out of the file to say"
            " which source it was"
        )

    def _pipeline(self, topic: str, identity: str) -> Pipeline:
        if (topic, identity) not in self._pipelines:
            self._pipelines[topic, identity] = self._make(self._topic(topic, identity), topic)
        return self._pipelines[topic, identity]

    def _records(self, letters: pa.RecordBatch) -> tuple[Records, list[Reject]]:
        # ids may contain a slash, topic names cannot
        topic, _, place = letters.column("kafka_source")[0].as_py().partition("/")
        identity = place.rpartition("/")[0]
        partition = letters.column("partition").cast(pa.int64()).to_numpy()
        offset = letters.column("kafka_offset").to_numpy()
        values, gone = self._values(letters, topic, identity, partition, offset)
        times = pc.divide(letters.column("timestamp").cast(pa.int64()), 1_000).fill_null(-1)
        headers = [_headers(each) for each in letters.column("headers").to_pylist()]
        records = Records(
            topic,
            identity,
            partition,
            offset,
            times.to_numpy(),
            letters.column("key"),
            values,
            headers if any(each is not None for each in headers) else None,
        )
        return records, gone

    def _values(
        self, letters: pa.RecordBatch, topic: str, identity: str, partition: Ints, offset: Ints
    ) -> tuple[pa.BinaryArray, list[Reject]]:
        values, size = letters.column("value"), letters.column("value_bytes").to_numpy()
        held = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
        cut = np.flatnonzero(size > held)
        if not len(cut):
            return values, []
        wanted: dict[int, list[int]] = {}
        for row in cut.tolist():
            wanted.setdefault(int(partition[row]), []).append(int(offset[row]))
        found = self._topics.whole(self._topic(topic, identity), topic, identity, wanted)
        whole, gone = values.to_pylist(), []
        for row in cut.tolist():
            place = int(partition[row]), int(offset[row])
            if place in found:
                whole[row] = found[place]
            else:
                say = (
                    f"its value of {size[row]:,} bytes was cut, and topic {topic!r} no longer has it: drop the letter,"
                    " or let its source send the record again"
                )
                gone.append(Reject(row, Stage.WIRE, _GONE, say))
        return pa.array(whole, pa.binary()), gone

    def _commit(self, letters: pa.RecordBatch, mapped: MappedBlock, taking: RemovalLease) -> None:
        refused = {each.record: (table, each) for table, rejects in mapped.rejects.items() for each in rejects}
        stays = [row for row, (table, _) in refused.items() if dead_letters.table_of(table) == taking.letters]
        leaves = np.setdiff1d(np.arange(len(letters)), np.array(stays, np.int64))
        told = self._told(letters, refused)
        ignored = 0
        if len(leaves) or told:
            with taking.registers.commit(taking.next()) as commit:
                commit.refuses_dead_letters = True
                for rows in mapped.tables:
                    self._write(commit, rows, letters)
                for table, again in told.items():
                    commit.upsert(self._targets.dead_letters(table), again)
                if len(leaves):
                    commit.delete(taking.letters, letters.select(list(dead_letters.KEY)).take(pa.array(leaves)))
            names = {rows.table for rows in mapped.tables}
            ignored = sum(int(result.ignored) for result in commit.results if result.table in names)
        self._count(len(letters), mapped, ignored)

    def _write(self, commit: Commit, rows: TableRows, letters: pa.RecordBatch) -> None:
        table = self._definition(rows.table)
        rows = carry_over(rows, table.primary_key, live_rows(self._lake, rows.table))
        for step in steps_of(rows, table.primary_key):
            due = _due(step, letters) if table.merge.within else None
            if step.op is Op.DELETE:
                commit.delete(step.table, step.rows, as_of=due)
            elif table.keyed:
                commit.upsert(step.table, step.rows, keep=step.kept, as_of=due)
            else:
                commit.append(step.table, step.rows)

    def _told(self, letters: pa.RecordBatch, refused: Mapping[int, tuple[str, Reject]]) -> dict[str, pa.RecordBatch]:
        by_table: dict[str, list[Reject]] = {}
        for row, (table, reject) in refused.items():
            same = table == self._table and all(
                letters.column(name)[row].as_py() == said
                for name, said in (
                    ("stage", str(reject.stage)),
                    ("code", reject.code),
                    ("sentence", reject.sentence),
                    ("path", reject.path or None),
                )
            )
            if not same:
                by_table.setdefault(table, []).append(reject)
        return {table: self._again(letters, rejects) for table, rejects in by_table.items()}

    @staticmethod
    def _again(letters: pa.RecordBatch, rejects: Sequence[Reject]) -> pa.RecordBatch:
        some = letters.take(pa.array([each.record for each in rejects])).select(dead_letters.SCHEMA.names)
        said = {
            "stage": pa.array([str(each.stage) for each in rejects], pa.string()),
            "code": pa.array([each.code for each in rejects], pa.string()),
            "sentence": pa.array([each.sentence for each in rejects], pa.string()),
            "path": pa.array([each.path or None for each in rejects], pa.string()),
        }
        columns = [said.get(name, some.column(name)) for name in dead_letters.SCHEMA.names]
        return pa.RecordBatch.from_arrays(columns, schema=dead_letters.SCHEMA)

    def _definition(self, table: str) -> Table:
        if table not in self._tables:
            self._tables[table] = self._lake.table(table).definition
        return self._tables[table]

    def _count(self, letters: int, mapped: MappedBlock, ignored: int) -> None:
        failed = {each.record for rejects in mapped.rejects.values() for each in rejects}
        applied = {record for rows in mapped.tables for record in rows.record.tolist()}
        counts = self._counts
        superseded = min(ignored, len(applied))
        counts.superseded += superseded
        counts.applied += len(applied) - superseded
        counts.failed += len(failed)
        counts.left_out += letters - len(failed) - len(applied)
        for rejects in mapped.rejects.values():
            for each in rejects:
                counts.examples.setdefault(each.code, each.sentence)


def _due(step: Step, letters: pa.RecordBatch) -> pa.Array:
    names = list(POSITION)
    stored = dict(zip(*(_places(letters, names), letters.column(STORED).to_pylist()), strict=True))
    return pa.array([stored[place] for place in _places(step.rows, names)], letters.column(STORED).type)


def _places(rows: pa.RecordBatch, names: Sequence[str]) -> list[tuple[str, int]]:
    return list(zip(*(rows.column(name).to_pylist() for name in names), strict=True))


def _headers(value: list[dict[str, object]] | None) -> Headers | None:
    return None if value is None else [(str(each["name"]), each["value"]) for each in value]  # type: ignore[misc]


def _by_topic(letters: pa.RecordBatch) -> list[pa.RecordBatch]:
    sources = letters.column("kafka_source").to_pylist()
    names = [source.rsplit("/", 1)[0] for source in sources]
    order: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        order.setdefault(name, []).append(row)
    return [letters.take(pa.array(rows)) for rows in order.values()]
