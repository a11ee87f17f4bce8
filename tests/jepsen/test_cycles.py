"""The checker of lists against hand-made histories, Elle's published ones, and a search through all orders."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence

import pytest

from jepsen.checkers.appends import Lists, Transaction
from jepsen.checkers.cycles import Graph, Link
from jepsen.operation import Kind

Micro = tuple[str, str, int | list[int]]


def micro(text: str) -> tuple[Micro, ...]:
    """`ax1` appends 1 to x, `rx12` reads x as [1, 2], and `rx` as empty; as Elle's own tests write it."""
    return tuple(
        ("append", key, int(values)) if f == "a" else ("r", key, [int(value) for value in values])
        for f, key, values in re.findall(r"([ar])([x-zt-w])(\d*)", text)
    )


def at_once(*texts: str) -> list[Transaction]:
    """Transactions that overlap, each of a process of its own; `!` before one says it has failed, `?` unknown."""
    kinds = {"!": Kind.FAIL, "?": Kind.INFO}
    return [
        Transaction(
            index,
            index,
            index,
            float("inf") if text[0] == "?" else 1_000 + index,
            kinds.get(text[0], Kind.OK),
            micro(text),
        )
        for index, text in enumerate(texts)
    ]


def one_after_another(*texts: tuple[int, str]) -> list[Transaction]:
    """Transactions of processes, none of which overlap."""
    return [
        Transaction(2 * index, process, 2 * index, 2 * index + 1, Kind.OK, micro(text))
        for index, (process, text) in enumerate(texts)
    ]


def names(transactions: Sequence[Transaction]) -> set[str]:
    return {each.name for each in Lists(transactions).anomalies()}


# Of elle's test/elle/list_append_test.clj and histories/, whose verdicts these are.
PUBLISHED = [
    (["ax1ay1", "ax2ay2", "rx12ry21"], "G0"),
    (["ax1ry1", "ax2ay1", "rx12"], "G1c"),
    (["rxay1", "ryax1", "rx1ry1"], "G2-item"),
    (["rxay1", "ryax1"], "G2-item"),
    (["ax1", "rx1ry", "ay1", "ry1rx"], "G-nonadjacent"),
    (["ax1at1", "rx1ry", "ay1az2", "rz2rt"], "G-nonadjacent"),
    (["ax1ay1", "rx1ry"], "G-single"),
    (["ax1ay1", "ax2ay2", "ax3ay3", "rx12", "ry2"], "G0"),
    (["ax0", "rx0ax1", "rx0ax2"], "lost-update"),
    (["ax0", "rx0ax1", "rx0ax2"], "G2-item"),
    (["ax1ry1", "ax2", "ax3ay1", "rx13", "rx123"], "incompatible-order"),
    (["ax1ry1", "ax2", "ax3ay1", "rx13", "rx123"], "G1c"),
    (["ax1ry1", "ax2ay1", "rx121"], "duplicate-elements"),
    (["rx1ax2", "rx12ry3", "!ax1", "ay3"], "G1a"),
    (["!ax1", "ax2", "rx12"], "G1a"),
    (["rx1", "rx12", "ax1ax2", "ax3", "rx123"], "G1b"),
    (["ax1ax2ax4", "ax3rx1234"], "internal"),
    (["rx12ax3rx12", "ax1", "ax2"], "internal"),
    (["ax3rx"], "internal"),
    (["rx1ax1"], "future-read"),
    (["rx12", "ax1"], "phantom"),
    (["ax1ax2", "rx21"], "reordered"),
]


@pytest.mark.parametrize(("texts", "name"), PUBLISHED)
def test_published_anomalies_are_found_under_their_names(texts: list[str], name: str) -> None:
    assert name in names(at_once(*texts))


PROCESS = [
    ([(0, "ax1"), (1, "ax2"), (1, "rx1"), (2, "rx12")], "G-single-process"),
    ([(0, "rxrz1"), (1, "ax1"), (1, "rz"), (2, "az1")], "G-nonadjacent-process"),
    ([(1, "rx1ay1"), (2, "ry1"), (2, "ax1")], "G1c-process"),
    ([(1, "ax1"), (1, "ax2"), (3, "rx21")], "G0-process"),
    ([(1, "rx"), (2, "rxry1"), (2, "ax1"), (1, "ay1")], ""),
]


@pytest.mark.parametrize(("steps", "name"), PROCESS)
def test_an_order_within_one_process_counts(steps: list[tuple[int, str]], name: str) -> None:
    overlapping = [
        Transaction(each.number, each.process, each.begin, each.end, each.kind, each.operations)
        for each in one_after_another(*steps)
    ]
    spread = [
        Transaction(each.number, each.process, index - 100, 1_000 + index, each.kind, each.operations)
        for index, each in enumerate(overlapping)
    ]
    graph = Lists(spread).graph()
    last: dict[int | str, int] = {}
    for each in spread:  # overlapping in time, so that the processes' own orders alone contradict
        if each.process in last:
            graph.add(last[each.process], each.number, Link.PROCESS, "")
        last[each.process] = each.number
    assert [cycle.name for cycle in graph.cycles()] == ([name] if name else [])


REALTIME = [
    ([(0, "ax1"), (1, "ax2"), (2, "rx"), (3, "rx12")], "G-single-realtime"),
    ([(0, "ax1"), (1, "ax2"), (2, "rx21")], "G0-realtime"),
    ([(0, "rx1"), (1, "ax1")], "G1c-realtime"),
    ([(0, "rx1"), (1, "rx"), (2, "ay1"), (3, "ry"), (4, "ax1ay2")], "G1c-realtime"),
    ([(0, "ax1"), (1, "rx")], "G-single-realtime"),
    ([(0, "ax1"), (1, "rx")], "lost"),
]


