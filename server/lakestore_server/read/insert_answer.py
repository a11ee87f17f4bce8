"""The rows in the answer of a commit: for inserts that want them, the rows that have the keys after the commit."""

from __future__ import annotations

from contextlib import suppress

from lakestore.errors import LakestoreError
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.commit_message import COUNTS
from lakestore_server.read.lookup import Lookups
from lakestore_server.read.rows import sent_bytes


class InsertedRows:
    """Adds rows to answers of commits. Thread-safe. A commit stays answered if its look-up fails: rows that cannot be
    read, or have no room in the answer, are left out."""

    def __init__(self, lookups: Lookups, limits: Limits) -> None:
        self._lookups, self._limits = lookups, limits

    def add(self, request: pb.CommitRequest, answer: pb.CommitAnswer) -> None:
        """Put the wanted rows of each insert into its result, as of the commit."""
        room = sent_bytes(self._limits)
        for change, result in zip(request.changes, answer.results, strict=False):
            if change.want_rows and change.kind == pb.INSERT and room > 0:
                with suppress(LakestoreError):
                    room -= self._add(change, result, answer.token)

    def _add(self, change: pb.Change, result: pb.ChangeResult, token: str) -> int:
        """Put the rows of a change into its result, all or none; returns their bytes."""
        lookup = pb.LookupRequest(table=change.table, keys=change.rows, at=token, in_parts=True)
        if change.HasField("schema_id"):
            lookup.schema_id = change.schema_id
        rows = self._lookups.lookup(lookup)
        if rows.answered < sum(getattr(result, name) for name in COUNTS):
            return 0
        result.rows.CopyFrom(rows)
        return len(rows.rows)
