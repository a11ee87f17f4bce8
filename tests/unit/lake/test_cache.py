"""The derived cache: a value that is not whole is a miss, whatever happened to its file, and bounds hold."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lakestore.iceberg import cache as caches
from lakestore.iceberg import manifest_entries, offset_cache, places
from lakestore.iceberg.cache import READ_BYTES_MAX, UNUSED_SECONDS, USED_SECONDS, Damaged, DerivedCache, Key, encoded
from lakestore.iceberg.manifest_entries import LOWER, UPPER, Entries
from lakestore.iceberg.manifest_lists import DELETES, Manifest, read_list
from lakestore.iceberg.manifests import ADDED, DATA, Entry, described, write_manifest
from lakestore.iceberg.offset_cache import FileOffsets
from lakestore.model.table import define
from lakestore.union import lake_snapshot
from tests.support.many_files import LAKE, SCHEMA, ManyFiles
from tests.support.seeds import seeded

KEY = Key("numbers-1", "3f0c", "s3://lake/a.avro", "100")
SMALL, LARGE = 100, READ_BYTES_MAX
UUID = "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"


def cache_in(folder: Path, bytes_max: int = caches.DISK_BYTES, **others: Any) -> DerivedCache:
    """A cache that evicts before `store` returns."""
    return DerivedCache(folder, bytes_max, beside=lambda work: work(), **others)


def sections(count: int, first: int = 0) -> dict[int, Any]:
    """A value of so many numbers and a text."""
    return {1: np.arange(first, first + count), 7: b"text"}


def file_of(folder: Path, key: Key = KEY) -> Path:
    return folder / key.group / key.name


def taken(folder: Path) -> int:
    """Bytes of values and of the tables' folders."""
    return sum(path.stat().st_size for path in [*folder.glob("*/*"), *folder.iterdir()])


def read(cache: DerivedCache, key: Key = KEY) -> tuple[list[int], bytes] | None:
    """All of a value; None if it is not there or damaged."""
    value = cache.find(key)
    try:
        return None if value is None else (value.array(1, "<i8").tolist(), bytes(value.section(7)))
    except Damaged:
        return None


@pytest.mark.parametrize("count", [0, SMALL, LARGE])
def test_another_process_finds_a_value_without_a_copy(tmp_path: Path, count: int) -> None:
    stored = cache_in(tmp_path).store(KEY, sections(count))
    assert stored is not None
    other = cache_in(tmp_path)
    value = other.find(KEY)
    assert value is not None
    assert value.is_mapped == (count == LARGE)
    assert (value.array(1, "<i8").tolist(), bytes(value.section(7))) == (list(range(count)), b"text")
    assert (other.figures.hits, other.figures.misses) == (1, 0)
    with pytest.raises(KeyError):
        value.section(2)


@pytest.mark.parametrize(
    "other", [{"version": "101"}, {"file": "s3://lake/b.avro"}, {"group": "3f0d"}, {"kind": "n-2"}]
)
def test_another_key_is_a_miss(tmp_path: Path, other: dict[str, str]) -> None:
    cache, second = cache_in(tmp_path), replace(KEY, **other)
    cache.store(KEY, sections(SMALL))
    assert cache.find(second) is None
    cache.store(second, sections(SMALL, 5))
    assert read(cache, second) == (list(range(5, 5 + SMALL)), b"text")
    assert (read(cache) is None) == ("version" in other), "a new version replaces the old one, and nothing else does"


def test_a_value_under_another_name_is_a_miss(tmp_path: Path) -> None:
    """As after a collision of names, or when somebody copies files."""
    cache, second = cache_in(tmp_path), replace(KEY, file="s3://lake/b.avro")
    cache.store(KEY, sections(SMALL))
    file_of(tmp_path).rename(file_of(tmp_path, second))
    assert cache.find(second) is None
    assert cache.figures.damaged == 1
    assert not file_of(tmp_path, second).exists()


