"""Positions of named subscriptions: what readers were given, and what they were told is acknowledged.

Rows are `[bucket, offset, number]`. Calls are those of `jepsen.workloads.subscription`; each reader is a process's
number and the number that the process gave it. Times are places in the history, so no clock is needed.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jepsen.anomaly import Anomaly, few
from jepsen.checkers.clocks import believed
from jepsen.history import History
from jepsen.operation import NEMESIS, NEVER, Kind

Reader = tuple[int | str, int]
Place = tuple[int, int]
IDLE_SECONDS = 7 * 86_400.0
"""The time after which a server drops a subscription that nobody reads."""


@dataclass(frozen=True, slots=True)
class Given:
    """Rows of one bucket that a reader was given by one poll, in their order."""

    subscription: str
    reader: Reader
    shared: bool
    opened: int
    """Where the reader's first poll began."""
    bare: int
    """The place at which the reader had no rows at hand: behind its last vain poll, or where its first one began."""
    at: int
    """Where the poll ended."""
    draining: bool
    bucket: int
    rows: tuple[tuple[int, int], ...]
    """Offset and number."""


@dataclass(frozen=True, slots=True)
class Acked:
    """A bucket up to an offset, as one acknowledgement said."""

    subscription: str
    reader: Reader
    shared: bool
    begun: int
    ended: float
    """Infinite if the outcome is unknown."""
    bucket: int
    upto: int


@dataclass(frozen=True, slots=True)
class Span:
    """A call whose effect lies between two places, or never happened."""

    begun: int
    ended: float


