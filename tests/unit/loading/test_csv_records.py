"""The records of CSV in bytes: those that Python's reader of CSV finds, whatever is quoted, wherever blocks end."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore.loading.csv_blocks import Splitter

VALUES = st.text(st.sampled_from('ab"\n, '), max_size=5)


def _written(rows: list[list[str]]) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def _records(data: bytes, cuts: list[int]) -> list[bytes]:
    """The records that are found when the data comes in pieces."""
    split = Splitter(",", one_column=False)
    found, rest, ends = [], b"", [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in zip([0, *ends], ends, strict=False):
        rest += data[start:end]
        starts, nexts, broken, used, _ = split(rest, end == len(data) and start == ends[-1])
        assert not len(broken)
        found += [rest[a:b] for a, b in zip(starts, nexts, strict=True)]
        rest = rest[used:]
    starts, nexts, broken, _, _ = split(rest, True)
    assert not len(broken)
    return found + [rest[a:b] for a, b in zip(starts, nexts, strict=True)]


@given(st.lists(st.lists(VALUES, min_size=2, max_size=3), max_size=8), st.lists(st.integers(0, 10_000), max_size=3))
def test_records_are_those_of_a_reader_of_csv(rows: list[list[str]], cuts: list[int]) -> None:
    data = _written(rows)
    found = [next(csv.reader(io.StringIO(each.decode(), newline=""))) for each in _records(data, cuts)]
    assert found == rows


@pytest.mark.parametrize(
    ("data", "count", "broken"),
    [
        (b'1,5" pipe\n2,a\n', 2, []),
        (b'1,5" x 4",b\n2,"a\nb"\n', 2, []),
        (b'1,x"y,"open\nclosed"\n2,b\n', 2, []),
        (b'1,"never closed\n2,b\n3,c\n', 3, [0]),
        (b'1,a\n2,"open', 2, [1]),
        (b"1,a\r\n\r\n2,b", 2, []),
        (b"\n\n", 0, []),
    ],
)
def test_quotes_that_stand_elsewhere_and_ones_that_stay_open(data: bytes, count: int, broken: list[int]) -> None:
    starts, nexts, found, used, _ = Splitter(",", one_column=False)(data, True)
    assert (len(starts), len(nexts), found.tolist(), used) == (count, count, broken, len(data))


def test_a_blank_line_is_a_null_where_there_is_one_column() -> None:
    starts, *_ = Splitter(",", one_column=True)(b"a\n\nb\n", True)
    assert np.array_equal(starts, [0, 2, 3])