def test_a_flipped_bit_anywhere_is_a_miss_or_changes_nothing(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    cache.store(KEY, sections(20))
    whole, path = file_of(tmp_path).read_bytes(), file_of(tmp_path)
    used = np.zeros(len(whole), np.bool_)
    for at in range(len(whole)):
        for bit in (1, 128):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
            got = read(cache)
            assert got in (None, (list(range(20)), b"text")), at
            used[at] |= got is None
    head = caches._HEAD.size + 2 * caches._SECTION.size
    assert used[:head].all()
    assert np.count_nonzero(used) == head + 20 * 8 + len(b"text"), "all but the gaps between sections is checked"


def test_a_file_that_is_cut_short_or_longer_is_a_miss_and_goes(tmp_path: Path) -> None:
    cache, chance = cache_in(tmp_path), seeded("cut values")
    cache.store(KEY, sections(LARGE))
    whole, path = file_of(tmp_path).read_bytes(), file_of(tmp_path)
    cuts = [0, 1, 63, 64, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(50))]
    for data in (*(whole[:cut] for cut in cuts), whole + b"\0", bytes(len(whole)), b"x" * len(whole)):
        path.write_bytes(data)
        assert read(cache) is None
        assert not path.exists()
    assert cache.store(KEY, sections(3)) is not None


def test_two_releases_on_one_folder_leave_each_others_values_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_in(tmp_path)
    cache.store(KEY, sections(SMALL))
    with monkeypatch.context() as patched:
        patched.setattr(caches, "_VERSION", caches._VERSION + 1)
        newer = cache_in(tmp_path)
        assert newer.find(KEY) is None
        newer.store(KEY, sections(SMALL, 5))
        assert read(newer) == (list(range(5, 5 + SMALL)), b"text")
    assert read(cache) == (list(range(SMALL)), b"text")
    assert (cache.figures.damaged, newer.figures.damaged) == (0, 0)


