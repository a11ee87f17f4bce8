"""Servers on one object store among faults and pauses, while old objects are removed; and two planted bugs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore_server.journals.object_log import _Objects, _Reader, _Sender
from tests.support import seeds
from tests.support.object_logs import ObjectRun, ObjectServer
from tests.support.shared_log import Faults

SEEDS = st.integers(0, 2**32).map(str)
WORLDS = {
    "pauses and kills": Faults(),
    "lost requests": Faults(lost=0.03),
    "lost answers": Faults(unanswered=0.03),
    "slow": Faults(delay=0.1),
    "everything": Faults(lost=0.02, unanswered=0.03, delay=0.05),
}


@pytest.mark.parametrize("name", WORLDS)
@settings(max_examples=seeds.examples(10))
@given(seed=SEEDS)
def test_what_was_acknowledged_stands_and_all_servers_apply_the_same(name: str, seed: str) -> None:
    ObjectRun(seed, WORLDS[name]).run()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_runs_among_all_faults() -> None:
    chance = seeds.seeded()
    for _ in range(300):
        ObjectRun(str(chance.random()), WORLDS["everything"], blows=20).run()


def test_runs_reach_what_they_are_about() -> None:
    runs = [ObjectRun(str(seed), WORLDS["everything"], blows=20) for seed in range(6)]
    for run in runs:
        run.run()
    for what in ("deposed", "unknown", "trims", "left"):
        assert any(getattr(run.story, what) for run in runs), what
    assert sum(run.log.first for run in runs) > 50, "blocks are closed"
    assert any(isinstance(server, ObjectServer) and server.restored for run in runs for server in run.servers)


class _TrustedObjects(_Objects):
    def is_closed(self, number: int) -> bool:
        return False


def sender_asks_nothing(patch: pytest.MonkeyPatch) -> None:
    _trust(_Sender, patch)


def reader_asks_nothing(patch: pytest.MonkeyPatch) -> None:
    _trust(_Reader, patch)


def _trust(kind: type[_Sender | _Reader], patch: pytest.MonkeyPatch) -> None:
    begin: Any = kind.__init__

    def begun(self: object, objects: _Objects, *rest: object) -> None:
        begin(self, _TrustedObjects(objects.store, objects.place, objects.block), *rest)

    patch.setattr(kind, "__init__", begun)


@pytest.mark.parametrize(("bug", "runs"), [(sender_asks_nothing, 60), (reader_asks_nothing, 10)])
def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    assert any(_is_wrong(f"bug {seed}") for seed in range(runs))


def _is_wrong(seed: str) -> bool:
    try:
        ObjectRun(seed, WORLDS["everything"], blows=20).run()
    except AssertionError:
        return True
    return False
