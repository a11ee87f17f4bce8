"""A consumer's share of a subscription, which decides what rows may be handed out again.

Each message says where the server began to read its buckets, and whether somebody else has read them since. If nobody
has, rows that were handed out already are left out. Else rows that are not acknowledged no longer count and come again.
Rows of a bucket whose acknowledgement was refused come again too, until an acknowledgement of the bucket counts.
"""

from __future__ import annotations

from collections.abc import Collection

from lakestore.model.token import parts_of, position_of

Bucket = tuple[str, int]


class Share:
    """The begin of each of a consumer's buckets, and the end of its own acknowledgements."""

    def __init__(self) -> None:
        self._begun: dict[Bucket, int] = {}
        self._left: dict[Bucket, int] = {}
        self._refused: set[Bucket] = set()
        self._runs: dict[Bucket, int] = {}

    def begun(self, text: str) -> list[int]:
        """The buckets of a message that somebody else has read since; a message is of one table."""
        token = position_of(text)
        lost: list[int] = []
        for part in parts_of(token):
            key = token.tables[part.table], part.bucket
            same = self._begun.get(key, part.begin) == part.begin
            in_between = part.run > self._runs.get(key, part.run)
            if key in self._refused or in_between or not (same or self._left[key] == part.begin):
                lost.append(part.bucket)
            self._runs[key] = max(part.run, self._runs.get(key, 0))
            if self._begun.get(key) != part.begin:
                self._begun[key] = self._left[key] = part.begin
        return lost

    def acked(self, text: str, refused: Collection[int] = ()) -> None:
        """A batch, which is of one table, was acknowledged, but for these of its buckets."""
        token = position_of(text)
        for part in parts_of(token):
            key = token.tables[part.table], part.bucket
            if part.bucket in refused:
                self._refused.add(key)
                continue
            self._refused.discard(key)
            self._left[key] = max(self._left.get(key, 0), part.end)
