"""The snapshot in front of a change stream: the rows that live at its cut, as inserts, table by table.

Each message has the token of the place behind it, so a stream that breaks inside a snapshot goes on there.
A table whose old rows are only in the lake is left to the client (`read_the_lake`), which reads it at the cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lakestore.errors import PositionExpired
from lakestore.model.token import Place, SnapshotPosition
from lakestore_server.changes.batch_cache import EncodedBatch
from lakestore_server.changes.batches import bare, live_piece, message, progress
from lakestore_server.changes.start import StreamOptions, check_reach
from lakestore_server.commit.engine import Engine
from lakestore_server.read.rows import DeadCache
from lakestore_server.state.view import TableState

PROGRESS_ROWS = 1_000_000
"""Offsets of a snapshot without a row for the consumer after which it is told how far the stream has come."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A step through a bucket's snapshot."""

    batch: EncodedBatch | None
    """The message; None where the condition let no row through."""
    reached: Place
    """The place behind the step."""


class SnapshotReader:
    """Snapshots of streams with one consumer. Thread-safe: what is known between two messages is in the position."""

    def __init__(self, engine: Engine, dead: DeadCache) -> None:
        self._engine, self._dead = engine, dead

    def messages(self, options: StreamOptions, position: SnapshotPosition) -> Iterator[EncodedBatch]:
        """The live rows at the cut from a place on, as inserts."""
        tables = options.shape.tables
        for uuid in tables[tables.index(position.place.table) :]:
            view = self._engine.view
            state = view.by_uuid(uuid)
            check_reach(view, state, position.lsn, options.subscription)
            here = replace(position, place=position.place if position.place.table == uuid else Place(uuid, 0, 0))
            if not state.has_all_rows:
                yield options.sent(_read_the_lake(options, state, here))
                continue
            for batch in self._table(options, here):
                yield options.sent(batch)

    def _table(self, options: StreamOptions, position: SnapshotPosition) -> Iterator[EncodedBatch]:
        """The live rows of one table, out of its log.

        Every piece takes the view of its moment: a slow consumer would otherwise keep chunks in memory that
        compaction has replaced long since. What lived at the cut is the same in each of these views.
        """
        passed = 0
        while True:
            steps = self._steps(options, position)
            for step in steps:
                passed = 0 if step.batch else passed + step.reached.offset - position.place.offset
                position = replace(position, place=step.reached)
                if step.batch is not None:
                    yield step.batch
                elif passed >= PROGRESS_ROWS and options.progress:
                    passed = 0
                    state = self._engine.view.by_uuid(position.place.table)
                    yield progress(state.versions.at(position.lsn), position)
            if not steps:
                place = position.place
                if place.bucket + 1 == len(self._engine.view.by_uuid(place.table).logs):
                    return
                position = replace(position, place=Place(place.table, place.bucket + 1, 0))

    def _steps(self, options: StreamOptions, position: SnapshotPosition) -> list[_Step]:
        """The next steps through a bucket; none at its end."""
        place, lsn = position.place, position.lsn
        state = self._engine.view.by_uuid(place.table)
        log, table = state.logs[place.bucket], state.versions.at(lsn)
        dead = self._dead.of(place.table, place.bucket, log, 0, log.at_lsn(lsn).end)
        steps: list[_Step] = []
        for piece in live_piece(state, options.shape, place, lsn, dead, self._engine.limits):
            reached = Place(place.table, place.bucket, piece.end)
            token = replace(position, place=reached)
            most = self._engine.limits.message_bytes
            batch = message(table, piece.batch, token, most, snapshot=True) if piece.batch.num_rows else None
            steps.append(_Step(batch, reached))
        return steps


def _read_the_lake(options: StreamOptions, state: TableState, position: SnapshotPosition) -> EncodedBatch:
    """The message that tells a client to read a table's snapshot itself, as its old rows are only in the lake."""
    table = state.versions.at(position.lsn)
    if not options.reads_lake:
        raise PositionExpired(
            f"the old rows of table {table.name} are only in the lake, which this client does not read in a stream: "
            "scan the table at a token, then start there"
        )
    made = bare(table, position)
    made.snapshot = made.read_the_lake = True
    return EncodedBatch.of(made)
