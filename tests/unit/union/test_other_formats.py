"""ORC is read only where its times are sure to be right, and an unknown format is named with the way out."""

from __future__ import annotations

import struct
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as orc
import pytest

from lakestore.errors import Corrupt, Invalid
from lakestore.iceberg import other_formats
from lakestore.iceberg.manifests import POSITION_DELETES, File
from lakestore.iceberg.values import Metrics
from lakestore.union import lake_files

TIMES = [datetime(2000, 1, 1), None, datetime(2026, 5, 6, 7, 8, 9, 10)]


def micros(moment: datetime) -> bytes:
    return struct.pack("<q", int((moment - datetime(1970, 1, 1)).total_seconds() * 1_000_000))


def file(folder: Path) -> str:
    schema = pa.schema([("n", pa.int64()), pa.field("at", pa.timestamp("us"), metadata={b"iceberg.id": b"7"})])
    path = folder / "a.orc"
    orc.write_table(pa.table({"n": [1, 2, 3], "at": TIMES}, schema=schema), path)
    return str(path)


def read(path: str, metrics: Metrics | None, column: str) -> list[object]:
    with open(path, "rb") as stream, other_formats.opened(stream, path, "ORC", metrics) as opened:
        return [value for batch in opened.batches([column]) for value in batch.column(0).to_pylist()]


@pytest.mark.parametrize(
    ("metrics", "fits"),
    [
        (Metrics({7: micros(datetime(2000, 1, 1))}, {7: micros(datetime(2026, 5, 6))}, {}, {}), True),
        (Metrics({7: micros(datetime(1600, 1, 1))}, {7: micros(datetime(2026, 5, 6))}, {}, {}), False),
        (Metrics({7: micros(datetime(2000, 1, 1))}, {7: micros(datetime(2300, 5, 6))}, {}, {}), False),
        (Metrics({7: micros(datetime(2000, 1, 1))}, {}, {}, {}), False),
        (Metrics({}, {}, {7: 3}, {7: 3}), True),
        (Metrics({}, {}, {7: 2}, {7: 3}), False),
        (None, False),
    ],
)
def test_times_are_read_only_where_the_manifest_shows_that_they_fit(
    tmp_path: Path, metrics: Metrics | None, fits: bool
) -> None:
    path = file(tmp_path)
    assert read(path, metrics, "n") == [1, 2, 3]
    if fits:
        assert read(path, metrics, "at") == TIMES
    else:
        with pytest.raises(Invalid, match=r"its column 'at' may hold times .* `lakestore tier --once`"):
            read(path, metrics, "at")


@pytest.mark.parametrize("rows", [0, 3])
def test_position_deletes_may_carry_the_rows_as_well(tmp_path: Path, rows: int) -> None:
    """Iceberg allows a third column, and no order of the columns is promised."""
    held = {"row": ["x"] * rows, "pos": [4, 1, 2][:rows], "file_path": ["a", "b", "a"][:rows]}
    path = tmp_path / "deletes.orc"
    kinds = {"row": pa.string(), "pos": pa.int64(), "file_path": pa.string()}
    orc.write_table(pa.table(held, schema=pa.schema(kinds)), path)
    size = path.stat().st_size
    file = File(content=POSITION_DELETES, path=str(path), format="ORC", spec_id=0, partition={}, rows=rows, bytes=size)
    found, _ = lake_files.decoded(file)
    assert {name: sorted(held.tolist()) for name, held in found.items()} == ({"a": [2, 4], "b": [1]} if rows else {})


def test_what_is_not_known_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.avro"
    path.write_bytes(b"Obj\x01nothing of the kind" * 10)
    with (
        pytest.raises(Invalid, match=r"a\.avro is LANCE, which is not read here"),
        other_formats.opened_at(str(path), "LANCE"),
    ):
        pass
    with pytest.raises(Corrupt, match=r"a\.avro is no readable Avro file"), other_formats.opened_at(str(path), "AVRO"):
        pass
