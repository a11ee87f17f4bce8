"""The seam to the file system: sizes and mapped files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakestore_server.host.disk import Disk, RealDisk
from tests.support.world.disk import SimDisk


@pytest.mark.parametrize("simulated", [False, True])
def test_a_file_is_mapped_whole_and_has_a_size(tmp_path: Path, simulated: bool) -> None:
    disk: Disk = SimDisk(tmp_path) if simulated else RealDisk()
    for name, data in (("empty", b""), ("full", b"x" * 10_000)):
        file = disk.create(tmp_path / name)
        file.write([data])
        file.close()
        assert disk.size(tmp_path / name) == len(data)
        assert disk.map(tmp_path / name).to_pybytes() == data == disk.read(tmp_path / name)


@pytest.mark.parametrize("simulated", [False, True])
def test_what_is_no_file_has_no_size(tmp_path: Path, simulated: bool) -> None:
    disk: Disk = SimDisk(tmp_path) if simulated else RealDisk()
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for path in ("folder", "none", "none/inside", "file/inside"):
        assert disk.size(tmp_path / path) is None
    with pytest.raises(FileNotFoundError):
        disk.map(tmp_path / "none")
