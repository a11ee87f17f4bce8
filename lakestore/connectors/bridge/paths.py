"""Paths: names of a record's parts, as `value.meta.ts`, `key.id`, `headers.user`, `topic`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lakestore.errors import Invalid

ROOTS = ("value", "key", "headers", "topic", "partition", "offset", "timestamp")
_PART = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


@dataclass(frozen=True, slots=True)
class Path:
    """A part of a record."""

    root: str
    """One of `ROOTS`."""
    parts: tuple[str, ...] = ()
    """Names of fields, outermost first; of headers, the one header's name."""

    @staticmethod
    def of(text: str) -> Path:
        """The path of a text; a name with dots stands in `backticks`. `Invalid` for another text."""
        names: list[str] = []
        at = 0
        while at <= len(text):
            found = _PART.match(text, at)
            if found is None or (found.end() < len(text) and text[found.end()] != "."):
                raise Invalid(f"{text!r} is no path such as value.meta.ts, key.id, headers.user or topic")
            names.append(found[2] or found[1].replace("``", "`"))
            at = found.end() + 1
        root, *parts = names
        if root not in ROOTS or (parts and root not in ("value", "key", "headers")):
            raise Invalid(f"path {text!r} begins with none of value., key. or headers., and is no {', '.join(ROOTS)}")
        if root == "headers" and parts:
            parts = [".".join(parts)]
        return Path(root, tuple(parts))

    def __str__(self) -> str:
        return ".".join([self.root, *(part if "." not in part else f"`{part}`" for part in self.parts)])
