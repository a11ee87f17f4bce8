"""Offset indexes in bounds: the same answers whatever goes, disk and memory below their bounds, each loss healed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakestore.errors import Corrupt
from lakestore.iceberg import offset_cache, places
from lakestore.iceberg.cache import DISK_BYTES, DerivedCache
from lakestore.iceberg.offset_cache import OffsetCache
from lakestore.iceberg.row_search import BUCKET_SHIFT, Bounds
from lakestore.model.columns import LAKE_BUCKET, LAKE_OFFSET
from lakestore.rows.ranges import OffsetSet
from tests.support.seeds import seeded

ROWS, FILES = 200, 12
INDEX_BYTES = 12 * ROWS + 500


@dataclass(frozen=True)
class DataFile:
    path: str
    rows: int
    bounds: Bounds | None = None
    format: str = "PARQUET"
    bytes: int = 0


@pytest.fixture(params=[10, 1_000], ids=["own", "bundled"])
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[DataFile]:
    """Files of two buckets each, whose offsets overlap, in no order."""
    monkeypatch.setattr(offset_cache, "KEPT_ROWS_MIN", request.param)
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

        def made(disk_bytes: int = DISK_BYTES, **said: Any) -> OffsetCache:
            return OffsetCache(DerivedCache(tmp_path / "cache", disk_bytes), pool=pool, **said)

        yield made


def found(cache: OffsetCache, files: list[DataFile], sought: set[int]) -> None:
    """Every row is found where it is."""
    dead = {bucket: OffsetSet.of([np.array(sorted(sought), np.int64)]) for bucket in (0, 1)}
    got = {part.file.path: part for part in cache.find(files, dead, "t")}
    for number, file in enumerate(files):
        held = pq.read_table(file.path.removeprefix("file://"))[LAKE_OFFSET].to_numpy()
        wanted = [place for place, offset in enumerate(held.tolist()) if offset in sought]
        part = got.get(file.path)
        assert (part.positions.tolist() if part else []) == wanted, number


def values(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").glob("*/*"))


def test_a_bound_below_the_indexes_changes_no_answer(
    files: list[DataFile], cache: Callable[..., OffsetCache], tmp_path: Path
) -> None:
    chance, bound = seeded("bounded indexes"), 16 * INDEX_BYTES
    small = cache(memory_bytes=100, disk_bytes=bound)
    for _ in range(6):
        found(small, files, {chance.randrange(FILES * ROWS) for _ in range(chance.choice([1, 30]))})
        assert sum(path.stat().st_size for path in values(tmp_path)) <= bound
    assert small.figures.read >= FILES


def test_no_data_file_is_read_twice_where_there_is_room(
    files: list[DataFile], cache: Callable[..., OffsetCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cache()
    found(first, files, {1, 700})
    assert (first.figures.read, first.figures.evicted) == (FILES, 0)
    monkeypatch.setattr(offset_cache, "MAPPED_MAX", 3)
    again = cache(memory_bytes=1)
    for _ in range(3):
        found(again, files, {5, 701})
    assert again.figures.read == 0, "of few in memory, others are opened again"


def test_lost_and_damaged_indexes_are_made_anew(
    files: list[DataFile], cache: Callable[..., OffsetCache], tmp_path: Path
) -> None:
    found(cache(), files, {1})
    chance, kept = seeded("damaged indexes"), values(tmp_path)
    for place, path in enumerate(kept):
        data = path.read_bytes()
        at = chance.randrange(len(data))
        damaged = [b"", data[:at], data[:-1] + bytes([data[-1] ^ 4]), data[:4] + b"\3" + data[5:]]
        path.write_bytes(damaged[place % 4])
    healed = cache()
    found(healed, files, {1, 2, 1_500})
    assert healed.figures.read == FILES
    found(cache(), files, {3})
    assert len(values(tmp_path)) == len(kept)


def test_indexes_of_files_that_left_go_and_open_ones_are_read_on(
    files: list[DataFile], cache: Callable[..., OffsetCache], tmp_path: Path
) -> None:
    held = cache()
    found(held, files, {1})
    index, before = held.of(files[0], "t"), len(values(tmp_path))
    held.forget("t", [files[0].path])
    assert before - len(values(tmp_path)) == (1 if ROWS >= offset_cache.KEPT_ROWS_MIN else 0), "a bundle stays"
    assert int(index.keys[-1]) >> BUCKET_SHIFT == 1
    DerivedCache(tmp_path / "cache").remove_groups(["x"])
    assert not values(tmp_path)
    assert int(index.keys[-1]) >> BUCKET_SHIFT == 1
    found(held, files, {2})


def test_another_file_under_one_name_is_read(files: list[DataFile], cache: Callable[..., OffsetCache]) -> None:
    found(cache(), files, {1})
    path = Path(files[0].path.removeprefix("file://"))
    path.write_bytes(Path(files[1].path.removeprefix("file://")).read_bytes())
    os.utime(path, (1, 1))
    found(cache(), files, {1, FILES, 2 * FILES + 1})


def test_another_file_under_one_name_in_a_store_is_read(
    files: list[DataFile], cache: Callable[..., OffsetCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store is not asked for a file's version: bounds and rows of the manifest tell files apart."""
    monkeypatch.setattr(places, "version", lambda _: "")
    first, second = (replace(file, bounds=Bounds((0, 1), (number, 2_400))) for number, file in enumerate(files[:2]))
    found(cache(), [first], {0})
    path = Path(first.path.removeprefix("file://"))
    path.write_bytes(Path(second.path.removeprefix("file://")).read_bytes())
    index = cache().of(replace(second, path=first.path), "t")
    assert {int(key) & ((1 << BUCKET_SHIFT) - 1) for key in index.keys} == set(range(1, FILES * ROWS, FILES))


