"""A server inside the test on a disk that loses power, and the checks that hold for it at any moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import lakestore as ls
from lakestore.client.local import local_transport
from lakestore.client.writer import change as wire_change
from lakestore.errors import LakestoreError
from lakestore.limits import Limits
from lakestore.model.token import LogPosition
from lakestore.model.types import arrow_type, type_name
from lakestore.rows.live_sum import live_sum
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.model.model import Change, Cut, Field, Row, TableModel
from tests.support.log_start import compact, move_log_start
from tests.support.waiting import until
from tests.support.world.clock import HandClock, ticks
from tests.support.world.disk import SimDisk

SCHEMAS: dict[str, tuple[pa.Schema, int]] = {
    "t.one": (pa.schema([("id", pa.int64()), ("v", pa.int32())]), 1),
    "t.two": (pa.schema([("g", pa.string()), ("n", pa.int16()), ("v", pa.int32())]), 2),
    "t.log": (pa.schema([("a", pa.int64()), ("b", pa.string())]), 0),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "t.one": {"primary_key": ["id"], "buckets": 3, "lake": {"format_version": 3}},
    "t.two": {"primary_key": ["g", "n"], "bucket_key": ["g"], "buckets": 2, "lake": {"format_version": 3}},
    "t.log": {"buckets": 2, "lake": {"format_version": 3}},
}
KINDS = {"upsert": pb.UPSERT, "delete": pb.DELETE, "append": pb.APPEND}
COMMIT, UPLOAD = rpc.METHODS["Commit"], rpc.METHODS["UploadPart"]
PRODUCER = "machine"
Place = tuple[str, int, int]


IN_PLACE = Limits(extent_bytes=1, compressed_percent=0, extent_file_percent=25, merge_bytes=0, merge_segments=2)
"""Rows of logs stay in the journal's files as often as they can, and segments are merged when the test says so."""


