"""Files of tests side by side, each whole in one process: `make test` runs three, for many wait as long as they work.

One file stays in one process, for the servers that its tests share. All files that are marked `spark` count as one,
for the one Spark of their process: a second one would take a core, and half a minute to warm up.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.support import spark


class FilesSideBySide(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands files to the processes in the order of a run without it: the short ones, of `tests/unit`, come last.

    The files that take Spark go first: they are the longest unit, and the other process has all others meanwhile.
    """

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False  # by the number of tests, which says nothing about their time
        super().__init__(config, log)
        self._root = config.rootpath

    def _assign_work_unit(self, node: WorkerController) -> None:
        if spark.MARK in self.workqueue:
            self.workqueue.move_to_end(spark.MARK, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return unit(self._root, nodeid)


def unit(root: Path, nodeid: str) -> str:
    """The unit of work that a test belongs to: its file, or all files that take Spark."""
    file = nodeid.partition("::")[0]
    return spark.MARK if spark.marked(root / file) else file
