"""The log workload's anomalies: each is found in a history that has it, and none in one that is merely unlucky."""

from __future__ import annotations

import itertools
import random
import zlib
from typing import Any

import pytest

from jepsen.checkers.log_facts import Facts
from jepsen.checkers.log_polls import worst_lag
from jepsen.operation import HEALED, READS, Kind
from jepsen.workloads.log import Log
from tests.jepsen.hand_made import Written, names

TABLE = "jepsen.log0"
KEY, OTHER = f"{TABLE}/0", f"{TABLE}/1"
Rows = dict[str, list[list[int]]]


class Story:
    """A history of a log in two buckets. The numbers of a bucket are written in the order of its offsets."""

    def __init__(self) -> None:
        self.written = Written()

    def send(self, process: int, *numbers: int, kind: Kind = Kind.OK, token: str = "", form: str = "commit") -> Story:
        self.begin_send(process, *numbers, form=form)
        return self.end_send(process, *numbers, kind=kind, token=token, form=form)

    def begin_send(self, process: int, *numbers: int, form: str = "commit") -> Story:
        self.written.begin(process, "send", {"form": form, "parts": parts(*numbers)})
        return self

    def end_send(self, process: int, *numbers: int, kind: Kind = Kind.OK, token: str = "", form: str = "") -> Story:
        told: Any = {"token": token, "acked": parts(*numbers), "failed": [], "unknown": []}
        asked = {"form": form or "commit", "parts": parts(*numbers)}
        self.written.end(process, "send", told if kind is Kind.OK else asked, kind)
        return self

    def refused_send(self, process: int, *numbers: int, error: str, form: str = "commit") -> Story:
        self.begin_send(process, *numbers, form=form)
        self.written.end(process, "send", {"form": form, "parts": parts(*numbers)}, Kind.FAIL, error)
        return self

    def poll(self, rows: Rows, *, first: bool = False, start: str = "earliest", lane: int | None = None) -> Story:
        told = {"consumer": 1, "rows": rows, "torn": [], "token": "P", "in_snapshot": False, "start": start}
        asked = {"tables": [TABLE], "start": start, "lane": lane} if first else {"anew": False}
        self.written.call(7, "assign" if first else "poll", asked, told)
        return self

    def read(self, rows: Rows, torn: tuple[int, ...] = ()) -> Story:
        self.written.call(8, "read", {"start": "earliest"}, {"rows": rows, "torn": list(torn)})
        return self

    def cut(
        self, rows: dict[str, list[int]], token: str = "", by: str = "token", lane: int | None = None, odd: Any = ()
    ) -> Story:
        at = {key: [len(numbers), checksum(numbers)] for key, numbers in rows.items()}
        told = {"token": token, "tables": [TABLE], "at": at, "odd": dict(odd), "torn": []}
        self.written.call(9, "cut", {"by": by, "lane": lane}, told)
        return self

    def names(self) -> set[str]:
        return names(Log(random.Random(1)), self.written)


def parts(*numbers: int) -> list[list[Any]]:
    """Numbers that follow one another are one part."""
    found = list[list[Any]]()
    for number in numbers:
        if found and found[-1][1] + found[-1][2] == number:
            found[-1][2] += 1
        else:
            found.append([TABLE, number, 1])
    return found


def checksum(numbers: list[int]) -> int:
    return zlib.crc32(b"".join(number.to_bytes(8, "little") for number in numbers))


def rows(*numbers: int, key: str = KEY, first: int = 0) -> Rows:
    """Numbers at offsets that follow one another."""
    return {key: [[first + at, number] for at, number in enumerate(numbers)]}


def test_unlucky_histories_have_no_anomaly() -> None:
    story = Story().send(0, 1, 2, token="A").send(1, 101, kind=Kind.INFO).poll(rows(1, 2), first=True)
    story.send(0, 3, kind=Kind.FAIL).begin_send(2, 201).send(0, 4, token="B").send(3, 301, kind=Kind.INFO)
    story.poll(rows(4, 101, first=2)).end_send(2, 201).cut({KEY: [1, 2]}, "A").cut({KEY: [1, 2, 4]}, "B")
    story.cut({KEY: [1, 2, 4, 101, 201]}, "C", by="snapshot").cut({KEY: [1, 4]}, "D", by="snapshot", lane=1)
    story.poll(rows(201, first=4)).read(rows(1, 2, 4, 101, 201)).read(rows(1, 2, 4, 101, 201))
    assert story.names() == set()