def test_a_value_that_is_deleted_or_replaced_can_be_read_on(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    held = cache.store(KEY, sections(LARGE))
    assert held is not None
    cache.store(replace(KEY, version="101"), sections(LARGE, 9))
    assert held.array(1, "<i8").tolist() == list(range(LARGE))
    later = cache.find(replace(KEY, version="101"))
    assert later is not None
    cache.remove_groups([])
    assert not list(tmp_path.iterdir())
    assert later.array(1, "<i8").tolist() == list(range(9, 9 + LARGE))
    assert cache.find(KEY) is None
    assert cache.store(KEY, sections(3)) is not None, "the folder is made again"
    shutil.rmtree(tmp_path)
    cache._evict()
    assert (cache.find(KEY), cache.figures.nbytes) == (None, 0)
    assert cache.store(KEY, sections(3)) is not None


def test_the_bound_holds_and_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    now = [1_000_000.0]
    cache = cache_in(tmp_path, 64_000, clock=lambda: now[0])
    keys = [replace(KEY, file=str(number)) for number in range(60)]
    for key in keys:
        now[0] += 2 * USED_SECONDS
        assert cache.store(key, sections(300)) is not None
        assert read(cache, keys[0]) is not None, "it is used between all others"
        assert sum(path.stat().st_size for path in tmp_path.glob("*/*")) <= 64_000
    left = [number for number, key in enumerate(keys) if cache.find(key)]
    assert left == [0, *range(60 - len(left) + 1, 60)]
    assert len(left) > 15
    assert cache.figures.evicted == 60 - len(left)
    assert (cache.figures.files, cache.figures.nbytes) == (len(left), taken(tmp_path))
    assert cache.store(KEY, sections(1_000)) is None, "a value does not take more than a 16th part"


def test_a_writer_does_not_wait_for_the_eviction_and_one_runs_at_a_time(tmp_path: Path) -> None:
    waiting: list[Callable[[], None]] = []
    cache = DerivedCache(tmp_path, 64_000, beside=waiting.append)
    for number in range(60):
        assert cache.store(replace(KEY, file=str(number)), sections(300)) is not None
    assert len(waiting) == 1
    waiting.pop()()
    assert sum(path.stat().st_size for path in tmp_path.glob("*/*")) <= 60_000
    for number in range(60, 90):
        assert cache.store(replace(KEY, file=str(number)), sections(300)) is not None
    assert len(waiting) == 1, "another one is due"


class Ended(BaseException):
    """The end of a process in the middle of its work."""


def test_short_processes_evict_a_large_folder_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends after it has looked at 200 of 1,600 values, and the oldest of a part go before others are looked at."""
    monkeypatch.setattr(caches, "WHOLE_VALUES_MAX", 100)
    now, bound, looked = 1_000_000.0, 4_000_000, 0
    lstat, chance = os.lstat, seeded("names of values")
    (tmp_path / "t").mkdir()
    ages = {f"{chance.randrange(16**32):032x}.value": float(age) for age in range(1_600)}
    for name, age in ages.items():
        (tmp_path / "t" / name).write_bytes(bytes(4_000))
        os.utime(tmp_path / "t" / name, (now - age, now - age))

    def looks(path: str) -> os.stat_result:
        nonlocal looked
        if looked == 200:
            raise Ended
        looked += 1
        return lstat(path)

    def runs(work: Callable[[], None]) -> None:
        with suppress(Ended):
            work()

    monkeypatch.setattr(os, "lstat", looks)
    counts = []
    for number in range(32):
        looked = 0
        cache = DerivedCache(tmp_path, bound, clock=lambda: now, beside=runs)
        cache.store(replace(KEY, file=str(number)), sections(3))
        counts.append(len(list((tmp_path / "t").iterdir())))
        assert looked < 200, "the first look of a process is one part"
    assert counts[0] < 1_600, "the first process evicts already"
    assert counts == sorted(counts, reverse=True)
    assert bound * 0.85 < taken(tmp_path) <= bound
    kept: dict[str, list[float]] = {}
    for path in (tmp_path / "t").iterdir():
        kept.setdefault(path.name[0], []).append(ages[path.name])
    assert len(kept) == 16
    assert min(map(len, kept.values())) > 40, "each part has its share, about 58 values"
    for digit, held in kept.items():
        assert sorted(held) == sorted(age for name, age in ages.items() if name[0] == digit)[: len(held)]
    (tmp_path / caches._STATE).write_text("{")
    cache = cache_in(tmp_path, bound, clock=lambda: now)
    looked = -10_000
    cache._evict()
    assert cache.figures.nbytes == taken(tmp_path) - (tmp_path / caches._STATE).stat().st_size, "it is made again"
    cache.remove_groups([])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text", ["", "[]", '{"next": 3}', '{"next": 0, "parts": [1]}', '{"next": 99, "parts": [[1, 1]]}']
)
def test_a_damaged_list_of_parts_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(caches, "WHOLE_VALUES_MAX", 10)
    cache = cache_in(tmp_path, 64_000)
    (tmp_path / caches._STATE).write_text(text)
    for number in range(90):
        cache.store(replace(KEY, file=str(number)), sections(300))
    assert sum(path.stat().st_size for path in tmp_path.glob("*/*")) <= 64_000
    assert cache.figures.files > 10


def test_an_eviction_ends_with_the_process(tmp_path: Path) -> None:
    """It is done to the end of its part, though the process has nothing else to do."""
    text = (
        "import sys, pathlib; from lakestore.iceberg import cache as c; c.WHOLE_VALUES_MAX = 10\n"
        "cache = lambda **beside: c.DerivedCache(pathlib.Path(sys.argv[1]), 64_000, **beside)\n"
        "store = lambda cache, number: cache.store(c.Key('k', 'g', str(number), '1'), {1: bytes(3_000)})\n"
        "filled = cache(beside=lambda work: None)\n"
        "for number in range(40): store(filled, number)\n"
        "store(cache(), 40)\n"
    )
    subprocess.run([sys.executable, "-c", text, str(tmp_path)], check=True)
    held = json.loads((tmp_path / caches._STATE).read_text())
    assert sum(part is not None for part in held["parts"]) >= 1


def test_folders_count_and_empty_ones_go(tmp_path: Path) -> None:
    now, bound = [time.time()], 1 << 20
    cache = cache_in(tmp_path, bound, clock=lambda: now[0])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    for number in range(400):
        now[0] += 1.0
        assert cache.store(replace(KEY, group=f"g{number}"), sections(300)) is not None
        assert taken(tmp_path) <= bound
    cache._evict()
    assert cache.figures.nbytes == taken(tmp_path) - len("mine")
    assert cache.figures.files == len(list(tmp_path.glob("g*")))
    assert (tmp_path / "g399").exists()
    assert (tmp_path / "mine" / "file").exists()


def test_a_folder_that_another_process_removes_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, open_file = cache_in(tmp_path), os.open

    def opened(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            monkeypatch.setattr(os, "open", open_file)
            path.parent.rmdir()
        return open_file(path, flags, mode)

    monkeypatch.setattr(os, "open", opened)
    assert cache.store(KEY, sections(3)) is not None
    assert read(cache) == ([0, 1, 2], b"text")


def test_only_the_cache_s_own_files_are_removed(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "home"
    for path in (folder / "project/thesis.tex", folder / "project/a.value", elsewhere / file_of(folder).name):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
        os.utime(path, (1.0, 1.0))
    (folder / "link").symlink_to(elsewhere)
    cache = cache_in(folder)
    cache.store(KEY, sections(3))
    cache.remove_groups([])
    assert (folder / "project/thesis.tex").exists()
    assert (folder / "project/a.value").exists()
    assert (elsewhere / file_of(folder).name).exists()
    assert not (folder / KEY.group).exists()


def test_values_of_tables_that_stay_are_kept(tmp_path: Path) -> None:
    cache, other = cache_in(tmp_path), replace(KEY, group="a name that is no folder's: ../x")
    for key in (KEY, other, replace(KEY, group="gone")):
        cache.store(key, sections(3))
    cache.remove_groups([KEY.group, other.group])
    assert read(cache) is not None
    assert read(cache, other) is not None
    assert read(cache, replace(KEY, group="gone")) is None


def test_a_strange_file_in_the_place_of_a_value_is_a_miss_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe would keep its reader waiting, and somebody else's file may say anything."""
    cache, path = cache_in(tmp_path), file_of(tmp_path)
    path.parent.mkdir()
    os.mkfifo(path)
    found: list[Any] = []
    reading = threading.Thread(target=lambda: found.append(cache.find(KEY)), daemon=True)
    reading.start()
    reading.join(30)
    assert found == [None]
    path.unlink()
    cache.store(KEY, sections(3))
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 12_345)
        assert cache.find(KEY) is None
    assert read(cache) is not None


