"""Anomalies: what a checker found that no correct system does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One violation: its name, a sentence that shows it, and the indexes of operations that prove it."""

    name: str
    sentence: str
    operations: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The anomaly as JSON values."""
        return {"name": self.name, "sentence": self.sentence, "operations": list(self.operations)}
