"""Rescales in a world: tables get other numbers of buckets at any moment, beside kills and clients, and no answer
changes. A workload is left out if it looks at buckets of rows, or undrops the table that was dropped last: a rescale
changes both."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation import marks
from tests.simulation.case import Case, run
from tests.simulation.nemeses import RESCALE
from tests.simulation.shrink import command

WORKLOADS = ("bank", "changelog", "copying", "counters", "list_append", "register")
FAULTS = (RESCALE, "crash-point", "kill")
OF_OFFSETS = frozenset({"not-ordered", "not-reliable"})
"""Anomalies that compare offsets of a stream: after a swap, offsets are the copy's."""


@pytest.mark.timeout(900)  # 18 runs
@pytest.mark.parametrize("servers", [1, 3])
def test_a_rescale_changes_no_answer(servers: int) -> None:
    seen = Counter[str]()
    for workload in WORKLOADS:
        for seed in range(3):
            outcome = run(Case(f"rescale {seed}", workload, servers=servers, faults=FAULTS))
            told = [f"{each.name}: {each.sentence}" for each in outcome.anomalies if each.name not in OF_OFFSETS]
            assert not told, f"{command(outcome.case)}\n" + "\n".join(told)
            seen += outcome.marks
    assert seen[marks.RESCALED] >= 5
    assert seen[marks.SWAPPED] >= 3
