"""Locations: each spelling of a file is the file, and what is written is read back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.errors import Invalid, Unavailable
from lakestore.iceberg import data_files, places
from lakestore.iceberg.offset_cache import read_columns
from tests.support.guarded_store import GuardedStore


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


def _store_variables(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    places.forget_stores()


def test_a_store_that_is_away_is_unavailable_and_one_that_refuses_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    """A local file keeps its own error, and so does an absent object."""
    with GuardedStore() as store:
        location = f"{store.warehouse}/t/a b é.bin"
        _store_variables(monkeypatch, store.environment)
        places.write(location, b"0123456789")
        places.forget_stores()
        with pytest.raises(FileNotFoundError):
            places.read(f"{location}.absent")
        _store_variables(monkeypatch, {"AWS_SECRET_ACCESS_KEY": "wrong"})
        for call in (partial(places.read, location), partial(places.write, location, b"x")):
            with pytest.raises(Invalid, match=r"refuses .* check AWS_ACCESS_KEY_ID"):
                call()
        _store_variables(monkeypatch, store.environment)
    calls = (
        partial(places.read, location),
        partial(places.read_part, location, 2, 3),
        partial(places.write, location, b"x"),
        partial(data_files.write, pa.table({"id": [1]}), location, 0, {}),
        partial(read_columns, location, "PARQUET", ["id"]),
    )
    with ThreadPoolExecutor(len(calls)) as pool:  # Arrow tries each for 6 s
        errors = [asked.exception() for asked in [pool.submit(call) for call in calls]]
    for error in errors:
        assert isinstance(error, Unavailable)
        assert "the object store does not answer for s3://lakestore/lake/t/a b é" in str(error)
    places.forget_stores()
    with pytest.raises(IsADirectoryError):
        places.write("/", b"x")
