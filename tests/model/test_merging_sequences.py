"""Every merge engine against a plain model, over all sequences of four operations on two keys (R23)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import lakestore as ls
from tests.support.merge_cases import CASES, MODES, Case

LENGTH = 4


@pytest.mark.parametrize(
    "mode",
    [*MODES[:2], *(pytest.param(mode, marks=pytest.mark.long) for mode in MODES[2:])],
    ids=lambda mode: mode.__name__,
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_sequences_are_merged_as_the_model_merges_them(
    tmp_path: Path, case: Case, mode: Callable[[ls.Lake, Case, int], None]
) -> None:
    with ls.open(tmp_path) as lake:
        mode(lake, case, LENGTH)
