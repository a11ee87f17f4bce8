"""Accounts: no read shows half of a transfer, a sum that nobody made, or a balance that nobody wrote.

Groups of accounts are written whole: each transfer of a group names itself in every row. Added accounts are sums of
deltas, of which each table's, or all tables' together, cancel out; they count their deltas twice over, as a number and
as a set, so that one that counts twice shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jepsen.anomaly import Anomaly
from jepsen.checkers.freshness import Bound
from jepsen.operation import Call, Kind

INITIAL = -1
"""The name of the transfer that made the accounts."""
OPENING = 100
"""The balance of every account at first."""
ADDED = ("credit", "debit")
"""Tables whose balances are sums."""
UNSURE_MAX = 16
"""Deltas of unknown outcome of one account, up to which its last balance is explained."""
Cut = dict[str, dict[int, dict[str, Any]]]
"""By table the rows by account."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The accounts of a run."""

    groups: int
    added: int
    """Added accounts of each table."""
    crosses: bool
    """Whether deltas cancel out over both tables together only."""

    def group(self, number: int) -> list[tuple[str, int]]:
        """Tables and accounts of one group, in the order of a transfer's balances."""
        return [(table, 4 * number + place) for place, table in enumerate(("left", "right") * 2)]

    def accounts(self, table: str) -> list[int]:
        """The accounts of a table."""
        if table in ADDED:
            return list(range(self.added))
        return [account for number in range(self.groups) for each, account in self.group(number) if each == table]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One transfer of a group."""

    name: int
    group: int
    balances: tuple[int, ...]
    begin: int
    end: float
    kind: Kind
    token: str = ""
    """The token that an acknowledged transfer was answered with."""


class Audit:
    """All transfers of a history, against which cuts are held."""

    def __init__(self, plan: Plan, moves: Iterable[Call], adds: Iterable[Call]) -> None:
        self._plan = plan
        opening = {number: Transfer(INITIAL, number, (OPENING,) * 4, -1, -1, Kind.OK) for number in range(plan.groups)}
        self._transfers: dict[tuple[int, int], Transfer] = {(INITIAL, number): opening[number] for number in opening}
        for call in moves:
            asked = call.invoked.value
            name, group, balances = asked["by"], asked["group"], tuple(asked["balances"])
            token = call.value["token"] if call.kind is Kind.OK else ""
            made = Transfer(name, group, balances, call.invoked.index, call.ended, call.kind, token)
            self._transfers[name, group] = made
        self._groups: dict[int, list[Transfer]] = {}
        for each in self._transfers.values():
            self._groups.setdefault(each.group, []).append(each)
        self._deltas: dict[tuple[str, int], list[tuple[int, Call]]] = {}
        for call in adds:
            for table, account, delta in call.invoked.value["rows"] if call.kind is not Kind.FAIL else ():
                self._deltas.setdefault((table, account), []).append((delta, call))

    def cut(
        self,
        cut: Cut,
        operation: int,
        bound: Bound | None = None,
        end: float = float("inf"),
        *,
        may_be_empty: bool = False,
    ) -> Iterator[Anomaly]:
        """Faults of the rows of one cut; with a bound also that something is missing that the read must show.

        `may_be_empty`: the cut may lie before the commit that made all accounts.
        """
        if may_be_empty and not any(cut.values()):
            return
        for table, rows in cut.items():
            lacking = set(self._plan.accounts(table)) - set(rows)
            strange = set(rows) - set(self._plan.accounts(table))
            if lacking or strange:
                sentence = f"{table} lacks accounts {sorted(lacking)} and has {sorted(strange)}, which nobody made"
                yield Anomaly("accounts", sentence, (operation,))
        for number in range(self._plan.groups):
            yield from self._group(cut, number, operation, bound)
        yield from self._sums(cut, operation)
        if bound is not None:
            yield from self._counts(cut, operation, bound, end)

    def at_token(self, cut: Cut, number: int, name: int, operation: int) -> Iterator[Anomaly]:
        """A cut at a transfer's token shows that transfer.

        Commits that become durable together share their token: then it shows the last of those, which may be one whose
        outcome nobody was told.
        """
        own = self._transfers[name, number]
        for shown in sorted({row["transfer"] for row in self._rows(cut, number).values()} - {name}):
            seen = self._transfers.get((shown, number))
            is_beside = seen is not None and seen.begin < own.end and seen.end > own.begin
            if seen is None or not is_beside or seen.token not in ("", own.token):
                sentence = f"group {number} shows transfer {shown} at the token of transfer {name}"
                yield Anomaly("not-the-cut", sentence, (operation,))

    def _group(self, cut: Cut, number: int, operation: int, bound: Bound | None) -> Iterator[Anomaly]:
        rows = self._rows(cut, number)
        names = {row["transfer"] for row in rows.values()}
        if len(names) > 1:
            sentence = f"group {number} shows parts of several transfers: {dict(sorted(rows.items()))}"
            yield Anomaly("half-commit", sentence, (operation,))
            return
        for name in names:
            transfer = self._transfers.get((name, number))
            if transfer is None:
                yield Anomaly("invented", f"group {number} shows transfer {name}, which nobody made", (operation,))
                continue
            if transfer.kind is Kind.FAIL:
                yield Anomaly("aborted-read", f"group {number} shows transfer {name}, which had failed", (operation,))
            balances = {place: row["balance"] for place, row in rows.items()}
            if any(transfer.balances[place] != balance for place, balance in balances.items()):
                sentence = f"group {number} is {balances} by transfer {name}, which wrote {list(transfer.balances)}"
                yield Anomaly("invented", sentence, (operation,))
            if bound is not None:
                yield from self._stale(transfer, operation, bound)

    def _rows(self, cut: Cut, number: int) -> dict[int, dict[str, Any]]:
        """The rows of a group that a cut has, by their places in a transfer."""
        members = [(place, table, account) for place, (table, account) in enumerate(self._plan.group(number))]
        return {place: cut[table][account] for place, table, account in members if account in cut.get(table, {})}

    def _stale(self, seen: Transfer, operation: int, bound: Bound) -> Iterator[Anomaly]:
        """The read must show a later transfer."""
        for each in self._groups[seen.group]:
            is_due = each.kind is Kind.OK and bound.covers_write(each.begin, each.end)
            if is_due and seen.end < each.begin:
                sentence = f"group {seen.group} shows transfer {seen.name}, though transfer {each.name} followed"
                yield Anomaly(
                    "stale", f"{sentence} and was acknowledged before the read began", (operation, each.begin)
                )
                return

    def _sums(self, cut: Cut, operation: int) -> Iterator[Anomaly]:
        added = {table: rows for table, rows in cut.items() if table in ADDED}
        for table, rows in added.items():
            for account, row in rows.items():
                if row["moves"] != row["known"]:
                    sentence = f"account {account} of {table} counts {row['moves']} deltas and has {row['known']}"
                    yield Anomaly("applied-twice", sentence, (operation,))
            if not self._plan.crosses:
                yield from self._sum(f"table {table}", rows.values(), self._plan.added, operation)
        if self._plan.crosses and len(added) == 2:
            every = [row for rows in added.values() for row in rows.values()]
            yield from self._sum("both tables together", every, 2 * self._plan.added, operation)

    def _sum(self, of: str, rows: Iterable[Mapping[str, Any]], count: int, operation: int) -> Iterator[Anomaly]:
        found = sum(row["balance"] for row in rows)
        if found != OPENING * count:
            sentence = f"the accounts of {of} add up to {found}, and must to {OPENING * count}"
            yield Anomaly("wrong-sum", sentence, (operation,))

    def _counts(self, cut: Cut, operation: int, bound: Bound, end: float) -> Iterator[Anomaly]:
        """No fewer deltas than the read must show, no more than were begun before it ended."""
        for table, rows in cut.items():
            for account, row in rows.items() if table in ADDED else ():
                mine = [call for _, call in self._deltas.get((table, account), ())]
                least = sum(bound.covers(call) for call in mine)
                most = sum(call.invoked.index < end for call in mine)
                if not least <= row["moves"] - 1 <= most:
                    sentence = f"account {account} of {table} has {row['moves'] - 1} deltas, and from {least} to {most}"
                    name = "lost" if row["moves"] - 1 < least else "invented"
                    yield Anomaly(name, f"{sentence} were made", (operation,))

    def last(self, cut: Cut, operation: int) -> Iterator[Anomaly]:
        """The last balances are explained by all acknowledged deltas and some of those of unknown outcome."""
        for table, rows in cut.items():
            for account, row in rows.items() if table in ADDED else ():
                mine = self._deltas.get((table, account), [])
                sure = [delta for delta, call in mine if call.kind is Kind.OK]
                unsure = [delta for delta, call in mine if call.kind is Kind.INFO]
                missing = row["moves"] - 1 - len(sure), row["balance"] - OPENING - sum(sure)
                if len(unsure) <= UNSURE_MAX and missing not in reachable(unsure):
                    sentence = f"account {account} of {table} is {row['balance']} by {row['moves'] - 1} deltas"
                    sentence += (
                        f"; {len(sure)} known ones make {OPENING + sum(sure)}, and no choice of {unsure} the rest"
                    )
                    yield Anomaly("wrong-balance", sentence, (operation,))


def reachable(deltas: Iterable[int]) -> set[tuple[int, int]]:
    """Number and sum of every choice of some deltas."""
    found = {(0, 0)}
    for delta in deltas:
        found |= {(count + 1, total + delta) for count, total in found}
    return found