@pytest.mark.parametrize("by", ["scan", "snapshot"])
def test_at_followers_a_read_shows_the_writes_of_its_own_connection_alone(by: str) -> None:
    def found(sender: int, fault: str = "", reads: str = READS) -> set[str]:
        story = Story()
        story.written.fault(reads, "follower")
        story.send(sender, 1, 2)
        story.written.fault(fault)
        return story.cut({}, "C" if by == "snapshot" else "", by=by).read(rows(1, 2)).names()

    anomaly = {"token-misses-write" if by == "snapshot" else "stale-scan"}
    assert found(0) == set(), "others' writes may come later"
    assert found(9) == anomaly, "a cut is of process 9"
    assert found(0, HEALED) == anomaly, "from then on reads are at the leader"
    assert found(0, reads="pause") == anomaly, "a history without a word reads at the leader"


def test_a_stream_from_the_newest_position_of_a_follower_has_its_own_connections_writes_behind_it() -> None:
    def found(sender: int) -> set[str]:
        story = Story()
        story.written.fault(READS, "follower")
        story.send(sender, 1, 2).poll({}, first=True, start="latest")
        return story.poll(rows(1, 2)).read(rows(1, 2)).names()

    assert found(0) == set()
    assert found(7) == {"nonmonotonic-poll"}, "a consumer is of process 7"


def test_a_pipelined_session_ends_anywhere() -> None:
    story = Story()
    asked = {"form": "writer", "parts": parts(1, 3, 5)}
    told = {"token": "", "acked": parts(1), "failed": [], "unknown": parts(3, 5)}
    story.written.call(0, "send", asked, told)
    assert story.send(0, 7).read(rows(1, 7, 3)).names() == set()


def test_a_commit_that_comes_behind_the_reads_of_the_end_is_not_lost() -> None:
    story = Story().send(0, 1).send(1, 2, kind=Kind.INFO).read(rows(1))
    assert story.poll(rows(1, 2), first=True).names() == set()


def two() -> Story:
    return Story().send(0, 1).send(0, 2)


def sleeping() -> Story:
    story = two().read(rows(1, 2))
    story.written.call(5, "wake", 7, {"woken": False})
    return story


