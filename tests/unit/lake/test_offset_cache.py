"""Offset indexes in bounds: the same answers whatever goes, disk and memory below their bounds, each loss healed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakestore.errors import Corrupt
from lakestore.iceberg import offset_cache
from lakestore.iceberg.offset_cache import OffsetCache
from lakestore.iceberg.row_search import BUCKET_SHIFT, Bounds
from lakestore.model.columns import LAKE_BUCKET, LAKE_OFFSET
from lakestore.rows.ranges import OffsetSet
from tests.support.seeds import seeded

ROWS, FILES = 200, 12
INDEX_BYTES = 12 * ROWS + 36


@dataclass(frozen=True)
class DataFile:
    path: str
    rows: int
    bounds: Bounds | None = None
    format: str = "PARQUET"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[DataFile]:
    """Files of two buckets each, whose offsets overlap, in no order."""
    monkeypatch.setattr(offset_cache, "KEPT_ROWS_MIN", 10)
    chance, made = np.random.default_rng(5), []
    (tmp_path / "data").mkdir()
    for number in range(FILES):
        offsets = chance.permutation(np.arange(number, number + FILES * ROWS, FILES))
        buckets = (offsets // FILES % 2).astype(np.int32)
        path = tmp_path / "data" / f"{number}.parquet"
        pq.write_table(pa.table({LAKE_BUCKET: buckets, LAKE_OFFSET: offsets}), path)
        made.append(DataFile(f"file://{path}", ROWS))
    return made


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Callable[..., OffsetCache]]:
    with ThreadPoolExecutor(2) as pool:
        yield lambda **said: OffsetCache(tmp_path / "cache", pool=pool, **said)


def found(cache: OffsetCache, files: list[DataFile], sought: set[int]) -> None:
    """Every row is found where it is."""
    dead = {bucket: OffsetSet.of([np.array(sorted(sought), np.int64)]) for bucket in (0, 1)}
    got = {part.file.path: part for part in cache.find(files, dead, "t")}
    for number, file in enumerate(files):
        held = pq.read_table(file.path.removeprefix("file://"))[LAKE_OFFSET].to_numpy()
        wanted = [place for place, offset in enumerate(held.tolist()) if offset in sought]
        part = got.get(file.path)
        assert (part.positions.tolist() if part else []) == wanted, number


def test_a_bound_below_the_indexes_changes_no_answer(
    files: list[DataFile], cache: Callable[..., OffsetCache], tmp_path: Path
) -> None:
    chance = seeded("bounded indexes")
    small = cache(memory_bytes=100, disk_bytes=4 * INDEX_BYTES)
    for _ in range(6):
        found(small, files, {chance.randrange(FILES * ROWS) for _ in range(chance.choice([1, 30]))})
        assert small.figures.disk_bytes <= 4 * INDEX_BYTES
        assert small.figures.memory_bytes == 0, "mapped files are not counted"
    figures = small.figures
    assert (figures.files, figures.disk_bytes) == (4, 4 * INDEX_BYTES)
    assert figures.evicted >= FILES - 4
    sizes = [path.stat().st_size for path in (tmp_path / "cache" / "t").iterdir()]
    assert sizes == [INDEX_BYTES] * 4


def test_no_data_file_is_read_twice_where_there_is_room(
    files: list[DataFile], cache: Callable[..., OffsetCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cache()
    found(first, files, {1, 700})
    assert (first.figures.read, first.figures.files, first.figures.evicted) == (FILES, FILES, 0)
    monkeypatch.setattr(offset_cache, "MAPPED_MAX", 3)
    again = cache()
    for _ in range(3):
        found(again, files, {5, 701})
    assert (again.figures.read, again.figures.mapped) == (0, 3), "of few mapped files, others are mapped again"


def test_lost_and_damaged_indexes_are_made_anew(
    files: list[DataFile], cache: Callable[..., OffsetCache], tmp_path: Path
) -> None:
    found(cache(), files, {1})
    chance = seeded("damaged indexes")
    kept = sorted((tmp_path / "cache" / "t").iterdir())
    assert len(kept) == FILES
    for place, path in enumerate(kept):
        data = path.read_bytes()
        at = chance.randrange(len(data))
        damaged = [b"", data[:at], data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :], data[:4] + b"\3" + data[5:]]
        path.write_bytes(damaged[place % 4])
    kept[0].unlink()
    (tmp_path / "cache" / "t" / "half.new-1-2").write_bytes(b"half")
    healed = cache()
    assert sorted((tmp_path / "cache" / "t").iterdir()) == kept[1:]
    found(healed, files, {1, 2, 1_500})
    assert healed.figures.read == FILES
    found(cache(), files, {3})


def test_the_least_recently_used_goes_first_across_restarts(
    files: list[DataFile], cache: Callable[..., OffsetCache], tmp_path: Path
) -> None:
    first = cache()
    for file in files[:4]:
        first.of(file, "t")
    for age, path in enumerate((tmp_path / "cache" / "t").iterdir()):
        os.utime(path, (1_000 + age, 1_000 + age))
    newest = max((tmp_path / "cache" / "t").iterdir(), key=lambda path: path.stat().st_mtime)
    second = cache(disk_bytes=INDEX_BYTES)
    assert list((tmp_path / "cache" / "t").iterdir()) == [newest]
    assert second.figures.evicted == 3
    third = cache(disk_bytes=2 * INDEX_BYTES)
    third.of(files[5], "t")
    third.of(next(file for file in files if third._disk._path("t", file.path) == newest), "t")  # type: ignore[union-attr]
    third.of(files[6], "t")
    assert newest.exists(), "it was used after the other one"


def test_indexes_of_files_that_left_go_and_mapped_ones_are_read_on(
    files: list[DataFile], cache: Callable[..., OffsetCache], tmp_path: Path
) -> None:
    held = cache()
    found(held, files, {1})
    index = held.of(files[0], "t")
    held.forget("t", [files[0].path])
    assert held.figures.files == FILES - 1
    assert int(index.keys[-1]) >> BUCKET_SHIFT == 1
    assert held.keep_only("t", [file.path for file in files[:3]]) == FILES - 3
    assert held.keep_only("other", []) == 0
    assert len(list((tmp_path / "cache" / "t").iterdir())) == 2
    offset_cache.remove_groups(tmp_path / "cache", ["x"])
    assert not list((tmp_path / "cache").iterdir())
    found(held, files, {2})


def test_an_index_that_does_not_fit_and_a_full_disk_are_no_error(
    files: list[DataFile], cache: Callable[..., OffsetCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    none = cache(disk_bytes=100)
    found(none, files, {1})
    assert none.figures.files == 0

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    other = cache()
    found(other, files, {1})
    assert (other.figures.files, other.figures.memory_bytes > 0) == (0, True)


def test_a_data_file_that_holds_other_rows_than_said_is_refused(
    files: list[DataFile], cache: Callable[..., OffsetCache]
) -> None:
    held = cache()
    held.of(files[0], "t")
    with pytest.raises(Corrupt, match="has 200 rows where its manifest says 199"):
        cache().of(DataFile(files[0].path, 199), "t")
