"""Changes to several tables that are one commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lakestore.client.connection import Connection
from lakestore.client.versioned_rows import fitting_parts
from lakestore.client.writer import change_to
from lakestore.errors import NotFound
from lakestore.v1 import lakestore_pb2 as pb


class Commit:
    """Changes to several tables that happen together."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._changes: list[pb.Change] = []
        self.token = ""
        """Known once the commit is done."""
        self.results: list[pb.ChangeResult] = []
        self.repeated = False
        """Whether the answer to it was lost at first, and it is known by its registers alone: then without results."""

    def upsert(self, table: str, data: Any) -> None:
        """Insert or update by key."""
        self._add(table, pb.UPSERT, data)

    def insert_if_absent(self, table: str, data: Any) -> None:
        """Insert the rows whose keys are not there; `results` tells how many were ignored."""
        self._add(table, pb.INSERT, data)

    def delete(self, table: str, data: Any) -> None:
        """Delete by key."""
        self._add(table, pb.DELETE, data)

    def append(self, table: str, data: Any) -> None:
        """Append to a log table."""
        self._add(table, pb.APPEND, data)

    def _add(self, table: str, kind: pb.ChangeKind.ValueType, data: Any) -> None:
        for version, batch in fitting_parts(self._connection, self._connection.definition_of(table), data):
            self._changes.append(change_to(version, kind, [batch]))

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
        self.token, self.results = self._connection.seen(answer.token), list(answer.results)
        self.repeated = answer.is_repeated