def test_values_beyond_the_limit_of_maps_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = len(caches._maps)
    monkeypatch.setattr(caches, "_maps_max", lambda: count + 2)
    cache = cache_in(tmp_path)
    held = [cache.store(replace(KEY, file=str(number)), sections(LARGE)) for number in range(4)]
    assert [value is not None and value.is_mapped for value in held] == [True, True, False, False]
    assert all(value is not None and value.array(1, "<i8")[-1] == LARGE - 1 for value in held)
    held.clear()
    value = cache.find(replace(KEY, file="3"))
    assert value is not None
    assert value.is_mapped, "a map is free again when its value is gone"


def test_a_cache_gives_its_room_back_when_the_disk_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_in(tmp_path, free_bytes_min=2 << 30)
    for number in range(40):
        assert cache.store(replace(KEY, file=str(number)), sections(300)) is not None
    monkeypatch.setattr(caches, "_free_bytes", lambda _: (2 << 30) - 50_000)
    assert cache.store(KEY, sections(300)) is None
    left = sum(path.stat().st_size for path in tmp_path.glob("*/*"))
    assert 0 < left < 60_000, "50,000 bytes of about 100,000 are given back"


def test_an_eviction_that_cannot_begin_is_tried_again(tmp_path: Path) -> None:
    def refused(_: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    cache = DerivedCache(tmp_path, 64_000, beside=refused)
    assert cache.store(KEY, sections(3)) is not None
    cache._beside = lambda work: work()
    for number in range(60):
        cache.store(replace(KEY, file=str(number)), sections(300))
    assert sum(path.stat().st_size for path in tmp_path.glob("*/*")) <= 64_000


def test_a_forked_process_finds_free_locks(tmp_path: Path) -> None:
    cache, values = DerivedCache(tmp_path), caches.RecentValues[Any](100)
    with cache._lock, values._lock:
        cache._is_evicting = True
        caches._unlock_all()
        assert cache._lock.acquire(blocking=False)
        assert values._lock.acquire(blocking=False)
        assert not cache._is_evicting


def test_a_use_in_the_future_is_the_oldest_and_a_closed_cache_opens(tmp_path: Path) -> None:
    now = [1_000_000.0]
    cache = cache_in(tmp_path, 64_000, clock=lambda: now[0])
    now[0] += 1e8
    assert cache.store(replace(KEY, file="future"), sections(300)) is not None
    cache._closed_until = now[0] + 60.0
    now[0] -= 1e8
    for number in range(60):
        now[0] += 2.0
        assert cache.store(replace(KEY, file=str(number)), sections(300)) is not None
    assert cache.find(replace(KEY, file="future")) is None
    assert cache.find(replace(KEY, file="59")) is not None


def test_what_was_not_used_for_long_goes(tmp_path: Path) -> None:
    now = [1_000_000.0]
    cache_in(tmp_path, clock=lambda: now[0]).store(KEY, sections(3))
    now[0] += UNUSED_SECONDS + 1
    cache_in(tmp_path, clock=lambda: now[0]).store(replace(KEY, file="b"), sections(3))
    assert not file_of(tmp_path).exists()


def test_a_read_seldom_writes(tmp_path: Path) -> None:
    now = [1_000_000.0]
    cache = cache_in(tmp_path, clock=lambda: now[0])
    cache.store(KEY, sections(3))
    times = []
    for passed in (0.0, USED_SECONDS / 2, USED_SECONDS / 2, 1.0):
        now[0] += passed
        cache.find(KEY)
        times.append(file_of(tmp_path).stat().st_mtime)
    assert times == [1_000_000.0] * 2 + [1_000_000.0 + USED_SECONDS] * 2


def test_a_full_disk_is_no_error_and_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1_000_000.0]
    cache, tries = cache_in(tmp_path, clock=lambda: now[0]), []

    def full(self: Path, target: Path) -> None:
        tries.append(target)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(Path, "replace", full)
        assert [cache.store(KEY, sections(3)) for _ in range(5)] == [None] * 5
    assert len(tries) == 1
    assert "No space left" in caplog.text
    assert not list(tmp_path.glob("*/*")), "the half of a value is removed"
    now[0] += caches.RETRY_SECONDS
    assert cache.store(KEY, sections(3)) is not None
    monkeypatch.setattr(caches, "_free_bytes", lambda _: caches.FREE_BYTES_MIN)
    assert cache.store(replace(KEY, file="b"), sections(3)) is None, "others need the last of the disk"
    assert read(cache) is not None


