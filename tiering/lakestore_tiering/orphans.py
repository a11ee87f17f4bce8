"""Removes files of a lake table that no snapshot names: leftovers of killed rounds and rewrites, ours or another
engine's.

A file is looked up in metadata newer than the listing, and only after a grace time in which its writer could commit it.
That metadata includes snapshots leased by readers. Metadata files belong to the server.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce

from pyarrow.fs import FileSelector, FileSystem, FileType
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from lakestore.errors import Invalid
from lakestore.iceberg import adopted_rows
from lakestore.iceberg.places import is_in_store, place, store_errors
from lakestore.model.columns import OWN_CATALOG
from lakestore.model.contract.promises import upkeep_budget
from lakestore.model.file_uri import LOCAL_PATTERN
from lakestore.model.table import Table
from lakestore_tiering.debts import ORPHANS, SNAPSHOTS, Debt
from lakestore_tiering.iceberg_java import Iceberg, java_errors
from lakestore_tiering.round import Round

SNAPSHOTS_KEPT = 20
"""Newest snapshots of main that stay at any age, unless the table keeps fewer."""


def expire(
    tools: Round,
    table: Table,
    *,
    keep_last: int | None = None,
    keep_seconds: float | None = None,
    clock: Callable[[], float] = time.time,
) -> int:
    """Expire snapshots older than `snapshot_seconds` outside main's newest ones, and all beyond `snapshots`.

    Returns their number. Each round rewrites all metadata, so both age and number are bounded. A `snapshotAge` of the
    contract bounds the age of all but the newest one.
    """
    age = upkeep_budget(table).snapshot_age_seconds
    newest = 1 if age else min(SNAPSHOTS_KEPT, table.lake.snapshots)
    seconds = min(age or table.lake.snapshot_seconds, table.lake.snapshot_seconds)
    newest = newest if keep_last is None else keep_last
    older_than_ms = (clock() - (seconds if keep_seconds is None else keep_seconds)) * 1000
    with tools.turn_of(table), java_errors():
        seen, count = tools.last_seen(table), 0
        if seen is None or _gone(seen, newest, table.lake.snapshots, older_than_ms):
            lake, _ = tools.standing(table)
            due = _gone(lake, newest, table.lake.snapshots, older_than_ms)
            count = expire_snapshots(lake, due)
            left = len(due) - count
            tools.debts.put(table.uuid, Debt(SNAPSHOTS, left, "readers hold them" if left else ""))
        else:
            tools.debts.put(table.uuid, Debt(SNAPSHOTS, 0))
        tools.crash("expired")
        return count


def _gone(lake: Iceberg, newest: int, most: int, older_than_ms: float) -> list[int]:
    main = [int(snapshot.snapshotId()) for snapshot in lake.ancestry()]
    kept, many = set(main[:newest]) | lake.referenced_snapshots(), set(main[most:])
    return [
        number
        for number, made_ms in lake.snapshots()
        if number not in kept and (made_ms < older_than_ms or number in many)
    ]


def expire_snapshots(lake: Iceberg, snapshots: Sequence[int]) -> int:
    """Expire snapshots except those that readers lease. Returns their number.

    The catalog's refusal does not name the leased snapshot, so the list is halved down to single snapshots.
    """
    if not snapshots:
        return 0
    update = lake.table.expireSnapshots().expireOlderThan(0)
    for number in snapshots:
        update = update.expireSnapshotId(number)
    try:
        with java_errors():
            update.commit()
    except Invalid:
        lake.refresh()
        if len(snapshots) == 1:
            return 0
        half = len(snapshots) // 2
        return expire_snapshots(lake, snapshots[:half]) + expire_snapshots(lake, snapshots[half:])
    return len(snapshots)


ORPHAN_SECONDS_KEPT = 3 * 86_400.0
"""Grace time of a file that no snapshot names, as in Iceberg's own procedure."""
FOLDERS = ("data", "metadata")
_METADATA = re.compile(r"(\d+)-.*\.metadata\.json")
_CHECKSUM = re.compile(r"\.(.*)\.crc")


