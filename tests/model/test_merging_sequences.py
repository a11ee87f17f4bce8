"""Every merge engine against a plain model, over all sequences of four operations on two keys (R23)."""

from __future__ import annotations

import pytest

from tests.support.merge_cases import CASES, MODES, Case, run
from tests.support.served import Served

LENGTH = 4


@pytest.mark.parametrize(
    "mode",
    [MODES[1], *(pytest.param(mode, marks=pytest.mark.long) for mode in (MODES[0], *MODES[2:]))],
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_sequences_are_merged_as_the_model_merges_them(served: Served, case: Case, mode: str) -> None:
    run(mode, served, case, LENGTH)
