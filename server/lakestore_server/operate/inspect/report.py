"""The report on one file: figures, a list of parts, and damage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa


@dataclass(slots=True)
class Report:
    """A described file."""

    path: str
    kind: str
    about: dict[str, Any] = field(default_factory=dict)
    parts: list[dict[str, Any]] = field(default_factory=list)
    """Frames, blocks or tables, in file order."""
    damage: list[str] = field(default_factory=list)
    """Sentences; empty if everything matches its checksum."""
    rows: list[tuple[str, pa.RecordBatch]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """Rows that cannot be shown, with the reason."""

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON, without rows."""
        return {
            "path": self.path,
            "kind": self.kind,
            **self.about,
            "parts": self.parts,
            "whole": not self.damage,
            "damage": self.damage,
        }