def test_indexes_that_wait_to_be_bundled_are_bounded(
    files: list[DataFile], cache: Callable[..., OffsetCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_cache, "FRESH_BYTES_MAX", 3 * 12 * ROWS)
    monkeypatch.setattr(offset_cache, "KEPT_ROWS_MIN", 1_000)
    first = cache()
    found(first, files, {1, 700})
    assert first.figures.read == FILES
    second = cache()
    found(second, files, {1, 700})
    assert second.figures.read == FILES - 3


def test_a_bundle_that_is_full_keeps_the_newest(
    files: list[DataFile], cache: Callable[..., OffsetCache], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(offset_cache, "BUNDLES", 1)
    monkeypatch.setattr(offset_cache, "BUNDLE_BYTES_MAX", 4 * INDEX_BYTES)
    for _ in range(2):
        for begin in range(0, FILES, 2):
            found(cache(), files[begin : begin + 2], {1, 700})
        found(cache(), files, {1, 700, 701})
        assert max(path.stat().st_size for path in values(tmp_path)) <= 5 * INDEX_BYTES


def test_a_bundle_keeps_what_an_earlier_process_added(
    files: list[DataFile], cache: Callable[..., OffsetCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_cache, "BUNDLES", 1)
    for half in (files[: FILES // 2], files[FILES // 2 :]):
        found(cache(), half, {1, 700})
    last = cache()
    found(last, files, {1, 700})
    assert last.figures.read == 0


def test_a_file_of_another_table_at_the_path_of_one_in_memory_is_read(
    files: list[DataFile], cache: Callable[..., OffsetCache]
) -> None:
    """A process runs on while somebody restores another table to the same folder."""
    held, path = cache(), Path(files[0].path.removeprefix("file://"))
    before = held.of(files[0], "t").keys.tolist()
    path.write_bytes(Path(files[1].path.removeprefix("file://")).read_bytes())
    assert held.of(files[0], "t").keys.tolist() == before
    assert held.of(files[0], "another").keys.tolist() == cache().of(files[1], "t").keys.tolist() != before


def test_a_full_disk_is_no_error(
    files: list[DataFile], cache: Callable[..., OffsetCache], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    none = cache(disk_bytes=100)
    found(none, files, {1})
    assert not values(tmp_path)

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
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
