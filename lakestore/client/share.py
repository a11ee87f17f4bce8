"""A consumer's share of a subscription: which rows it may be given again.

Each message says where the server began to read its buckets. If that is where this consumer's own acknowledgements
stand, nobody else has read the bucket since, and rows that were handed out already are left out. Else somebody has,
what is not acknowledged of the rows handed out no longer counts, and they come again.
"""

from __future__ import annotations

from lakestore.token import Token

Bucket = tuple[str, int]


class Share:
    """Where a consumer's buckets began, and how far it has acknowledged them itself."""

    def __init__(self) -> None:
        self._begun: dict[Bucket, int] = {}
        self._left: dict[Bucket, int] = {}

    def begun(self, text: str) -> list[int]:
        """The buckets of a message that somebody else has read since; a message is of one table."""
        token = Token.parse(text)
        lost = []
        for part in token.parts or ():
            key = token.tables[part.table], part.bucket
            if self._begun.get(key) == part.begin:
                continue
            if key in self._begun and self._left[key] != part.begin:
                lost.append(part.bucket)
            self._begun[key] = self._left[key] = part.begin
        return lost

    def acked(self, text: str) -> None:
        """A batch was acknowledged."""
        token = Token.parse(text)
        for part in token.parts or ():
            key = token.tables[part.table], part.bucket
            self._left[key] = max(self._left.get(key, 0), part.end)
