"""The clock of tests stands still, ticks, runs, or follows a simulated world. A test can set and stop its wall time."""

from __future__ import annotations

from tests.support.world.clock import START_US, HandClock, ticks


def test_it_stands_still_until_it_is_moved_and_a_jump_moves_the_wall_clock_alone() -> None:
    clock = HandClock()
    assert (clock.now_us(), clock.monotonic()) == (START_US, clock.monotonic())
    began = clock.monotonic()
    clock.advance(2.5)
    clock.jump(-100)
    assert (clock.us - START_US, clock.monotonic() - began) == (-97_500_000, 2.5)
    clock.us += 1_000_000
    assert (clock.us - START_US, clock.monotonic() - began) == (-96_500_000, 3.5)
    clock.set_off(1)
    assert clock.us - START_US == 4_500_000


def test_a_frozen_wall_clock_stands_still_until_the_next_jump_while_time_goes_on() -> None:
    clock = HandClock(0, ticks(1.0))
    assert [clock.now_us() for _ in range(3)] == [1_000_000, 2_000_000, 3_000_000]
    clock.freeze()
    assert clock.now_us() == clock.now_us() == 4_000_000
    assert clock.monotonic() == 8.0
    clock.jump(0)
    assert clock.now_us() == 8_000_000


def test_a_real_one_runs_with_the_machine() -> None:
    clock = HandClock.real()
    first = clock.now_us(), clock.monotonic()
    clock.advance(3_600)
    assert clock.now_us() - first[0] >= 3_600_000_000
    assert clock.monotonic() - first[1] >= 3_600
