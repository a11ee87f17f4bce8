"""A server with the tables of every merge engine, on a disk that loses power, held against what they must be."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from lakestore.client.writer import change as wire_change
from lakestore.errors import ChangeRows
from lakestore.rows.live_sum import live_sum
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.commit_verbs import CommitVerbs
from lakestore_server.commit.priority import BackgroundPriority, CommitPriority
from lakestore_server.commit.request import Task
from lakestore_server.state.chunk import CHANGE, DELETE, PREV
from tests.model.engines import EPOCH, SPECS, IdRow, Mirror, batch_of, by_id, folded, marked_batch_of
from tests.model.harness import Harness
from tests.model.merging import KEPT, Key, Row

KINDS = {"upsert": pb.UPSERT, "delete": pb.DELETE, "insert": pb.INSERT}
COUNTS = ("inserted", "updated", "deleted", "not_found", "ignored", "unchanged", "folded")
Written = tuple[str, str, list[Row]]
"""(table, kind, rows with the names that hold)."""


class EnginesHarness(Harness):
    """`Harness` with other tables."""

    def create_all(self) -> dict[str, Mirror]:
        """The tables, new."""
        return {name: self.mirror(name) for name in SPECS}

    def mirror(self, name: str) -> Mirror:
        """One of the tables, created."""
        spec = SPECS[name]
        return Mirror.of(self.lake.create_table(name, spec.schema, **spec.options).definition)

    def commit_of(
        self, written: Sequence[Written], tables: Mapping[str, Mirror], producer: str, sequence: int
    ) -> pb.CommitRequest:
        """A commit on the wire."""
        request = pb.CommitRequest(producer=producer, sequence=sequence)
        for name, kind, rows in written:
            batch, marks = marked_batch_of(rows, tables[name].table)
            change = wire_change(name, KINDS[kind], [batch], tables[name].table.schema_id)
            change.keep.extend(marks.keep)
            change.as_of = marks.as_of
            request.changes.append(change)
        return request

    def committed(self) -> datetime:
        """The time of the newest commit."""
        return EPOCH + timedelta(microseconds=self.server.engine.view.time_us)

    def based(
        self, commits: Sequence[Sequence[Written]], tables: Mapping[str, Mirror]
    ) -> tuple[list[list[Written]], list[list[ChangeRows]]]:
        """(the commits without rows that have nothing to keep, those rows)."""
        trial = {name: deepcopy(mirror.merged) for name, mirror in tables.items()} if _keeps(commits) else {}
        left: list[list[Written]] = []
        baseless: list[list[ChangeRows]] = []
        for written in commits:
            left.append([])
            baseless.append([])
            for number, (name, kind, rows) in enumerate(written):
                gone = trial[name].baseless(kind, rows) if trial else []
                rest = [row for place, row in enumerate(rows) if place not in gone]
                if gone:
                    baseless[-1].append(ChangeRows(number, name, tuple(gone)))
                if rest:
                    left[-1].append((name, kind, rest))
                if rest and trial:
                    trial[name].apply(kind, rest, self.now())
        return left, baseless

    def commit_together(self, requests: Sequence[pb.CommitRequest]) -> list[pb.CommitAnswer]:
        """Several requests that wait together, and so become one commit."""
        gate = threading.Event()
        self.server.engine.loop.queue.put(Task(lambda: _wait(gate)))
        writes: Any = getattr(self.server.service.verb("Write"), "__self__")  # noqa: B009 (a bound method's object)
        assert isinstance(writes, CommitVerbs)
        try:
            waiting = [writes._submit(request, BackgroundPriority(CommitPriority())) for request in requests]
        finally:
            gate.set()
        return [writes._answered(w.answer, r.sequence) for w, r in zip(waiting, requests, strict=True)]

    def now(self) -> datetime:
        """By the clock that only the test moves, to the second."""
        return EPOCH + timedelta(seconds=self.clock.now_us() // 1_000_000)

    def records(self, name: str, start: str, mirror: Mirror) -> Iterator[tuple[str, int, int, IdRow, int]]:
        """(__change, __bucket, __offset, row, its version) up to now, with before-images."""
        for batch in self.lake.table(name).changes(start, until="now", before_images=True):
            version = mirror.versions[batch.schema_id]
            for row in batch.to_arrow().to_pylist():
                yield row["__change"], row["__bucket"], row["__offset"], by_id(row, version), batch.schema_id

    def shown(self, found: pa.Table, mirror: Mirror, version: int | None = None) -> list[IdRow]:
        """Rows that were read, in a version, by default the newest."""
        table = mirror.table if version is None else mirror.versions[version]
        return [by_id(row, table) for row in found.to_pylist()]

    def look_up(self, name: str, mirror: Mirror, keys: Sequence[Key]) -> list[IdRow]:
        """Keys in their order."""
        return self.shown(self.lake.table(name).lookup(self._asked(mirror, keys)), mirror)

    def look_up_at(self, name: str, token: str, mirror: Mirror, version: int | None = None) -> list[IdRow]:
        """Every key at a cut."""
        return self.shown(self.lake.table(name).lookup(self._asked(mirror, mirror.keys), at=token), mirror, version)

    @staticmethod
    def _asked(mirror: Mirror, keys: Iterable[Key]) -> pa.RecordBatch:
        return batch_of([dict(zip(mirror.table.primary_key, key, strict=True)) for key in keys], mirror.table)

    def hold(self, tables: Mapping[str, Mirror]) -> None:
        """Everything that must be true at any moment, of these tables."""
        snapshot = self.lake.snapshot()
        for name, mirror in tables.items():
            live = mirror.live()
            scanned = self.shown(snapshot.scan(name).to_arrow(), mirror)
            assert {mirror.key_of(row): row for row in scanned} == live, f"{name}: the scan is not the table"
            assert len(scanned) == len(live), f"{name}: the scan has a key twice"
            if mirror.keys:
                found = self.look_up(name, mirror, list(mirror.keys))
                assert found == [live[key] for key in mirror.keys if key in live], f"{name}: look-ups"
            self._hold_log(name, mirror)

    def _hold_log(self, name: str, mirror: Mirror) -> None:
        """The changelog: dense, immutable, each key's changes in order, and its fold over the base is the table."""
        offsets = self._hidden(name)
        folding = dict(mirror.base)
        found: dict[Key, list[tuple[str, IdRow, int]]] = defaultdict(list)
        for change, bucket, offset, row, version in self.records(name, "earliest", mirror):
            place = mirror.table.uuid + change, bucket, offset
            assert self.seen.setdefault(place, tuple(row.items())) == tuple(row.items()), "a record has changed"
            key = mirror.key_of(row)
            if change != "+I":
                held = mirror.shown(folding[key][0], version)
                assert change == "+U" or held == row, f"{name}: {change} does not carry the row before it"
            if change == "-U":
                continue
            offsets[bucket].append(offset)
            found[key].append((change, row, version))
            if change == "-D":
                del folding[key]
            else:
                assert (change == "+U") == (key in folding), f"{name}: {change} of a key that is there or not"
                folding[key] = row, version
        wanted: dict[Key, list[tuple[str, IdRow, int]]] = defaultdict(list)
        for entry in mirror.history[mirror.start :]:
            wanted[mirror.key_of(entry[1])].append(entry)
        assert found == wanted, f"{name}: the changelog is not what was written"
        now = mirror.table.schema_id
        assert {key: mirror.shown(row, now) for key, (row, _) in folding.items()} == mirror.live()
        self._hold_sums(name, mirror, offsets)

    def _hidden(self, name: str) -> dict[int, list[int]]:
        """Bucket to the offsets of records that no reader sees: deletes of keys without a row, for their versions."""
        found: dict[int, list[int]] = defaultdict(list)
        state = self.server.engine.view.named(name)
        for bucket, log in enumerate(state.logs):
            for at, batch, _ in log.rows(state.starts()[bucket], log.head):
                rows = batch.to_pylist()
                found[bucket] += [at + i for i, row in enumerate(rows) if row[CHANGE] == DELETE and row[PREV] < 0]
        return found

    def _hold_sums(self, name: str, mirror: Mirror, offsets: Mapping[int, list[int]]) -> None:
        state = self.server.engine.view.named(name)
        live: dict[int, list[int]] = defaultdict(list)
        for batch in [self.lake.table(name).scan(columns=["__bucket", "__offset"]).to_arrow()]:
            for bucket, offset in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                live[bucket].append(offset)
        assert state.log_start_lsn == mirror.start_lsn, f"{name}: the log start"
        for entry in self.lake.transport.audit(pb.AuditRequest(table=name)).buckets:
            start, numbers = state.starts()[entry.bucket], sorted(offsets.get(entry.bucket, []))
            assert numbers == list(range(start, start + len(numbers))), f"{name}: offsets are not dense"
            assert entry.head == start + len(numbers)
            expected = live_sum(np.array(live[entry.bucket], dtype=np.int64))
            assert entry.live_sum == entry.log_sum == entry.index_sum == expected, f"{name}: live sums"
            assert entry.live_rows == entry.log_rows == entry.index_rows == len(live[entry.bucket])

    def fold_from(self, name: str, token: str, mirror: Mirror, base: dict[Key, tuple[IdRow, int]]) -> list[IdRow]:
        """A state of before and the changes since, as rows of now."""
        changes = [(c, row, v) for c, _, _, row, v in self.records(name, token, mirror) if c != "-U"]
        live = folded(changes, mirror, base)
        return [mirror.shown(row, mirror.table.schema_id) for row, _ in live.values()]


def _keeps(commits: Sequence[Sequence[Written]]) -> bool:
    return any(KEPT in row.values() for written in commits for _, _, rows in written for row in rows)


def _wait(gate: threading.Event) -> None:
    assert gate.wait(60), "nobody opened the gate"
