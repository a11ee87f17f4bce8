"""Reads at followers: each workload names a read that lacks what it must show, and no read that is merely late.

The stories are the same for every workload. Process 0 writes first and process 1 second. Then process 9, or one of the
writers, reads a state behind no write, one or two.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from jepsen.checkers.audits import INITIAL, OPENING
from jepsen.checkers.freshness import Bound, Freshness
from jepsen.checkers.registers import judge
from jepsen.checkers.tallies import row_of
from jepsen.history import History
from jepsen.operation import HEALED, READS, SHAPE
from jepsen.workloads import WORKLOADS
from tests.jepsen.hand_made import Written


@dataclass(frozen=True)
class Words:
    """The calls of a workload: the write and the read of each state, by the number of writes that it has."""

    writes: tuple[tuple[str, Any, Any], tuple[str, Any, Any]]
    """Function, value and answer of two writes."""
    read: tuple[str, Any]
    states: tuple[Any, Any, Any]
    """Answers of the read behind no write, one and two."""
    missing: frozenset[str]
    """Anomalies of a read that lacks a write which it must show."""
    shape: Any = None


def _register(number: int) -> tuple[str, Any, Any]:
    asked = {"form": "table", "kind": "upsert", "rows": [["0/k0", {"a": number, "b": number}]]}
    return "write", asked, {"token": "", "said": None}


def _registers(*numbers: int) -> Any:
    rows = {"0/k0": [numbers[-1], numbers[-1], None]} if numbers else {}
    return {"token": "", "rows": rows, "also": None, "torn": []}


def _move(by: int) -> tuple[str, Any, Any]:
    asked = {"group": 0, "by": by, "balances": [OPENING] * 4}
    return "move", asked, {**asked, "token": f"at {by}"}


def _accounts(by: int) -> Any:
    return {"cut": {"left": [{"id": account, "balance": OPENING, "transfer": by} for account in (0, 2)]}}


def _copy(by: int) -> tuple[str, Any, Any]:
    asked = {"by": by, "moves": [[0, 1]], "late": False}
    return "copy", asked, {**asked, "reader": by, "spans": [[0, by, by + 1]]}


def _copies(count: int) -> Any:
    rows = [[0, by, by + 1, by] for by in range(count)]
    return {"first": 0, "at": [[0, count]], "log": rows, "keyed": rows}


def _passing(by: int) -> tuple[str, Any, Any]:
    asked = {"table": "log", "old": False, "rows": [by], "leave": 0}
    return "pass-write", asked, {**asked, "tag": 1}


def _passed(*rows: int) -> Any:
    return {"tag": 1, "names": ["id", "by", "a"], "rows": [[by, by, f"T1:{by}"] for by in rows]}


def _ids(*numbers: int) -> Any:
    return {"rows": {"k": row_of(numbers)} if numbers else {}}


def _append(value: int) -> tuple[str, Any, Any]:
    return "append", [["append", 1, value]], [["append", 1, value]]


ALL = {
    "administration": Words(
        (("write", {"rows": [1]}, None), ("write", {"rows": [2]}, None)),
        ("read", {"by": "scan"}),
        ({"rows": []}, {"rows": [1]}, {"rows": [1, 2]}),
        frozenset({"lost"}),
    ),
    "bank": Words(
        (_move(1), _move(2)),
        ("scan", {"table": "left"}),
        (_accounts(INITIAL), _accounts(1), _accounts(2)),
        frozenset({"stale"}),
        {"groups": 1, "added": 2, "crosses": False},
    ),
    "contract": Words(
        (
            ("write", {"rows": [[1, 1, False]], "status": "new"}, None),
            ("write", {"rows": [[2, 1, False]], "status": "new"}, None),
        ),
        ("read", {}),
        ({"rows": [], "letters": []}, {"rows": [1], "letters": []}, {"rows": [1, 2], "letters": []}),
        frozenset({"lost"}),
    ),
    "copying": Words(
        (_copy(0), _copy(1)),
        ("read", {"first": 0}),
        (_copies(0), _copies(1), _copies(2)),
        frozenset({"lost", "position-back"}),
    ),
    "counters": Words(
        (("add", {"adds": [["k", 1]]}, {}), ("add", {"adds": [["k", 2]]}, {})),
        ("read", {"keys": ["k"], "by": "lookup"}),
        (_ids(), _ids(1), _ids(1, 2)),
        frozenset({"lost-increment"}),
    ),
    "evolution": Words(
        (_passing(1), _passing(2)),
        ("pass-read", {"table": "log", "old": False}),
        (_passed(), _passed(1), _passed(1, 2)),
        frozenset({"lost"}),
    ),
    "list_append": Words(
        (_append(10), _append(11)),
        ("lookup", [["r", 1, None]]),
        ([["r", 1, []]], [["r", 1, [10]]], [["r", 1, [10, 11]]]),
        frozenset({"G-single-process", "G-single-realtime"}),
    ),
    "register": Words(
        (_register(1), _register(2)),
        ("lookup", {"keys": ["0/k0"], "by": "now"}),
        (_registers(), _registers(1), _registers(1, 2)),
        frozenset({"nonlinearizable"}),
    ),
}


def found(name: str, reader: int, seen: int, *, at: str = "follower", healed: bool = False) -> set[str]:
    """The anomalies of a read behind two writes, of processes 0 and 1, that shows so many of them."""
    words, written = ALL[name], Written()
    if at != "leader":
        written.fault(READS, at)
    if words.shape is not None:
        written.call(5, SHAPE, words.shape)
    for process, (f, value, answer) in enumerate(words.writes):
        written.call(process, f, value, value if answer is None else answer)
    if healed:
        written.fault(HEALED)
    f, value = words.read
    written.call(reader, f, value, words.states[seen])
    written.fault(HEALED)
    written.call(8, f, value, words.states[2])
    history = written.history()
    if name == "register":
        return {each.name for each in judge(history, "upsert")[0]}
    return {each.name for each in WORKLOADS[name](random.Random(1)).check(history)}


@pytest.mark.parametrize("name", ALL)
def test_a_read_at_a_follower_may_lack_the_writes_of_others(name: str) -> None:
    assert [found(name, 9, seen) for seen in range(3)] == [set()] * 3
    assert found(name, 0, 1) == set(), "its own write is there"
    assert found(name, 9, 0, at="nearest") == set()


@pytest.mark.parametrize("name", ALL)
def test_a_read_at_a_follower_shows_its_own_connections_writes(name: str) -> None:
    assert found(name, 0, 0) & ALL[name].missing
    assert found(name, 1, 1) & ALL[name].missing


@pytest.mark.parametrize("name", ALL)
def test_a_read_at_the_leader_shows_everything(name: str) -> None:
    for seen in range(2):
        assert found(name, 9, seen, at="leader") & ALL[name].missing
        assert found(name, 9, seen, healed=True) & ALL[name].missing, "from then on reads are at the leader"
    assert found(name, 9, 2, at="leader") == set()


def _bounds(*reads: tuple[int, str]) -> list[Bound]:
    """The bounds of reads after three writes. Processes 0 and 1 have one acknowledged; one of process 0 is unknown."""
    written = Written().fault(READS, "follower")
    written.call(0, "write").call(1, "write").unknown(0, "write")
    for process, f in reads:
        written.call(process, f)
    history: History = written.history()
    freshness = Freshness(history, history.calls("write"))
    return [freshness.bound(call) for call in history.calls("read")]


def test_a_bound_is_the_last_acknowledged_write_of_the_own_connection() -> None:
    assert _bounds((0, "read"), (1, "read"), (2, "read")) == [Bound(1, 1, True), Bound(3, 3, True), Bound(0, -1, True)]
    assert [each.may_be_empty for each in _bounds((0, "read"), (2, "read"))] == [False, True]


def test_an_own_write_brings_all_that_was_acknowledged_before_it() -> None:
    """Process 1 wrote key j after the write of key k was acknowledged: its read of k shows that one, too."""

    def lacking(reader: int) -> set[str]:
        written = Written().fault(READS, "follower")
        written.call(0, "add", {"adds": [["k", 1]]}, {}).call(1, "add", {"adds": [["j", 2]]}, {})
        history = written.call(reader, "read", {"keys": ["k"], "by": "lookup"}, _ids()).history()
        return {each.name for each in WORKLOADS["counters"](random.Random(1)).check(history)}

    assert lacking(1) == {"lost-increment"}
    assert lacking(9) == set()


@pytest.mark.parametrize("reader", [0, 9])
def test_accounts_are_all_there_or_not_made_yet(reader: int) -> None:
    def cut(f: str, **rows: Any) -> set[str]:
        written = Written().fault(READS, "follower").call(5, SHAPE, ALL["bank"].shape)
        written.call(0, *_move(1))
        answer = {"of": [0, 1], "cut": {"left": [], "right": [], **rows}}
        history = written.call(reader, f, {"back": 0, "lookup": False}, answer).history()
        return {each.name for each in WORKLOADS["bank"](random.Random(1)).check(history)}

    assert ("accounts" in cut("snapshot")) == (reader == 0), "the accounts were there before its own write"
    assert ("accounts" in cut("time")) == (reader == 0)
    assert "accounts" in cut("past"), "a follower waits for a token"
    assert "accounts" in cut("snapshot", left=_accounts(INITIAL)["cut"]["left"]), "one commit makes all"