def test_a_folder_that_cannot_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_in(tmp_path).store(KEY, sections(3))
    os.utime(file_of(tmp_path), (1, 1))

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "utime", refused)
    monkeypatch.setattr(Path, "mkdir", refused)
    cache = cache_in(tmp_path)
    assert read(cache) == ([0, 1, 2], b"text")
    assert cache.store(replace(KEY, group="other"), sections(3)) is None


_WRITER = """
import sys, numpy as np
from pathlib import Path
from lakestore.iceberg.cache import DerivedCache, Key
cache, number = DerivedCache(Path(sys.argv[1]), 40 << 20), int(sys.argv[2])
print("began", flush=True)
for run in range(int(sys.argv[3])):
    for name in range(10):
        key = Key("numbers-1", "3f0c", str(name), "1")
        value = cache.find(key)
        if value is not None:
            numbers = value.array(1, "<i8")
            assert len(numbers) == 20_000 and (numbers == numbers[0]).all(), numbers
        cache.store(key, {1: np.full(20_000, number * 1000 + run), 7: b"text"})
print("done", flush=True)
"""


def started(folder: Path, number: int, runs: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", _WRITER, str(folder), str(number), str(runs)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_processes_write_the_same_keys_side_by_side(tmp_path: Path) -> None:
    several = [started(tmp_path, number, 10) for number in range(2)]
    assert [process.communicate()[0].split() for process in several] == [["began", "done"]] * 2
    cache = cache_in(tmp_path)
    assert sorted(path.suffix for path in tmp_path.glob("*/*")) == [caches.SUFFIX] * 10
    assert all(cache.find(replace(KEY, file=str(name), version="1")) for name in range(10))


def test_a_process_that_is_killed_as_it_writes_leaves_whole_values(tmp_path: Path) -> None:
    for number in range(3):
        process = started(tmp_path, number, 1_000_000)
        assert process.stdout is not None
        assert process.stdout.readline() == "began\n"
        while len(list(tmp_path.glob(f"*/*{caches.SUFFIX}"))) < 10:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        for name in range(10):
            value = cache_in(tmp_path).find(replace(KEY, file=str(name), version="1"))
            assert value is not None
            assert len(set(value.array(1, "<i8").tolist())) == 1
    half = tmp_path / KEY.group / f"{32 * '0'}-{12 * '0'}{caches._TEMPORARY}"
    half.write_bytes(b"half")
    os.utime(half, (1, 1))
    cache_in(tmp_path).store(KEY, sections(1))
    assert not half.exists()


def test_the_folder_of_a_user_is_his_alone_or_the_cache_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "_file_system", lambda _: "ext4")
    assert caches.of_user({"XDG_CACHE_HOME": str(tmp_path / "x")}).folder == tmp_path / "x" / "lakestore"
    mine, home = tmp_path / "mine", tmp_path / "home"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(home))
    assert caches.of_user({"XDG_CACHE_HOME": "relative"}).folder == home / ".cache" / "lakestore"
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert caches.of_user({}).folder is None, "a user without a home"
    assert caches.of_user({caches.VARIABLE: "relative"}).folder is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "x"]
    assert caches.of_user({caches.VARIABLE: str(mine)}).folder == mine
    assert mine.stat().st_mode & 0o777 == 0o700
    assert caches.of_user({caches.VARIABLE: caches.OFF}).folder is None
    (tmp_path / "file").write_bytes(b"")
    assert caches.of_user({caches.VARIABLE: str(tmp_path / "file")}).folder is None
    mine.chmod(0o770)
    assert caches.of_user({caches.VARIABLE: str(mine)}).folder is None, "another user may plant values"
    mine.chmod(0o700)
    monkeypatch.setattr(caches, "_file_system", lambda _: "nfs4")
    assert caches.of_user({caches.VARIABLE: str(mine)}).folder is None
    monkeypatch.setattr(caches, "_file_system", lambda _: "ext4")
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    assert caches.of_user({caches.VARIABLE: str(mine)}).folder is None, "its owner is another user"