CASES: dict[str, list[Story]] = {
    "asleep": [sleeping()],
    "inconsistent-offsets": [two().read(rows(1, 2)).poll(rows(2, 1), first=True)],
    "duplicate": [two().read(rows(1, 2, 1)), two().read({**rows(1, 2), **rows(2, key=OTHER)})],
    "phantom": [two().read(rows(1, 2, 3)), two().read({**rows(1), "jepsen.log9/0": [[0, 2]]})],
    "refused": [
        two().refused_send(1, 9, error="Invalid: sequence 9 of producer 'p' does not follow 0").read(rows(1, 2))
    ],
    "aborted-read": [two().send(1, 9, kind=Kind.FAIL).read(rows(1, 2, 9))],
    "precommitted-read": [Story().send(0, 1).poll(rows(1, 2), first=True).send(0, 2).read(rows(1, 2))],
    "lost": [
        two().read(rows(1)),
        Story().send(0, 1).send(1, 2, kind=Kind.INFO).poll(rows(1, 2), first=True).read(rows(1)),
    ],
    "unseen": [two().read(rows(1, 2)).read(rows(1))],
    "hole": [two().read({KEY: [[0, 1], [2, 2]]})],
    "torn": [
        two().read(rows(1, 2), torn=(1,)),
        Story().send(0, 1, 2, kind=Kind.INFO).read(rows(1)),
        Story().send(0, 1, 5, kind=Kind.INFO).read(rows(5)),
    ],
    "nonmonotonic-send": [two().read(rows(2, 1))],
    "int-send-skip": [
        Story().begin_send(0, 1, 2).send(1, 9).end_send(0, 1, 2).read(rows(1, 9, 2)),
    ],
    "session-gap": [Story().send(0, 1, 3, kind=Kind.INFO, form="writer").read(rows(3))],
    "realtime-order": [Story().send(0, 1).send(1, 101).read(rows(101, 1))],
    "order-cycle": [
        Story()
        .begin_send(0, 1, 3)
        .begin_send(1, 101, 103)
        .end_send(0, 1, 3)
        .end_send(1, 101, 103)
        .read({**rows(1, 101), **rows(103, 3, key=OTHER)})
    ],
    "poll-skip": [
        two().send(0, 3).poll(rows(1), first=True).poll(rows(3, first=2)).read(rows(1, 2, 3)),
        two().poll(rows(2, first=1), first=True).read(rows(1, 2)),
        two()
        .send(0, 4)
        .poll(rows(1), first=True, lane=1)
        .poll(rows(), lane=1)
        .send(0, 7)
        .poll(rows(7, first=3))
        .read(rows(1, 2, 4, 7)),
        Story().poll({}, first=True, start="latest").send(0, 1).send(0, 2).poll(rows(2, first=1)).read(rows(1, 2)),
        Story()
        .send(0, 1, token="A")
        .send(0, 2)
        .send(0, 3)
        .poll(rows(3, first=2), first=True, start="A")
        .read(rows(1, 2, 3)),
    ],
    "nonmonotonic-poll": [
        two().poll(rows(1, 2), first=True).poll(rows(2, first=1)).read(rows(1, 2)),
        two().poll(rows(1, 2), first=True, start="latest").read(rows(1, 2)),
        Story().send(0, 1, token="A").poll(rows(1), first=True, start="A").read(rows(1)),
    ],
    "int-poll-skip": [two().send(0, 3).poll({KEY: [[0, 1], [2, 3]]}, first=True).read(rows(1, 2, 3))],
    "int-nonmonotonic-poll": [two().poll({KEY: [[0, 1], [1, 2], [1, 2]]}, first=True).read(rows(1, 2))],
    "torn-poll": [
        Story().send(0, 1, 2).poll(rows(1), first=True).poll(rows(2, first=1)).read(rows(1, 2)),
        Story().send(0, 1, 2).poll(rows(1), first=True).read({**rows(1), **rows(2, key=OTHER)}),
    ],
    "unasked": [
        two().poll(rows(1, 2), first=True, lane=1).read(rows(1, 2)),
        two().poll({"jepsen.log9/0": [[0, 1]]}, first=True).read(rows(1, 2)),
    ],
    "cut-differs": [
        two().cut({KEY: [2]}, by="snapshot", token="C").read(rows(1, 2)),
        two().cut({KEY: [1, 2, 3]}, by="snapshot", token="C").read(rows(1, 2)),
        two().cut({KEY: [2]}, by="scan", lane=1).read(rows(1, 2)),
        two().cut({KEY: [1, 2]}, by="scan", odd={KEY: [1]}).read(rows(1, 2)),
    ],
    "stale-scan": [two().cut({KEY: [1]}, by="scan").read(rows(1, 2)), two().cut({}, by="scan").read(rows(1, 2))],
    "token-misses-write": [
        Story().send(0, 1).send(1, 101, token="B").cut({KEY: []}, "B").read(rows(1, 101)),
        Story().send(0, 1).send(1, 101, token="B").cut({KEY: [1]}, "B").read(rows(1, 101)),
        two().cut({KEY: [1]}, "C", by="snapshot").read(rows(1, 2)),
    ],
    "cut-ahead": [
        Story().send(0, 1, token="A").send(0, 2).cut({KEY: [1, 2]}, "A").read(rows(1, 2)),
        Story().cut({KEY: [1]}, "C", by="snapshot").send(0, 1).read(rows(1)),
    ],
    "torn-cut": [
        Story().send(0, 1, 2).cut({KEY: [1]}, by="scan").read({**rows(1), **rows(2, key=OTHER)}),
        Story().send(0, 1, 2, token="A").cut({KEY: [1]}, "A").read(rows(1, 2)),
    ],
    "cut-changed": [
        two().cut({KEY: [1, 2]}, "C", by="snapshot").cut({KEY: [1]}, "C").read(rows(1, 2)),
    ],
    "cuts-cross": [
        Story()
        .begin_send(0, 1)
        .begin_send(1, 101)
        .cut({KEY: [1]}, by="scan")
        .cut({OTHER: [101]}, by="scan")
        .end_send(0, 1)
        .end_send(1, 101)
        .read({**rows(1), **rows(101, key=OTHER)})
    ],
    "token-goes-back": [
        Story()
        .begin_send(0, 1)
        .begin_send(2, 201)
        .cut({KEY: [1]}, "C", by="snapshot")
        .cut({KEY: []}, "D", by="snapshot")
        .end_send(0, 1)
        .end_send(2, 201)
        .read(rows(1, 201))
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_each_anomaly_is_found(name: str) -> None:
    for story in CASES[name]:
        assert name in story.names(), CASES[name].index(story)


def test_lag_is_how_long_an_acknowledged_row_has_waited() -> None:
    def lag(*given: int) -> float:
        return worst_lag(Facts.of(two().poll(rows(*given), first=True).read(rows(1, 2)).written.history()))

    assert lag(1) > 0.0
    assert lag(1, 2) == 0.0
    told = Log(random.Random(1)).figures(two().poll(rows(1), first=True).read(rows(1, 2)).written.history())
    assert told["rows"] == 2


def test_in_some_runs_most_sends_are_of_the_producer_that_all_clients_open() -> None:
    shares = []
    for seed in range(20):
        drawn = itertools.islice(Log(random.Random(seed)).operations(0, random.Random(seed)), 200)
        forms = [each.value["form"] for each in drawn if each.f == "send"]
        shares.append(forms.count("shared") / len(forms))
    assert max(shares) > 0.5
    assert sorted(shares)[10] < 0.2, "most runs do all sorts"
