"""Every merge engine over gRPC, with every rule for deletes, with and without `skip_unchanged`, against the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import ChangeRows, Invalid, NothingToKeep
from lakestore.model.merge_engines import ENGINES as ALL_ENGINES
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.merge_cases import CASES, COUNTS, Case, MergeTable, in_batches, separately
from tests.support.process import ServerProcess

ENGINES = tuple(case for case in CASES if not {"skip_unchanged", "deletes"} & case.options.keys())
RULES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("allow", {}),
    ("ignore", {"deletes": "ignore"}),
    ("refuse", {"deletes": "refuse"}),
    ("skipping", {"skip_unchanged": True}),
)
RULED = {
    rule: [replace(case, name=f"{case.name}_{rule}", options={**case.options, **options}) for case in ENGINES]
    for rule, options in RULES
}


@pytest.fixture(scope="module", name="lake")
def _lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ls.Lake]:
    with ServerProcess(tmp_path_factory.mktemp("engines")) as server, ls.connect(server.address) as lake:
        yield lake


def without_deletes(case: Case) -> Case:
    """What a table that refuses deletes takes."""
    return replace(case, ops=tuple(op for op in case.ops if op[0] != "delete"))


def test_all_five_engines_are_here() -> None:
    engines = {case.options.get("merge", "upsert") for case in ENGINES}
    assert {getattr(engine, "engine", engine) for engine in engines} == set(ALL_ENGINES)


@pytest.mark.parametrize("case", [case for cases in RULED.values() for case in cases], ids=lambda case: case.name)
def test_engines_and_their_rules_are_the_models_over_the_wire(lake: ls.Lake, case: Case) -> None:
    """Answers count each row once, and what they count is what the model counts: not found, ignored, unchanged."""
    case = without_deletes(case) if case.options.get("deletes") == "refuse" else case
    separately(lake, case, 2)
    in_batches(lake, replace(case, name=f"{case.name}_batched"), 2)


@pytest.mark.parametrize("case", RULED["refuse"], ids=lambda case: case.name)
def test_a_refused_delete_changes_nothing_and_the_next_commit_is_taken(lake: ls.Lake, case: Case) -> None:
    made = MergeTable(lake, replace(case, name=f"{case.name}_refused"))
    kept = [(kind, [{"id": key, **row}]) for kind, key, row in case.ops if kind != "delete"]
    for kind, key, row in case.ops:
        batch = (kind, [{"id": key, **row}])
        changes = [made.message(kept[0]), made.message(batch)]
        if kind == "delete":
            with pytest.raises(Invalid, match=f"table {made.table.name} refuses deletes"):
                lake.transport.commit(pb.CommitRequest(changes=changes))
        else:
            made.expect(lake.transport.commit(pb.CommitRequest(changes=changes)).results, [kept[0], batch])
        made.check()


@pytest.mark.parametrize("case", ENGINES, ids=lambda case: case.name)
def test_deletes_that_find_nothing_are_counted_and_store_nothing(lake: ls.Lake, case: Case) -> None:
    made = MergeTable(lake, replace(case, name=f"{case.name}_absent"))
    upsert = next((kind, [{"id": key, **row}]) for kind, key, row in case.ops if kind == "upsert")
    made.expect(lake.transport.commit(pb.CommitRequest(changes=[made.message(upsert)])).results, [upsert])
    absent = ("delete", [{"id": i} for i in range(100, 110)])
    for _ in range(2):
        (result,) = lake.transport.commit(pb.CommitRequest(changes=[made.message(absent)])).results
        assert {name: getattr(result, name) for name in COUNTS if getattr(result, name)} == {"not_found": 10}
    assert sum(each.head for each in lake.transport.audit(pb.AuditRequest(table=made.table.name)).buckets) == 1
    made.check()


SENT: dict[str, dict[str, Any]] = {
    "upsert": {"a": 1},
    "partial": {"a": 1},
    "first_row": {"a": 1},
    "versioned": {"v": 3},
    "aggregate": {"low": "m"},
}


@pytest.mark.parametrize("skips", [False, True], ids=["stored", "skipped"])
@pytest.mark.parametrize("engine", SENT)
def test_a_row_that_changes_nothing_is_a_change_unless_the_table_says_skip_unchanged(
    lake: ls.Lake, engine: str, skips: bool
) -> None:
    name = "extremes_skipping" if engine == "aggregate" else engine
    case = next(case for case in CASES if case.name == name)
    options = {**case.options, "skip_unchanged": skips}
    table = MergeTable(lake, replace(case, name=f"{engine}_same_{skips}".lower(), options=options)).table
    for times in range(3):
        table.upsert([{"id": 1, **SENT[engine]}])
        result = table.last_result
        assert result is not None
        counted = {name: getattr(result, name) for name in COUNTS if getattr(result, name)}
        again = "ignored" if engine == "first_row" else "unchanged" if skips else "updated"
        assert counted == {again if times else "inserted": 1}
    kept = 3 if not skips and engine != "first_row" else 1
    assert sum(each.head for each in lake.transport.audit(pb.AuditRequest(table=table.name)).buckets) == kept
    assert sum(map(len, table.changes(until="now"))) == kept


@pytest.mark.parametrize("many", [3, 20_000], ids=["on the open stream", "by itself"])
def test_rows_with_nothing_to_keep_are_named_over_the_wire(lake: ls.Lake, many: int) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("s", pa.string()), ("blob", pa.string())])
    table = lake.create_table(f"d.kept{many}", schema, primary_key=["id"], merge=ls.versioned("v", within="s"))
    table.upsert([{"id": i, "v": 1, "s": "a", "blob": f"b{i}"} for i in range(0, many, 2)])
    sent = pa.table({"id": range(many), "v": [2] * many, "s": ["a"] * many})
    odd = tuple(range(1, many, 2))

    def two_calls() -> None:
        with lake.commit() as commit:
            commit.upsert(table.name, [{"id": -1, "v": 1, "s": "b"}])
            commit.upsert(table.name, sent, keep=["blob"])

    with pytest.raises(NothingToKeep) as refused:
        two_calls()
    assert refused.value.changes == (ChangeRows(1, table.name, odd),)
    with pytest.raises(NothingToKeep) as refused:
        table.upsert(sent, keep=["blob"])
    assert (refused.value.table, refused.value.rows, refused.value.applied) == (table.name, odd, "no")
    writer = table.writer()
    writer.upsert(sent, keep=["blob"])
    with pytest.raises(NothingToKeep) as refused:
        writer.flush()
    assert refused.value.rows == odd
    table.upsert(sent, keep={"blob": [i % 2 == 0 for i in range(many)]})
    found = {row["id"]: row["blob"] for row in table.scan().to_arrow().to_pylist()}
    assert found == {i: None if i % 2 else f"b{i}" for i in range(many)}
    with lake.commit() as commit:
        commit.delete(table.name, [{"id": 0, "v": 0, "s": "b"}], as_of=[datetime(2020, 1, 1)])
    assert [result.ignored for result in commit.results] == [1]
