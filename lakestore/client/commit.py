"""Changes to several tables that are one commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lakestore.client.connection import Connection
from lakestore.client.row_marks import Keep
from lakestore.client.versioned_rows import marked_parts
from lakestore.client.writer import change_to
from lakestore.errors import NotFound, NothingToKeep
from lakestore.v1 import lakestore_pb2 as pb


class Commit:
    """Changes to several tables that happen together."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._changes: list[pb.Change] = []
        self._calls: list[int] = []
        """The number of the call that each change is of."""
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
        definition, call = self._connection.definition_of(table), self._calls[-1] + 1 if self._calls else 0
        for version, batch, marks in marked_parts(self._connection, definition, data, keep, as_of):
            self._changes.append(change_to(version, kind, [batch], marks))
            self._calls.append(call)

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
            error.changes = tuple(each._replace(change=self._calls[each.change]) for each in error.changes)
            raise
        self.token, self.results = self._connection.seen(answer.token), list(answer.results)
        self.repeated = answer.is_repeated