def remove(
    tools: Round,
    table: Table,
    *,
    keep_seconds: float = ORPHAN_SECONDS_KEPT,
    clock: Callable[[], float] = time.time,
) -> int:
    """Remove files older than `keep_seconds` that no snapshot names. Returns their number.

    Nothing is removed if the folder holds newer metadata than the catalog's. The lake then belongs to a history that
    continued without this server and names these files.
    """
    with tools.turn_of(table), java_errors():
        lake, _ = tools.standing(table)
        filesystem, root = place(str(lake.table.location()))
        with store_errors(str(lake.table.location())):
            files = dict(_files(filesystem, root))
        lake.refresh()
        old = [path for path, made in files.items() if made < clock() - keep_seconds]
        candidates = {path: _named_as(path) for path in old if not _METADATA.fullmatch(_name(path))}
        if _may_share_folder(table):
            candidates = {path: name for path, name in candidates.items() if _HOT.search(path)}
        is_ahead = _is_ahead(lake, files)
        note = _AHEAD if is_ahead else _SHARED if _may_share_folder(table) else ""
        if not candidates or is_ahead:
            tools.debts.put(table.uuid, Debt(ORPHANS, len(candidates) if is_ahead else 0, note))
            return 0
        with tools.sparks_turn():
            unnamed = set(candidates.values()) - _named(tools, lake, set(candidates.values()))
    gone = [path for path, named_as in candidates.items() if named_as in unnamed]
    for path in gone:
        _remove(lake, filesystem, path)
    removed = f"the last search removed {len(gone):,}" if gone else ""
    tools.debts.put(table.uuid, Debt(ORPHANS, 0, "; ".join(filter(None, (note, removed)))))
    return len(gone)


def _may_share_folder(table: Table) -> bool:
    """Whether a file that no snapshot names may be another table's. An adopted table of an outside catalog keeps the
    folder that its first name had there, and the catalog may give that folder to a new table of that name."""
    return table.lake.adopted and table.lake.catalog not in ("", OWN_CATALOG)


_HOT = re.compile(r"/data/hot-[0-9a-f]{32}/[^/]+$")
"""Hot rows of a round, which only Lakestore writes."""
_SHARED = "hot rows only: the outside catalog may have made another table in this folder"
_AHEAD = "not searched: the folder holds newer metadata than the catalog's, so another history may name these files"


def _remove(lake: Iceberg, filesystem: FileSystem, path: str) -> None:
    """Remove a file. In an object store Iceberg does it: Arrow would put an empty object for the parent folder."""
    location = str(lake.table.location())
    if is_in_store(location):
        lake.table.io().deleteFile(f"{location.partition('://')[0]}://{path}")
    else:
        filesystem.delete_file(path)


def _files(filesystem: FileSystem, root: str) -> Iterator[tuple[str, float]]:
    for folder in FOLDERS:
        selector = FileSelector(f"{root}/{folder}", recursive=True, allow_not_found=True)
        for info in filesystem.get_file_info(selector):
            if info.type == FileType.File and info.mtime is not None:
                yield str(info.path), info.mtime.timestamp()


def _is_ahead(lake: Iceberg, files: Iterable[str]) -> bool:
    current = _METADATA.fullmatch(_name(lake.metadata_location()))
    numbers = [int(found[1]) for path in files if (found := _METADATA.fullmatch(_name(path)))]
    return current is None or any(number > int(current[1]) for number in numbers)


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _named_as(path: str) -> str:
    """The file whose names in the metadata decide: that of a checksum, or the data file of an offset file."""
    data = adopted_rows.data_file_of(path)
    if data is not None:
        return data
    folder, name = path.rsplit("/", 1)
    checksum = _CHECKSUM.fullmatch(name)
    return f"{folder}/{checksum[1]}" if checksum else path


def _named(tools: Round, lake: Iceberg, paths: set[str]) -> set[str]:
    known = reduce(DataFrame.unionAll, [_paths(lake, *each) for each in _METADATA_TABLES])
    asked = tools.spark.createDataFrame([(path,) for path in sorted(paths)], "path string")
    found = {str(row[0]) for row in asked.join(known.distinct(), "path", "left_semi").collect()}
    return found | {_plain(path) for path in lake.statistics_files()}


_METADATA_TABLES = (("all_files", "file_path"), ("all_manifests", "path"), ("snapshots", "manifest_list"))


def _paths(lake: Iceberg, table: str, column: str) -> DataFrame:
    rows = lake.metadata_table(table)
    # The path as pyarrow spells it; engines spell the scheme in several ways.
    local = sf.regexp_replace(column, LOCAL_PATTERN, "/")
    return rows.select(sf.regexp_replace(local, "^[a-zA-Z0-9]+://", "").alias("path"))


def _plain(location: str) -> str:
    return place(location)[1]
