"""The data folder: open to its owner and the owner's group, and locked by a lock that no reader can take."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.errors import Conflict
from lakestore_server.files import data_folder
from tests.support.served import Served
from tests.support.world.disk import SimDisk

_SCHEMA = pa.schema([("id", pa.int64())])


def modes(folder: Path) -> dict[str, str]:
    """Path below the folder to its mode."""
    found = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode)) for path in found}


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_folders_are_0750_and_files_0640_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    with Served(tmp_path / "data") as served:
        served.lake.create_table("a.k", _SCHEMA, primary_key=["id"])
        served.lake.table("a.k").upsert([{"id": 1}])
        served.checkpoint()
        served.lake.table("a.k").upsert([{"id": 2}])
        found = modes(tmp_path / "data")
    ours = {name: mode for name, mode in found.items() if not name.startswith("warehouse")}
    assert any(name.endswith(".seg") for name in ours)
    assert any(name.endswith(".run") for name in ours)
    assert ours.pop("lock") == "0o600"
    wrong = {
        name: mode
        for name, mode in ours.items()
        if mode != ("0o750" if (tmp_path / "data" / name).is_dir() else "0o640")
    }
    assert not wrong
    lake = {mode for name, mode in found.items() if name.endswith(".metadata.json")}
    assert lake == {oct(0o666 & ~umask)}, "who may read the lake is the warehouse's business"


def test_what_an_earlier_release_left_open_is_tightened_at_the_start(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        served.lake.create_table("a.k", _SCHEMA, primary_key=["id"])
        served.checkpoint()
        served.close()
        for path in [tmp_path / "data", *(tmp_path / "data").rglob("*")]:
            path.chmod(0o777 if path.is_dir() else 0o666)
        (tmp_path / "data" / "index").chmod(0o700)
        (tmp_path / "elsewhere").touch(0o666)
        (tmp_path / "elsewhere").chmod(0o666)
        (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
        served.start()
        found = modes(tmp_path / "data")
        assert found["."] == found["segments"] == "0o750"
        assert found["index"] == "0o700", "nothing is given to anybody"
        assert found["lock"] == "0o600"
        open_still = {name for name, mode in found.items() if int(mode, 8) & 0o007}
        assert {name.split("/")[0] for name in open_still} == {"warehouse", "link"}
        assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o666


def test_a_second_server_is_kept_out(tmp_path: Path) -> None:
    with data_folder.lock_folder(tmp_path / "data"), pytest.raises(Conflict, match="in use by another server"):
        data_folder.lock_folder(tmp_path / "data")
    data_folder.lock_folder(tmp_path / "data").close()


def test_a_flock_of_somebody_else_stops_no_start(tmp_path: Path) -> None:
    data_folder.lock_folder(tmp_path / "data").close()
    with (tmp_path / "data" / "lock").open() as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        with data_folder.lock_folder(tmp_path / "data"), pytest.raises(Conflict):
            data_folder.lock_folder(tmp_path / "data")


def test_a_server_of_an_earlier_release_keeps_this_one_out_and_is_kept_out(tmp_path: Path) -> None:
    """It locks by flock alone, and writes nothing but its process number."""
    data_folder.lock_folder(tmp_path / "data").close()
    lock = tmp_path / "data" / "lock"
    with lock.open("a+") as older:
        fcntl.flock(older, fcntl.LOCK_EX | fcntl.LOCK_NB)
        older.truncate(0)
        older.write("4711")
        older.flush()
        with pytest.raises(Conflict):
            data_folder.lock_folder(tmp_path / "data")
    with data_folder.lock_folder(tmp_path / "data"), lock.open("a+") as older, pytest.raises(BlockingIOError):
        fcntl.flock(older, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_second_server_on_a_folder_is_told_the_first_ones_process_and_ports(tmp_path: Path) -> None:
    with Served(tmp_path / "data", ports=True) as served:
        about = served.server.about
        with pytest.raises(Conflict) as refused:
            data_folder.lock_folder(tmp_path / "data")
    assert refused.value.message.endswith(
        f"is in use by another server: process {os.getpid()}, gRPC on {about['grpc']}, HTTP on {about['http']}"
    )
    with data_folder.lock_folder(tmp_path / "data"), pytest.raises(Conflict) as refused:
        data_folder.lock_folder(tmp_path / "data")
    assert refused.value.message.endswith(f"is in use by another server: process {os.getpid()}")


def test_segment_files_are_removed_in_the_order_of_their_names(tmp_path: Path) -> None:
    """A set of texts has another order in every process, and the simulation must be the same run in all of them."""
    disk, folder = SimDisk(tmp_path), tmp_path / data_folder.SEGMENTS / "table"
    disk.make_folder(folder)
    names = [f"{number:012d}.seg" for number in range(40)]
    for name in names:
        disk.create(folder / name).close()
    data_folder.remove_files(disk, tmp_path, {"table": set(names)}, {"table"})
    assert [step for step in disk.steps if step.startswith("remove")] == [f"remove {name}" for name in names]