class Harness:
    """One server after the other on what the last one left."""

    def __init__(self, folder: Path, limits: Limits = IN_PLACE) -> None:
        self._folder, self._limits = folder, limits
        self._lives = 0
        self.disk = SimDisk(folder / "0")
        self.clock = HandClock(1_700_000_000_000_000, ticks())
        self.epoch = 0
        self.seen: dict[Place, tuple[Any, ...]] = {}
        """The record at every offset that was ever read: it must never change."""
        self._start()

    def _start(self) -> None:
        # When rows expire the test says, and every clock is believed.
        limits = replace(self._limits, clock_confirm_seconds=0)
        settings = Settings(
            self.disk.root, expiry_check_seconds=86_400.0, retention_check_seconds=86_400.0, limits=limits
        )
        self.server = Server(settings, disk=self.disk, clock=self.clock)
        self.await_index()
        transport: Any = local_transport(self.server.service)
        self._wire = transport.wire
        self.lake = ls.Lake(transport, "machine")

    def await_index(self) -> None:
        """A rebuild beside serving ends, unless power goes."""
        engine = self.server.engine
        until(lambda: engine.index.ready or engine.loop.failure or not self.disk.powered, "the index")

    def stop(self) -> None:
        """Let go of everything without writing a checkpoint."""
        self._end_process()
        self.disk.close()

    def _end_process(self) -> None:
        self.lake.close()
        self.server.close(checkpoint=False)

    def kill(self) -> None:
        """End the process and start another on the same running machine: what was written, synced or not, is there."""
        self._end_process()
        self._start()

    def crash(self, seed: int | None, *, lost: Sequence[str] = ()) -> None:
        """Cut power and start again on what is left."""
        self.disk.lose_power_after(0)
        self.stop()
        self._lives += 1
        self.disk = self.disk.crash(self._folder / str(self._lives), seed, lost=lost)
        self._start()

    def checkpoint_failing_after(self, steps: int) -> bool:
        """A checkpoint one of whose steps fails; whether the server goes on."""
        self.disk.fail("", after=steps)
        try:
            self.server.upkeep.checkpoint()
        except (OSError, LakestoreError):
            pass
        self.disk.heal()
        try:
            self.server.engine.operate(lambda _state, _frame: None)
        except LakestoreError:
            return False
        return True

    def move_log_start(self, name: str, lsn: int | None = None) -> int:
        """Let the log of a table begin behind a commit, by default the newest one; that LSN."""
        return move_log_start(self.server.engine, name, lsn)

    def compact(self) -> None:
        """Checkpoints until nothing below a log start is due to be rewritten."""
        compact(self.server)

    def crash_twice(self, steps: int, first: int | None, second: int | None) -> None:
        """Cut power, and once more after some steps of the recovery."""
        self.disk.lose_power_after(0)
        self.stop()
        self._lives += 1
        self.disk = self.disk.crash(self._folder / str(self._lives), first)
        self.disk.lose_power_after(steps)
        try:
            self._start()
        except (OSError, LakestoreError):
            self.disk.close()
            self._lives += 1
            self.disk = self.disk.crash(self._folder / str(self._lives), second)
            self._start()
        else:
            self.crash(second)

    def restart(self) -> None:
        """An orderly end and a new start."""
        self.server.close()
        self.disk.close()
        self.disk = SimDisk(self.disk.root)
        self._start()

    def create(self, name: str) -> TableModel:
        """Create one of the tables; its model."""
        self.lake.create_table(name, SCHEMAS[name][0], **OPTIONS[name])
        schema, keys = SCHEMAS[name]
        return TableModel(keys, [tuple(Field(i, f.name, type_name(f.type, "")) for i, f in enumerate(schema, start=1))])

    def request(
        self, changes: Sequence[Change], sequence: int, tables: Mapping[str, TableModel], *, in_parts: bool = False
    ) -> pb.CommitRequest:
        """A commit on the wire, its rows in it or uploaded before."""
        made = [wire_change(c.table, KINDS[c.kind], [batch_of(c, tables[c.table])], c.schema_id) for c in changes]
        return pb.CommitRequest(
            changes=[self._uploaded(change) for change in made] if in_parts else made,
            producer=PRODUCER,
            epoch=self.epoch,
            sequence=sequence,
        )

    def _uploaded(self, change: pb.Change) -> pb.Change:
        """The change of a commit that names its rows as a part, which is sent once."""
        info: pb.PartInfo = self._wire.call(UPLOAD, pb.UploadPartRequest(change=change), 60.0)
        return pb.Change(table=change.table, kind=change.kind, crc32c=change.crc32c, part=info.part)

    def commit(self, request: pb.CommitRequest) -> pb.CommitAnswer:
        """Send it once: no retry hides an error."""
        answer: pb.CommitAnswer = self._wire.call(COMMIT, request, 60.0)
        return answer

    def scan(self, name: str, at: str | None = None) -> list[Row]:
        """All rows, sorted."""
        return rows_of(self.lake.table(name).scan(at=at).to_arrow())

    def cut(self) -> Cut:
        """Every table at one cut, which is let go of: one that stays held keeps what is older than a truncate."""
        with self.lake.snapshot() as snapshot:
            return {table.name: rows_of(snapshot.scan(table.name).to_arrow()) for table in self.lake.tables()}

    def changes(self, name: str, start: str, *, before_images: bool = False) -> list[tuple[Any, ...]]:
        """(__change, __bucket, __offset, row, its version) up to now."""
        found: list[tuple[Any, ...]] = []
        stream = self.lake.table(name).changes(start, until="now", before_images=before_images)
        for batch in stream:
            for change, bucket, offset, _, *row in zip(*(c.to_pylist() for c in batch.to_arrow().columns), strict=True):
                found.append((change, bucket, offset, tuple(row), batch.schema_id))
        return found

    def check(self, model: dict[str, TableModel]) -> None:
        """Everything that must hold at any moment, for every table."""
        assert self.cut() == {name: table.rows() for name, table in model.items()}
        for name, table in model.items():
            self._check_changelog(name, table)
            if table.key_columns:
                self._check_lookups(name, table)

    def _check_changelog(self, name: str, table: TableModel) -> None:
        """Dense offsets, records that never change, the order of each key, and the fold with its live sums."""
        uuid = self.lake.table(name).definition.uuid
        starts = self.server.engine.view.named(name).starts()
        records = self.changes(name, "earliest", before_images=True)
        offsets: dict[int, list[int]] = defaultdict(list)
        folded = self._base(name, table)
        base = dict(folded)
        per_key: dict[tuple[Any, ...], list[tuple[str, Row, int]]] = defaultdict(list)
        for change, bucket, offset, row, version in records:
            assert self.seen.setdefault((uuid + change, bucket, offset), row) == row, "a record has changed"
            key = row[: table.key_columns] if table.key_columns else (bucket, offset)
            if change == "-U":
                _, _, held, then = folded[key]
                assert table.shown(held, then, version) == row, "a before-image is not the row before"
                continue
            offsets[bucket].append(offset)
            per_key[key if table.key_columns else ()].append((change, row, version))
            if change == "-D":
                _, _, held, then = folded.pop(key)
                assert table.shown(held, then, version) == row, "a delete does not carry the row that it removed"
            else:
                assert (change == "+U") == (key in folded), "an insert of a present key, or an update of an absent one"
                folded[key] = (bucket, offset, row, version)
        for bucket, found in offsets.items():
            assert found == list(range(starts[bucket], starts[bucket] + len(found))), "offsets are not dense"
        expected: dict[tuple[Any, ...], list[tuple[str, Row, int]]] = defaultdict(list)
        for change, row, version in table.changes:
            expected[row[: table.key_columns]].append((change, row, version))
        assert set(per_key) <= set(expected), "the changelog has keys that were never written"
        for key, changes in expected.items():
            older = changes[: len(changes) - len(per_key[key])]
            assert changes[len(older) :] == per_key[key], "the changelog is not what was written"
            if any(starts):
                assert _is_left(base.get(key), older, table), "the base is not what was written below the log start"
            else:
                assert not older, "the changelog is not whole"
        heads = {bucket: start + len(offsets[bucket]) for bucket, start in enumerate(starts)}
        self._check_sums(name, folded, heads)

    def _base(self, name: str, table: TableModel) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Key to (bucket, offset, row, its version) of what lives at the log start of a primary-key table."""
        state = self.server.engine.view.named(name)
        if not table.key_columns or not state.log_start_lsn:
            return {}
        version = state.versions.at(state.log_start_lsn)
        columns = ["__bucket", "__offset", *(column.name for column in version.columns)]
        token = str(LogPosition(self.server.engine.timeline, state.log_start_lsn))
        rows = rows_of(self.lake.table(name).scan(columns=columns, at=token).to_arrow())
        return {
            tuple(row[: table.key_columns]): (bucket, offset, tuple(row), version.schema_id)
            for bucket, offset, *row in rows
        }

    def _check_sums(self, name: str, folded: dict[Any, tuple[Any, ...]], heads: dict[int, int]) -> None:
        live: dict[int, list[int]] = defaultdict(list)
        for bucket, offset, *_ in folded.values():
            live[bucket].append(offset)
        for entry in self.lake.transport.audit(pb.AuditRequest(table=name)).buckets:
            expected = live_sum(np.array(live[entry.bucket], dtype=np.int64))
            assert entry.head == heads[entry.bucket]
            assert entry.live_sum == entry.log_sum == entry.index_sum == expected
            assert entry.live_rows == entry.log_rows == entry.index_rows == len(live[entry.bucket])

    def _check_lookups(self, name: str, table: TableModel) -> None:
        """Every key there is answers its row, and every key that was deleted none."""
        keys = list(dict.fromkeys(row[: table.key_columns] for _, row, _ in table.changes))
        if keys:
            found = self.lake.table(name).lookup(batch_of(Change(name, "delete", tuple(keys), table.schema_id), table))
            assert [tuple(row.values()) for row in found.to_pylist()] == [
                table.live[k] for k in keys if k in table.live
            ]


def _is_left(held: tuple[Any, ...] | None, changes: list[tuple[str, Row, int]], table: TableModel) -> bool:
    """Whether the base holds what a key's changes below the log start come to."""
    if not changes or changes[-1][0] == "-D":
        return held is None
    return held is not None and held[2] == table.shown(changes[-1][1], changes[-1][2], held[3])


def batch_of(change: Change, table: TableModel) -> pa.RecordBatch:
    """Rows, or the keys of a delete, as Arrow, with the names of their version."""
    version = table.versions[change.schema_id]
    fields = version[: table.key_columns] if change.kind == "delete" else version
    columns = [pa.array([row[i] for row in change.rows], arrow_type(f.type)) for i, f in enumerate(fields)]
    return pa.RecordBatch.from_arrays(columns, names=[field.name for field in fields])


def rows_of(table: pa.Table | pa.RecordBatch) -> list[Row]:
    """An Arrow table's rows, sorted."""
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)
