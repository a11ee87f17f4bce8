"""The scale of a run: what takes millions of rows elsewhere happens with a few, and long work takes its time.

Bounds that are no settings are drawn from the seed; at a stage of a commit that is being made others may go first.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from lakestore_server.catalog import rescaling
from lakestore_server.commit import queue
from lakestore_server.commit.queue import CommitQueue
from lakestore_server.commit.request import Request
from lakestore_server.duties import rescales
from lakestore_server.index import levels
from lakestore_server.journals import object_log
from lakestore_server.operate import first_copy
from lakestore_server.state.judge import ForeignLog
from tests.simulation.log_link import SILENT_SECONDS
from tests.simulation.marks import GIVEN_BACK
from tests.simulation.world import World

_IS_DUE = first_copy.is_due
MAKING_SECONDS = 0.04
"""The longest that a commit is in the making: callers wait for a fifth of a second at least."""


@contextmanager
def scaled(world: World, identity: str) -> Iterator[None]:
    """The bounds of a run and the time of its stages, by the run's identity."""
    similar = random.Random(f"{identity} runs").choice((2, 2, 3, levels.SIMILAR))
    chance = random.Random(f"{identity} requests")
    small, slow = chance.choice((1_040, 1_100, 1_300, queue.SMALL_BYTES_MAX)), chance.choice((0.0, 0.5, 0.9))
    give_back = CommitQueue.give_back
    copying = random.Random(f"{identity} rescales")
    copied, last = copying.choice((1, 3, 16, rescales.COPY_ROWS)), copying.choice((4, 20, rescaling.SWAP_ROWS_MAX))
    making: Sequence[Request] = ()

    def at_stage(self: CommitQueue, requests: Sequence[Request]) -> bool:
        nonlocal making
        if making is not requests:
            making = requests
            if chance.random() < slow:
                world.sleep(chance.uniform(0.0, MAKING_SECONDS))
        is_back = give_back(self, requests)
        if is_back:
            world.mark(GIVEN_BACK)
        return is_back

    with (
        patch.object(levels, "SIMILAR", similar),
        patch.object(queue, "SMALL_BYTES_MAX", small),
        patch.object(CommitQueue, "give_back", at_stage),
        patch.object(first_copy, "is_due", _refuse_copy),
        patch.object(rescales, "COPY_ROWS", copied),
        patch.object(rescaling, "SWAP_ROWS_MAX", last),
        patch.object(object_log, "OPEN_SECONDS", SILENT_SECONDS),
        patch.object(object_log, "SILENT_SECONDS", SILENT_SECONDS),
    ):
        yield


def _refuse_copy(*given: Any) -> bool:
    """No run copies a checkpoint: the page of a copy listens on a real port. A server that needs a copy, because others
    removed messages that it needs, does not start."""
    if _IS_DUE(*given):
        raise ForeignLog("the messages after this server's place are gone: it must copy a checkpoint")
    return False
