"""Anomalies: what a checker found that no correct system does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

FEW = 5
"""Anomalies of one name that are told."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One violation: its name, a sentence that shows it, and the indexes of operations that prove it."""

    name: str
    sentence: str
    operations: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The anomaly as JSON values."""
        return {"name": self.name, "sentence": self.sentence, "operations": list(self.operations)}


def few(anomalies: Iterable[Anomaly]) -> list[Anomaly]:
    """The first anomalies of each name, the last of them with the number of those left out: most have one cause."""
    found = list(anomalies)
    counts, seen, told = Counter(each.name for each in found), Counter[str](), list[Anomaly]()
    for each in found:
        seen[each.name] += 1
        if seen[each.name] == FEW < counts[each.name]:
            told.append(replace(each, sentence=f"{each.sentence} (and {counts[each.name] - FEW} more)"))
        elif seen[each.name] <= FEW:
            told.append(each)
    return told
