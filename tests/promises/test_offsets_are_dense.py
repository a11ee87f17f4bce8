"""Promise 3: offsets have no gap and are never used again, and the record at an offset never changes."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

import lakestore as ls
from tests.support.seeds import examples
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
KEYS = st.lists(st.integers(0, 9), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), KEYS),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.sampled_from(["kill", "restart", "checkpoint"]), st.just([])),
    ),
    min_size=1,
    max_size=12,
)


def records(lake: ls.Lake) -> dict[int, dict[int, dict[str, Any]]]:
    """Every record of the log by bucket and offset; one that stands twice is a failure."""
    found: dict[int, dict[int, dict[str, Any]]] = {}
    for batch in lake.table("a.b").changes("earliest", until="now"):
        for row in batch.to_pylist():
            bucket = found.setdefault(row["__bucket"], {})
            assert row["__offset"] not in bucket, "an offset is given twice"
            bucket[row["__offset"]] = row
    return found


def written_around(*between: str) -> list[tuple[str, list[int]]]:
    """Rows, what happens then, and more rows; keys come twice, and some that are deleted are not there."""
    rows: list[tuple[str, list[int]]] = [("upsert", [0, 1, 2, 1]), ("delete", [1, 7])]
    return [*rows, *((verb, list[int]()) for verb in between), ("upsert", [1, 3, 4]), *rows]


@given(STEPS)
@example(written_around())
@example(written_around("kill"))
@example(written_around("checkpoint", "kill"))
@example(written_around("restart", "kill"))
@settings(max_examples=examples(20))
def test_offsets_are_dense_and_records_never_change(steps: list[tuple[str, list[int]]]) -> None:
    with TemporaryDirectory() as folder, Served(Path(folder) / "data") as served:
        served.lake.create_table("a.b", schema=SCHEMA, primary_key=["id"], buckets=3)
        before: dict[int, dict[int, dict[str, Any]]] = {}
        for number, (verb, keys) in enumerate(steps):
            if verb == "upsert":
                served.lake.table("a.b").upsert([{"id": key, "v": number} for key in keys])
            elif verb == "delete":
                served.lake.table("a.b").delete([{"id": key} for key in keys])
            elif verb == "checkpoint":
                served.checkpoint()
            else:
                if verb == "kill":
                    served.kill()
                    served.start()
                else:
                    served.restart()
            after = records(served.lake)
            for bucket, rows in after.items():
                assert sorted(rows) == list(range(len(rows))), f"bucket {bucket} has a gap"
            for bucket, rows in before.items():
                assert rows.items() <= after[bucket].items(), "a record changed or is gone"
            before = after
