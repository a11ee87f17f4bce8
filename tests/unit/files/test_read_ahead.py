"""What follows is asked for when it is read in order: 4 MB of it, once for each reader, and nothing for others."""

from __future__ import annotations

import pytest

from lakestore_server.files import segment
from lakestore_server.files.segment import READERS_MAX, ReadAhead

PARTS, SIZE = 12, 10


@pytest.fixture(autouse=True)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "AHEAD_BYTES", 3 * SIZE)


class Reading:
    """Readers of twelve parts of one size."""

    def __init__(self) -> None:
        self._ahead = ReadAhead()

    def read(self, *parts: int) -> list[list[int]]:
        """The parts that were asked for as each of these was read."""
        return [self._read(part) for part in parts]

    def _read(self, part: int) -> list[int]:
        asked: list[int] = []

        def ask(wanted: int) -> int:
            if wanted < PARTS:
                asked.append(wanted)
            return SIZE * (wanted < PARTS)

        self._ahead.read(part, SIZE, ask)
        return asked


def test_a_reader_from_the_first_part_has_the_next_ones_asked_for_once() -> None:
    expected = [[1, 2, 3], *([each] for each in range(4, PARTS)), [], [], []]
    reading = Reading()
    assert reading.read(*range(PARTS)) == expected
    assert len(reading._ahead._readers) == 1
    assert reading.read(*range(PARTS)) == expected, "and again, whoever comes next"


def test_one_that_begins_in_the_middle_is_believed_when_it_goes_on() -> None:
    assert Reading().read(5, 6, 7, 8, 9) == [[], [7, 8, 9], [10], [11], []]


def test_single_reads_ask_for_nothing() -> None:
    assert Reading().read(5, 3, 11, 7, 5, 3) == [[]] * 6


def test_readers_do_not_disturb_each_other() -> None:
    reading = Reading()
    assert reading.read(0, 6, 1, 7, 2, 8) == [[1, 2, 3], [], [4], [8, 9, 10], [5], [11]]


def test_so_many_readers_that_they_are_forgotten_go_on() -> None:
    reading = Reading()
    reading.read(0)
    for many in range(100, 100 + 2 * READERS_MAX, 2):
        reading.read(many)
    assert len(reading._ahead._readers) <= READERS_MAX
    assert reading.read(1, 2) == [[], [3, 4, 5]]


def test_large_parts_are_asked_for_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "AHEAD_BYTES", SIZE // 2)
    assert Reading().read(0, 1, 2) == [[1], [2], [3]]
