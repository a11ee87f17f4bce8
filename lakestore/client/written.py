"""The outcome of a write: its token, which is a text, and what became of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.counts import COUNTS


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Numbers of rows of one write; each row that was sent is counted once."""

    table: str = ""
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    not_found: int = 0
    """Keys to delete that were not there."""
    ignored: int = 0
    """By the merge engine, by the table's rule for deletes, or because the key was there."""
    unchanged: int = 0
    """Equal to the row that was there, where the table skips those."""
    folded: int = 0
    """Became one change with a later row of the same key."""
    schema_id: int = 0
    """The version that the rows were stored in."""


def result_of(results: Sequence[pb.ChangeResult]) -> WriteResult:
    """The results of the changes of one table, added up."""
    counts = {name: sum(getattr(result, name) for result in results) for name in COUNTS}
    return WriteResult(table=results[0].table, schema_id=results[-1].schema_id, **counts)


class CommitToken(str):
    """The position behind a write, as `at=` and `start=` take it, with the write's result."""

    result: WriteResult

    def __new__(cls, token: str, result: WriteResult) -> CommitToken:
        made = super().__new__(cls, token)
        made.result = result
        return made

    def __getnewargs__(self) -> tuple[str, WriteResult]:  # type: ignore[override]
        return str(self), self.result
