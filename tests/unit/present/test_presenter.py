"""Cuts of a table as PyIceberg reads them from what the presenter wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.presenting import Entries, Presenting, check_structure
from tests.support.served import Served

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.fixture
def presenting(tmp_path: Path) -> Iterator[Presenting]:
    with Served(tmp_path / "data") as served:
        (tmp_path / "lake").mkdir()
        yield Presenting(served, tmp_path / "lake")


def rows(ids: range | list[int], v: str) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids))})


def held(table: pa.Table) -> dict[int, str]:
    found = dict(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))
    assert len(found) == table.num_rows
    return found


@pytest.mark.parametrize("form", [2, 3])
def test_a_cut_is_read_as_the_table_is(presenting: Presenting, form: int) -> None:
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=2)
    table.upsert(rows(range(100), "a"))
    assert held(presenting.rows("a.t", form=form)) == dict.fromkeys(range(100), "a")
    presenting.tier("a.t")
    table.upsert(rows(range(50, 120), "b"))
    table.delete(pa.table({"id": pa.array([0, 60], pa.int64())}))
    wanted = {i: "a" if i < 50 else "b" for i in range(120) if i not in (0, 60)}
    assert held(presenting.rows("a.t", form=form)) == wanted
    table.upsert(rows([60, 70], "c"))
    answer, _ = presenting.present("a.t", form=form)
    check_structure(answer, form)
    assert held(presenting.rows("a.t", form=form)) == wanted | {60: "c", 70: "c"}


def test_no_path_is_used_twice_in_a_run(presenting: Presenting) -> None:
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=2)
    paths: list[str] = []
    for number in range(3):
        table.upsert(rows([number], "a"))
        answer, document = presenting.present("a.t")
        paths += [answer.manifest_list, *(entry.file.path for _, entry in Entries.of(answer).data)]
        presenting.presenter.forget([document["current-snapshot-id"]])
    assert len(set(paths)) == len(paths), "engines keep files by path"
    assert not [path for path in presenting.folder.rglob("run-0/*") if path.is_file()]
