"""The bank's checks against hand-made histories of each anomaly, and good ones of unknown outcomes."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from jepsen.checkers.audits import INITIAL, OPENING, reachable
from jepsen.operation import Kind
from jepsen.system.clients import is_alone
from jepsen.workloads.bank import TABLES, Bank, BankOfEngines, BankOfSpark
from tests.jepsen.hand_made import Written, names


class Books:
    """A bank of one group and two added accounts in each table, whose sums hold for each table by itself."""

    def __init__(self) -> None:
        self.written = Written()
        seed = next(seed for seed in itertools.count() if _plan(seed) == (1, 2, False))
        self._bank = Bank(random.Random(seed))
        self._offsets = {table: itertools.count() for table in TABLES}

    @property
    def found(self) -> set[str]:
        return names(self._bank, self.written)

    def move(self, by: int, *balances: int) -> dict[str, Any]:
        return {"group": 0, "by": by, "balances": list(balances), "token": f"at {by}"}

    def cut(
        self, by: int = INITIAL, balances: tuple[int, ...] = (OPENING,) * 4, **added: list[list[int]]
    ) -> dict[str, Any]:
        left = [{"id": each, "balance": balances[each], "transfer": by} for each in (0, 2)]
        right = [{"id": each, "balance": balances[each], "transfer": by} for each in (1, 3)]
        sums = {table: added.get(table, [[OPENING, 1, 1], [OPENING, 1, 1]]) for table in ("credit", "debit")}
        rows = {
            table: [{"id": at, "balance": b, "moves": m, "known": k} for at, (b, m, k) in enumerate(held)]
            for table, held in sums.items()
        }
        return {"cut": {"left": left, "right": right, **rows}}

    def opening(self, kind: str = "+I") -> list[dict[str, Any]]:
        """The batches of the commit that made the accounts."""
        cut = self.cut()["cut"]
        return [
            {
                "table": f"jepsen.bank_{table}",
                "whole": table == "debit",
                "snapshot": False,
                "token": "",
                "rows": [[kind, 0, next(self._offsets[table]), row, ""] for row in cut[table]],
            }
            for table in TABLES
        ]

    def change(self, table: str, *changes: list[Any], whole: bool = True) -> dict[str, Any]:
        return {"table": f"jepsen.bank_{table}", "whole": whole, "snapshot": False, "token": "", "rows": list(changes)}

    def follow(self, *batches: dict[str, Any], start: str = "earliest") -> None:
        self.written.call(7, "follow", None, {"start": start, "batches": list(batches)})


def _plan(seed: int) -> tuple[int, int, bool]:
    plan = Bank(random.Random(seed))._plan
    return plan.groups, plan.added, plan.crosses


def row(account: int, balance: int, transfer: int = INITIAL) -> dict[str, int]:
    return {"id": account, "balance": balance, "transfer": transfer}


def test_unknown_outcomes_and_older_cuts_are_no_anomaly() -> None:
    books = Books()
    written = books.written
    written.call(0, "snapshot", None, books.cut())
    written.unknown(0, "move", books.move(1, 40, 160, 100, 100))
    written.call(1, "snapshot", None, books.cut())
    written.call(1, "snapshot", None, books.cut(1, (40, 160, 100, 100)))
    written.call(1, "move", books.move(2, 0, 0, 0, 400))
    written.failed(1, "move", books.move(3, 400, 0, 0, 0))
    written.unknown(4, "add", {"by": 5, "rows": [["credit", 0, 3], ["credit", 1, -3]]})
    written.call(1, "add", {"by": 6, "rows": [["credit", 0, 1], ["credit", 1, -1]]})
    written.call(1, "past", {"back": 0}, {"of": [0, 2], **books.cut(2, (0, 0, 0, 400))})
    written.call(1, "time", {"back": 0}, books.cut())
    written.call(1, "scan", {"table": "left"}, {"cut": {"left": [row(0, 0, 2), row(2, 0, 2)]}})
    sums = [[OPENING + 4, 3, 3], [OPENING - 4, 3, 3]]
    written.call(1, "final", None, books.cut(2, (0, 0, 0, 400), credit=sums))
    batches = books.opening()
    images = [["-U", 0, 2, row(0, OPENING), ""], ["+U", 0, 2, row(0, 0, 2), ""]]
    images += [["-U", 0, 3, row(2, OPENING), ""], ["+U", 0, 3, row(2, 0, 2), ""]]
    others = [["-U", 0, 2, row(1, OPENING), ""], ["+U", 0, 2, row(1, 0, 2), ""]]
    others += [["-U", 0, 3, row(3, OPENING), ""], ["+U", 0, 3, row(3, 400, 2), ""]]
    books.follow(*batches)
    books.follow(books.change("left", *images, whole=False), books.change("right", *others), start="")
    assert books.found == set()


def test_parts_of_two_transfers_are_half_a_commit() -> None:
    books = Books()
    books.written.call(0, "move", books.move(1, 40, 160, 100, 100))
    cut = books.cut(1, (40, 160, 100, 100))
    cut["cut"]["right"] = books.cut()["cut"]["right"]
    books.written.call(1, "sql", None, cut)
    assert books.found == {"half-commit"}


def test_balances_and_transfers_are_not_invented() -> None:
    for by, balances in ((1, (41, 159, 100, 100)), (9, (OPENING,) * 4)):
        books = Books()
        books.written.call(0, "move", books.move(1, 40, 160, 100, 100))
        books.written.call(1, "lookup", {"table": "left"}, {"cut": {"left": books.cut(by, balances)["cut"]["left"]}})
        assert books.found == {"invented"}


def test_a_failed_transfer_is_never_seen() -> None:
    books = Books()
    books.written.failed(0, "move", books.move(1, 40, 160, 100, 100))
    books.written.call(1, "snapshot", None, books.cut(1, (40, 160, 100, 100)))
    assert books.found == {"aborted-read"}


def test_an_acknowledged_transfer_is_seen_from_then_on() -> None:
    books = Books()
    books.written.call(0, "move", books.move(1, 40, 160, 100, 100))
    books.written.call(1, "snapshot", None, books.cut())
    assert books.found == {"stale"}


@pytest.mark.parametrize(
    ("sums", "name"),
    [
        ([[OPENING + 3, 2, 2], [OPENING, 2, 2]], "wrong-sum"),
        ([[OPENING + 6, 3, 2], [OPENING - 6, 3, 2]], "applied-twice"),
        ([[OPENING, 1, 1], [OPENING, 1, 1]], "lost"),
        ([[OPENING + 3, 3, 3], [OPENING - 3, 3, 3]], "invented"),
        ([[OPENING + 2, 2, 2], [OPENING - 2, 2, 2]], "wrong-balance"),
    ],
)
def test_added_accounts_hold_all_deltas_once(sums: list[list[int]], name: str) -> None:
    books = Books()
    books.written.call(0, "add", {"by": 5, "rows": [["credit", 0, 3], ["credit", 1, -3]]})
    books.written.call(1, "final", None, books.cut(credit=sums))
    assert name in books.found


def test_a_missing_and_a_doubled_account() -> None:
    books = Books()
    books.written.call(1, "scan", {"table": "left"}, {"cut": {"left": [row(0, OPENING)]}})
    assert books.found == {"accounts"}
    books = Books()
    books.written.call(1, "scan", {"table": "left"}, {"cut": {"left": [row(0, OPENING), *[row(2, OPENING)] * 2]}})
    assert books.found == {"row-twice"}


FIRST, SECOND = (40, 160, 100, 100), (160, 40, 100, 100)


def test_a_token_s_cut_shows_its_own_transfer() -> None:
    books = Books()
    for by, balances in ((1, FIRST), (2, SECOND)):
        books.written.call(0, "move", books.move(by, *balances))
    books.written.call(1, "past", {"back": 1}, {"of": [0, 1], **books.cut(2, SECOND)})
    assert books.found == {"not-the-cut"}


@pytest.mark.parametrize(
    ("outcome", "token", "found"),
    [
        (Kind.OK, "at 1", set()),
        (Kind.INFO, "", set()),
        (Kind.OK, "at 2", {"not-the-cut"}),
    ],
)
def test_transfers_at_once_may_share_a_token(outcome: Kind, token: str, found: set[str]) -> None:
    books = Books()
    first, second = books.move(1, *FIRST), books.move(2, *SECOND)
    books.written.begin(0, "move", first).begin(1, "move", second)
    books.written.end(0, "move", first)
    books.written.end(1, "move", {**second, "token": token}, outcome)
    books.written.call(2, "past", {"back": 1}, {"of": [0, 1], **books.cut(2, SECOND)})
    assert books.found == found


def test_a_token_s_cut_shows_no_transfer_of_unknown_outcome_that_began_later() -> None:
    books = Books()
    first, second = books.move(1, *FIRST), books.move(2, *SECOND)
    books.written.call(0, "move", first).unknown(1, "move", second)
    books.written.call(2, "past", {"back": 1}, {"of": [0, 1], **books.cut(2, SECOND)})
    assert books.found == {"not-the-cut"}


GIVEN, TAKEN = ["-U", 0, 2, row(0, OPENING), ""], ["+U", 0, 2, row(0, 0, 2), ""]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ([GIVEN, TAKEN], "half-commit"),
        ([["-U", 0, 2, row(0, 7), ""], TAKEN], "false-before-image"),
        ([TAKEN], "no-before-image"),
        ([GIVEN], "unpaired-image"),
        ([["+I", 0, 2, row(0, 7), ""]], "insert-of-present"),
        ([["-D", 0, 2, row(8, 7), ""]], "change-of-absent"),
        ([["-D", 0, 2, row(0, 7), ""]], "false-before-image"),
        ([["-D", 0, 2, row(0, OPENING), ""]], "accounts"),
        ([["+X", 0, 2, row(0, 7), ""]], "unknown-change"),
        ([["+I", 0, 3, row(8, 7), ""]], "not-reliable"),
        ([["+I", 0, 1, row(8, 7), ""]], "not-unique"),
        ([["+I", 0, 0, row(8, 7), ""]], "not-ordered"),
    ],
)
def test_streams_are_audited_behind_every_whole_commit(changes: list[list[Any]], name: str) -> None:
    books = Books()
    books.written.call(0, "move", books.move(2, 0, 0, 0, 400))
    books.follow(*books.opening())
    books.follow(books.change("left", *changes), start="")
    assert name in books.found


def test_choices_of_unknown_deltas() -> None:
    assert reachable([3, -3]) == {(0, 0), (1, 3), (1, -3), (2, 0)}


def test_deltas_cancel_out_and_one_seed_replays() -> None:
    for seed in range(20):
        bank = BankOfEngines(random.Random(seed))
        first, again = ([*itertools.islice(bank.operations(1, random.Random(3)), 200)] for _ in "ab")
        assert first == again
        for each in first:
            if each.f == "add":
                tables = {table for table, _, _ in each.value["rows"]}
                assert sum(delta for _, _, delta in each.value["rows"]) == 0
                assert bank._plan.crosses or len(tables) == 1
            if each.f == "move":
                assert sum(each.value["balances"]) == 4 * OPENING


def test_one_process_reads_by_spark_and_the_others_transfer_meanwhile() -> None:
    """Two sessions of Spark that come up in the middle of a run take all of it."""
    bank = BankOfSpark(random.Random(1))
    drawn = [list(itertools.islice(bank.operations(process, random.Random(process)), 200)) for process in range(3)]
    spark = [[each for each in one if each.f == "spark"] for one in drawn]
    assert len(spark[0]) > 120
    assert sum(not each.value["table"] for each in spark[0]) > 60, "statements over all tables"
    assert not spark[1]
    assert not spark[2]
    assert not is_alone(bank), "its clients share the session"