def test_a_cache_without_a_folder_keeps_nothing() -> None:
    cache = DerivedCache()
    assert cache.store(KEY, sections(3)) is None
    assert cache.find(KEY) is None
    cache.discard(KEY)
    cache.remove_groups([])


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """A manifest of data files and one of deletes."""
    folder = f"file://{tmp_path_factory.mktemp('lake')}"
    many = ManyFiles.of(define("a.b", SCHEMA, lake=LAKE), folder, 60, 6)
    listed = many.snapshot(7, [3, 4])
    return read_list(places.read(listed), listed)


def same(one: Entries, other: Entries) -> bool:
    """Whether two say the same of all files."""
    every = np.arange(len(one))
    asked: list[Callable[[Entries], Any]] = [
        list,
        lambda entries: [entries.rows.tolist(), entries.sizes.tolist(), entries.contents.tolist()],
        lambda entries: [entries.sequences.tolist(), entries.path_hashes.tolist(), entries.added.tolist()],
        lambda entries: [each.tolist() for each in (*entries.ends, *entries.named)],
        lambda entries: [entries.partition(1000), entries.partitions(every), entries.paths(every)],
        lambda entries: [*entries.records(every), entries.references(every)],
        lambda entries: [entries.bound_bytes(3, side, every) for side in (LOWER, UPPER)],
    ]
    return all(of(one) == of(other) for of in asked)


def test_a_manifest_from_the_cache_is_as_it_was_read(tmp_path: Path, lake: list[Manifest]) -> None:
    for manifest in lake:
        whole = Entries(places.read(manifest.path), manifest)
        for _ in range(3):
            cache = cache_in(tmp_path)
            assert same(whole, Entries.opened(manifest, UUID, cache))
        assert (cache.figures.hits, cache.figures.damaged) == (1, 0)


def test_no_damage_of_a_cached_manifest_changes_what_it_says(tmp_path: Path, lake: list[Manifest]) -> None:
    chance, cache = seeded("damaged manifests"), cache_in(tmp_path)
    for manifest in lake:
        whole = Entries(places.read(manifest.path), manifest)
        Entries.opened(manifest, UUID, cache)
        (path,) = tmp_path.glob("*/*")
        data = path.read_bytes()
        for _ in range(80):
            at = chance.randrange(len(data))
            path.write_bytes(data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :])
            assert same(whole, Entries.opened(manifest, UUID, cache)), at
        path.unlink(missing_ok=True)
    assert cache.figures.damaged > 100


