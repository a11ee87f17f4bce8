"""Changes to several tables in one commit: in one message, or in parts that are uploaded while they are added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import pyarrow as pa

from lakestore.client import parts
from lakestore.client.connection import Connection
from lakestore.client.writer import NO_MARKS, Keep, Marks, change_to, with_marks
from lakestore.errors import ChangeRows, LakestoreError, NotFound, NothingToKeep, RuleRows, Violated
from lakestore.model.names import other_table
from lakestore.model.table import Table
from lakestore.rows import user
from lakestore.rows.ranges import pieces
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.commit_message import COUNTS


def fit_rows(connection: Connection, definition: Table, data: Any) -> tuple[Table, pa.RecordBatch]:
    """The rows as a batch, and the table version with their columns. An unknown column reloads the table."""
    data = user.readable_again(data)
    batch = user.from_user(data, definition.schema)
    if {column.name for column in definition.columns}.issuperset(batch.schema.names):
        return definition, batch
    newest = connection.newest(definition.name)
    if not newest.is_same(definition):
        raise NotFound(other_table(definition.name))
    if newest == definition:
        return definition, batch
    return newest, user.from_user(data, newest.schema)


def fit_parts(connection: Connection, definition: Table, data: Any) -> list[tuple[Table, pa.RecordBatch]]:
    """The batches of `fit_rows`, split by named columns if the merge engine needs it."""
    return [fit_rows(connection, definition, part) for part in user.by_columns(data, definition)]


def parts_with_marks(
    connection: Connection, definition: Table, data: Any, keep: Keep, as_of: Any = None
) -> list[tuple[Table, pa.RecordBatch, Marks]]:
    """The parts of `fit_parts` with their marks. Rows with marks are one part, in order."""
    data = user.readable_again(data)
    if not keep and as_of is None:
        return [(version, batch, NO_MARKS) for version, batch in fit_parts(connection, definition, data)]
    version, batch = fit_rows(connection, definition, data)
    return [(version, *with_marks(batch, keep, as_of))]


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Numbers of rows of one write. Each row is counted once."""

    table: str = ""
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    not_found: int = 0
    """Keys to delete that did not exist."""
    ignored: int = 0
    """Ignored by the merge engine, by the table's rule for deletes, because the key exists, or dropped as late rows."""
    unchanged: int = 0
    """Equal to the live row, if the table skips such rows."""
    folded: int = 0
    """Merged with a later row of the same key."""
    dead_letters: int = 0
    """Broke a rule of the table's contract: they are rows of the dead-letter table now."""
    schema_id: int = 0
    """The version of the stored rows."""


def result_of(results: Sequence[pb.ChangeResult]) -> WriteResult:
    """The sum of the results of one table's changes."""
    counts = {name: sum(getattr(result, name) for result in results) for name in COUNTS}
    return WriteResult(table=results[0].table, schema_id=results[-1].schema_id, **counts)


class CommitToken(str):
    """The position after a write, for `at=` and `start=`, with the write's result."""

    result: WriteResult

    def __new__(cls, token: str, result: WriteResult) -> CommitToken:
        made = super().__new__(cls, token)
        made.result = result
        return made

    def __getnewargs__(self) -> tuple[str, WriteResult]:  # type: ignore[override]
        return str(self), self.result


class _Piece(NamedTuple):
    """Where the rows of a change on the wire come from."""

    call: int
    part: int
    """Number of the call's part with the same columns."""
    row: int
    """First row in the part."""


