"""Locations: each spelling of a file is the file, and what is written is read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakestore.iceberg import places


@pytest.mark.parametrize("spelling", ["{}", "file:{}", "file://{}"])
def test_spellings_of_a_file(tmp_path: Path, spelling: str) -> None:
    location = spelling.format(tmp_path / "new" / "folder" / "f.bin")
    places.write(location, b"0123456789")
    assert (tmp_path / "new" / "folder" / "f.bin").read_bytes() == b"0123456789"
    assert places.read(location) == b"0123456789"
    assert places.read_part(location, 2, 3) == b"234"
    assert places.read_part(location, 8, 9) == b"89"
    places.write(location, b"x")
    assert places.read(location) == b"x"
    with pytest.raises(FileNotFoundError):
        places.read(location + "-")


def test_paths_in_stores() -> None:
    assert places.place("gs://bucket/a/b.parquet")[1] == "bucket/a/b.parquet"
    assert places.place("abfss://box@account.dfs.core.windows.net/a/b")[1] == "box/a/b"
    assert places.place("mock:///a/b")[1] == "/a/b"
    assert places.place("gs://bucket/a")[0] is places.place("gs://bucket/b")[0], "its connections are kept"
