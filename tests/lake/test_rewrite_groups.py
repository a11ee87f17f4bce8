"""The rule by which a compaction is due is that of Iceberg's rewrite: by partition, by size, by deleted rows."""

from __future__ import annotations

from typing import Any

import pytest

from lakestore_tiering.compact import SMALL_FILES_MIN, due
from lakestore_tiering.iceberg_java import LakeDelete, LakeFile
from lakestore_tiering.live_files import FileColumns

TARGET = 1_000


def file(size: int, partition: str = "", deleted: int = 0, *, alone: bool = True, form: str = "PARQUET") -> LakeFile:
    made = LakeFile("p", 100, size, None, None, form, (partition,))
    if deleted:
        made.deletes["d", -1] = LakeDelete(deleted, alone, None)
    return made


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([file(10)] * SMALL_FILES_MIN, True),
        ([file(10)] * (SMALL_FILES_MIN - 1), False),
        ([file(10, f"p{n}") for n in range(84)], False),
        ([file(10, f"p{n % 10}") for n in range(84)], True),
        ([file(1_000)] * 84, False),
        ([file(740), file(740)], True),
        ([file(740, "a"), file(740, "b")], False),
        ([file(1_801)], True),
        ([file(1_800)], False),
        ([file(1_000, deleted=30)], True),
        ([file(1_000, deleted=29)], False),
        ([file(0, deleted=100)] * (SMALL_FILES_MIN - 1), False),
        ([file(0, deleted=100)] * SMALL_FILES_MIN, True),
        ([file(1_000, deleted=90, alone=False)], False),
        ([], False),
    ],
)
def test_due_by_the_rewrites_own_rule(files: list[LakeFile], expected: bool) -> None:
    assert due(FileColumns.of(files), TARGET) == expected


@pytest.mark.parametrize("values", [[b"\0\x7d", b"\0\0\0\x7d"], [float("nan"), float("nan")]], ids=["widened", "nan"])
def test_one_partition_of_several_versions_is_one_group(values: list[Any]) -> None:
    """A decimal has more bytes after a widening, and NaN is no key of itself."""
    files = [LakeFile("p", 100, 740, None, None, "PARQUET", (value,)) for value in values]
    assert due(FileColumns.of(files), TARGET)


def test_zeros_of_both_signs_are_two_partitions() -> None:
    """Iceberg's rewrite does not merge their files, so a round that began one would write nothing, each time."""
    files = [LakeFile("p", 100, 740, None, None, "PARQUET", (zero,)) for zero in (0.0, -0.0)]
    assert not due(FileColumns.of(files), TARGET)


def test_files_of_other_formats_are_brought_back() -> None:
    assert FileColumns.of([file(1_000), file(1_000, form="ORC")]).foreign == 1
    assert not FileColumns.of([file(1_000)]).foreign
