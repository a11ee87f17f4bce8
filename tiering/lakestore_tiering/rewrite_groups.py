"""Groups of data files that Iceberg's rewrite would take: its own rule (`BinPackRewriteFilePlanner`), by partition.

A compaction is begun only for a group that the rewrite takes, else each round would begin one for nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence

from lakestore.lake.values import partition_key
from lakestore_tiering.iceberg_java import LakeFile

SMALL_FILES_MIN = 8
"""Number of files of a wrong size in one partition from which a rewrite is worth its cost."""
DELETED_SHARE_MIN = 0.3
"""Share of deleted rows from which a file is rewritten."""
DELETED_BYTES_SHARE_MIN = 1 / 1024
"""Share of the target size below which a file is not rewritten for its deleted rows alone.

Its rewrite takes a Spark job of seconds to spare a reader a few thousand rows. It goes with `SMALL_FILES_MIN` others.
"""
GROUP_BYTES_MAX = 100 << 30
_SMALL, _LARGE = 0.75, 1.8
FORMAT = "PARQUET"
"""The format of every file that Lakestore writes; another engine's rewrite may have left others."""


def options(target_bytes: int, *, force: bool) -> dict[str, str]:
    """The options of the rewrite for which `due` is the rule."""
    return {
        "target-file-size-bytes": str(target_bytes),
        "min-input-files": str(SMALL_FILES_MIN),
        "delete-ratio-threshold": str(DELETED_SHARE_MIN),
        "max-file-group-size-bytes": str(GROUP_BYTES_MAX),
        "rewrite-all": str(force).lower(),
    }


def due(files: Iterable[LakeFile], target_bytes: int) -> bool:
    """Whether the rewrite would take any of a table's files."""
    return any(_taken(group, target_bytes) for group in _groups(files, target_bytes))


def foreign(files: Iterable[LakeFile]) -> bool:
    """Whether another engine wrote files in a format that Lakestore does not write; a rewrite of all brings it back."""
    return any(file.format != FORMAT for file in files)


def _groups(files: Iterable[LakeFile], target_bytes: int) -> Iterator[list[LakeFile]]:
    """Files that are too small, too large or deleted from, by partition, in groups of bounded size."""
    by_partition: dict[tuple[Hashable, ...], list[LakeFile]] = defaultdict(list)
    for file in files:
        wrong = not int(target_bytes * _SMALL) <= file.bytes <= int(target_bytes * _LARGE)
        if wrong or _dirty(file):
            by_partition[tuple(map(partition_key, file.partition or ()))].append(file)
    for wanted in by_partition.values():
        yield from _packed(wanted)


def _packed(files: Sequence[LakeFile]) -> Iterator[list[LakeFile]]:
    group: list[LakeFile] = []
    size = 0
    for file in files:
        if group and size + file.bytes > GROUP_BYTES_MAX:
            yield group
            group, size = [], 0
        group.append(file)
        size += file.bytes
    if group:
        yield group


def _taken(group: Sequence[LakeFile], target_bytes: int) -> bool:
    size = sum(file.bytes for file in group)
    return (
        len(group) >= SMALL_FILES_MIN
        or (len(group) > 1 and size > target_bytes)
        or size > int(target_bytes * _LARGE)
        or any(_dirty(file) and file.bytes >= target_bytes * DELETED_BYTES_SHARE_MIN for file in group)
    )


def _dirty(file: LakeFile) -> bool:
    deleted = sum(delete.rows for delete in file.deletes.values() if delete.alone)
    return deleted > 0 and min(deleted, file.rows) >= DELETED_SHARE_MIN * file.rows
