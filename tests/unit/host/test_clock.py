"""The judgement of the wall clock: stamps never fall or run ahead, and a clock in doubt deletes nothing."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakestore_server.host import clock
from lakestore_server.host.clock import CONFIRM_SECONDS, GAP_US_MAX, SLACK_US_MAX, Doubt, Judge, Reading, Timekeeper
from tests.support.seeds import examples
from tests.support.served import DAY
from tests.support.world.clock import START_US, HandClock

YEAR = 365 * DAY
SLACK = SLACK_US_MAX / 1e6
Step = tuple[str, float]

STEPS = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.5, 20.0, 299.0, 301.0, 3_600.0])),
    st.tuples(st.just("set"), st.sampled_from([0.0, 0.0, 0.5, -0.5, 2.0, -3_600.0, 3_600.0, 6.5 * DAY, 8 * DAY, YEAR])),
    st.tuples(st.just("slew"), st.sampled_from([-0.0005, 0.0, 0.0005])),
    st.tuples(st.just("restart"), st.sampled_from([0.0, 5.0, 3_600.0, 30 * DAY])),
)


@dataclass
class Machine:
    """A machine whose clock is `offset` off the truth, and the server upon it."""

    true: float = START_US / 1e6
    offset: float = 0.0
    slew: float = 0.0
    stamp: int = 0
    steady: float = START_US / 1e6
    """Since when the clock was not set, and the server runs."""
    ahead: float = 0.0
    """How far ahead of the truth the time may be: offsets that have stood, and what a start believes."""
    stood: list[float] = field(default_factory=list)
    """Offsets that have stood since the start."""

    def __post_init__(self) -> None:
        self.begin()

    @property
    def wall_us(self) -> int:
        return int((self.true + self.offset) * 1e6)

    def begin(self) -> None:
        self.steady, self.stood = self.true, []
        gap = self.wall_us - self.stamp
        if not self.stamp or 0 <= gap <= GAP_US_MAX:
            self.ahead = max(self.ahead, self.offset)
        self.judge = Judge(self.wall_us, self.true, self.stamp)

    def do(self, step: Step) -> None:
        kind, by = step
        if kind == "wait":
            self.true += by
            self.offset += self.slew * by
        elif kind == "set":
            self.steady = self.steady if abs(by - self.offset) <= SLACK else self.true
            self.offset = by
        elif kind == "slew":
            self.slew = by
        else:
            self.true += by
            self.begin()

    def read(self) -> Reading:
        """A reading by which a commit is stamped."""
        found = self.judge.read(self.wall_us, self.true)
        if self.true - self.steady >= CONFIRM_SECONDS:
            self.stood.append(self.offset)
            self.ahead = max(self.ahead, self.offset)
        return found

    def commit(self, found: Reading) -> None:
        before, self.stamp = self.stamp, found.stamp_us(self.stamp)
        assert self.stamp >= before


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(STEPS, max_size=40))
@example([("wait", 301.0), ("set", YEAR), ("wait", 299.0), ("set", 0.0), ("restart", 0.0), ("set", YEAR)])
@example([("restart", 5.0), ("set", 6.5 * DAY), ("restart", 5.0), ("set", 0.0), ("wait", 301.0), ("restart", 5.0)])
def test_any_clock(steps: list[Step]) -> None:
    machine = Machine()
    for step in steps:
        machine.do(step)
        found = machine.read()
        machine.commit(found)
        error = found.time_us / 1e6 - machine.true
        assert error <= machine.ahead + 2 * SLACK, "no time runs ahead by what has not stood"
        if found.may_delete:
            assert min(abs(error - offset) for offset in machine.stood) <= 2 * SLACK, "by a clock that has stood"
        beside = found.beside_us(machine.stamp)
        assert beside == 0 or beside / 1e6 - machine.true <= machine.ahead + 2 * SLACK
    for _ in range(3):
        machine.do(("wait", CONFIRM_SECONDS + 1))
        found = machine.read()
        machine.commit(found)
    assert found.may_delete, "everything resumes once the clock has stood"
    assert abs(found.time_us - machine.wall_us) <= SLACK_US_MAX


def watched() -> tuple[HandClock, Judge]:
    """A clock that has stood since the start."""
    hand = HandClock()
    judge = Judge(hand.us, hand.monotonic(), hand.us - 1)
    hand.advance(CONFIRM_SECONDS)
    assert judge.read(hand.us, hand.monotonic()).may_delete
    return hand, judge


def test_one_reading_far_ahead_stamps_nothing() -> None:
    hand, judge = watched()
    right = hand.us
    hand.jump(10 * YEAR)
    during = judge.read(hand.us, hand.monotonic())
    assert (during.time_us, during.doubt, during.offset_us) == (right, Doubt.AHEAD, 10 * YEAR * 1_000_000)
    hand.jump(-10 * YEAR)
    assert judge.read(hand.us, hand.monotonic()) == Reading(right, Doubt.NONE, 0, 0.0)


@pytest.mark.parametrize("seconds", [3_600, -3_600, 10 * YEAR])
def test_a_jump_is_believed_when_it_has_stood_or_an_operator_says_so(seconds: int) -> None:
    for says_so in (False, True):
        hand, judge = watched()
        hand.jump(seconds)
        first = judge.read(hand.us, hand.monotonic())
        hand.advance(CONFIRM_SECONDS - 1)
        second = judge.read(hand.us, hand.monotonic())
        assert not first.may_delete
        assert not second.may_delete
        assert second.time_us - first.time_us == (CONFIRM_SECONDS - 1) * 1_000_000, "time goes on"
        assert second.seconds == CONFIRM_SECONDS - 1
        hand.advance(0 if says_so else 1)
        read = judge.accept if says_so else judge.read
        assert read(hand.us, hand.monotonic()) == Reading(hand.us, Doubt.NONE, 0, 0.0)


def test_a_clock_that_is_set_again_and_again_is_not_believed() -> None:
    hand, judge = watched()
    for _ in range(20):
        hand.jump(60)
        hand.advance(CONFIRM_SECONDS - 1)
        assert not judge.read(hand.us, hand.monotonic()).may_delete


@pytest.mark.parametrize(
    ("gap", "is_believed"), [(0, True), (7 * DAY, True), (7 * DAY + 1, False), (-1, False), (-YEAR, False)]
)
def test_after_a_start_a_clock_near_the_last_commit_is_believed_for_stamps_alone(gap: int, is_believed: bool) -> None:
    last = START_US
    judge = Judge(last + gap * 1_000_000, 5.0, last)
    first = judge.read(last + gap * 1_000_000, 5.0)
    assert first.time_us == last + (gap * 1_000_000 if is_believed or gap == -1 else 0)
    assert not first.may_delete
    assert judge.read(last + (gap + 301) * 1_000_000, 306.0) == Reading(
        last + (gap + 301) * 1_000_000, Doubt.NONE, 0, 0.0
    )


def test_stamps_ahead_of_the_time_grow_as_little_as_can_be_and_have_the_time_beside_them() -> None:
    now = Reading(START_US, Doubt.NONE, 0, 0.0)
    ahead = START_US + YEAR * 1_000_000
    assert now.stamp_us(ahead) == ahead + 1
    assert now.beside_us(ahead + 1) == START_US
    assert now.stamp_us(START_US + 7) == START_US + 7, "a step back of less than a second"
    assert now.beside_us(START_US + 7) == 0
    assert Reading(START_US, Doubt.BEHIND, 0, 0.0).beside_us(ahead) == 0


def test_a_doubt_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    hand = HandClock()
    keeper = Timekeeper(hand, hand.us)
    with caplog.at_level(logging.INFO, logger=clock.log.name):
        keeper.read()
        hand.advance(CONFIRM_SECONDS)
        keeper.read()
        hand.jump(YEAR)
        keeper.read()
        keeper.read()
        keeper.accept()
    said = [record.getMessage() for record in caplog.records]
    assert [text.split(":")[0] for text in said] == [
        "the clock is confirmed",
        "the clock is 31536000 s ahead of the time since the last commits",
        "the clock is accepted as an operator says",
    ]
    assert "`lakestore clock --accept`" in said[1]
