"""Checks logs with a retention: reads have no gaps, and no acknowledged row is lost.

A row is `[bucket, offset, number]`; offsets of a bucket have no gaps.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

from jepsen.anomaly import Anomaly
from jepsen.history import History
from jepsen.operation import HEALED, NEMESIS, Call, Kind

Rows = Sequence[Sequence[int]]


def check(history: History) -> Sequence[Anomaly]:
    """All anomalies."""
    checks = (_gaps, _starts, _resumed, _held, _snapshots, _subscriptions, _invented)
    return [each for one in checks for each in one(history)]


def _done(history: History, *names: str) -> list[Call]:
    return [call for call in history.calls(*names) if call.kind is Kind.OK and call.completed]


def _offsets(rows: Rows) -> dict[int, list[int]]:
    """Per bucket the offsets in the order in which they came."""
    found: dict[int, list[int]] = defaultdict(list)
    for bucket, offset, _ in rows:
        found[bucket].append(offset)
    return found


def _broken(offsets: Sequence[int]) -> tuple[int, int] | None:
    """The first two neighbours whose offsets do not follow each other."""
    return next((pair for pair in itertools.pairwise(offsets) if pair[1] != pair[0] + 1), None)


def _gaps(history: History) -> Iterator[Anomaly]:
    """Reads of the log, and takes of a subscription, with a row left out or twice."""
    for call in _done(history, "earliest", "take", "drain", "resume"):
        for bucket, offsets in _offsets(call.value if call.f == "earliest" else call.value["rows"]).items():
            if pair := _broken(offsets):
                yield Anomaly("gap", f"{call.f}: bucket {bucket} has {pair[1]} behind {pair[0]}", (call.invoked.index,))


def _starts(history: History) -> Iterator[Anomaly]:
    """A log start that is lower than an earlier one."""
    seen: list[tuple[int, int, int]] = []
    for call in _done(history, "earliest"):
        for bucket, offsets in _offsets(call.value).items():
            earlier = [start for ended, each, start in seen if ended < call.invoked.index and each == bucket]
            if offsets[0] < max(earlier, default=0):
                said = f"the log of bucket {bucket} began at {max(earlier)}, and later at {offsets[0]}"
                yield Anomaly("start-back", said, (call.invoked.index,))
            if call.completed:
                seen.append((call.completed.index, bucket, offsets[0]))


def _resumed(history: History) -> Iterator[Anomaly]:
    """Streams that continue after a position and silently leave rows out. An expired position must name a new start."""
    for call in _done(history, "resume"):
        value, at = call.value, (call.invoked.index,)
        if value["expired"] and not value["earliest"]:
            yield Anomaly("no-earliest", "a position has expired, and the error does not say where to begin", at)
        for bucket, offsets in _offsets(value["rows"]).items():
            known = value["ends"].get(str(bucket))
            if known is not None and offsets[0] != known + 1:
                said = f"a stream behind {known} of bucket {bucket} goes on at {offsets[0]}"
                yield Anomaly("silent-gap", said, at)


def _held(history: History) -> Iterator[Anomaly]:
    """Leased cuts that changed, or that expired although nothing was broken."""
    for call in _done(history, "hold"):
        value, at = call.value, (call.invoked.index,)
        if value["lost"] and _is_calm(history, call):
            yield Anomaly("lease-broken", f"a cut that was held could not be read again: {value['lost']}", at)
        if not value["lost"] and not value["same"]:
            yield Anomaly("cut-changed", "two scans of one cut differ", at)


def _is_calm(history: History, call: Call) -> bool:
    """Whether a call was done before the first fault, or after everything had healed."""
    faults = [each for each in history if each.process == NEMESIS]
    assert call.completed is not None
    if min((each.index for each in faults), default=len(history)) > call.completed.index:
        return True
    return any(each.f == HEALED and each.index < call.invoked.index for each in faults)


def _snapshots(history: History) -> Iterator[Anomaly]:
    """Snapshots that lack what was acknowledged before, or have a row twice; each has all rows that ever were.

    One that cannot be read, while nothing is broken, has lost them all.
    """
    appended = [call for call in history.calls("append") if call.kind is Kind.OK and call.completed]
    for call in _done(history, "snapshot"):
        found = [number for _, _, number in call.value["rows"]]
        there, at = set(found), (call.invoked.index,)
        if call.value["expired"]:
            if _is_calm(history, call):
                yield Anomaly("unreadable", f"there is no snapshot of this moment: {call.value['expired']}", at)
            continue
        before = [each for each in appended if each.acknowledged < call.invoked.index]
        lost = {number for each in before for number in each.value} - there
        if lost:
            yield Anomaly("lost", f"{len(lost)} acknowledged numbers, as {min(lost)}, are not in a snapshot", at)
        if len(found) != len(there):
            yield Anomaly("twice", f"a snapshot has {len(found) - len(there)} rows twice", at)


def _subscriptions(history: History) -> Iterator[Anomaly]:
    """Subscriptions from which rows were let go that they had not acknowledged, until they were forgotten."""
    given: dict[str, dict[int, int]] = defaultdict(dict)
    sure: dict[str, dict[int, int]] = defaultdict(dict)
    dropped = [call for call in history.calls("forget") if call.kind is not Kind.FAIL and call.value.get("done", True)]
    forgotten = {call.value["subscription"]: call.invoked.index for call in reversed(dropped)}
    for call in _done(history, "take", "drain"):
        name = call.value["subscription"]
        if call.invoked.index > forgotten.get(name, len(history)):
            continue
        if call.value["expired"]:
            yield Anomaly("let-go", f"{name} cannot go on: {call.value['expired']}", (call.invoked.index,))
        for bucket, offsets in _offsets(call.value["rows"]).items():
            may_begin = given[name].get(bucket, -1) + 1
            if offsets[0] > may_begin:
                said = f"{name} was given {offsets[0]} of bucket {bucket} and never {may_begin}"
                yield Anomaly("let-go", said, (call.invoked.index,))
            if offsets[0] <= sure[name].get(bucket, -1):
                said = f"{name} was given {offsets[0]} of bucket {bucket} again, which it had acknowledged"
                yield Anomaly("again", said, (call.invoked.index,))
            given[name][bucket] = max(offsets[-1], given[name].get(bucket, -1))
            if call.f == "take" and call.value["acked"] == "yes":
                sure[name][bucket] = max(offsets[-1], sure[name].get(bucket, -1))


def _invented(history: History) -> Iterator[Anomaly]:
    """Numbers that nobody appended, or whose append was refused."""
    tried = {number for call in history.calls("append") for number in call.invoked.value}
    failed = {number for call in history.calls("append") if call.kind is Kind.FAIL for number in call.invoked.value}
    for call in _done(history, "snapshot", "earliest"):
        found = {number for _, _, number in (call.value if call.f == "earliest" else call.value["rows"])}
        if found - tried:
            yield Anomaly("phantom", f"{sorted(found - tried)[:5]} were never appended", (call.invoked.index,))
        if found & failed:
            yield Anomaly("aborted", f"{sorted(found & failed)[:5]} were refused, and are there", (call.invoked.index,))
