"""Paths name parts of a record: `value.meta.ts`, `key.id`, `headers.user`, `topic`.

The value of a change event is its row. Its other parts are `source.lsn`, `transaction.id`, `op`, `ts_ms` and
`position`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lakestore.errors import Invalid

EVENT_ROOTS = ("source", "transaction", "op", "ts_ms", "ts_us", "ts_ns", "position")
"""Roots that only change events have."""
WITH_PARTS = ("value", "key", "headers", "source", "transaction")
ROOTS = ("value", "key", "headers", "topic", "partition", "offset", "timestamp", *EVENT_ROOTS)
_NUMBERS = {
    "ts_ms", "ts_us", "ts_ns", "lsn", "xmin", "server_id", "pos", "row", "thread", "event_serial_no", "ord", "bucket",
    "offset", "total_order", "data_collection_order", "position",
}  # fmt: skip
_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


@dataclass(frozen=True, slots=True)
class Path:
    """A part of a record."""

    root: str
    parts: tuple[str, ...] = ()
    """Names of fields, outermost first. A path of a header has one part, its name."""

    @staticmethod
    def of(text: str) -> Path:
        """Parse a path. A name with dots is written in `backticks`. Raises `Invalid`."""
        names: list[str] = []
        at = 0
        while at <= len(text):
            found = _PART.match(text, at)
            if found is None or (found.end() < len(text) and text[found.end()] != "."):
                raise Invalid(f"{text!r} is not a path such as value.meta.ts, key.id, headers.user or topic")
            names.append(found[2] or found[1].replace("``", "`"))
            at = found.end() + 1
        root, *parts = names
        if root not in ROOTS or (parts and root not in WITH_PARTS):
            raise Invalid(f"path {text!r} begins with none of value., key. or headers., and is no {', '.join(ROOTS)}")
        if root == "headers" and parts:
            parts = [".".join(parts)]
        return Path(root, tuple(parts))

    @property
    def event_type(self) -> str:
        """The column type of an event part outside the row."""
        return "int64" if (self.parts or (self.root,))[-1] in _NUMBERS else "string"

    def __str__(self) -> str:
        return ".".join([self.root, *(part if "." not in part else f"`{part}`" for part in self.parts)])
