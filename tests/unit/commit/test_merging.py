"""Every merge engine against a plain model, over short sequences of operations on two keys."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.model import merge_engines as ls_merge
from tests.support.merge_cases import CASES, MODES, Case, run
from tests.support.served import Served

LENGTH = 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_short_sequences_are_merged_as_the_model_merges_them(served: Served, case: Case, mode: str) -> None:
    run(mode, served, case, LENGTH)


def test_changes_that_leave_nothing_to_aggregate_are_taken(tmp_path: Path) -> None:
    """No rows at all, or rows of which none is inserted."""
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("v", pa.string())])
    with ls.open(tmp_path) as lake:
        merge = ls_merge.aggregate({"n": "sum", "v": "last"})
        table = lake.create_table("t.k", schema, primary_key=["id"], merge=merge)
        table.upsert([{"id": 1, "n": 2, "v": "x"}])
        table.insert_if_absent([{"id": 1, "n": 5, "v": "y"}])
        table.upsert(schema.empty_table())
        assert table.scan().to_arrow().to_pylist() == [{"id": 1, "n": 2, "v": "x"}]