def test_a_manifest_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    """A file of as many bytes under the same name: only a program that breaks Iceberg's rules writes one."""
    folder = f"file://{tmp_path / 'lake'}"
    table, cache = define("a.b", SCHEMA, lake=LAKE), cache_in(tmp_path / "cache")
    said = []
    for part in ("a", "b"):
        many = ManyFiles.of(table, folder, 20, 2)
        files = [replace(many.file(number), path=f"{folder}/{part}-{number}.parquet") for number in range(20)]
        (manifest,) = many.manifests(files, 7, 1)
        os.utime(manifest.path.removeprefix("file://"), (ord(part), ord(part)))
        said.append(Entries.opened(manifest, UUID, cache).paths(np.arange(20)))
    assert [paths[0].rpartition("/")[2] for paths in said] == ["a-0.parquet", "b-0.parquet"]


def test_another_manifest_at_the_place_of_one_in_memory_is_read(tmp_path: Path) -> None:
    """A process runs on while somebody restores another table to the same folder."""
    folder, said = f"file://{tmp_path}", []
    for snapshot_id, table_uuid in ((7, UUID), (8, UUID), (8, "another")):
        many = ManyFiles.of(define("a.b", SCHEMA, lake=LAKE), folder, 20, 2)
        files = [replace(many.file(n), path=f"{folder}/{table_uuid}-{snapshot_id}-{n}.parquet") for n in range(20)]
        (manifest,) = many.manifests(files, snapshot_id, 1)
        at = tmp_path / "m.avro"
        at.write_bytes(places.read(manifest.path))
        moved = replace(manifest, path=f"file://{at}")
        said.append(lake_snapshot.entries_of(moved, table_uuid).paths(np.arange(1)))
        assert lake_snapshot.entries_of(moved, table_uuid) is lake_snapshot.entries_of(moved, table_uuid)
        given = lake_snapshot.entries_of(replace(moved, first_row_id=5), table_uuid).first_row_ids
        assert given is not None
        assert given[0] == 5
    assert len({paths[0] for paths in said}) == 3


def test_a_change_of_the_layout_needs_another_kind() -> None:
    """A later release reads values of an earlier one. If this fails, give the kind of the value another number."""

    def digest(parts: dict[int, Any]) -> str:
        return hashlib.sha256(b"".join(encoded(KEY, parts))).hexdigest()[:16]

    table = define("a.b", SCHEMA, lake=LAKE)
    many = ManyFiles.of(table, "s3://lake", 60, 6)
    said: dict[str, Any] = {"schema": many.document["schemas"][0], "spec": many.document["partition-specs"][0]}
    found = {"head": digest({1: np.arange(3), 7: b"text"})}
    for content, files in ((DATA, map(many.file, range(60))), (DELETES, map(many.delete_of, (3, 4)))):
        entries = [Entry(ADDED, 7, 1, 1, file) for file in files]
        data = write_manifest(entries, **said, content=content, format_version=2)
        manifest = described("m.avro", len(data), entries, **said, content=content, snapshot_id=7, sequence=1)
        records = manifest_entries._Records(data, "m.avro")
        found[f"manifest {content}"] = digest(Entries(data, manifest).sections(records.schema, records.names))
    keys, order = np.arange(5) * 3, np.array([4, 2, 0, 1, 3], np.int32)
    index, plain = FileOffsets(keys, order), FileOffsets(keys, None)
    found |= {"index": digest(index.sections()), "plain index": digest(plain.sections())}
    found["bundle"] = digest(offset_cache._Bundle({b"a" * 16: index, b"b" * 16: plain}, 0).sections())
    kinds = (caches._VERSION, manifest_entries._KIND, offset_cache._KIND, offset_cache._BUNDLE_KIND)
    assert kinds == (1, "manifest-1-little", "offsets-1", "offset-bundle-1")
    assert found == {
        "head": "9303f10ee0dff8d3",
        "manifest 0": "7e3fb827113f7e69",
        "manifest 1": "29db2fa828c8d8b7",
        "index": "4e2fcd22575ad6ea",
        "plain index": "39e687bf78d41ed2",
        "bundle": "0cd60b401542ea49",
    }
