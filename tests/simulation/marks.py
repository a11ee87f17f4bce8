"""Interesting states that some run must reach, or the runs do not test what they are meant to: the list, and watchers.

A watcher looks on from outside: at messages, at files and at the crash points that a process passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lakestore.errors import LakestoreError
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore_server.host.crash_points import CrashPoint
from tests.simulation.world import World

TORN_TAIL = "a torn tail was cut off"
SAME_ANSWER = "a commit that came again got its first answer"
INDEX_REBUILT = f"reached {CrashPoint.REBUILD_FINISHED}"
WRITE_CUT = f"reached {CrashPoint.JOURNAL_CUT}"
ENDED_ITSELF = "a server ended itself"
CRASHED = "crashed at a named point"
NO_START = "a server did not start on a broken disk"
BEHIND_FAILED = "a checkpoint behind one that had failed in the same life"
INDEX_PROBLEM = "the index got a problem within a checkpoint"
GAP_REFUSED = "a start without a journal file was refused"
NO_MEMORY = "an allocation failed"
GIVEN_BACK = "large requests waited again behind a small one"
TOLD_NOTHING = "a server was killed before it told the others that it is there"
FAILED_OVER = "another server led"
REFUSED_BY_FOLLOWER = "answered Commit: NotLeader"
PUTS_IN_FLIGHT = "several puts of one server in flight"
STORE_REFUSED = "the store answered 503"
ANSWER_LOST = "the store did what it did not answer"
RESCALED = "a rescale began"
SWAPPED = "a copy took the place of its table"
BLOCK_CLOSED = "a block of the bucket was closed"
OF_BUCKET = frozenset({PUTS_IN_FLIGHT, STORE_REFUSED, ANSWER_LOST, BLOCK_CLOSED, FAILED_OVER})
"""States that runs of servers with a journal in a bucket must reach."""
NEVER = frozenset({CrashPoint.CATALOG_READY, CrashPoint.CATALOG_COMMITTED})
"""Points that only other catalogs' commits pass."""
GROUPS = ("checkpoint.", "index.", "segment.", "trim.", "recovery.", "journal.file", "rebuild.", "part.")
"""Beginnings of the names of crash points between which a task may be interrupted."""


def wanted(workloads: tuple[str, ...]) -> frozenset[str]:
    """The states that runs of many seeds must reach, with these workloads."""
    found = {
        TORN_TAIL,
        SAME_ANSWER,
        INDEX_REBUILT,
        WRITE_CUT,
        ENDED_ITSELF,
        CRASHED,
        NO_START,
        BEHIND_FAILED,
        GIVEN_BACK,
        INDEX_PROBLEM,
        GAP_REFUSED,
        FAILED_OVER,
        REFUSED_BY_FOLLOWER,
        "power lost",
    }
    found |= {f"reached {CrashPoint.RUN_MERGED}", ended_behind(CrashPoint.RUN_DURABLE)}
    for point in (CrashPoint.CHECKPOINT_FROZEN, CrashPoint.CHECKPOINT_RENAMED, CrashPoint.TRIM_FILE_REMOVED):
        found.add(ended_behind(point))
    if "subscription" in workloads:
        found |= {"answered Ack: Fenced", "answered Changes: Fenced"}
    return frozenset(found)


def missing(marks: Mapping[str, int], workloads: tuple[str, ...]) -> list[str]:
    """The wanted states that were never reached."""
    return sorted(name for name in wanted(workloads) if not marks.get(name))


def ended_behind(point: CrashPoint) -> str:
    """The mark of a process that ended within a task, when the point was the last one that it had passed."""
    return f"ended behind {point}"


class Watcher:
    """The one who looks on at a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._answers: dict[tuple[str, int, int], bytes] = {}
        self._last: dict[str, CrashPoint] = {}

    def answered(self, method: rpc.Method, request: Any, answer: bytes) -> None:
        """A call was answered by the server."""
        if method.name == "Commit" and isinstance(request, pb.CommitRequest) and request.sequence:
            key = request.producer, request.epoch, request.sequence
            if key in self._answers and self._answers[key] == answer:
                self._world.mark(SAME_ANSWER)
            self._answers[key] = answer

    def refused(self, method: rpc.Method, error: LakestoreError) -> None:
        """A call was refused by the server."""
        self._world.mark(f"answered {method.name}: {error.kind}")

    def passed(self, process: str, point: CrashPoint) -> None:
        """A process has passed a point."""
        self._world.mark(f"reached {point}")
        self._last[process] = point

    def ended(self, process: str) -> None:
        """A process has ended without an orderly end."""
        point = self._last.pop(process, None)
        if point is not None and point.startswith(GROUPS) and point is not CrashPoint.TRIM_DURABLE:
            self._world.mark(ended_behind(point))


class Tail:
    """The last file of the journal as a start finds it, to be compared with what the start leaves of it."""

    def __init__(self, folder: Path) -> None:
        names = sorted(path for path in folder.glob("journal-*") if not path.name.endswith(".tmp"))
        self._path = names[-1] if names else None
        self._size = self._path.stat().st_size if self._path else 0

    def was_cut(self) -> bool:
        """Whether it is shorter than it was."""
        return self._path is not None and self._path.exists() and self._path.stat().st_size < self._size
