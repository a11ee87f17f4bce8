"""Expiry judged by the changelog: each deletion says of which row it is, and when the server made it.

Only the server deletes rows in this workload. Its stamps may be ahead of the true time, because it trusts a clock that
has jumped after a while. Two rules follow. A row may go only if the stamp of its deletion is after its own time. As
long as the server cannot have trusted a jump, the true time must be after it too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jepsen.anomaly import Anomaly
from jepsen.checkers.clocks import believed
from jepsen.checkers.lake import Log
from jepsen.history import History
from jepsen.operation import Kind

SLACK_SECONDS = 0.001


def check(history: History, after_seconds: float) -> Sequence[Anomaly]:
    """All anomalies."""
    anomalies: list[Anomaly] = []
    for call in history.calls("changelog"):
        if call.kind is Kind.OK:
            changes = call.value["changes"]
            at = (call.invoked.index,)
            anomalies += _early(changes, after_seconds, at)
            anomalies += _too_early(history, changes, call.value["now"], after_seconds, at)
            anomalies += _images(changes, at)
            anomalies += _stamps(changes, at)
            anomalies += _values(history, changes, at)
            anomalies += _scans(history, changes)
    return anomalies


def _early(changes: Sequence[dict[str, Any]], after: float, at: tuple[int, ...]) -> Iterator[Anomaly]:
    """Rows that went before their time by the server's own stamp; rows without a time stay for ever."""
    for each in changes:
        if each["__change"] == "-D" and each["seen"] is None:
            yield Anomaly("undying", f"row {each['id']} of {each['v']} has no time, and was deleted", at)
        elif each["__change"] == "-D" and each["__timestamp"] + SLACK_SECONDS < each["seen"] + after:
            left = each["seen"] + after - each["__timestamp"]
            yield Anomaly("early", f"row {each['id']} of {each['v']} was deleted {left:.3f} s before its time", at)


def _too_early(
    history: History, changes: Sequence[dict[str, Any]], now: float, after: float, at: tuple[int, ...]
) -> Iterator[Anomaly]:
    """Rows whose time has not come by the clients' clock, though no jump can have been believed."""
    if not believed(history):
        for each in changes:
            if each["__change"] == "-D" and each["seen"] is not None and each["seen"] + after > now:
                left = each["seen"] + after - now
                yield Anomaly("too-early", f"row {each['id']} of {each['v']} is gone {left:.0f} s before its time", at)


def _images(changes: Sequence[dict[str, Any]], at: tuple[int, ...]) -> Iterator[Anomaly]:
    """Deletions and updates whose before-image is not the present row, as after a row was written again."""
    live: dict[int, dict[str, Any]] = {}
    for each in changes:
        there, change = live.get(each["id"]), each["__change"]
        if change in ("-U", "-D") and (there is None or (there["v"], there["seen"]) != (each["v"], each["seen"])):
            said = f"{change} of row {each['id']} says {each['v']}, and there was {there and there['v']}"
            yield Anomaly("wrong-image", said, at)
        if change == "+I" and there is not None:
            yield Anomaly("wrong-image", f"+I of row {each['id']}, which was there", at)
        if change == "-D":
            live.pop(each["id"], None)
        elif change != "-U":
            live[each["id"]] = each


def _stamps(changes: Sequence[dict[str, Any]], at: tuple[int, ...]) -> Iterator[Anomaly]:
    """Stamps that fall from one commit of a bucket to the next."""
    last: dict[int, float] = {}
    for each in changes:
        before = last.get(each["__bucket"], 0.0)
        if each["__timestamp"] < before:
            yield Anomaly("stamp-fell", f"the stamp {each['__timestamp']} comes behind {before}", at)
        last[each["__bucket"]] = max(before, each["__timestamp"])


def _values(history: History, changes: Sequence[dict[str, Any]], at: tuple[int, ...]) -> Iterator[Anomaly]:
    """Acknowledged rows that are not in the log; rows in the log that nobody wrote, or that have another time."""
    logged = {each["v"]: each for each in changes if each["__change"] in ("+I", "+U")}
    tried: set[int] = set()
    for call in history.calls("upsert"):
        mine = {v for _, v, _ in call.invoked.value}
        tried |= mine
        if call.kind is Kind.FAIL and mine & logged.keys():
            yield Anomaly("aborted", f"{sorted(mine & logged.keys())} were refused, and are in the log", at)
        for _, v, seen in call.value if call.kind is Kind.OK else []:
            if v not in logged:
                yield Anomaly("lost", f"{v} was acknowledged and is not in the log", (call.invoked.index,))
            elif abs((logged[v]["seen"] or 0.0) - (seen or 0.0)) > SLACK_SECONDS:
                yield Anomaly("torn", f"{v} was written with the time {seen} and has {logged[v]['seen']}", at)
    strange = sorted(logged.keys() - tried)
    if strange:
        yield Anomaly("phantom", f"{strange[:5]} were never written", at)


def _scans(history: History, changes: Sequence[dict[str, Any]]) -> Iterator[Anomaly]:
    """Scans with rows that were never there together; the last one must be the fold of all changes at its end."""
    names = "__bucket", "__offset", "__change", "id", "v"
    log = Log([[each[name] for name in names] for each in changes if each["__change"] != "-U"], keyed=True)
    ended = max((call.invoked.index for call in history.calls("changelog")), default=0)
    for call in history.calls("scan"):
        if call.kind is not Kind.OK or call.invoked.index > ended:
            continue
        rows = {(bucket, offset, key, v) for bucket, offset, key, v in call.value}
        for bucket in {*log.buckets, *(row[0] for row in rows)}:
            if not log.fits(bucket, {row for row in rows if row[0] == bucket}):
                said = f"a scan has rows that bucket {bucket} never had together"
                yield Anomaly("no-state", said, (call.invoked.index,))
