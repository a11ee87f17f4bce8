"""Ranges of changes: whole commits that together are the change stream, however they are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore.errors import Invalid, NotFound, PositionExpired
from lakestore.model.token import position_of
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.log_start import move_log_start
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
SIZES = (1, 7, 30, 2, 2, 150, 1, 1, 55, 3)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A table of a few commits among those of another one."""
    with Served(tmp_path_factory.mktemp("ranges")) as served:
        table = served.lake.create_table("shop.t", schema=SCHEMA, primary_key=["id"], buckets=3)
        other = served.lake.create_table("shop.o", schema=SCHEMA)
        first = 0
        for size in SIZES:
            table.upsert([{"id": first + i, "v": size} for i in range(size)])
            other.append([{"id": 1, "v": size}])
            first += size
        yield served


def ranges(served: Served, **asked: Any) -> pb.ChangeRangesAnswer:
    """The server's answer."""
    request = pb.ChangeRangesRequest(**{"table": "shop.t", "start": "earliest", **asked})
    answer: pb.ChangeRangesAnswer = served.lake.transport.change_ranges(request)
    return answer


def offsets(served: Served, start: str, until: str) -> list[tuple[int, int]]:
    """Bucket and offset of the changes between two positions."""
    stream = served.lake.table("shop.t").changes(start, until=until)
    return [
        (row["__bucket"], row["__offset"]) for batch in stream for row in batch.to_pylist() if row["__change"] != "-U"
    ]


@given(st.integers(0, 300), st.integers(0, 300))
def test_ranges_divide_the_stream(served: Served, most: int, size: int) -> None:
    """Side by side they are the stream up to the last one's end, and the bounds hold but for a longer commit."""
    answer = ranges(served, changes_max=most, range_changes=size)
    at, seen = answer.start, []
    for part in answer.ranges:
        found = offsets(served, at, part.token)
        assert len(found) == part.changes > 0
        assert part.changes <= max(size or 1_000, max(SIZES))
        seen += found
        at = part.token
    assert seen == offsets(served, "earliest", at)
    assert len(seen) + answer.behind == sum(SIZES)
    fitting = [
        sum(SIZES[:commits]) for commits in range(1, len(SIZES) + 1) if commits == 1 or sum(SIZES[:commits]) <= most
    ]
    assert len(seen) == (fitting[-1] if most else sum(SIZES))


def test_no_commit_is_passed_over(served: Served) -> None:
    """With room for one change each range is one commit, whatever its size."""
    assert [part.changes for part in ranges(served, range_changes=1).ranges] == list(SIZES)
    assert [part.changes for part in ranges(served, changes_max=1).ranges] == [SIZES[0]]


def test_between_positions(served: Served) -> None:
    """A start and an end bound the ranges; behind counts up to the head, not to the end."""
    commits = ranges(served, range_changes=1).ranges
    answer = ranges(served, start=commits[1].token, until=commits[4].token)
    assert [part.changes for part in answer.ranges] == [sum(SIZES[2:5])]
    assert answer.behind == sum(SIZES[5:])
    assert not ranges(served, start=commits[-1].token).ranges
    assert not ranges(served, start="latest").ranges
    snapshot = ranges(served, start="snapshot")
    assert not snapshot.ranges
    assert snapshot.start != commits[-1].token
    with pytest.raises(Invalid, match="earlier position"):
        ranges(served, start=commits[4].token, until=commits[1].token)


def test_refusals(served: Served) -> None:
    """Another table of the name, a position of another table, a condition that the table cannot meet."""
    with pytest.raises(NotFound, match="a new table has its name"):
        ranges(served, table_uuid="u")
    with pytest.raises(NotFound, match="other tables"):
        ranges(served, start=ranges(served, table="shop.o").start)
    with pytest.raises(Invalid, match="nothing"):
        ranges(served, where="nothing > 1")


def test_definitions_reach_back_to_the_changes(tmp_path: Path) -> None:
    """The versions that the changes were stored in and all later ones, even without changes."""
    with Served(tmp_path) as served:
        table = served.lake.create_table("shop.t", schema=SCHEMA)
        table.append([{"id": 1, "v": 1}])
        table = table.alter(add={"w": pa.string()})
        middle = table.append([{"id": 2, "v": 1, "w": "x"}])
        table.alter(rename={"v": "u"})
        assert len(ranges(served).definitions) == 3
        assert len(ranges(served, start=str(middle)).definitions) == 1


def test_below_the_log_start(tmp_path: Path) -> None:
    """`PositionExpired`, as of a stream."""
    with Served(tmp_path) as served:
        table = served.lake.create_table("shop.t", schema=SCHEMA)
        commits = [table.append([{"id": i, "v": 1}]) for i in range(3)]
        start = ranges(served, changes_max=1).ranges[0].token
        move_log_start(served.engine, "shop.t", position_of(str(commits[1])).lsn)
        with pytest.raises(PositionExpired, match="start at 'snapshot'"):
            ranges(served, start=start)
