"""Paths as locations: they come back as they were, and PyIceberg finds the same file under them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO

from lakestore.iceberg import places
from lakestore.model import file_uri
from lakestore_server.catalog import locations

ODD = "données 100% #1"
NAMES = (ODD, "my dir", "é", "100%25", "a+b&c", "x#y", "q?z", "a:b", "%2e%2e", "~[1]*{}")


@pytest.mark.parametrize("name", NAMES)
def test_a_path_is_the_same_file_for_everybody(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / "f.bin"
    location = file_uri.to_uri(path)
    assert file_uri.to_path(location) == locations.plain(location) == str(path)
    assert file_uri.user_location(location) == file_uri.user_location(str(path)) == location
    places.write(location, b"x")
    assert path.read_bytes() == b"x"
    assert PyArrowFileIO.parse_location(location)[2] == str(path)
    assert locations.inside(location, file_uri.to_uri(tmp_path / name))
    assert [each.name for each in tmp_path.iterdir()] == [name]


PARTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="/"), min_size=1)


@given(st.lists(PARTS.filter(lambda part: part not in (".", "..")), min_size=1, max_size=4))
def test_every_path_comes_back(parts: list[str]) -> None:
    path = Path("/", *parts)
    assert file_uri.to_path(file_uri.to_uri(path)) == str(path)
    assert PyArrowFileIO.parse_location(file_uri.to_uri(path))[2] == str(path)


def test_places_in_stores_are_no_paths() -> None:
    assert file_uri.to_path("s3://bucket/a") is None
    assert file_uri.user_location("s3://bucket/a") == "s3://bucket/a"
    assert file_uri.user_location("file:/a") == file_uri.user_location("/a") == "file:///a"


def test_an_escape_below_a_folder_lies_nowhere() -> None:
    assert locations.inside("file:///w/100%/t", "file:///w/100%")
    for place in ("file:///w/%2e%2e/t", "file:///w/../t", "file:///w/./t", "/w/a%2fb"):
        assert not locations.inside(place, "file:///w")