class Positions:
    """A history, taken apart once."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.appends = history.calls("append")
        self.given = list(_given(history))
        self.acked = list(_acked(history))
        self.unsure = list(_unsure(history, self.given))
        self.drops: dict[str, list[Span]] = defaultdict(list)
        for call in history.calls("drop"):
            if call.kind is not Kind.FAIL:
                self.drops[call.invoked.value["subscription"]].append(Span(call.invoked.index, call.ended))
        self.opened_alone: dict[str, list[int]] = defaultdict(list)
        for call in history.calls("poll", "drain"):
            if not call.invoked.value["shared"]:
                self.opened_alone[call.invoked.value["subscription"]].append(call.invoked.index)
        self.subscriptions = sorted({each.subscription for each in self.given})
        for wrong in believed(history):
            if wrong.seconds >= IDLE_SECONDS:  # the server may have held each for idle since then, and dropped it
                for name in self.subscriptions:
                    self.drops[name].append(Span(wrong.begun, wrong.over))

    def dropped_between(self, subscription: str, begun: float, ended: float) -> bool:
        """Whether a drop may have happened there."""
        return any(drop.begun < ended and drop.ended > begun for drop in self.drops[subscription])


def check(history: History) -> Sequence[Anomaly]:
    """All anomalies, a few of each name."""
    found = Positions(history)
    checks = (_values, _vanished, _disorder, _skipped, _unread, _again, _acked_twice, _former, _two_readers, _forgotten)
    anomalies = [each for one in checks for each in one(found)]
    return few([*anomalies, *_unfinished(history)])


def _values(found: Positions) -> Iterator[Anomaly]:
    """Invented numbers, numbers of refused appends, two numbers at one place, one number at two places."""
    tried = {n for call in found.appends for n in call.invoked.value}
    failed = {n for call in found.appends if call.kind is Kind.FAIL for n in call.invoked.value}
    numbers: dict[Place, int] = {}
    places: dict[int, Place] = {}
    for bucket, offset, number, at in _all_rows(found):
        place = bucket, offset
        if number not in tried:
            yield Anomaly("phantom", f"{number} at {place} was never appended", (at,))
        if number in failed:
            yield Anomaly("aborted", f"{number} at {place} is of an append that was refused", (at,))
        if numbers.setdefault(place, number) != number:
            yield Anomaly("two-values", f"{place} held {numbers[place]}, and later {number}", (at,))
        if places.setdefault(number, place) != place:
            yield Anomaly("two-places", f"{number} is at {places[number]} and at {place}", (at,))


def _all_rows(found: Positions) -> Iterator[tuple[int, int, int, int]]:
    for each in found.given:
        for offset, number in each.rows:
            yield each.bucket, offset, number, each.at
    for call in found.history.calls("read"):
        if call.kind is Kind.OK and call.completed:
            for bucket, offset, number in call.value:
                yield bucket, offset, number, call.completed.index


def _vanished(found: Positions) -> Iterator[Anomaly]:
    """Rows that a reader was given, or whose append was acknowledged, and that the log of the end does not have."""
    reads = [call for call in found.history.calls("read") if call.kind is Kind.OK]
    if not reads:
        return
    last = {number for _, _, number in reads[-1].value}
    for each in found.given:
        gone = sorted({number for _, number in each.rows} - last)
        if gone:
            yield Anomaly("vanished", f"{gone} were given to a reader and are not in the log any more", (each.at,))
    for call in found.appends:
        if call.kind is Kind.OK and not last.issuperset(call.value):
            yield Anomaly("lost", f"{call.value} were acknowledged and are not all in the log", (call.invoked.index,))


def _disorder(found: Positions) -> Iterator[Anomaly]:
    """Offsets of a bucket that do not ascend: within a batch, and from batch to batch of who reads alone."""
    last: dict[tuple[str, Reader, int], int] = {}
    for each in found.given:
        offsets = [offset for offset, _ in each.rows]
        key = each.subscription, each.reader, each.bucket
        before = [last[key]] if key in last and not each.shared else []
        chain = [*before, *offsets]
        if any(later <= earlier for earlier, later in itertools.pairwise(chain)):
            yield Anomaly("disorder", f"bucket {each.bucket} came to one reader in the order {chain}", (each.at,))
        last[key] = offsets[-1]


def _skipped(found: Positions) -> Iterator[Anomaly]:
    """A row before which one was passed over that nobody can have acknowledged. Offsets have no gaps."""
    drained = {
        (each.subscription, each.bucket, offset) for each in found.given if each.draining for offset, _ in each.rows
    }
    covers: dict[tuple[str, int], list[Acked]] = defaultdict(list)
    for ack in [*found.acked, *found.unsure]:
        covers[ack.subscription, ack.bucket].append(ack)
    given_to: dict[tuple[str, Reader, int], set[int]] = defaultdict(set)
    anybody: dict[tuple[str, int], set[int]] = defaultdict(set)
    for each in found.given:
        mine = given_to[each.subscription, each.reader, each.bucket]
        all_given = anybody[each.subscription, each.bucket]
        for offset, number in each.rows:
            before = offset - 1
            known = before < 0 or before in mine or (each.subscription, each.bucket, before) in drained
            if not known and found.drops[each.subscription]:
                known = before in all_given  # a stream that outlives a drop makes the subscription anew where it stands
            if not known and not _may_be_acked(covers[each.subscription, each.bucket], before, each.at):
                said = f"{number} at {(each.bucket, offset)} was given to a reader of {each.subscription}, and the row"
                yield Anomaly("skipped", f"{said} before it was neither given to it nor acknowledged", (each.at,))
            mine.add(offset)
            all_given.add(offset)


def _may_be_acked(acks: Iterable[Acked], offset: int, at: int) -> bool:
    return any(ack.begun < at and ack.upto >= offset for ack in acks)


def _unread(found: Positions) -> Iterator[Anomaly]:
    """Acknowledged appends that a subscription never gave to anybody; after a drop all of them come again."""
    appended = {n: call.invoked.index for call in found.appends if call.kind is Kind.OK for n in call.value}
    for name in found.subscriptions:
        if not any(call.invoked.value["subscription"] == name for call in found.history.calls("drain")):
            continue
        given = {number for each in found.given if each.subscription == name for _, number in each.rows}
        missing = sorted(appended.keys() - given)
        if missing:
            said = f"{len(missing)} acknowledged numbers, as {missing[0]}, were never given to a reader of {name}"
            yield Anomaly("unread", said, (appended[missing[0]],))


def _again(found: Positions) -> Iterator[Anomaly]:
    """Rows that were given after their acknowledgement had counted, to a reader that came later or to its own."""
    by_bucket: dict[tuple[str, int], list[Acked]] = defaultdict(list)
    for ack in found.acked:
        by_bucket[ack.subscription, ack.bucket].append(ack)
    for each in found.given:
        offset, number = each.rows[0]
        for ack in by_bucket[each.subscription, each.bucket]:
            later = ack.ended < each.opened or (ack.reader == each.reader and ack.ended < each.at)
            if not later or offset > ack.upto or _went_back(found, ack, each):
                continue
            said = f"{number} at {(each.bucket, offset)} was acknowledged for {each.subscription} and was given again"
            yield Anomaly("again", said, (ack.begun, each.at))
            break


def _went_back(found: Positions, ack: Acked, each: Given) -> bool:
    """Whether the position may be lower since: it was dropped, or buckets came under one position again."""
    if found.dropped_between(each.subscription, ack.begun, each.at):
        return True
    return ack.shared and any(ack.begun < at < each.at for at in found.opened_alone[each.subscription])


def _acked_twice(found: Positions) -> Iterator[Anomaly]:
    """Two readers that held the same row at once, and were both told that their acknowledgement of it counts.

    Only where nothing was broken: who connects again may have the row again.
    """
    given: dict[tuple[str, Reader, int], list[tuple[int, int]]] = defaultdict(list)
    for each in found.given:
        given[each.subscription, each.reader, each.bucket] += [(offset, each.at) for offset, _ in each.rows]
    latest: dict[tuple[str, int], list[Acked]] = defaultdict(list)
    for ack in sorted(found.acked, key=lambda each: each.begun):
        key = ack.subscription, ack.bucket
        for first in latest[key]:
            if first.reader == ack.reader or first.ended >= ack.begun:
                continue
            taken = [at for offset, at in given[ack.subscription, ack.reader, ack.bucket] if offset <= first.upto]
            own = [at for offset, at in given[first.subscription, first.reader, first.bucket] if offset <= first.upto]
            if not taken or max(taken) >= first.begun or not _covers(found, first, ack):
                continue
            if _quiet(found, min([*taken, *own]), ack.ended, ack.subscription):
                said = f"bucket {ack.bucket} of {ack.subscription} up to {first.upto}"
                yield Anomaly(
                    "acked-twice", f"{said} counted for two readers that held it at once", (first.begun, ack.begun)
                )
        latest[key] = [*latest[key][-8:], ack]


def _former(found: Positions) -> Iterator[Anomaly]:
    """An acknowledgement that counts of who shared a bucket before a reader that came later, and that had its rows.

    Only where nothing was broken, and nobody took the subscription alone: a restart forgets who has read.
    """
    given: dict[tuple[str, int], list[Given]] = defaultdict(list)
    for each in found.given:
        given[each.subscription, each.bucket].append(each)
    for ack in found.acked:
        alone = found.opened_alone[ack.subscription]
        if not ack.shared or min(alone, default=NEVER) < ack.ended or not _quiet(found, 0, ack.ended, ack.subscription):
            continue
        earlier = [each for each in given[ack.subscription, ack.bucket] if each.at < ack.begun]
        own = {offset: each.at for each in earlier if each.reader == ack.reader for offset, _ in each.rows}
        for each in earlier:
            again = [row for row, _ in each.rows if row <= ack.upto and own.get(row, NEVER) < each.bare]
            if again and each.reader != ack.reader:
                said = f"{(ack.bucket, again[0])} of {ack.subscription} was given to a later reader, and then counted"
                yield Anomaly("former-reader", f"{said} for the one before", (each.at, ack.begun))
                break


def _covers(found: Positions, first: Acked, later: Acked) -> bool:
    """Whether the later acknowledgement is of rows that the first one had acknowledged."""
    rows = [
        offset
        for each in found.given
        if (each.subscription, each.reader, each.bucket) == (later.subscription, later.reader, later.bucket)
        and each.at < later.begun
        for offset, _ in each.rows
    ]
    own = [ack.upto for ack in found.acked if ack.reader == later.reader and ack.bucket == later.bucket]
    done = max((upto for upto in own if upto < later.upto), default=-1)
    return any(done < offset <= first.upto for offset in rows)


def _quiet(found: Positions, begun: int, ended: float, subscription: str) -> bool:
    """Whether nothing was broken or dropped there, nor before."""
    faults = (each.index for each in found.history if each.process == NEMESIS)
    return min(faults, default=NEVER) > ended and not found.dropped_between(subscription, begun, ended)


def _two_readers(found: Positions) -> Iterator[Anomaly]:
    """One list that names two readers of one bucket."""
    for call in found.history.calls("list"):
        for each in call.value or [] if call.kind is Kind.OK else []:
            buckets = [bucket for mine in each["members"].values() for bucket in mine]
            if len(buckets) != len(set(buckets)):
                said = f"{each['subscription']} is read by {each['members']}: a bucket has two readers"
                yield Anomaly("two-readers", said, (call.invoked.index,))


def _forgotten(found: Positions) -> Iterator[Anomaly]:
    """A subscription that is gone without a drop."""
    for call in found.history.calls("list"):
        if call.kind is not Kind.OK or not call.completed:
            continue
        listed = {each["subscription"] for each in call.value}
        for name in found.subscriptions:
            opened = any(each.subscription == name and each.at < call.invoked.index for each in found.given)
            if opened and name not in listed and not found.dropped_between(name, -1, call.completed.index):
                yield Anomaly(
                    "forgotten", f"{name} is not there any more, and nobody has dropped it", (call.invoked.index,)
                )


def _unfinished(history: History) -> Iterator[Anomaly]:
    """Subscriptions that did not come to their end once everything had healed."""
    for call in history.calls("drain"):
        if call.kind is Kind.OK and not call.value["done"]:
            said = f"{call.value['subscription']} did not come to the end of the log: {call.value['troubles'][-1:]}"
            yield Anomaly("unfinished", said, (call.invoked.index,))


def _given(history: History) -> Iterator[Given]:
    opened: dict[tuple[str, Reader], int] = {}
    bare: dict[tuple[str, Reader], int] = {}
    calls = [call for call in history.calls("poll", "drain") if call.completed and call.kind is Kind.OK]
    for call in sorted(calls, key=lambda each: each.completed.index if each.completed else 0):
        assert call.completed is not None
        value = call.value
        for poll in value.get("polls", [value]):
            reader = call.process, poll["reader"]
            key, at = (value["subscription"], reader), call.completed.index
            begun = opened.setdefault(key, call.invoked.index)
            bare.setdefault(key, begun)
            rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for bucket, offset, number in poll["rows"]:
                rows[bucket].append((offset, number))
            for bucket, mine in rows.items():
                said = value["subscription"], reader, value["shared"], begun, bare[key], at, call.f == "drain"
                yield Given(*said, bucket, tuple(mine))
            if not poll["rows"]:
                bare[key] = at


def _acked(history: History) -> Iterator[Acked]:
    for call in history.calls("ack", "ack-late"):
        if call.kind is not Kind.OK:
            continue
        for bucket, upto in call.value["upto"].items():
            reader, value = (call.process, call.value["reader"]), call.value
            span = call.invoked.index, call.ended
            yield Acked(value["subscription"], reader, value["shared"], *span, int(bucket), upto)


def _unsure(history: History, given: Sequence[Given]) -> Iterator[Acked]:
    """Acknowledgements that may have counted: of unknown outcome, for all that the process was given before; buckets
    that were refused after an answer was lost; and of who shares, batches before the one that was acknowledged: a
    batch behind a new connection may stand for rows that were given before it."""
    for call in history.calls("ack", "ack-late"):
        if call.kind is Kind.OK:
            value = call.value
            for bucket, upto in [*value["refused"].items(), *value.get("passed", {}).items()]:
                reader = call.process, value["reader"]
                yield Acked(
                    value["subscription"], reader, value["shared"], call.invoked.index, NEVER, int(bucket), upto
                )
        elif call.kind is Kind.INFO:
            for each in given:
                if each.reader[0] == call.process and each.at < call.invoked.index:
                    said = each.subscription, each.reader, each.shared, call.invoked.index, NEVER
                    yield Acked(*said, each.bucket, max(offset for offset, _ in each.rows))
