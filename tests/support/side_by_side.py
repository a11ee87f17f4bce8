"""Files of tests side by side, each whole in one process: `make test` runs two.

One file stays in one process, for the servers that its tests share. All files that are marked `spark` count as one,
for the one Spark of their process: a second one would take a core, and half a minute to warm up. So do all files that
are marked `kafka`, for their broker.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.support import spark

KAFKA = "pytest.mark.kafka"


class FilesSideBySide(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands files to the processes in the order of a run without it: the short ones, of `tests/unit`, come last.

    The files that take Spark and those that take Kafka go first: they are the longest units.
    """

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False  # by the number of tests, which says nothing about their time
        super().__init__(config, log)
        self._root = config.rootpath

    def _assign_work_unit(self, node: WorkerController) -> None:
        for mark in (KAFKA, spark.MARK):
            if mark in self.workqueue:
                self.workqueue.move_to_end(mark, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return unit(self._root, nodeid)


def unit(root: Path, nodeid: str) -> str:
    """The unit of work that a test belongs to: its file, all files that take Spark, or all that take Kafka."""
    file = nodeid.partition("::")[0]
    if spark.marked(root / file):
        return spark.MARK
    return KAFKA if _takes_kafka(root / file) else file


@cache
def _takes_kafka(file: Path) -> bool:
    return KAFKA in file.read_text(encoding="utf-8")
