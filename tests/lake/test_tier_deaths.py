"""Where dead rows lie: offset indexes of data files, and the delete files written from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from lakestore.errors import Corrupt
from lakestore.iceberg.offset_cache import OffsetCache
from lakestore.iceberg.puffin import vector
from lakestore.iceberg.row_search import Bounds, by_bucket
from lakestore.rows.ranges import OffsetSet
from lakestore.union.tier_record import Record
from lakestore_tiering.iceberg_java import LakeFile


def write(folder: Path, name: str, rows: list[tuple[int, int]], *, bounds: bool = True) -> LakeFile:
    buckets, offsets = [row[0] for row in rows], [row[1] for row in rows]
    path = folder / name
    pq.write_table(
        pa.table({"__bucket": pa.array(buckets, pa.int32()), "__offset": pa.array(offsets, pa.int64())}), path
    )
    made = Bounds((min(buckets), max(buckets)), (min(offsets), max(offsets))) if bounds else None
    return LakeFile(f"file:{path}", len(rows), path.stat().st_size, made, None)


def dead(**offsets: list[int]) -> dict[int, OffsetSet]:
    return {int(name[1:]): OffsetSet(np.array(sorted(values), dtype=np.int64)) for name, values in offsets.items()}


def test_dead_rows_are_found_in_unsorted_files(tmp_path: Path) -> None:
    files = [
        write(tmp_path, "a", [(1, 7), (0, 3), (0, 9), (1, 0)]),
        write(tmp_path, "b", [(0, 10), (0, 11), (2, 5)], bounds=False),
        write(tmp_path, "c", [(0, 100)]),
    ]
    found = OffsetCache().find(files, dead(b0=[3, 11, 50], b1=[0], b2=[5]))
    assert [(part.file.path[-1], part.positions.tolist()) for part in found] == [("a", [1, 3]), ("b", [1, 2])]
    assert {b: o.tolist() for b, o in by_bucket([part.keys for part in found]).items()} == {0: [3, 11], 1: [0], 2: [5]}


def test_indexes_are_let_go_when_they_take_too_much(tmp_path: Path) -> None:
    files = [write(tmp_path, str(i), [(0, i * 10 + j) for j in range(10)]) for i in range(5)]
    indexes = OffsetCache(memory_bytes=200)
    for _ in range(2):
        assert len(indexes.find(files, dead(b0=[0, 15, 49]))) == 3
    figures = indexes.figures
    assert figures.memory_bytes <= 200
    assert figures.evicted == 4
    assert figures.read == 6


def test_damage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="holds a row twice"):
        OffsetCache().of(write(tmp_path, "a", [(0, 1), (1, 1), (0, 1)]))
    short = write(tmp_path, "b", [(0, 1)])
    short.rows = 2
    with pytest.raises(Corrupt, match="has 1 rows where its manifest says 2"):
        OffsetCache().of(short)
    with pytest.raises(Corrupt, match="cannot be read"):
        OffsetCache().of(LakeFile(f"file:{tmp_path}/none", 1, 1, None, None))


@given(st.sets(st.integers(0, 1 << 40), min_size=1))
def test_vectors_are_as_the_specification_says(positions: set[int]) -> None:
    data = vector(np.array(sorted(positions), dtype=np.int64))
    assert int.from_bytes(data[:4], "big") == len(data) - 8
    assert data[4:8] == bytes([0xD1, 0xD3, 0x39, 0x64])
    assert set(BitMap64.deserialize(data[8:-4])) == positions


def test_records_survive_their_summary() -> None:
    record = Record(3, (1, 2), (5, 6), ((1 << 64) - 1, 0), 99, 4)
    assert Record.parse(record.summary()) == record
    assert Record.parse({"operation": "append"}) is None
    assert record.changes == 8
    for damage in ({"live-sum": "x"}, {"tier-from": "[1]"}, {"tier-point": "[5, null]"}):
        with pytest.raises(Corrupt):
            Record.parse({**record.summary(), **{f"lakestore.{key}": value for key, value in damage.items()}})
