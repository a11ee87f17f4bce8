"""The last stage of a consumer: it commits rows, dead letters and register moves together.

- One thread owns the registers.
- Records that break rules of a table's contract become dead letters of this bridge: the server names them.
- A commit that the server refuses for another reason is halved until the bad records are isolated.
- Bad records become dead letters in the commit that moves progress past them, so nothing wedges.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from lakestore.client.commit import Commit
from lakestore.client.lake import Lake
from lakestore.client.registers import Registers
from lakestore.client.retry import is_passing, within
from lakestore.client.transport import message_bytes
from lakestore.errors import Conflict, Invalid, LakestoreError, NotFound, OtherTimeline, RuleRows, Violated
from lakestore.kafka.bridge import dead_letters
from lakestore.kafka.bridge.carry_over import Batch, Cut, OpenPartitions, carry_over, live_rows
from lakestore.kafka.bridge.counts import Counts
from lakestore.kafka.bridge.dead_letters import sources_of
from lakestore.kafka.bridge.feeds import Feeds
from lakestore.kafka.bridge.outcome import MappedBlock, Op, Reject, Stage, TableRows
from lakestore.kafka.bridge.positions import AcceptedLoss, Place, Position, register_of
from lakestore.kafka.bridge.records import Ints, Records
from lakestore.kafka.bridge.source import Source, Starts
from lakestore.kafka.bridge.spec import POSITION, TableSpec, TopicSpec
from lakestore.kafka.bridge.tables import POSITION_MERGE
from lakestore.kafka.bridge.writing import Part, steps_of
from lakestore.model import dead_letter_table
from lakestore.v1 import lakestore_pb2 as pb

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Targets:
    """Tables by name. For one thread."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._keys: dict[str, tuple[str, ...]] = {}
        self._dead: set[str] = set()

    def key(self, table: str) -> tuple[str, ...]:
        """The primary key columns of a table; empty for a log table."""
        if table not in self._keys:
            self._keys[table] = tuple(self._lake.table(table).definition.primary_key)
        return self._keys[table]

    def dead_letters(self, table: str) -> str:
        """Create the dead-letter table of a table if needed and return its name."""
        name = dead_letters.table_of(table)
        if name not in self._dead:
            try:
                dead_letter_table.check(self._lake.table(name).definition, table)
            except NotFound:
                try:
                    self._lake.create(dead_letter_table.definition(table))
                    _LOG.info("made table %s for records that table %s cannot take", name, table)
                except Conflict:  # another process created it
                    self._lake.table(name)
            self._dead.add(name)
        return name

    def forget(self) -> None:
        self._keys.clear()
        self._dead.clear()


def spec_of(topic: TopicSpec, table: str) -> TableSpec:
    """The spec that a table of a topic comes from; the first spec if no name fits."""
    for each in topic.tables:
        pattern = "".join(
            ".+" if number % 2 else re.escape(text) for number, text in enumerate(_PLACEHOLDER.split(each.table))
        )
        if re.fullmatch(pattern, table):
            return each
    return topic.tables[0]


ROWS = 50_000
"""Keys of one commit."""


def empty(lake: Lake, table: str, records: Records, record: int) -> None:
    """Delete the rows that a table has now, with the position of a truncate record. A log table keeps its rows."""
    try:
        target = lake.table(table)
    except NotFound:
        return
    key = target.definition.primary_key
    if target.definition.merge != POSITION_MERGE:
        if key:
            _LOG.warning("table %s keeps its rows at a TRUNCATE of its source: it has no source positions", table)
        return
    place = records.take(np.array([record], np.int64))
    source, offset = sources_of(place)[0], pa.scalar(int(records.offset[record]), pa.int64())
    done = 0
    for batch in target.scan(list(key)).to_batches():
        for low in range(0, batch.num_rows, ROWS):
            some = batch.slice(low, ROWS)
            places = [pa.repeat(source, some.num_rows), pa.repeat(offset, some.num_rows)]
            with lake.commit() as commit:
                commit.delete(table, pa.RecordBatch.from_arrays([*some.columns, *places], [*key, *POSITION]))
            done += some.num_rows
    _LOG.info("table %s follows a TRUNCATE of its source: %d rows are deleted", table, done)


