"""Checks a table with a contract: a row that breaks a rule is a dead letter, a refused write left nothing.

- A write is a list of rows `[id, amount, is late]` with one status. `BAD` as the status breaks a rule that refuses the
  write.
- A late row, and an amount above the limit of the contract, are dead letters.
- A call takes effect between its invocation and its answer, so a write may meet one of several limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jepsen.anomaly import Anomaly
from jepsen.checkers.freshness import Bound, Freshness
from jepsen.history import History
from jepsen.operation import Call, Kind

GOOD, BAD = "new", "bad"
Row = tuple[int, int, bool]
"""Number, amount, and whether the row is late."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The rows and the dead letters of one read, which is at one cut."""

    call: Call
    rows: Counter[int]
    letters: Counter[int]

    @property
    def index(self) -> int:
        return self.call.invoked.index

    @property
    def end(self) -> float:
        return self.call.completed.index if self.call.completed else float("inf")

    def count(self, number: int) -> int:
        """The number of copies of a row in the read: in the table, and as dead letters."""
        return self.rows[number] + self.letters[number]


def check(history: History, first_limit: int) -> Iterator[Anomaly]:
    """All anomalies; `first_limit` is the limit before the first apply."""
    writes = history.calls("write")
    applies = [call for call in history.calls("apply") if call.kind is not Kind.FAIL]
    limits = {write.invoked.index: possible_limits(write, applies, first_limit) for write in writes}
    freshness = Freshness(history, [*writes, *applies])
    for write in writes:
        yield from _answers(write)
    for call in history.calls("read"):
        if call.kind is Kind.OK:
            read = Seen(call, Counter(call.value["rows"]), Counter(call.value["letters"]))
            yield from _invented(read, writes)
            for write in writes:
                yield from _of_write(read, write, limits[write.invoked.index], freshness.bound(call))


def possible_limits(write: Call, applies: Sequence[Call], first_limit: int) -> set[int]:
    """The limits that may have been in force when a write was committed."""
    before = [each for each in applies if each.invoked.index < write.acknowledged]
    settled = [each for each in before if each.kind is Kind.OK and each.acknowledged < write.invoked.index]
    newest = max((each.invoked.index for each in settled), default=-1)
    found = {each.invoked.value["limit"] for each in before if each.acknowledged > newest}
    return found if settled else found | {first_limit}


def _answers(write: Call) -> Iterator[Anomaly]:
    is_bad = write.invoked.value["status"] == BAD
    index = (write.invoked.index,)
    if is_bad and write.kind is Kind.OK:
        yield Anomaly("not-refused", "a write that breaks a refusing rule was accepted", index)
    if not is_bad and write.completed and write.kind is Kind.FAIL and write.completed.error.startswith("Invalid"):
        yield Anomaly("wrong-refusal", f"a write without a fault was refused: {write.completed.error}", index)


def _invented(read: Seen, writes: Sequence[Call]) -> Iterator[Anomaly]:
    begun: Mapping[int, Call] = {
        number: write
        for write in writes
        if write.invoked.index < read.end
        for number, _, _ in write.invoked.value["rows"]
    }
    for number in {*read.rows, *read.letters} - set(begun):
        yield Anomaly("phantom", f"a read has row {number}, which nobody has written by then", (read.index,))
        return


def _of_write(read: Seen, write: Call, limits: set[int], bound: Bound) -> Iterator[Anomaly]:
    rows: list[Row] = write.invoked.value["rows"]
    places = (read.index, write.invoked.index)
    counts = [read.count(number) for number, _, _ in rows]
    if any(count > 1 for count in counts):
        yield Anomaly("twice", "a read has a row twice, in the table or as dead letters", places)
        return
    if any(counts) and (write.kind is Kind.FAIL or write.invoked.value["status"] == BAD):
        yield Anomaly("aborted-read", "a read has a row of a write that was refused", places)
        return
    if any(counts) and not all(counts):
        yield Anomaly("half-commit", f"a read has {sum(counts)} of the {len(counts)} rows of a write", places)
        return
    if not any(counts):
        if write.kind is Kind.OK and bound.covers(write):
            yield Anomaly("lost", "a read has neither the rows nor the dead letters of a write", places)
        return
    yield from _verdicts(read, rows, limits, places)


def _verdicts(read: Seen, rows: Sequence[Row], limits: set[int], places: tuple[int, ...]) -> Iterator[Anomaly]:
    def agrees(limit: int) -> bool:
        return all((late or amount > limit) == bool(read.letters[number]) for number, amount, late in rows)

    if any(map(agrees, limits)):
        return
    wrong = [number for number, amount, late in rows if read.rows[number] and (late or amount > max(limits))]
    if wrong:
        yield Anomaly("stored-violation", f"a read has row {wrong[0]}, which breaks a rule", places)
        return
    wrong = [number for number, amount, late in rows if read.letters[number] and not late and amount <= min(limits)]
    if wrong:
        yield Anomaly("wrong-letter", f"row {wrong[0]} is a dead letter, and breaks no rule", places)
        return
    yield Anomaly("mixed-contracts", "the rows of one write were checked by several contracts", places)
