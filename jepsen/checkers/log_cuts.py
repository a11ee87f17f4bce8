"""Cuts: each is the log below one position, and positions are in one order that keeps real time."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from jepsen.anomaly import Anomaly
from jepsen.checkers.log_facts import LANES, Facts, Span
from jepsen.operation import Call


class _Sums:
    """Checksums of every beginning of a key's log, of one lane or all."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._held: dict[tuple[str, int | None], list[int]] = {}

    def of(self, key: str, lane: int | None) -> list[int]:
        """By count of rows, from none on."""
        if (key, lane) not in self._held:
            rows = self._facts.truth.get(key, {})
            sums = [0]
            for offset in sorted(rows):
                if lane is None or rows[offset] % LANES == lane:
                    sums.append(zlib.crc32(rows[offset].to_bytes(8, "little", signed=True), sums[-1]))
            self._held[key, lane] = sums
        return self._held[key, lane]


def differs(facts: Facts) -> Iterator[Anomaly]:
    """A cut is not a beginning of the log that the streams gave."""
    sums = _Sums(facts)
    for call in facts.cuts:
        lane, operations = call.invoked.value["lane"], (call.invoked.index,)
        for key, offsets in call.value["odd"].items():
            said = f"a {_kind(call)} of {key} has offsets twice or not at all: {offsets}"
            yield Anomaly("cut-differs", said, operations)
        for key, (count, checksum) in call.value["at"].items():
            known = sums.of(key, lane)
            if count >= len(known) or known[count] != checksum:
                said = f"a {_kind(call)} of {key} has {count} rows, which are not the first {count} of its streams"
                yield Anomaly("cut-differs", said, operations)


def _kind(call: Call) -> str:
    return {"scan": "scan", "changes": "read by a stream until a token"}.get(call.invoked.value["by"], "scan at a cut")


def _whole(facts: Facts) -> list[Call]:
    return [each for each in facts.cuts if each.invoked.value["lane"] is None]


def _vector(facts: Facts, call: Call) -> dict[str, int]:
    """The count of every key of the cut's tables, those without a row as well."""
    tables = set(call.value["tables"])
    told = call.value["at"]
    return {key: told.get(key, [0])[0] for key in sorted(facts.truth) if key.rsplit("/", 1)[0] in tables}


def out_of_time(facts: Facts) -> Iterator[Anomaly]:
    """A cut lacks rows that were acknowledged before, or has rows that were sent later."""
    for call in _whole(facts):
        assert call.completed is not None
        token = call.value["token"]
        if token and token not in facts.given:
            continue
        begins, ends = facts.given[token] if token else (call.invoked.index, call.completed.index)
        for key, count in _vector(facts, call).items():
            window = facts.windows[key]
            least = facts.least(key, call) if not token or call.invoked.value["by"] == "snapshot" else 0
            least = max(least, window.least(begins)) if token else least
            where = f"at token {token[:12]}…" if token else "of the newest state"
            if count < least:
                name = "token-misses-write" if token else "stale-scan"
                said = f"a scan {where} has {count} rows of {key}, and {least} were acknowledged before"
                yield Anomaly(name, said, (call.invoked.index,))
            if count > window.most(ends):
                said = f"a scan {where} has {count} rows of {key}, and offset {window.most(ends)} was sent later"
                yield Anomaly("cut-ahead", said, (call.invoked.index,))


def misses_its_own(facts: Facts) -> Iterator[Anomaly]:
    """A scan at a send's token lacks rows of the send."""
    for call in _whole(facts):
        token = call.value["token"]
        if token not in facts.senders:
            continue
        for key, count in _vector(facts, call).items():
            if count < facts.own(token, key):
                said = f"a scan at a send's token has {count} rows of {key}, and {facts.own(token, key)} with the send"
                yield Anomaly("token-misses-write", said, (call.invoked.index, facts.senders[token].operation))


def part_of_a_commit(facts: Facts) -> Iterator[Anomaly]:
    """A cut has some rows of a commit and not the others."""
    for call in _whole(facts):
        vector = _vector(facts, call)
        for commit, spans in facts.spans.items():
            sides = {side for key, span in spans.items() if key in vector for side in _sides(span, vector[key])}
            if len(sides) > 1:
                said = f"a {_kind(call)} has some rows of one commit and not others: {_told(spans, vector)}"
                yield Anomaly("torn-cut", said, (call.invoked.index, commit[0]))


def _sides(span: Span, count: int) -> set[bool]:
    """Whether rows of a span are in the first so many, and whether rows are not."""
    return {span.first < count, span.last < count}


def _told(spans: Mapping[str, Span], vector: Mapping[str, int]) -> str:
    parts = ((key, span, vector[key]) for key, span in spans.items() if key in vector)
    return ", ".join(f"{key} offsets {span.first}-{span.last} of {count} rows" for key, span, count in parts)


def changed(facts: Facts) -> Iterator[Anomaly]:
    """Two reads at one token differ."""
    held: dict[tuple[str, str], tuple[list[int], int]] = {}
    for call in _whole(facts):
        token = call.value["token"]
        for key, count in _vector(facts, call).items() if token else ():
            found = call.value["at"].get(key, [0, 0])
            before, operation = held.setdefault((token, key), (found, call.invoked.index))
            if before != found:
                said = f"two reads at one token have {before[0]} and {count} rows of {key}"
                yield Anomaly("cut-changed", said, (operation, call.invoked.index))


def crossing(facts: Facts) -> Iterator[Anomaly]:
    """Two cuts of which each has rows that the other one lacks."""
    vectors = [(_vector(facts, call), call) for call in _whole(facts)]
    complete = [each for each in vectors if len(each[0]) == len(facts.truth)]
    complete.sort(key=lambda each: sum(each[0].values()))
    for (lower, first), (higher, second) in pairwise(complete):
        if key := next((key for key, count in lower.items() if count > higher[key]), None):
            said = f"one cut has {lower[key]} rows of {key}, and another one, which has more of others, {higher[key]}"
            yield Anomaly("cuts-cross", said, (first.invoked.index, second.invoked.index))


def token_goes_back(facts: Facts) -> Iterator[Anomaly]:
    """A token that was given later names an earlier position."""
    timed = list[tuple[int, float, Mapping[str, int], Call]]()
    for call in _whole(facts):
        token = call.value["token"]
        if token in facts.given:
            timed.append((*facts.given[token], _vector(facts, call), call))
    ends = sorted(timed, key=lambda each: each[1])
    highest: dict[str, tuple[int, Call]] = {}
    passed = 0
    for begins, _, vector, call in sorted(timed, key=lambda each: each[0]):
        while passed < len(ends) and ends[passed][1] < begins:
            for key, count in ends[passed][2].items():
                if count > highest.get(key, (-1, call))[0]:
                    highest[key] = count, ends[passed][3]
            passed += 1
        for key, count in vector.items():
            before, earlier = highest.get(key, (0, call))
            if count < before:
                said = f"a token has {count} rows of {key}, and one that was given before has {before}"
                yield Anomaly("token-goes-back", said, (earlier.invoked.index, call.invoked.index))
                break


CHECKS: Sequence[Callable[[Facts], Iterator[Anomaly]]] = (
    differs,
    out_of_time,
    misses_its_own,
    part_of_a_commit,
    changed,
    crossing,
    token_goes_back,
)
