"""Commits whose answer carries rows: of keys that were inserted if absent, those that are there behind the commit."""

from __future__ import annotations

from contextlib import suppress

from lakestore.errors import LakestoreError
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.commit_message import COUNTS
from lakestore_server.commit.producers import Writes
from lakestore_server.read.lookup import Lookups
from lakestore_server.read.rows import sent_bytes


class Inserts:
    """Commits as `Writes` makes them, with the rows that were wanted. Thread-safe.

    What was committed stays answered, whatever becomes of the look-up: rows that cannot be read, or have no room in the
    answer, are left out.
    """

    def __init__(self, writes: Writes, lookups: Lookups, limits: Limits) -> None:
        self._writes, self._lookups, self._limits = writes, lookups, limits

    def commit(self, request: pb.CommitRequest) -> pb.CommitAnswer:
        """One commit, durable when answered; the retry of one has the rows of then."""
        answer = self._writes.commit(request)
        room = sent_bytes(self._limits)
        for change, result in zip(request.changes, answer.results, strict=False):
            if change.want_rows and change.kind == pb.INSERT and room > 0:
                with suppress(LakestoreError):
                    room -= self._add(change, result, answer.token)
        return answer

    def _add(self, change: pb.Change, result: pb.ChangeResult, token: str) -> int:
        """Put the rows of a change into its result, all or none; their bytes."""
        asked = pb.LookupRequest(table=change.table, keys=change.rows, at=token, in_parts=True)
        if change.HasField("schema_id"):
            asked.schema_id = change.schema_id
        found = self._lookups.lookup(asked)
        if found.answered < sum(getattr(result, name) for name in COUNTS):
            return 0
        result.rows.CopyFrom(found)
        return len(found.rows)
