"""Appends, snapshots in the lake, leases, subscriptions and retention, on a disk that loses power at any step.

Whatever happens, nothing leaves the log that is not in the lake, or that a read or a subscription needs; offsets and
sums stay, and what was acknowledged stays acknowledged.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lakestore.errors import LakestoreError, PositionExpired
from lakestore.model.token import LogPosition, position_of
from lakestore.rows.live_sum import live_sum
from lakestore.union.cut import Cut
from tests.model.harness import IN_PLACE
from tests.support.served import DAY, SCHEMA, Served
from tests.support.world.disk import SimDisk

NAME = "t.log"
SEEDS = st.none() | st.integers(0, 1 << 16)
NAMES = st.sampled_from(["a", "b"])


class RetentionMachine(RuleBasedStateMachine):
    """One log table with a retention of a day."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="lakestore-retention-"))
        self.lives = 0
        self.disk = SimDisk(self.folder / "0")
        self.served = Served(self.disk.root, disk=self.disk, limits=IN_PLACE, subscription_idle_seconds=30.0 * DAY)
        self.served.lake.create_table(NAME, SCHEMA, buckets=2, retention="1d")
        self.commits: list[tuple[int, list[int]]] = []
        """(LSN, values)."""
        self.tiered = 0
        """LSN of the newest snapshot."""
        self.acked: dict[str, int] = {}
        self.cuts: list[Cut] = []
        self.start = 0

    def teardown(self) -> None:
        try:
            self.check_everything()
            self.served.kill()
        finally:
            self.disk.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    @rule(values=st.lists(st.integers(0, 99), min_size=1, max_size=5))
    def append(self, values: list[int]) -> None:
        token = position_of(self.served.append(NAME, *values))
        self.commits.append((token.lsn, values))

    @rule(days=st.floats(0.1, 2))
    def wait(self, days: float) -> None:
        self.served.clock.advance(days * DAY)

    @rule()
    def checkpoint(self) -> None:
        self.served.checkpoint()

    @rule()
    def tier(self) -> None:
        self.served.tier(NAME)
        self.tiered = self.commits[-1][0] if self.commits else 0

    @rule()
    @precondition(lambda self: self.commits)
    def begin_a_read(self) -> None:
        cut = Cut(self.served.lake.transport, [NAME], lease_seconds=86_400)
        self.cuts.append(cut)

    @rule(data=st.data())
    @precondition(lambda self: self.cuts)
    def end_a_read(self, data: st.DataObject) -> None:
        self.cuts.pop(data.draw(st.integers(0, len(self.cuts) - 1))).close()

    @rule(name=NAMES, count=st.integers(0, 3))
    def consume(self, name: str, count: int) -> None:
        """Open a subscription, read what is there, acknowledge the first batches."""
        expected = [value for lsn, values in self.commits if lsn > self.acked.get(name, self.start) for value in values]
        found: list[int] = []
        position = self.acked.get(name, self.start)
        for i, batch in enumerate(self.served.lake.table(NAME).changes(subscription=name, until="now")):
            found += batch.to_arrow()["v"].to_pylist()
            if i < count:
                batch.ack()
                position = max(position, position_of(batch.token).lsn)
        assert sorted(found) == sorted(expected), "a subscription loses or repeats rows"
        self.acked[name] = self.moved_over_nothing(name, position)

    def moved_over_nothing(self, name: str, position: int) -> int:
        """Where a subscription stands: behind what was acknowledged, and the commits that hold nothing for it."""
        stands = self.positions()[name]
        assert position <= stands <= self.served.engine.view.lsn
        assert not [lsn for lsn, _ in self.commits if position < lsn <= stands], "it passed what is not acknowledged"
        return stands

    def positions(self) -> dict[str, int]:
        """The subscriptions as the server has them."""
        return {held.name: position_of(held.token).lsn for held in self.served.lake.subscriptions()}

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        if self.acked.pop(name, None) is not None:
            self.served.lake.drop_subscription(name)

    @rule()
    def retain(self) -> None:
        self.served.run()
        self.start = self.served.state(NAME).log_start_lsn

    @rule(steps=st.integers(0, 3), seed=SEEDS)
    def lose_power_in_a_round(self, steps: int, seed: int | None) -> None:
        """The log start is where it was or where it was to be, in every bucket."""
        before, held = self.start, self.held()
        self.disk.lose_power_after(steps)
        with suppress(LakestoreError, OSError):
            self.served.run()
        self.crash(seed)
        self.start = self.served.state(NAME).log_start_lsn
        assert before <= self.start <= max(held, before)

    @rule(steps=st.integers(0, 12), seed=SEEDS)
    def lose_power_in_a_checkpoint(self, steps: int, seed: int | None) -> None:
        self.disk.lose_power_after(steps)
        with suppress(LakestoreError, OSError):
            self.served.checkpoint()
        self.crash(seed)

    @rule(seed=SEEDS)
    def crash(self, seed: int | None) -> None:
        self.cuts.clear()  # leases are in memory; the grace after a start, here none, is for the reads behind them
        self.disk.lose_power_after(0)
        self.served.kill()
        self.disk.close()
        self.lives += 1
        self.disk = self.disk.crash(self.folder / str(self.lives), seed)
        self.served.open(self.disk.root, self.disk)

    def held(self) -> int:
        """The newest LSN at which the log may start for those who need it."""
        return min([self.tiered, *self.acked.values()])

    @invariant()
    def nothing_needed_is_gone(self) -> None:
        state = self.served.state(NAME)
        assert state.log_start_lsn == self.start
        assert self.start <= self.held()
        for cut in self.cuts:
            for part in cut.plan.scan(NAME).buckets:
                if part.tier_point < part.head:
                    assert state.starts()[part.bucket] <= part.tier_point
        assert sum(state.heads()) == sum(len(values) for _, values in self.commits)

    @rule()
    def check_everything(self) -> None:
        """The log from its start, its commit ends, and its sums over all that ever was."""
        state = self.served.state(NAME)
        wanted = [value for lsn, values in self.commits if lsn > self.start for value in values]
        assert sorted(self.served.values(NAME)) == sorted(wanted)
        for log in state.logs:
            offsets = np.arange(log.head, dtype=np.int64)
            assert log.at_head.live_sum == live_sum(offsets)
            assert log.at_head.live_rows == log.head
            assert log.at_lsn(self.served.engine.view.lsn).end == log.head
        self.check_old_positions(self.commits)

    def check_old_positions(self, commits: Sequence[tuple[int, list[int]]]) -> None:
        """Every position from the log start on gives what came after it; one below is refused."""
        timeline = self.served.engine.timeline
        rest: list[int] = []
        for lsn, values in reversed(commits):
            token = str(LogPosition(timeline, lsn))
            if lsn < self.start:
                with pytest.raises(PositionExpired):
                    self.served.values(NAME, token)
            else:
                assert sorted(self.served.values(NAME, token)) == sorted(rest)
            rest = values + rest
        assert self.positions() == self.acked


RetentionMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("LAKESTORE_MODEL_EXAMPLES", "4")),
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestRetentionMachine = pytest.mark.timeout(600)(RetentionMachine.TestCase)
