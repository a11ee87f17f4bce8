"""Every mutant can be planted in the product as it is, and the result is Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jepsen.mutants.hunt import failing, telling
from jepsen.mutants.mutant import Edit, Mutant, NotPlanted, copy, planted
from jepsen.nemeses import NEMESES
from jepsen.trial import HEAVY, needs_of
from jepsen.workloads import WORKLOADS
from tests.simulation import nemeses as simulated
from tests.simulation.shrink import NO_FAULT

MUTANTS_MIN = 30
BAR = "30 at least, as the issue asks"


def test_there_are_enough() -> None:
    names = [each.name for each in planted()]
    assert len(names) == len(set(names)) >= MUTANTS_MIN, BAR


@pytest.mark.parametrize("mutant", planted(), ids=lambda each: each.name)
def test_a_mutant_fits_the_product(mutant: Mutant) -> None:
    for file, text in mutant.texts().items():
        compile(text, file, "exec")


@pytest.mark.parametrize("mutant", planted(), ids=lambda each: each.name)
def test_a_mutant_is_hunted_by_what_there_is(mutant: Mutant) -> None:
    assert bool(mutant.workloads) != bool(mutant.tests)
    assert set(mutant.workloads) <= WORKLOADS.keys()
    assert set(mutant.nemeses) <= NEMESES.keys()
    assert set(mutant.faults) <= {*simulated.NEMESES, NO_FAULT}
    assert not any(NEMESES[name].needs & HEAVY - needs_of(mutant.workloads) for name in mutant.nemeses)


def test_every_workload_has_a_mutant_that_it_is_for() -> None:
    assert {name for each in planted() for name in each.workloads} == WORKLOADS.keys()


def test_what_only_stands_still_is_not_found() -> None:
    assert telling(["stuck", "crash", "idle"]) is None
    assert telling(["stuck", "lost", "duplicate"]) == "lost"


def test_a_mutant_whose_place_has_gone_is_found_out() -> None:
    mutant = Mutant("gone", "", (Edit("lakestore/errors.py", "no such text", ""),), (), ())
    with pytest.raises(NotPlanted, match="mend the mutant"):
        mutant.texts()


def test_a_copy_holds_the_bug_and_all_packages(tmp_path: Path) -> None:
    mutant = planted()[0]
    mutant.plant(tmp_path)
    changed = (tmp_path / "lakestore_server" / "files" / "journal_file.py").read_text()
    assert mutant.edits[0].new in changed
    assert (tmp_path / "jepsen" / "run.py").exists()
    assert (tmp_path / "lakestore" / "v1" / "lakestore_pb2.py").exists()


TESTED = [each for each in planted() if each.tests]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", TESTED, ids=lambda each: each.name)
def test_a_test_that_a_mutant_names_fails_in_its_copy(mutant: Mutant, tmp_path: Path) -> None:
    mutant.plant(tmp_path)
    assert failing(mutant, tmp_path) in mutant.tests


@pytest.mark.timeout(600)
def test_the_tests_that_mutants_name_pass_without_them(tmp_path: Path) -> None:
    copy(tmp_path)
    every = tuple(test for mutant in TESTED for test in mutant.tests)
    assert failing(replace(TESTED[0], tests=every), tmp_path) == ""
