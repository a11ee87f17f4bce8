"""The simulated disk keeps what was synced, loses the rest, and fails when it is told to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakestore_server.host.disk import Disk
from tests.support.world.disk import PowerLost, SimDisk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SimDisk]:
    made = SimDisk(tmp_path / "disk")
    seam: Disk = made
    seam.make_folder(made.root / "a")
    yield made
    made.close()


def put(disk: SimDisk, name: str, data: bytes) -> Path:
    """A durable file."""
    path = disk.root / name
    file = disk.create(path)
    file.write([data])
    file.sync()
    file.close()
    disk.sync_folder(path.parent)
    return path


def left(disk: SimDisk, tmp_path: Path, seed: int | None = None) -> dict[str, bytes]:
    """Every file after a crash."""
    after = disk.crash(tmp_path / f"after-{seed}", seed)
    return {str(path.relative_to(after.root)): path.read_bytes() for path in after.root.rglob("*") if path.is_file()}


def test_what_is_synced_survives(disk: SimDisk, tmp_path: Path) -> None:
    put(disk, "a/x", b"one")
    assert left(disk, tmp_path) == {"a/x": b"one"}


def test_a_name_that_is_not_synced_is_lost_with_the_file(disk: SimDisk, tmp_path: Path) -> None:
    file = disk.create(disk.root / "a/x")
    file.write([b"one"])
    file.sync()
    assert disk.read(disk.root / "a/x") == b"one"
    assert left(disk, tmp_path) == {}


def test_a_write_that_is_not_synced_is_lost(disk: SimDisk, tmp_path: Path) -> None:
    file = disk.create(disk.root / "a/x")
    disk.sync_folder(disk.root / "a")
    file.write([b"one", memoryview(b"two")])
    file.sync()
    file.write([b"three"])
    assert disk.read(disk.root / "a/x") == b"onetwothree"
    assert left(disk, tmp_path) == {"a/x": b"onetwo"}


def test_a_seed_keeps_prefixes_torn_anywhere(disk: SimDisk, tmp_path: Path) -> None:
    file = disk.create(disk.root / "a/x")
    disk.sync_folder(disk.root / "a")
    file.write([b"sync"])
    file.sync()
    file.write([bytes(range(1, 200))])
    found = [left(disk, tmp_path, seed)["a/x"] for seed in range(40)]
    assert all(data.startswith(b"sync") for data in found)
    assert len({len(data) for data in found}) > 5, "torn at several places"
    assert any(b"\0" in data for data in found), "a sector that was never written"


def test_truncation_counts_once_it_is_synced(disk: SimDisk, tmp_path: Path) -> None:
    file = disk.create(disk.root / "a/x")
    disk.sync_folder(disk.root / "a")
    file.write([b"longer"])
    file.sync()
    file.truncate(2)
    file.write([b"!"])
    assert disk.read(disk.root / "a/x") == b"lo!"
    assert left(disk, tmp_path, None) == {"a/x": b"longer"}


def test_rename_and_remove_wait_for_the_folder(disk: SimDisk, tmp_path: Path) -> None:
    put(disk, "a/x", b"old")
    put(disk, "a/y", b"new")
    put(disk, "a/z", b"gone")
    disk.rename(disk.root / "a/y", disk.root / "a/x")
    disk.remove(disk.root / "a/z")
    assert disk.list(disk.root / "a") == ["x"]
    before = {"a/x": b"old", "a/y": b"new", "a/z": b"gone"}
    after = {"a/x": b"new"}
    seen = [left(disk, tmp_path, seed) for seed in (None, *range(30))]
    assert seen[0] == before
    assert after in seen
    assert {"a/x": b"new", "a/z": b"gone"} in seen
    assert all("a/x" in files for files in seen), "a rename is atomic"


def test_a_synced_rename_survives(disk: SimDisk, tmp_path: Path) -> None:
    put(disk, "a/x", b"old")
    put(disk, "a/y", b"new")
    disk.rename(disk.root / "a/y", disk.root / "a/x")
    disk.sync_folder(disk.root / "a")
    assert left(disk, tmp_path) == {"a/x": b"new"}


def test_files_from_before_and_from_elsewhere_survive(disk: SimDisk, tmp_path: Path) -> None:
    (disk.root / "index").mkdir()
    (disk.root / "index/elsewhere").write_bytes(b"mapped")
    put(disk, "a/x", b"one")
    second = disk.crash(tmp_path / "second", lost=["index"])
    assert not (second.root / "index").exists()
    assert second.read(second.root / "a/x") == b"one"
    second.remove(second.root / "a/x")
    assert left(second, tmp_path) == {"a/x": b"one"}


def test_a_removed_folder_may_be_back_in_parts(disk: SimDisk, tmp_path: Path) -> None:
    for name in "pqr":
        put(disk, f"a/{name}", b"1")
    disk.remove_folder(disk.root / "a")
    assert disk.list(disk.root / "a") == []
    sizes = {len(left(disk, tmp_path, seed)) for seed in range(20)}
    assert sizes == {0, 1, 2, 3}


def test_power_goes_in_the_middle_of_a_write(disk: SimDisk, tmp_path: Path) -> None:
    file = disk.create(disk.root / "a/x")
    disk.sync_folder(disk.root / "a")
    disk.lose_power_after(0)
    with pytest.raises(PowerLost):
        file.write([b"data"])
    for change in (file.sync, lambda: file.truncate(0), lambda: disk.create(disk.root / "a/y")):
        with pytest.raises(PowerLost):
            change()
    assert disk.read(disk.root / "a/x") == b"", "a running process sees nothing of it"
    found = {left(disk, tmp_path, seed)["a/x"] for seed in range(100)}
    assert b"" in found
    assert found & {b"da", b"dat", b"d", b"data"}


def test_a_planted_failure_happens_once(disk: SimDisk) -> None:
    file = disk.create(disk.root / "a/x")
    disk.fail("sync")
    with pytest.raises(OSError, match="planted"):
        file.sync()
    file.sync()


def test_a_failed_write_leaves_half(disk: SimDisk) -> None:
    file = disk.create(disk.root / "a/x")
    disk.fail("write", after=1)
    file.write([b"good"])
    with pytest.raises(OSError, match="planted"):
        file.write([b"half"])
    assert disk.read(disk.root / "a/x") == b"goodha"


def test_what_is_healed_does_not_fail(disk: SimDisk) -> None:
    disk.fail("create")
    disk.heal()
    disk.create(disk.root / "a/x")


def test_a_failure_for_one_thread_waits_for_that_thread(disk: SimDisk) -> None:
    file = disk.create(disk.root / "a/x")
    disk.fail("write", thread="commit")
    file.write([b"by another"])
    failures: list[OSError] = []

    def commit() -> None:
        try:
            file.write([b"half"])
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=commit, name="commit-1")
    thread.start()
    thread.join()
    assert [str(error) for error in failures] == ["[Errno 5] planted failure of write of 4 bytes"]
    assert not disk.will_fail


def test_steps_that_match_a_pattern_fail_until_others_are_refused(disk: SimDisk) -> None:
    disk.refuse("create *.seg", "rename *")
    put(disk, "a/x", b"one")
    for refused in (
        lambda: disk.create(disk.root / "a/x.seg"),
        lambda: disk.rename(disk.root / "a/x", disk.root / "a/y"),
    ):
        with pytest.raises(OSError, match="No space"):
            refused()
    disk.refuse()
    disk.rename(disk.root / "a/x", disk.root / "a/x.seg")
    assert disk.list(disk.root / "a") == ["x.seg"]


def test_each_read_and_change_is_told_before_it_happens(disk: SimDisk) -> None:
    said: list[str] = []
    disk.before = said.append
    path = put(disk, "a/x", b"one")
    assert disk.read(path) == b"one"
    disk.remove(path)
    assert said == ["create x", "write", "sync", "sync_folder a", "read", "remove x"]
    disk.before = lambda what: disk.lose_power_after(0)
    with pytest.raises(PowerLost):
        disk.create(path)
