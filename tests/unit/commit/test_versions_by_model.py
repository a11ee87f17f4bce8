"""Versions within sources, times and kept columns of whole batches, against the model that takes row after row."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore.model.merge_engines import versioned
from lakestore.model.table import Table, define
from lakestore_server.arrays.grouping import Groups, Ints
from lakestore_server.commit.contract_rows import NEVER
from lakestore_server.commit.merge import kept_columns
from lakestore_server.commit.merge.current_rows import CurrentRows
from lakestore_server.commit.merge.versions import CameIn
from lakestore_server.commit.request import KeptColumns, RowMarks, TableChange
from lakestore_server.index.keys import NO_KEYS
from tests.model.merging import AS_OF, KEPT, Mark, Merged, Row
from tests.support.seeds import examples

EPOCH = datetime(1970, 1, 1)
FIELDS = [("id", pa.int64()), ("v", pa.int64()), ("s", pa.string()), ("a", pa.string()), ("b", pa.list_(pa.int64()))]
TABLES = [
    define("d.t", pa.schema(FIELDS), primary_key=["id"], merge=merge)
    for merge in (versioned("v", within="s"), versioned("v"), "upsert")
]
VERSIONS = st.integers(0, 2) | st.sampled_from([-(2**63), 2**63 - 1])
SOURCES = st.sampled_from(["x", "y", ""])
TIMES = st.integers(1, 4).map(lambda n: EPOCH + timedelta(microseconds=n))
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(0, 2),
            "v": VERSIONS,
            "s": SOURCES,
            "a": st.just(KEPT) | st.none() | st.sampled_from("pq"),
            "b": st.just(KEPT) | st.none() | st.lists(st.integers(0, 1), max_size=2),
            AS_OF: st.none() | TIMES,
        }
    ),
    min_size=1,
    max_size=10,
)
HELD = st.lists(st.none() | st.tuples(VERSIONS, SOURCES, TIMES, st.booleans()), min_size=4, max_size=4)


def change_of(rows: Sequence[Row], table: Table) -> TableChange:
    """The rows as the merge is given them."""
    names = [name for name, _ in FIELDS]
    values = [{name: None if row[name] == KEPT else row[name] for name in names} for row in rows]
    batch = pa.RecordBatch.from_pylist(values, table.storage_schema)
    marks = [
        KeptColumns((table.column(name).id,), np.array([row[name] == KEPT for row in rows], dtype=np.bool_))
        for name in "ab"
    ]
    due = [NEVER if row[AS_OF] is None else micros(row[AS_OF]) for row in rows]
    as_of = np.array(due, dtype=np.int64) if table.merge.within else None
    buckets = np.zeros(len(rows), dtype=np.int32)
    return TableChange(table, batch, buckets, NO_KEYS, False, frozenset(), marks=RowMarks(tuple(marks), as_of))


def micros(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def found_of(rows: Sequence[Row], table: Table, model: Merged) -> CurrentRows:
    """What the index and the log say of the keys."""
    groups = Groups.by(np.array([row["id"] for row in rows], dtype=np.int64))
    keys = [(rows[int(first)]["id"],) for first in groups.first]
    marks = [model.deleted.get(key) for key in keys]
    records = [
        model.live.get(key) or (mark and {"v": mark.version, "s": mark.within}) or {}
        for key, mark in zip(keys, marks, strict=True)
    ]

    def taken(wanted: Ints, names: Sequence[str]) -> dict[str, pa.Array]:
        assert (wanted[1:] > wanted[:-1]).all()
        types = dict(FIELDS)
        return {name: pa.array([records[i].get(name) for i in wanted.tolist()], types[name]) for name in names}

    def times(wanted: Ints) -> Ints:
        found = [model.times.get(keys[i]) or getattr(marks[i], "time", None) or EPOCH for i in wanted.tolist()]
        return np.array([micros(time) for time in found], dtype=np.int64)

    alive = np.array([key in model.live for key in keys], dtype=np.bool_)
    remembered = np.array([mark is not None for mark in marks], dtype=np.bool_)
    return CurrentRows(groups, alive, remembered, taken, times, lambda nbytes: None)


def model_of(held: Sequence[tuple[Any, ...] | None], table: Table) -> Merged:
    model = Merged(table)
    for key, state in enumerate(held):
        if state is not None:
            version, source, time, alive = state
            if alive:
                model.live[key,] = {"id": key, "v": version, "s": source, "a": f"old {key}", "b": [key]}
                model.times[key,] = time
            elif table.merge.folds:
                model.deleted[key,] = Mark(version, source if table.merge.within else None, time)
    return model


@settings(max_examples=examples(150), deadline=None)
@given(rows=ROWS, held=HELD, table=st.sampled_from(TABLES))
def test_a_batch_is_judged_and_filled_as_its_rows_are_one_by_one(
    rows: list[Row], held: list[tuple[Any, ...] | None], table: Table
) -> None:
    if not table.merge.within:
        rows = [{**row, AS_OF: None} for row in rows]
    model = model_of(held, table)
    baseless = kept_columns.baseless(change_of(rows, table), table, found_of(rows, table, model))
    assert baseless.tolist() == model.baseless("upsert", rows)
    left = [row for place, row in enumerate(rows) if place not in baseless]
    if not left:
        return
    change, found = change_of(left, table), found_of(left, table, model)
    if table.merge.engine == "upsert":
        made = kept_columns.filled(change, found, np.arange(len(left))).to_pylist()
    else:
        came_in = CameIn.judge(change, table, found)
        keys = np.flatnonzero(came_in.last >= 0)
        made = kept_columns.filled(change, found, came_in.last[keys], came_in.rows).to_pylist()
    model.apply("upsert", [{name: value for name, value in row.items() if name != AS_OF or value} for row in left])
    by_key: dict[int, list[Row]] = {}
    for row in made:
        by_key.setdefault(row["id"], []).append(row)
    wanted: dict[int, list[Row]] = {}
    for _, row in model.changes:
        wanted.setdefault(row["id"], []).append({name: row[name] for name, _ in FIELDS})
    assert by_key == wanted
