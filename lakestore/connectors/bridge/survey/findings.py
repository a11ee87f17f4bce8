"""Findings of a check: their weights, and their text, the weightiest first and equal ones as one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

NAMES_SHOWN = 6
"""Subjects of a group that its line names."""


class Level(StrEnum):
    """The weight of a finding."""

    OK = "ok"
    NOTE = "note"
    WARNS = "warns"
    """The bridge would run, and records or rows would not be what one expects."""
    STOPS = "stops"
    """The bridge would not run, or not go on."""


ORDER = (Level.STOPS, Level.WARNS, Level.NOTE, Level.OK)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    about: str
    """The subject, as in `table shop.orders`."""
    sentence: str
    kind: str = ""
    """A short name that findings of one cause share; empty for a finding that stands alone."""
    mend: str = ""
    """The command, the setting or the line of bridge.yaml that mends it."""


def ranked(findings: Sequence[Finding]) -> list[Finding]:
    """Findings by weight, then by kind, in the order in which the kinds were met."""
    kinds = {each.kind: number for number, each in reversed(list(enumerate(findings)))}
    return sorted(findings, key=lambda each: (ORDER.index(each.level), kinds[each.kind] if each.kind else -1))


def groups(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of one weight and kind together, the weightiest first."""
    found: dict[tuple[object, ...], list[Finding]] = {}
    for number, each in enumerate(ranked(findings)):
        key = (each.level, each.kind) if each.kind else (each.level, number)
        found.setdefault(key, []).append(each)
    return list(found.values())


def lines(findings: Sequence[Finding], *, whole: bool = False) -> Iterator[str]:
    """The text of a check. `whole` gives each finding a line of its own."""
    for group in [[each] for each in ranked(findings)] if whole else groups(findings):
        first = group[0]
        about = first.about if len(group) == 1 else _abouts(group)
        yield f"{first.level:<6} {about}: {first.sentence}"
        if first.mend:
            for number, text in enumerate(first.mend.splitlines()):
                yield f"{'':<6}   {'mend: ' if not number else '      '}{text}"


def summary(findings: Sequence[Finding]) -> str:
    """The last line of a check."""
    count = {level: sum(each.level is level for each in findings) for level in Level}
    stops = f"{count[Level.STOPS]:,} of {len(findings):,} findings would stop the bridge"
    said = [
        stops if count[Level.STOPS] else "nothing stops the bridge",
        *([f"{count[Level.WARNS]:,} warnings"] if count[Level.WARNS] else []),
        *([f"{count[Level.NOTE]:,} notes"] if count[Level.NOTE] else []),
    ]
    return ", ".join(said)


def _abouts(group: Sequence[Finding]) -> str:
    """The subjects of a group: their number, the first of them by name, and that the sentence is of the first."""
    noun = group[0].about.partition(" ")[0]
    names = list(dict.fromkeys(each.about.partition(" ")[2] for each in group))
    if any(each.about.partition(" ")[0] != noun for each in group) or len(names) == 1:
        return f"{group[0].about} and {len(group) - 1:,} more findings like this"
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return f"{len(names):,} {noun}s ({', '.join(names[:NAMES_SHOWN])}{more}), as {group[0].about}"
