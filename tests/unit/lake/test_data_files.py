"""Statistics in the Parquet files that Arrow writes: an engine that skips by them misses no row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lakestore.iceberg import data_files

NAN = float("nan")


def test_a_column_with_nan_has_no_statistics_and_every_other_one_has(tmp_path: Path) -> None:
    """Parquet's maximum leaves NaN out, and Spark and DuckDB order it above every number."""
    rows = pa.table(
        {
            "i": pa.array([1, 2, None]),
            "some": pa.array([0.5, NAN, None]),
            "none": pa.array([0.5, 1.5, None]),
            "s": pa.array([{"a": 1, "f": NAN}, None, {"a": 2, "f": 0.5}]),
            "l": pa.array([["x"], [], None], pa.list_(pa.string())),
            "m": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    file = data_files.write(rows, str(tmp_path / "data" / "1.parquet"), 0, {})
    group = pq.ParquetFile(file.path).metadata.row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    assert {each.path_in_schema for each in columns if not each.is_stats_set} == {"some", "s.f"}
