"""Rows go in commits that have room in a message, however wide they are; what has none is refused before it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakestore as ls
from lakestore.cli.main import run_command
from lakestore.errors import Invalid
from lakestore.limits import Limits
from lakestore.rows.ranges import pieces
from tests.support.seeds import examples
from tests.support.served import Served

WIDE = pa.schema([("id", pa.int64()), *((f"c{i}", pa.string()) for i in range(30))])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that takes messages of a megabyte."""
    limits = Limits(message_bytes=1 << 20)
    with Served(tmp_path_factory.mktemp("pieces"), limits=limits, ports=True) as served:
        yield served


@pytest.fixture
def lake(small: Served) -> Iterator[ls.Lake]:
    with ls.connect(small.server.about["grpc"]) as connected:
        yield connected


def wide(rows: int) -> pa.Table:
    texts = pa.array([f"value {i} " * 4 for i in range(rows)])
    return pa.table({"id": range(rows), **{f"c{i}": texts for i in range(30)}}, schema=WIDE)


@settings(max_examples=examples(40), deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3_000), max_size=60),
    bytes_max=st.integers(200, 5_000),
    layout=st.sampled_from(["plain", "dictionary", "view"]),
)
def test_pieces_are_the_rows_in_order_within_their_bytes(sizes: list[int], bytes_max: int, layout: str) -> None:
    texts = pa.array(["x" * size for size in sizes], pa.string())
    kinds = {"plain": texts, "dictionary": texts.dictionary_encode(), "view": texts.cast(pa.string_view())}
    batch = pa.record_batch({"id": range(len(sizes)), "v": kinds[layout]})
    cut = list(pieces(batch, bytes_max))
    assert [i for piece in cut for i in piece["id"].to_pylist()] == list(range(len(sizes)))
    assert [len(v) for piece in cut for v in piece["v"].to_pylist()] == sizes
    if batch.nbytes > bytes_max:
        assert all(piece.nbytes <= bytes_max or piece.num_rows == 1 for piece in cut)


def test_a_writer_cuts_wide_rows(lake: ls.Lake) -> None:
    table = lake.create_table("w.wide", WIDE, primary_key=["id"])
    rows = wide(4_000)
    assert rows.nbytes > 4 << 20
    with table.writer(producer="w") as writer:
        writer.upsert(rows, progress="all of it")
        writer.upsert(rows.slice(0, 10))
    assert table.scan().count() == 4_000
    with table.writer(producer="w") as again:
        assert again.progress == "all of it"


def test_the_command_line_writes_wide_files(small: Served, tmp_path: Path) -> None:
    pq.write_table(wide(4_000), tmp_path / "wide.parquet")
    command = ["write", "w.file", str(tmp_path / "wide.parquet"), "--key", "id", "--yes"]
    assert run_command([*command, "--server", small.server.about["grpc"]]) == 0
    assert small.lake.table("w.file").scan().count() == 4_000


def test_a_row_that_is_too_large_is_refused_by_its_number_and_nothing_is_sent(lake: ls.Lake) -> None:
    table = lake.create_table("w.row", pa.schema([("id", pa.int64()), ("v", pa.binary())]))
    with table.writer() as writer:
        with pytest.raises(Invalid, match=r"table w\.row: row 3 takes [\d,]+ bytes, and one message of 1,048,576"):
            writer.append([{"id": i, "v": b"x" * (1 << 20 if i == 3 else 1 << 18)} for i in range(5)])
        writer.append([{"id": 9, "v": b"small"}])
    assert table.scan(["id"]).to_arrow()["id"].to_pylist() == [9]


def test_one_call_that_is_too_large_is_refused_by_name_and_a_commit_goes_in_parts(lake: ls.Lake) -> None:
    table = lake.create_table("w.atomic", WIDE, primary_key=["id"])
    for write in (table.upsert, table.insert_if_absent):
        with pytest.raises(Invalid, match=r"the rows of this commit take [\d,]+ bytes, .*table\.writer\(\)") as refused:
            write(wide(4_000))
        assert refused.value.applied == "no"
    assert table.scan().count() == 0
    commit = ls.Commit(lake._connection)
    for i in range(8):
        commit.upsert("w.atomic", wide(4_000).slice(i * 500, 500))
    commit.send()
    assert table.scan().count() == 4_000
