"""Power cuts and failing steps at every single step of a commit, a checkpoint and a recovery."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lakestore.errors import LakestoreError
from tests.model.harness import IN_PLACE, SCHEMAS, Harness
from tests.model.model import Change, Model

BEFORE = (
    Change("t.one", "upsert", tuple((i, 0) for i in range(30))),
    Change("t.two", "upsert", tuple(("a", i, 0) for i in range(10))),
    Change("t.log", "append", ((1, "x"), (2, "y"))),
)
AFTER = (
    Change("t.one", "upsert", tuple((i, 1) for i in range(20, 40))),
    Change("t.one", "delete", tuple((i,) for i in range(5))),
    Change("t.two", "delete", (("a", 3), ("b", 3))),
    Change("t.log", "append", ((3, "z"),)),
)
LAST = (Change("t.one", "upsert", ((0, 2), (99, 2))),)


LIMITS = replace(IN_PLACE, shared_segment_bytes=150, index_cache_keys=0)
"""Some segments are files of their own, the others share one; merged keys are looked up in runs."""


EVERY = 1 if int(os.environ.get("LAKESTORE_CRASH_SEEDS", "1")) > 1 else 2
"""Each step of a checkpoint loses power or fails, in turn; both at each step in `make crash`."""


class Story:
    """Three commits with a checkpoint after the first."""

    def __init__(self, folder: Path) -> None:
        self.harness = Harness(folder, LIMITS)
        self.model = Model()
        for name in SCHEMAS:
            self.model.tables[name] = self.harness.create(name)
        self.sequence = 0
        self.write(BEFORE)
        self.harness.server.upkeep.checkpoint()
        self.write(AFTER)

    def write(self, changes: tuple[Change, ...]) -> None:
        """A commit that succeeds."""
        self.harness.commit(self.harness.request(changes, self.sequence + 1, self.model.tables))
        self.sequence += 1
        self.model.commit(changes)

    def check(self) -> None:
        """Server and model agree, now and after another checkpoint and start."""
        self.harness.check(self.model.tables)
        self.harness.restart()
        self.harness.check(self.model.tables)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    told = Story(tmp_path)
    yield told
    told.harness.stop()


def checkpoint_steps(folder: Path) -> int:
    """How many steps the checkpoint of a story takes."""
    told = Story(folder)
    before = len(told.harness.disk.steps)
    told.harness.server.upkeep.checkpoint()
    told.harness.stop()
    return len(told.harness.disk.steps) - before


@pytest.mark.timeout(600)
def test_power_is_lost_at_every_step_of_a_checkpoint(tmp_path: Path) -> None:
    for step in range(0, checkpoint_steps(tmp_path / "count") + 1, EVERY):
        told = Story(tmp_path / str(step))
        told.harness.disk.lose_power_after(step)
        try:
            told.harness.server.upkeep.checkpoint()
        except (OSError, LakestoreError):
            pass
        told.harness.crash(step, lost=["index"] if step % 3 == 2 else [])
        told.check()
        told.harness.stop()


@pytest.mark.timeout(600)
def test_every_step_of_a_checkpoint_fails_once(tmp_path: Path) -> None:
    """The next checkpoint makes up for the failed one."""
    for step in range(EVERY - 1, checkpoint_steps(tmp_path / "count"), EVERY):
        told = Story(tmp_path / str(step))
        if not told.harness.checkpoint_failing_after(step):
            told.harness.crash(step)
        told.write(LAST)
        told.harness.server.upkeep.checkpoint()
        told.harness.crash(None)
        told.check()
        told.harness.stop()


@pytest.mark.timeout(600)
def test_power_is_lost_at_every_step_of_a_commit(tmp_path: Path) -> None:
    for step, seed in [(0, 0), *((1, seed) for seed in range(12 // EVERY)), (2, 0)]:
        told = Story(tmp_path / f"{step}-{seed}")
        print(f"power is lost at step {step}, seed {seed}")
        request = told.harness.request(LAST, told.sequence + 1, told.model.tables)
        told.harness.disk.lose_power_after(step)
        answered = True
        try:
            told.harness.commit(request)
        except LakestoreError as error:
            answered = False
            assert error.applied == "unknown"
        told.harness.crash(seed)
        assert answered == (step == 2)
        if answered:
            told.model.commit(LAST)
            told.harness.check(told.model.tables)
            told.harness.commit(request)
        else:
            told.harness.commit(request)
            told.model.commit(LAST)
        told.check()
        told.harness.stop()


@pytest.mark.timeout(600)
def test_power_is_lost_at_every_step_of_a_recovery(tmp_path: Path) -> None:
    for step in range(14):
        told = Story(tmp_path / str(step))
        told.harness.crash_twice(step, step, step + 1)
        told.check()
        told.harness.stop()


def test_a_failed_write_is_cut_off_and_the_next_commit_stands(story: Story) -> None:
    for failing in ("write", "sync"):
        story.harness.disk.fail(failing)
        with pytest.raises(LakestoreError) as refused:
            story.harness.commit(story.harness.request(LAST, story.sequence + 1, story.model.tables))
        if failing == "write":
            assert refused.value.applied == "no"
            story.write(LAST)
        else:
            assert refused.value.applied == "unknown", "a failed sync ends the server: nobody knows"
            story.harness.crash(None)
            story.write(LAST)
    story.check()


def test_what_a_restart_has_served_survives_a_power_cut(story: Story) -> None:
    """A frame that was written and never synced is read after a kill: from then on it must be durable."""
    story.harness.disk.fail("sync")
    with pytest.raises(LakestoreError):
        story.harness.commit(story.harness.request(LAST, story.sequence + 1, story.model.tables))
    story.harness.kill()
    story.model.commit(LAST)
    assert story.harness.cut() == story.model.cut(), "the frame was whole in the page cache"
    story.harness.crash(None)
    story.check()


def test_the_lost_index_is_rebuilt(story: Story) -> None:
    story.harness.server.upkeep.checkpoint()
    story.write(LAST)
    story.harness.crash(None, lost=["index"])
    story.check()
