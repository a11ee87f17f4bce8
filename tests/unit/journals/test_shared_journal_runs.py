"""Servers of one shared journal among faults: what one acknowledged stands, and all of them apply the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore_server.journals.shared_journal import LEASE_SHARE, SharedJournal
from lakestore_server.state.judge import Content, Kind, Standing, messages
from tests.support import seeds
from tests.support.journal_servers import LeaseRun, Run
from tests.support.shared_log import Faults

SEEDS = st.integers(0, 2**32).map(str)
WORLDS = {
    "pauses and kills": Faults(),
    "lost answers": Faults(unanswered=0.02),
    "lost messages": Faults(lost=0.02),
    "doubles": Faults(twice=0.1, somewhere=0.05),
    "strangers": Faults(strangers=0.1, skips=0.05),
    "little room": Faults(no_room=0.5, delay=0.05),
    "everything": Faults(0.01, 0.01, 0.03, 0.03, 0.05, 0.02, 0.2),
}


@pytest.mark.parametrize("name", WORLDS)
@settings(max_examples=seeds.examples(15))
@given(seed=SEEDS)
def test_what_was_acknowledged_stands_and_all_servers_apply_the_same(name: str, seed: str) -> None:
    Run(seed, WORLDS[name]).run()


@settings(max_examples=seeds.examples(15))
@given(seed=SEEDS)
def test_void_claims_and_strangers_depose_nobody(seed: str) -> None:
    run = Run(seed, Faults(strangers=0.2, skips=0.1, twice=0.1, somewhere=0.1), blows=0)

    def disturb() -> None:
        for writer in range(1, 60):
            stale = Standing(writer % 3, writer % 2 * 10**6, 7, 0, 0)
            (claim,), _ = messages(stale, Content(Kind.CLAIM, meta=b"z"), writer, 100)
            run.log.store(claim)
            run.world.sleep(0.05)

    def begin() -> None:
        run.world.spawn("disturber", run.world.outside, disturb)

    run.world.later(1.5, begin)
    run.run()
    assert (run.story.deposed, run.story.unknown, run.story.began) == (0, 0, 1)
    assert {counted.after.writer for counted in run.truth if counted.kind is Kind.CLAIM} & set(range(60)) == set()


@settings(max_examples=seeds.examples(15))
@given(seed=SEEDS)
def test_reads_by_a_lease_see_what_was_acknowledged_before_them(seed: str) -> None:
    run = LeaseRun(seed, Faults(delay=0.05), blows=16)
    run.run()
    assert run.stale() == []


def test_reads_by_a_lease_seldom_need_a_beat() -> None:
    run = LeaseRun("quiet", blows=0)
    run.run()
    assert run.story.sure > 0.9 * len(run.story.reads) > 50


def _renewed_at_the_answer(journal: SharedJournal, _: float) -> None:
    """The bug: the lease counts from when the message was judged, not from when it was sent."""
    journal._sure_until = journal._clock.monotonic() + journal.lease_seconds * LEASE_SHARE


def test_a_lease_that_counts_from_the_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedJournal, "_renew", _renewed_at_the_answer)
    for seed in (0, 14, 15, 19, 27, 38):
        run = LeaseRun(str(seed), Faults(delay=0.05), blows=16)
        run.run()
        if run.stale():
            return
    raise AssertionError("no read was stale")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_reads_by_a_lease() -> None:
    chance = seeds.seeded()
    for _ in range(300):
        run = LeaseRun(str(chance.random()), Faults(unanswered=0.02, delay=0.1), blows=16)
        run.run()
        assert run.stale() == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_runs_among_all_faults() -> None:
    chance = seeds.seeded()
    for _ in range(300):
        Run(str(chance.random()), WORLDS["everything"]).run()


def test_runs_reach_what_they_are_about() -> None:
    runs = [Run(str(seed), WORLDS["everything"], blows=20) for seed in range(4)]
    for run in runs:
        run.run()
    stories = [run.story for run in runs]
    for what in ("deposed", "unknown", "trims", "left"):
        assert any(getattr(story, what) for story in stories), what
    assert sum(story.began for story in stories) > 20
    assert any(server.journal.gaps for run in runs for server in run.servers)
    assert any(len(record.parts) > 1 for run in runs for record in run.truth)
    assert any(run.log.first for run in runs)
