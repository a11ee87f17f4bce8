"""A disk that is full from any write on, and syncs that fail: nothing acknowledged is lost, nothing refused is seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lakestore.errors import Exhausted, LakestoreError
from lakestore_server.files import journal_file
from tests.model.model import Change
from tests.model.test_every_step import LAST, Story

MORE: tuple[Change, ...] = (Change("t.log", "append", ((9, "more"),)), Change("t.one", "upsert", ((3, 3),)))


def attempt(story: Story, changes: tuple[Change, ...]) -> bool:
    """A commit on a disk that may be full; whether it was acknowledged."""
    try:
        story.write(changes)
    except Exhausted as error:
        assert error.applied == "no"
        assert "free space" in error.message
        return False
    return True


def checkpoint(story: Story) -> bool:
    """A checkpoint on a disk that may be full; whether it was made."""
    try:
        story.harness.server.upkeep.checkpoint()
    except (Exhausted, OSError):
        return False
    return True


def on_a_disk_full_after(writes: int, folder: Path) -> bool:
    """Two commits with a checkpoint between them; whether the disk was full at all."""
    story = Story(folder)
    try:
        story.harness.disk.fill_up(writes)
        done = [attempt(story, LAST), checkpoint(story), attempt(story, MORE)]
        story.harness.check(story.model.tables)
        story.harness.disk.fill_up(None)
        for changes, there in ((LAST, done[0]), (MORE, done[2])):
            if not there:
                story.write(changes)
        story.harness.server.upkeep.checkpoint()
        story.harness.check(story.model.tables)
        story.harness.crash(None)
        story.check()
        return not all(done)
    finally:
        story.harness.stop()


@pytest.mark.timeout(600)
def test_the_disk_is_full_from_every_write_on_and_heals(tmp_path: Path) -> None:
    writes = 0
    while on_a_disk_full_after(writes, tmp_path / str(writes)):
        writes += 1
    assert writes > 12, "every file and write of commits and a checkpoint was refused once"


@pytest.mark.parametrize("beside", [True, False], ids=["synced beside", "synced in place"])
@pytest.mark.parametrize("kill", [True, False], ids=["process killed", "power lost"])
def test_after_a_failed_sync_of_the_journal_nothing_is_acknowledged_and_nothing_acknowledged_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, kill: bool, beside: bool
) -> None:
    """Linux marks the pages clean, so that a second sync would succeed with the frame lost."""
    if beside:
        monkeypatch.setattr(journal_file, "AHEAD_BYTES", 0)
    story = Story(tmp_path)
    harness = story.harness
    harness.disk.fail("sync")
    refusals: list[Callable[[], object]] = [
        lambda: harness.commit(harness.request(LAST, story.sequence + 1, story.model.tables)),
        lambda: harness.commit(harness.request(MORE, story.sequence + 2, story.model.tables)),
        harness.server.upkeep.checkpoint,
    ]
    for refused in refusals:
        with pytest.raises(LakestoreError):
            refused()
    if kill:
        harness.kill()
        harness.crash(None)
    else:
        harness.crash(None)
    harness.commit(harness.request(LAST, story.sequence + 1, story.model.tables))
    story.model.commit(LAST)
    story.check()
    harness.stop()


def test_below_the_high_water_mark_rows_wait_and_the_reserve_is_for_what_heals(tmp_path: Path) -> None:
    story = Story(tmp_path)
    harness = story.harness
    harness.disk.set_free(1 << 20)
    harness.clock.advance(2)
    with pytest.raises(Exhausted, match="are free for") as refused:
        harness.commit(harness.request(LAST, story.sequence + 1, story.model.tables))
    assert refused.value.retry_after
    harness.check(story.model.tables)
    harness.server.catalog.create_namespace("heals", {})
    harness.server.upkeep.checkpoint()
    harness.disk.set_free(None)
    harness.clock.advance(2)
    story.write(LAST)
    story.check()
    harness.stop()
