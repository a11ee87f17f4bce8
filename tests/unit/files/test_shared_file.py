"""The shared segment file: every part reads as it was put in, and damage of what a checkpoint needs is found."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore.errors import Corrupt, NewerFormat
from lakestore_server.files import shared_file
from lakestore_server.files.shared_file import NewSegment, SharedFile
from lakestore_server.host.disk import RealDisk
from tests.support.flips import flipped
from tests.support.seeds import examples

PARTS = st.lists(
    st.tuples(st.sampled_from(["u-1", "u-2", "u-3"]), st.integers(0, 9), st.binary(min_size=1, max_size=200)),
    min_size=1,
    max_size=20,
)


def written(path: Path, parts: list[tuple[str, int, bytes]]) -> SharedFile:
    new = [NewSegment(table, bucket, i, i + 1, pa.py_buffer(data)) for i, (table, bucket, data) in enumerate(parts)]
    size = shared_file.write(RealDisk(), path, new)
    assert size == path.stat().st_size
    return SharedFile(RealDisk(), path)


@settings(max_examples=examples(50))
@given(PARTS)
def test_parts_come_back_in_the_order_in_which_they_were_put_in(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[str, int, bytes]]
) -> None:
    file = written(tmp_path_factory.mktemp("shared") / "1.seg", parts)
    found = [
        (e.table, e.bucket, file.part(e.at, e.size).data.to_pybytes(), e.start, e.at % 64)
        for e in file.entries.values()
    ]
    assert found == [(*part, i, 0) for i, part in enumerate(parts)]
    assert shared_file.damage_of(file.data, file.path) == ""


def test_a_flipped_bit_of_header_or_directory_is_found(tmp_path: Path) -> None:
    parts = [("u-1", 0, b"one" * 99), ("u-2", 1, b"two" * 99)]
    path = tmp_path / "1.seg"
    right = written(path, parts).entries
    found = 0
    for other in flipped(path, 200, seed=11):
        try:
            assert SharedFile(RealDisk(), other).entries == right
        except (Corrupt, NewerFormat) as error:
            found += 1
            assert other.name in error.message
    assert found > 10


def test_a_place_that_the_directory_does_not_have_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "1.seg", [("u-1", 0, b"one")])
    (at,) = file.entries
    for wrong in ((at + 64, 3), (at, 2)):
        with pytest.raises(Corrupt, match=r"1\.seg has no segment at"):
            file.part(*wrong)
