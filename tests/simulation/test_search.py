"""A planted bug is found, made small and found again; what must be reached in many runs is known by name."""

from __future__ import annotations

import json

import pytest

from tests.simulation.__main__ import main
from tests.simulation.case import Case, run
from tests.simulation.marks import TORN_TAIL, missing, wanted
from tests.simulation.search import cases, search
from tests.simulation.shrink import command, shrunk
from tests.support.world.disk import SimFile

LONG_SEEDS = 1_500


@pytest.fixture
def _journal_without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug: what is written to the disk is acknowledged before it is there."""
    monkeypatch.setattr(SimFile, "sync", lambda _: None)


@pytest.mark.timeout(900)  # up to 50 runs
@pytest.mark.usefixtures("_journal_without_sync")
def test_a_planted_bug_is_found_shrunk_and_found_again(capsys: pytest.CaptureFixture[str]) -> None:
    wanted_cases = (Case(case.seed, case.workload, faults=("power",)) for case in cases(range(40), ["log"]))
    found = search(wanted_cases, until_anomaly=True).findings
    assert found, "no power cut has lost anything"
    whole = run(found[0].case)
    small = shrunk(whole, tries=8)
    assert set(small.names) & set(whole.names)
    assert small.operations < whole.operations or len(small.case.planned()) < len(whole.case.planned())
    again = command(small.case).split()[3:]
    assert main(again) == 1
    assert "INVALID" in capsys.readouterr().out
    seed = small.case.seed
    line = ["--seeds", f"{seed}:{int(seed) + 1}", "--workload", "log", "--fault", "power", "--until-anomaly", "--json"]
    assert main(line) == 1
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["workload"], told["seed"]) == ("log", seed)
    assert told["anomaly"]
    assert told["seconds"] > 0


def test_a_state_that_no_run_has_reached_is_named() -> None:
    marks = dict.fromkeys(wanted(("log",)), 1)
    assert missing(marks, ("log",)) == []
    del marks[TORN_TAIL]
    assert missing(marks, ("log",)) == [TORN_TAIL]


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_runs_of_many_seeds_reach_every_interesting_state() -> None:
    workloads = ("log", "subscription")
    summary = search(cases(range(LONG_SEEDS), workloads), jobs=2)
    assert not summary.findings, [command(found.case) for found in summary.findings]
    assert missing(summary.marks, workloads) == []
