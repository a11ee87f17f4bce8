"""The progress of running rounds, as the server is told it: what each round does, since when, and how far.

The rounds write their steps here from their threads, and the service reads them. A Spark job's progress is its finished
tasks, which Spark counts by job group; the group is the table's uuid.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from lakestore.v1.lakestore_pb2 import RunningRound

PLAN, ROWS, WAIT, SPARK, COMMIT, UPKEEP, ERASE = (
    "plans",
    "writes rows",
    "waits for Spark",
    "writes rows by Spark",
    "commits",
    "looks after files",
    "erases",
)
"""The steps, as `status` shows them."""


@dataclass(slots=True)
class _Running:
    began: float
    """Clock seconds."""
    step: str = PLAN
    changes: int = 0
    """Offsets that the round takes; 0 before its plan."""


class RoundProgress:
    """The running rounds of all tables. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}

    @contextmanager
    def round(self, table_uuid: str) -> Iterator[None]:
        """Note that a round of the table runs."""
        with self._lock:
            self._running[table_uuid] = _Running(self._clock())
        try:
            yield
        finally:
            with self._lock:
                self._running.pop(table_uuid, None)

    def step(self, table_uuid: str, step: str, changes: int = 0) -> None:
        """Note the step of a table's round, and its changes once they are known. Ignored outside a round."""
        with self._lock:
            running = self._running.get(table_uuid)
            if running is not None:
                running.step, running.changes = step, changes or running.changes

    def longest(self) -> float:
        """Seconds for which the oldest running round has run; 0 if none runs."""
        with self._lock:
            return self._clock() - min((each.began for each in self._running.values()), default=self._clock())

    def messages(self, tasks_of: Callable[[str], tuple[int, int]]) -> list[RunningRound]:
        """The running rounds as the server is told them; `tasks_of` counts finished and all tasks of a job group."""
        with self._lock:
            running = [
                (uuid, each.step, self._clock() - each.began, each.changes) for uuid, each in self._running.items()
            ]
        told = []
        for uuid, step, seconds, changes in running:
            done, tasks = tasks_of(uuid) if step == SPARK else (0, 0)
            told.append(RunningRound(table_uuid=uuid, step=step, seconds=seconds, changes=changes, tasks=tasks))
            told[-1].tasks_done = done
        return told


def tasks_of(spark: SparkSession, job_group: str) -> tuple[int, int]:
    """Finished and all tasks of a group's running Spark jobs."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(job_group)]
    stages = [tracker.getStageInfo(each) for job in jobs if job and job.status == "RUNNING" for each in job.stageIds]
    known = [stage for stage in stages if stage]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
