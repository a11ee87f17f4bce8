"""Named steps of the server's work on its disk, as they are seen from outside: a call on a file that has a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jepsen.system.shim import Operation

JOURNAL, CHECKPOINT, RUN = "journal-*[0-9]", "checkpoint-*[0-9]", "index/*.run"


@dataclass(frozen=True, slots=True)
class Step:
    """A call, and whether the crash comes before it or after it."""

    operation: Operation
    pattern: str
    is_before: bool = False


STEPS: Mapping[str, Step] = {
    "journal: before a frame is written": Step(Operation.WRITE, JOURNAL, is_before=True),
    "journal: frame written": Step(Operation.WRITE, JOURNAL),
    "journal: before the sync": Step(Operation.SYNC, JOURNAL, is_before=True),
    "journal: frame synced": Step(Operation.SYNC, JOURNAL),
    "journal: next file written": Step(Operation.WRITE, "next-journal.tmp"),
    "journal: next file synced": Step(Operation.SYNC, "next-journal.tmp"),
    "journal: next file named": Step(Operation.RENAME, JOURNAL),
    "journal: old file removed": Step(Operation.REMOVE, JOURNAL),
    "folder: before its sync": Step(Operation.SYNC_FOLDER, ".", is_before=True),
    "folder: synced": Step(Operation.SYNC_FOLDER, "."),
    "segment: written": Step(Operation.WRITE, "segments/*"),
    "segment: synced": Step(Operation.SYNC, "segments/*"),
    "segment: its folder synced": Step(Operation.SYNC_FOLDER, "segments/*"),
    "segment: removed": Step(Operation.REMOVE, "segments/*"),
    "index: run written": Step(Operation.WRITE, RUN),
    "index: run synced": Step(Operation.SYNC, RUN),
    "index: run removed": Step(Operation.REMOVE, RUN),
    "checkpoint: begun": Step(Operation.CREATE, "checkpoint-*.tmp"),
    "checkpoint: written": Step(Operation.WRITE, "checkpoint-*.tmp"),
    "checkpoint: synced": Step(Operation.SYNC, "checkpoint-*.tmp"),
    "checkpoint: named": Step(Operation.RENAME, CHECKPOINT),
    "checkpoint: old one removed": Step(Operation.REMOVE, CHECKPOINT),
    "part: written": Step(Operation.WRITE, "parts/*.tmp"),
    "part: synced": Step(Operation.SYNC, "parts/*.tmp"),
    "part: named": Step(Operation.RENAME, "parts/*"),
    "part: removed": Step(Operation.REMOVE, "parts/*"),
    "catalog: metadata written": Step(Operation.WRITE, "warehouse/*.json"),
    "catalog: metadata synced": Step(Operation.SYNC, "warehouse/*.json"),
    "presenting: file written": Step(Operation.WRITE, "warehouse/__presented/*"),
    "start: lock written": Step(Operation.WRITE, "lock"),
    "start: journal copied": Step(Operation.SYNC, "journal-*.tmp"),
    "start: journal named": Step(Operation.RENAME, JOURNAL),
    "start: folder synced": Step(Operation.SYNC_FOLDER, "."),
}
"""By what has just been done, or is about to be."""


def at_start() -> list[str]:
    """The names of steps of a start."""
    return [name for name in STEPS if name.startswith("start:")]


def at_work() -> list[str]:
    """The names of all other steps."""
    return [name for name in STEPS if not name.startswith("start:")]