PAUSE_SECONDS, TELL_SECONDS, CALL_SECONDS = 1.0, 10.0, 2.0
DEAD_VALUE_BYTES_MAX = 16 << 20
_LOG = logging.getLogger("lakestore.bridge")


class Halt(LakestoreError):
    """A topic stops until somebody intervenes; other topics continue."""

    kind = "Conflict"

    def __init__(self, topic: str, message: str) -> None:
        super().__init__(message)
        self.topic = topic


class Committer:
    """The registers of one consumer and the commits that move them. For one thread."""

    def __init__(
        self,
        *,
        lake: Lake,
        bridge: str,
        source_name: str,
        source: Source,
        starts: Starts,
        accepted: AcceptedLoss,
        table_spec: Callable[[str, str], TableSpec],
        counts: Counts,
        is_stopped: Callable[[], bool],
        tables: Callable[[str], Sequence[str]] = lambda _: (),
    ) -> None:
        """`table_spec` returns a table's part of bridge.yaml by topic and table, `tables` the tables that a topic is
        known to fill.
        """
        self._lake, self._bridge, self._name, self._source = lake, bridge, source_name, source
        self._starts, self._accepted, self._table_spec = starts, accepted, table_spec
        self._counts, self._is_stopped = counts, is_stopped
        self._targets = Targets(lake)
        self._feeds = Feeds(lake, bridge, source_name, tables=tables, partitions=lambda: source.partitions())
        self._registers: Registers | None = None
        self._held: dict[Place, Position] = {}
        """The last position of each register that this consumer moved or opened."""
        self._cluster = self._timeline = ""
        self.since = 0.0
        """Monotonic start time of the running commit; 0: no commit runs."""
        self._told: dict[tuple[str, str], float] = {}
        self._untold: Counter[tuple[str, str]] = Counter()
        """Rejected records by table and code since their last log line."""
        self._sent: list[tuple[int, str, Ints]] = []
        """(number of the part, table, record of each row) of each change of the running commit."""
        self._confirmed: dict[str, tuple[str, float]] = {}
        """Topic to its id and the time of the question."""

    def open(self, places: Sequence[Place], *, anew: bool) -> OpenPartitions:
        """Open partitions and fence their previous owner. With `anew` the partitions that are open are closed first."""
        by_name = {register_of(self._bridge, self._name, place): place for place in places}
        before = dict(self._held)
        if anew or self._registers is None:
            head = self._head()  # first, so that a restore in between is noticed
            self._timeline = head.timeline
            self._feeds.begin(head.now_us)
            self._registers = self._lake.registers(by_name)
            self._held.clear()
        else:
            self._registers.open(by_name)
        values = self._registers.progress
        held = {place: Position.decode(values[name]) for name, place in by_name.items()}
        self._cluster = self._source.cluster()
        opened = self._starts.start_offsets(self._cluster, held, self._accepted)
        ids = opened.topic_ids
        self._tell_again(before, held)
        now = {place: Position(self._cluster, ids[place.topic], offset) for place, offset in opened.offsets.items()}
        self._held.update(now)
        moves = {place: position for place, position in now.items() if held[place] != position}
        if moves:
            with self._registers.commit(self._named(moves)):
                pass
        self._feeds.open(self._registers, opened.offsets)
        return opened

    def check_history(self) -> None:
        """Raise `OtherTimeline` if the server was restored since the partitions were opened. An idle consumer sends
        no commit that would notice it. An unavailable server is asked again later.
        """
        try:
            with within(CALL_SECONDS):
                found = self._head().timeline
        except LakestoreError as error:
            _LOG.info("the server was not asked whether it was restored: %s", error.message)
            return
        if found != self._timeline:
            raise OtherTimeline("the server continues another history, because it was restored from a backup")
        self._open_new_feeds()

    def _open_new_feeds(self) -> None:
        """Open the feeds of tables that have a contract since the partitions were opened."""
        if self._registers is None:
            return
        try:
            with within(CALL_SECONDS):
                self._feeds.open(self._registers, self._held, is_new=True)
        except LakestoreError as error:
            _LOG.info("the feeds of new contracts are not open yet: %s", error.message)

    def _head(self) -> pb.HeadAnswer:
        return self._lake.transport.head(pb.HeadRequest())

    def _tell_again(self, before: Mapping[Place, Position], positions: Mapping[Place, Position | None]) -> None:
        again = sum(
            before[place].next - (position.next if position else 0)
            for place, position in positions.items()
            if place in before and (position is None or position.next < before[place].next)
        )
        if again > 0:
            _LOG.warning("the server was restored to an earlier time: up to %d records are read again", again)

    def _named(self, positions: Mapping[Place, Position]) -> dict[str, str]:
        return {
            register_of(self._bridge, self._name, place): position.encode() for place, position in positions.items()
        }

    def release(self, places: Sequence[Place]) -> None:
        if self._registers is not None:
            self._registers.release(register_of(self._bridge, self._name, place) for place in places)
            self._feeds.release(self._registers, places)
        for place in places:
            self._held.pop(place, None)

    def commit(self, batch: Batch) -> None:
        """Commit a batch. Raises `Halt` after the committable part if the policy is to fail."""
        self._confirm(batch)
        for records, mapped in zip(batch.blocks, batch.mapped, strict=True):
            for table, record in mapped.truncates.items():
                empty(self._lake, table, records, record)
        if batch.cuts:
            self._commit_whole(batch)
            return
        parts, moves, halt = [], dict(batch.moves), None
        for records, mapped in zip(batch.blocks, batch.mapped, strict=True):
            part = Part(records, mapped, 0, len(records))
            failing = self._failing(part)
            if failing is not None:
                part = part.before(failing.record)
                halt = Halt(records.topic, self._stopped_by(records, failing))
                moves = {place: next for place, next in moves.items() if place.topic != records.topic} | part.ends()
            parts.append(part)
        moves = {place: next for place, next in moves.items() if next != self._held[place].next}
        if moves:
            self._send([part for part in parts if len(part)], moves)
            self._counts.add_batch(batch)
        if halt is not None:
            raise halt

    def _commit_whole(self, batch: Batch) -> None:
        parts = [
            Part(records, mapped, 0, len(records)) for records, mapped in zip(batch.blocks, batch.mapped, strict=True)
        ]
        cuts, halt = list(batch.cuts), None
        for number, part in enumerate(parts):
            failing = self._failing(part)
            before = [cut for cut in cuts if failing is not None and cut.highs[number] <= failing.record]
            if failing is not None and len(before) < len(cuts):
                cuts, halt = before, Halt(part.records.topic, self._stopped_by(part.records, failing))
        self._send_whole(parts, cuts)
        if halt is not None:
            raise halt
        self._counts.add_batch(batch)

    def _send_whole(self, parts: Sequence[Part], cuts: Sequence[Cut]) -> None:
        if not cuts:
            return
        some = [replace(part, high=high) for part, high in zip(parts, cuts[-1].highs, strict=True)]
        moves = {place: next for place, next in cuts[-1].moves.items() if next != self._held[place].next}
        full = [part for part in some if len(part)]
        if not moves:
            return
        why = "they have no room in one commit: raise message_bytes at the server"
        if sum(part.nbytes for part in full) <= self._most_bytes():
            try:
                self._commit_good(full, moves)
                return
            except Invalid as error:
                why = error.message
        if len(cuts) == 1:
            _LOG.warning("source transactions %s are committed in parts: %s", cuts[0].names or "-", why)
            self._send(full, moves)
            return
        middle = len(cuts) // 2
        self._send_whole(parts, cuts[:middle])
        rest = [replace(part, low=high) for part, high in zip(parts, cuts[middle - 1].highs, strict=True)]
        self._send_whole(rest, cuts[middle:])

    def _confirm(self, batch: Batch) -> None:
        topics = {place.topic for place in batch.moves}
        if any(self._confirmed.get(topic, ("", 0.0))[1] < batch.polled for topic in topics):
            asked = time.monotonic()
            ids = self._source.topic_ids(topics)
            self._confirmed.update((topic, (ids.get(topic, ""), asked)) for topic in topics)
        for place in batch.moves:
            found, held = self._confirmed[place.topic][0], self._held[place].topic_id
            if not found:
                raise Halt(place.topic, f"topic {place.topic!r} was deleted while it was read")
            if found != held:
                raise Conflict(f"topic {place.topic!r} was created again while it was read")

    def _failing(self, part: Part) -> Reject | None:
        found = [
            min(rejects, key=lambda each: each.record)
            for table, rejects in part.rejects()
            if self._table_spec(part.records.topic, table).on_error == "fail"
        ]
        return min(found, key=lambda each: each.record, default=None)

    @staticmethod
    def _stopped_by(records: Records, reject: Reject) -> str:
        where = f"topic {records.topic!r}, partition {records.partition[reject.record]}"
        return (
            f"{where}, offset {records.offset[reject.record]}: {reject.sentence} (on_error is fail: mend the cause, or"
            " say dlq or skip)"
        )

    def _send(self, parts: Sequence[Part], moves: Mapping[Place, int]) -> None:
        if sum(map(self._bytes_of, parts)) <= self._most_bytes():
            try:
                self._commit_good(parts, moves)
                return
            except Invalid as error:
                refusal: Invalid | None = error
        else:
            refusal = None
        cut = _cut(parts, moves)
        if cut is not None:
            for some, to in cut:
                self._send(some, to)
        else:
            self._reject(parts, moves, refusal)

    def _commit_good(self, parts: Sequence[Part], moves: Mapping[Place, int]) -> None:
        """Commit, with records that break rules of a contract as dead letters. Raises `Violated` if the policy for
        such a record is to fail."""
        while True:
            try:
                self._commit(parts, moves)
                return
            except Violated as error:
                parts = self._without(parts, error)

    def _without(self, parts: Sequence[Part], error: Violated) -> list[Part]:
        """The parts without the records of an error, which become rejects."""
        found: dict[int, dict[str, list[Reject]]] = {}
        for each in error.changes:
            number, table, record = self._sent[each.change]
            rejects = found.setdefault(number, {}).setdefault(table, [])
            rejects += [_violation(int(record[row]), each) for row in each.rows]
        left = [part.without(found[number]) if number in found else part for number, part in enumerate(parts)]
        if not found or any(self._failing(part) for part in left):
            raise error
        return left

    def _bytes_of(self, part: Part) -> int:
        letters = [
            dead_letters.bytes_of(part.records, [each.record for each in rejects], self._letter_bytes())
            for table, rejects in part.rejects()
            if self._table_spec(part.records.topic, table).on_error == "dlq"
        ]
        return part.nbytes + sum(letters)

    def _letter_bytes(self) -> int:
        return min(DEAD_VALUE_BYTES_MAX, message_bytes(self._lake.transport.server) // 4)

    def _most_bytes(self) -> int:
        return message_bytes(self._lake.transport.server) * 3 // 4

    def _reject(self, parts: Sequence[Part], moves: Mapping[Place, int], refusal: Invalid | None) -> None:
        if not parts or not parts[0].mapped.tables:
            raise refusal or Invalid("a commit of dead letters alone has no room in a message: raise message_bytes")
        part = parts[0]
        code, stage = ("refused", Stage.APPLY) if refusal else ("too-large", Stage.CONSTRAINT)
        why = refusal.message if refusal else "the record takes more than a message may: raise message_bytes"
        if isinstance(refusal, Violated) and refusal.changes:
            code, stage = refusal.changes[0].rule, Stage.CONTRACT
        rejects = part.rejected()
        for rows in part.tables():
            added = [Reject(int(record), stage, code, why) for record in dict.fromkeys(rows.record.tolist())]
            rejects[rows.table] = [*rejects.get(rows.table, ()), *added]
        gone = replace(part, mapped=MappedBlock((), rejects, part.mapped.passed))
        failing = self._failing(gone)
        if failing is not None:
            raise Halt(part.records.topic, self._stopped_by(part.records, failing))
        self._send([gone], moves)

    def _commit(self, parts: Sequence[Part], moves: Mapping[Place, int]) -> None:
        to = {place: replace(self._held[place], next=next) for place, next in moves.items()}
        self.since = began = time.monotonic()
        try:
            self._until_taken(parts, self._named(to))
        finally:
            self.since = 0.0
        self._held.update(to)
        self._counts.add_commit(parts, time.monotonic() - began)
        self._tell_rejects(parts)

    def _until_taken(self, parts: Sequence[Part], positions: Mapping[str, str]) -> None:
        while True:
            try:
                self._commit_once(parts, positions)
                return
            except LakestoreError as error:
                if not is_passing(error) or error.applied == "unknown" or self._is_stopped():
                    raise
                _LOG.warning("the server does not take records now, which is tried again: %s", error.message)
                time.sleep(max(PAUSE_SECONDS, error.retry_after))

    def _tell_rejects(self, parts: Sequence[Part]) -> None:
        now = time.monotonic()
        for part in parts:
            for table, rejects in part.rejects():
                for code, count in Counter(each.code for each in rejects).items():
                    self._untold[table, code] += count
                first = {each.code: each for each in reversed(rejects)}
                for code, each in first.items():
                    if now - self._told.get((table, code), -TELL_SECONDS) >= TELL_SECONDS:
                        self._told[table, code] = now
                        self._log_reject(part.records, table, each, self._untold.pop((table, code)))

    def _log_reject(self, records: Records, table: str, reject: Reject, count: int) -> None:
        ends = {"dlq": "are dead letters", "skip": "were skipped", "fail": "stop the bridge"}
        end = ends[self._table_spec(records.topic, table).on_error]
        place = f"{records.topic}/{records.partition[reject.record]} offset {records.offset[reject.record]}"
        _LOG.warning("%d records for table %s %s: %s at %s: %s", count, table, end, reject.code, place, reject.sentence)

    def _commit_once(self, parts: Sequence[Part], positions: Mapping[str, str]) -> None:
        registers = self._registers
        if registers is None:
            raise NotFound("no partition is open")
        feeds = self._feeds.moves(registers, parts, list(self._held))
        with registers.commit({**positions, **feeds}) as commit:
            commit.refuses_dead_letters = True
            self._sent.clear()
            for number, part in enumerate(parts):
                self._add(commit, number, part)

    def _add(self, commit: Commit, number: int, part: Part) -> None:
        for rows in part.tables():
            self._check_columns(rows)
            key = self._targets.key(rows.table)
            for step in steps_of(carry_over(rows, key, live_rows(self._lake, rows.table)), key):
                self._sent.append((number, step.table, step.record))
                if step.op is Op.DELETE:
                    commit.delete(step.table, step.rows)
                elif not key:
                    commit.append(step.table, step.rows)
                elif step.kept:
                    commit.upsert(step.table, step.rows, keep=step.kept)
                else:
                    commit.upsert(step.table, step.rows)
        for table, rejects in part.rejects():
            if self._table_spec(part.records.topic, table).on_error == "dlq":
                rows = dead_letters.rows_of(part.records, rejects, self._bridge, self._letter_bytes())
                self._sent.append((number, table, np.zeros(0, np.int64)))
                commit.upsert(self._targets.dead_letters(table), rows)

    def _check_columns(self, rows: TableRows) -> None:
        columns = {each.name: each.type for each in self._lake.definition_of(rows.table).nullable_schema}
        if any(columns.get(each.name) != each.type for each in rows.batch.schema):
            raise Conflict(f"table {rows.table} was altered while records were under way, which are mapped again")

    @property
    def held(self) -> Mapping[Place, int]:
        """The next offset of each open partition, as the server has it."""
        return {place: position.next for place, position in list(self._held.items())}


def _violation(record: int, broken: RuleRows) -> Reject:
    return Reject(record, Stage.CONTRACT, broken.rule, broken.sentence)


def _cut(parts: Sequence[Part], moves: Mapping[Place, int]) -> Iterator[tuple[list[Part], dict[Place, int]]] | None:
    if len(parts) > 1:
        middle = len(parts) // 2
        front, behind = list(parts[:middle]), list(parts[middle:])
        topics = {part.records.topic for part in front}
        first = {place: next for place, next in moves.items() if place.topic in topics}
    else:
        halves = parts[0].halves() if parts else None
        if halves is None:
            return None
        front, behind = [halves[0]], [halves[1]]
        first = halves[0].ends()
    last = {place: next for place, next in moves.items() if first.get(place) != next}
    return iter(((front, first), (behind, last)))
