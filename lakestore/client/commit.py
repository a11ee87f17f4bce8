"""Changes to several tables that are one commit: in one message, or in parts that are uploaded as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import pyarrow as pa

from lakestore.client import parts
from lakestore.client.connection import Connection
from lakestore.client.row_marks import Keep
from lakestore.client.versioned_rows import marked_parts
from lakestore.client.writer import change_to
from lakestore.errors import ChangeRows, LakestoreError, NotFound, NothingToKeep
from lakestore.rows.pieces import pieces
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.counts import COUNTS


class _Piece(NamedTuple):
    """The source of the rows of one change on the wire."""

    call: int
    """The number of the call."""
    part: int
    """The number of the call's part with the same columns."""
    row: int
    """The part's row that is the first one."""


class Commit:
    """Changes to several tables that happen together; a context manager, whose error discards them.

    Rows that one message does not hold are uploaded as parts while they are added, so they need not fit into memory.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._changes: list[pb.Change] = []
        self._pieces: list[_Piece] = []
        """The place that each change is of."""
        self._settled = 0
        """The changes, from the first one on, whose rows are parts."""
        self._is_sent = False
        self.token = ""
        """Known once the commit is done."""
        self.results: list[pb.ChangeResult] = []
        self.repeated = False
        """Whether the answer to it was lost at first, and it is known by its registers alone: then without results."""

    def upsert(self, table: str, data: Any, *, keep: Keep = (), as_of: Any = None) -> None:
        """Insert or update by key; with `keep` as `Table.upsert`.

        `as_of`, a time or None for each row, is for rows that come late, to a table that is `versioned` within a
        column: a row is ignored if the row of its key, or its remembered delete, has another value in that column and
        was committed then or later, by an earlier call of this commit as well. In a `NothingToKeep` a change is a call
        of this commit, the first one is 0.
        """
        self._add(table, pb.UPSERT, data, keep, as_of)

    def insert_if_absent(self, table: str, data: Any) -> None:
        """Insert the rows whose keys are not there; `results` tells how many were ignored."""
        self._add(table, pb.INSERT, data)

    def delete(self, table: str, data: Any, *, as_of: Any = None) -> None:
        """Delete by key; with `as_of` as `upsert`, of rows that name their versions."""
        self._add(table, pb.DELETE, data, as_of=as_of)

    def append(self, table: str, data: Any) -> None:
        """Append to a log table."""
        self._add(table, pb.APPEND, data)

    def _add(self, table: str, kind: pb.ChangeKind.ValueType, data: Any, keep: Keep = (), as_of: Any = None) -> None:
        definition, call = self._connection.definition_of(table), self._pieces[-1].call + 1 if self._pieces else 0
        for part, (version, batch, marks) in enumerate(marked_parts(self._connection, definition, data, keep, as_of)):
            row = 0
            for piece in self._cut(batch):
                self._changes.append(change_to(version, kind, [piece], marks))
                self._pieces.append(_Piece(call, part, row))
                row += piece.num_rows
                self._upload_if_long()

    def _cut(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        server = self._connection.transport.server
        return pieces(batch, parts.part_bytes(server)) if parts.has_parts(server) else (batch,)

    def _upload_if_long(self) -> None:
        """Upload the rows that have come since the last time, once a message does not hold them all."""
        transport, waiting = self._connection.transport, self._changes[self._settled :]
        if parts.has_room(waiting, transport.server) or not parts.has_parts(transport.server):
            return
        parts.check_whole(waiting[-1], transport.server)
        for change in waiting:
            self._changes[self._settled] = change if change.part else parts.upload(transport, change)
            self._settled += 1

    def add_parts(self, changes: Iterable[pb.Change]) -> None:
        """Rows that were uploaded before, by this process or by others of the same principal: `parts.upload` names
        them. They are dropped with the commit if that does not happen.
        """
        for change in changes:
            self._changes.append(change)
            self._pieces.append(_Piece(self._pieces[-1].call + 1 if self._pieces else 0, 0, 0))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added."""
        return not self._changes

    def send(self, commit: Callable[[Sequence[pb.Change]], pb.CommitAnswer] | None = None) -> None:
        """Commit what was added, by a producer of the connection unless told otherwise."""
        if commit is None and self.is_empty:
            return
        try:
            answer = (commit or self._connection.producers.commit)(self._changes)
        except NotFound:
            self._connection.forget_definitions(each.table for each in self._changes)
            raise
        except NothingToKeep as error:
            error.changes = tuple(self._by_call(error.changes))
            raise
        self._is_sent = True
        self.token, self.results = self._connection.seen(answer.token), list(self._whole(answer.results))
        self.repeated = answer.is_repeated

    def _by_call(self, found: Sequence[ChangeRows]) -> Iterator[ChangeRows]:
        """Rows of changes as rows of the calls that made them."""
        rows: dict[tuple[int, int], ChangeRows] = {}
        for each in found:
            piece = self._pieces[each.change]
            known = rows.get(piece[:2], ChangeRows(piece.call, each.table, ()))
            rows[piece[:2]] = known._replace(rows=known.rows + tuple([piece.row + row for row in each.rows]))
        yield from rows.values()

    def _whole(self, results: Sequence[pb.ChangeResult]) -> Iterator[pb.ChangeResult]:
        """The results with those of pieces of the same rows added up."""
        whole: pb.ChangeResult | None = None
        for piece, result in zip(self._pieces, results, strict=False):
            if whole is not None and piece.row:
                for name in COUNTS:
                    setattr(whole, name, getattr(whole, name) + getattr(result, name))
                continue
            if whole is not None:
                yield whole
            whole = result
        if whole is not None:
            yield whole

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Drop the parts of a commit that did not happen, so far as that is known."""
        is_lost = isinstance(error, LakestoreError) and error.applied == "unknown"
        uploaded = [change.part for change in self._changes if change.part]
        if uploaded and not (self._is_sent or is_lost):
            parts.drop(self._connection.transport, uploaded)