class Commit:
    """Changes to several tables that happen together. A context manager; an error discards them.

    Rows beyond one message are uploaded as parts while they are added, so they need not fit into memory.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._changes: list[pb.Change] = []
        self._pieces: list[_Piece] = []
        """The source of each change."""
        self._settled = 0
        """Number of leading changes whose rows are uploaded."""
        self._is_sent = False
        self.refuses_dead_letters = False
        """True to have rows refused that would become dead letters; `Violated` then has their numbers."""
        self.token = ""
        self.results: list[pb.ChangeResult] = []
        self.repeated = False
        """True if the first answer was lost and only the registers show that the commit happened. Then there are no
        results.
        """

    def upsert(self, table: str, data: Any, *, keep: Keep = (), as_of: Any = None) -> None:
        """Insert or update by key; `keep` as in `Table.upsert`.

        `as_of`, a time or None for each row, is for late rows in a table `versioned` within a column. A row is ignored
        if the live row of its key, or the remembered delete, has another value in that column and was committed at that
        time or later, also by an earlier call of this commit. `NothingToKeep` counts changes by calls of this commit,
        from 0.
        """
        self._add(table, pb.UPSERT, data, keep, as_of)

    def insert_if_absent(self, table: str, data: Any) -> None:
        """Insert the rows whose keys do not exist; `results` counts the ignored rows."""
        self._add(table, pb.INSERT, data)

    def delete(self, table: str, data: Any, *, as_of: Any = None) -> None:
        """Delete by key; `as_of` as in `upsert`, for rows that name their versions."""
        self._add(table, pb.DELETE, data, as_of=as_of)

    def append(self, table: str, data: Any) -> None:
        """Append to a log table."""
        self._add(table, pb.APPEND, data)

    def _add(self, table: str, kind: pb.ChangeKind.ValueType, data: Any, keep: Keep = (), as_of: Any = None) -> None:
        definition, call = self._connection.definition_of(table), self._pieces[-1].call + 1 if self._pieces else 0
        for part, (version, batch, marks) in enumerate(
            parts_with_marks(self._connection, definition, data, keep, as_of)
        ):
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
        transport, waiting = self._connection.transport, self._changes[self._settled :]
        if parts.has_room(waiting, transport.server) or not parts.has_parts(transport.server):
            return
        parts.check_whole(waiting[-1], transport.server)
        for change in waiting:
            self._changes[self._settled] = change if change.part else parts.upload(transport, change)
            self._settled += 1

    def add_parts(self, changes: Iterable[pb.Change]) -> None:
        """Add rows that this process or another one of the same principal uploaded by `parts.upload`. If the commit
        does not happen they are dropped.
        """
        for change in changes:
            self._changes.append(change)
            self._pieces.append(_Piece(self._pieces[-1].call + 1 if self._pieces else 0, 0, 0))

    @property
    def is_empty(self) -> bool:
        """True if nothing was added."""
        return not self._changes

    def send(self, commit: Callable[[Sequence[pb.Change]], pb.CommitAnswer] | None = None) -> None:
        """Commit, with a producer of the connection unless `commit` is given."""
        if commit is None and self.is_empty:
            return
        for change in self._changes:
            change.refuse_dead_letters = self.refuses_dead_letters
        try:
            answer = (commit or self._connection.producers.commit)(self._changes)
        except NotFound:
            self._connection.forget_definitions(each.table for each in self._changes)
            raise
        except NothingToKeep as error:
            error.changes = tuple(self._by_call(error.changes))
            raise
        except Violated as error:
            error.changes = tuple(self._rules_by_call(error.changes))
            raise
        self._is_sent = True
        self.token, self.results = self._connection.remember(answer.token), list(self._whole(answer.results))
        self.repeated = answer.is_repeated

    def _by_call(self, changes: Sequence[ChangeRows]) -> Iterator[ChangeRows]:
        rows: dict[tuple[int, int], ChangeRows] = {}
        for each in changes:
            piece = self._pieces[each.change]
            known = rows.get(piece[:2], ChangeRows(piece.call, each.table, ()))
            rows[piece[:2]] = known._replace(rows=known.rows + tuple([piece.row + row for row in each.rows]))
        yield from rows.values()

    def _rules_by_call(self, changes: Sequence[RuleRows]) -> Iterator[RuleRows]:
        for each in changes:
            piece = self._pieces[each.change]
            yield each._replace(change=piece.call, rows=tuple([piece.row + row for row in each.rows]))

    def _whole(self, results: Sequence[pb.ChangeResult]) -> Iterator[pb.ChangeResult]:
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
        is_lost = isinstance(error, LakestoreError) and error.applied == "unknown"
        uploaded = [change.part for change in self._changes if change.part]
        if uploaded and not (self._is_sent or is_lost):
            parts.drop(self._connection.transport, uploaded)
