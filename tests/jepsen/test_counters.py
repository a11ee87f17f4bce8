"""The counters' anomalies: each is found in a history that has it, and none in one that is merely unlucky."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from jepsen.checkers.tallies import row_of
from jepsen.operation import Kind
from jepsen.workloads.counters import Counters
from tests.jepsen.hand_made import Written, names


class Story:
    """A history of counters; a row is told by the numbers that it has counted."""

    def __init__(self) -> None:
        self.written = Written()

    def add(self, *adds: tuple[str, int], kind: Kind = Kind.OK) -> Story:
        value = {"form": "table", "adds": [list(each) for each in adds]}
        self.written.call(0, "add", value, {} if kind is Kind.OK else value, kind)
        return self

    def read(self, rows: dict[str, list[int]], every: bool = False, **wrong: Any) -> Story:
        found = {key: {**row_of(numbers), **wrong} for key, numbers in rows.items() if numbers}
        self.written.call(1, "read", {"keys": None if every else sorted(rows), "by": "lookup"}, {"rows": found})
        return self

    def changes(self, *rows: list[int], j: list[int] | None = None, key: str = "k") -> Story:
        made = [row_of(numbers) if numbers else None for numbers in rows]
        steps = {key: [list(each) for each in pairwise(made)]} | ({"j": [[None, row_of(j)]]} if j else {})
        self.written.call(1, "changes", None, {"steps": steps})
        return self

    def names(self) -> set[str]:
        return names(Counters(random.Random(1)), self.written)


def test_unlucky_histories_have_no_anomaly() -> None:
    story = Story().add(("k", 1)).add(("k", 2), kind=Kind.INFO).read({"k": [1]}).add(("k", 3), kind=Kind.FAIL)
    story.add(("k", 4), ("j", 5), ("k", 6)).read({"k": [1, 4, 6], "j": [5]}).read({"k": [1, 4, 6, 2]})
    story.written.begin(5, "add", {"form": "table", "adds": [["j", 8]]})
    story.read({"j": [5, 8]}).changes([], [1], [1, 4, 6], [1, 4, 6, 2], j=[5])
    story.read({"k": [1, 4, 6, 2], "j": [5, 8]}, every=True)
    assert story.names() == set()


CASES: dict[str, list[Story]] = {
    "counted-twice": [Story().add(("k", 1)).read({"k": [1, 1]})],
    "phantom-increment": [
        Story().read({"k": [1]}),
        Story().add(("j", 1)).read({"k": [1]}),
        Story().read({"k": [1]}).add(("k", 1)),
    ],
    "aborted-increment": [Story().add(("k", 1), kind=Kind.FAIL).read({"k": [1]})],
    "lost-increment": [Story().add(("k", 1)).read({"k": []}), Story().add(("k", 1), ("k", 2)).read({"k": [2]})],
    "wrong-total": [
        Story().add(("k", 1)).add(("k", 2)).read({"k": [1, 2]}, total=7),
        Story().add(("k", 1)).add(("k", 2)).read({"k": [1, 2]}, n=3),
        Story().add(("k", 1)).add(("k", 2)).read({"k": [1, 2]}, hi=-1),
    ],
    "other-order": [Story().add(("k", 1), ("k", 2)).read({"k": [1, 2]}).read({"k": [2, 1]})],
    "goes-back": [Story().add(("k", 1), kind=Kind.INFO).read({"k": [1]}).read({"k": []})],
    "torn-add": [Story().add(("k", 1), ("j", 2), kind=Kind.INFO).read({"k": [1], "j": []})],
    "changelog-differs": [
        Story().add(("k", 1)).add(("k", 2)).changes([], [1]).read({"k": [1, 2]}, every=True),
        Story().add(("k", 1)).add(("k", 2)).changes([1], [1, 2]).read({"k": [1, 2]}, every=True),
        Story().add(("k", 1)).add(("k", 2)).changes([], [1, 2], [2, 1]).read({"k": [2, 1]}, every=True),
        Story().add(("k", 1)).changes([], [1], key="j").read({"k": [1]}, every=True),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_each_anomaly_is_found(name: str) -> None:
    for story in CASES[name]:
        assert name in story.names(), CASES[name].index(story)
