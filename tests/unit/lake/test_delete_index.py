"""Delete files are found for every data file that they may be about."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from lakestore.iceberg.delete_index import DeleteIndex
from lakestore.iceberg.manifests import ADDED, DATA, POSITION_DELETES, Entry, File
from lakestore.iceberg.position_deletes import PATH_ID
from lakestore.iceberg.values import Metrics


def entry(
    path: str, value: Any = None, *, content: int = DATA, sequence: int = 1, metrics: Metrics | None = None
) -> Entry:
    file = File(
        content=content,
        path=path,
        format="PARQUET",
        spec_id=1,
        partition={"p": value},
        rows=1,
        bytes=1,
        metrics=metrics or Metrics(),
    )
    return Entry(ADDED, 1, sequence, sequence, file)


def delete(value: Any = None, *, low: str = "", high: str = "", sequence: int = 2) -> Entry:
    metrics = Metrics(lower={PATH_ID: low.encode()}, upper={PATH_ID: high.encode()}) if high else Metrics()
    return entry("deletes", value, content=POSITION_DELETES, sequence=sequence, metrics=metrics)


def found(deletes: Entry, data: Entry) -> bool:
    index = DeleteIndex()
    index.add(deletes)
    return index.of(data) == (deletes,)


@pytest.mark.parametrize(
    ("left", "right"),
    [(math.nan, float("nan")), (b"\xff\x83", b"\xff" * 12 + b"\xff\x83"), (b"\x05", bytes(8) + b"\x05"), (None, None)],
)
def test_values_of_partitions_are_equal_where_iceberg_says_so(left: Any, right: Any) -> None:
    assert found(delete(left), entry("a", right))
    assert found(delete(right), entry("a", left))


def test_a_delete_is_of_its_own_partition_and_bounds() -> None:
    assert not found(delete(1), entry("a", 2))
    assert found(delete(1, low="a", high="c"), entry("b", 1))
    assert not found(delete(1, low="a", high="c"), entry("d", 1))


def test_a_delete_that_names_one_file_is_of_that_one_whatever_the_partition() -> None:
    for named in (delete(1, low="a", high="a"), delete(1)):
        held = replace(named, file=replace(named.file, referenced_data_file=None if named.file.metrics.lower else "a"))
        assert found(held, entry("a", 2))
        assert not found(held, entry("b", 1))


def test_a_delete_is_of_files_of_its_commit_or_an_earlier_one() -> None:
    assert found(delete(sequence=2), entry("a", sequence=2))
    assert not found(delete(sequence=1), entry("a", sequence=2))