@pytest.mark.parametrize(("steps", "name"), REALTIME)
def test_what_has_ended_comes_before_what_begins(steps: list[tuple[int, str]], name: str) -> None:
    assert name in names(one_after_another(*steps))


GOOD = [
    ["ax1", "rx1"],
    ["rx", "ax1", "rx1"],
    ["az1ax1ay1", "rx1ay2", "ry12az3", "rz13"],
    ["?ax2", "ax1ay1", "rx12ry1"],
    ["?ax1ay1", "?ax2ay2", "rx1ry1", "rx12ry12"],
    ["?ax1", "rx", "ax2", "rx2"],
    ["?ax1", "rx", "rx1"],
    ["?rxax1", "rxax2", "rx2"],
    ["!ax1", "ax2", "rx2"],
    ["ax1ax2", "rx12", "rx12ry"],
]


@pytest.mark.parametrize("texts", GOOD)
def test_what_a_serial_order_explains_is_no_anomaly(texts: list[str]) -> None:
    assert not names(at_once(*texts))


def test_a_cycle_without_rw_edges_side_by_side_is_told_from_one_with_them() -> None:
    """Of rw, rw, wr, rw, wr the first two follow one another: snapshot isolation allows it, a serial order does not."""
    texts = ["rx5ry", "ay1rz", "az2at3", "rt3ru", "au4ax5"]
    assert names(at_once(*texts)) == {"G2-item"}


def test_the_evidence_is_the_shortest_cycle_in_words() -> None:
    graph = Graph()
    for start, end in [(1, 2), (2, 3), (3, 4), (4, 1), (3, 1)]:
        graph.add(start, end, Link.WW, f"{start} then {end}")
    (cycle,) = graph.cycles()
    assert {edge.start for edge in cycle.edges} == {1, 2, 3}
    said = cycle.sentence({1: "[append x 1]"})
    assert "operation 1 [append x 1]" in said
    assert "(3 then 1)" in said


def test_a_long_chain_needs_no_recursion() -> None:
    graph = Graph()
    for node in range(5_000):
        graph.add(node, node + 1, Link.WW, "")
    assert graph.cycles() == []
    graph.add(5_000, 0, Link.WW, "")
    assert len(graph.components()[0]) == 5_001


def test_a_value_that_is_appended_twice_is_the_test_s_own_mistake() -> None:
    with pytest.raises(ValueError, match="twice"):
        Lists(at_once("ax1", "ax1"))


def is_serial(transactions: Sequence[Transaction]) -> bool:
    """Whether any order of all that was acknowledged, with some of what is unknown, explains every read."""
    sure = [each for each in transactions if each.kind is Kind.OK]
    unsure = [each for each in transactions if each.kind is Kind.INFO]
    for count in range(len(unsure) + 1):
        for more in itertools.combinations(unsure, count):
            for order in itertools.permutations([*sure, *more]):
                if explains(order):
                    return True
    return False


def explains(order: Sequence[Transaction]) -> bool:
    lists: dict[str, list[int]] = {}
    for index, each in enumerate(order):
        if any(later.end < each.begin for later in order[index + 1 :]):
            return False
        for f, key, value in each.operations:
            if f == "append":
                lists.setdefault(key, []).append(value)
            elif each.kind is Kind.OK and value != lists.get(key, []):
                return False
    return True


def tiny(chance: random.Random) -> list[Transaction]:
    """Some transactions over two keys in a serial order, with errors planted now and then; all is read at the end."""
    count, following, lists = chance.randint(2, 4), itertools.count(1), {"x": list[int](), "y": list[int]()}
    made: list[Transaction] = []
    moments = sorted(chance.sample(range(100), 2 * count))
    intervals = []
    for _ in range(count):
        begin = moments.pop(0)
        intervals.append(
            (begin, moments.pop(chance.randrange(min(len(moments), 2 + chance.randrange(2))) if moments else 0))
        )
    versions = [{key: list(value) for key, value in lists.items()}]
    for number, (begin, end) in enumerate(intervals):
        steps: list[Micro] = []
        fate = chance.choices((Kind.OK, Kind.INFO, Kind.FAIL), (8, 2, 1))[0]
        happens = fate is Kind.OK or (fate is Kind.INFO and chance.random() < 0.5)
        shown = chance.choice(versions) if chance.random() < 0.3 else lists
        for _ in range(chance.randint(1, 3)):
            key = chance.choice("xy")
            if chance.random() < 0.5:
                value = next(following)
                steps.append(("append", key, value))
                if happens:
                    at = chance.randrange(len(lists[key]) + 1) if chance.random() < 0.1 else len(lists[key])
                    lists[key].insert(at, value)
            else:
                steps.append(("r", key, list(shown[key])))
        versions.append({key: list(value) for key, value in lists.items()})
        last = float("inf") if fate is Kind.INFO else float(end)
        made.append(Transaction(number, number, begin, last, fate, tuple(steps)))
    read: list[Micro] = [("r", key, list(lists[key])) for key in "xy"]
    return [*made, Transaction(100, 100, 100, 101, Kind.OK, tuple(read))]


def test_verdicts_equal_a_search_through_all_orders() -> None:
    chance, seen = random.Random(14), {True: 0, False: 0}
    for _ in range(800):
        transactions = tiny(chance)
        valid = is_serial(transactions)
        found = Lists(transactions).anomalies()
        assert (not found) == valid, (transactions, found)
        seen[valid] += 1
    assert min(seen.values()) > 80, seen
