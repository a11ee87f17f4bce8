"""Polls: each consumer is given every row of its assignment from its start on, once, in order, in whole commits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jepsen.anomaly import Anomaly
from jepsen.checkers.log_facts import LANES, Consumer, Facts
from jepsen.operation import NEVER, Call


@dataclass(frozen=True)
class Step:
    """One row that a consumer was given, with the offset of the one before in its bucket."""

    consumer: Consumer
    key: str
    before: int
    """-1 for none: the consumer stood before the first row."""
    offset: int
    inside: bool
    """Whether the row before came by the same poll."""
    poll: Call


def steps(facts: Facts) -> Iterator[Step]:
    """All rows of all consumers whose place before is known."""
    for consumer in facts.consumers:
        last: dict[str, int] = {}
        for poll in consumer.polls:
            for key, rows in poll.value["rows"].items():
                inside = False
                for offset, _ in rows:
                    begun = key in last or consumer.start in ("earliest", "snapshot")
                    if begun:
                        yield Step(consumer, key, last.get(key, -1), offset, inside, poll)
                    last[key], inside = offset, True


class _Lanes:
    """The offsets of each key that a consumer is to be given."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._held: dict[tuple[str, int | None], list[int]] = {}

    def of(self, key: str, lane: int | None) -> list[int]:
        """All of them in order."""
        if (key, lane) not in self._held:
            rows = self._facts.truth[key]
            self._held[key, lane] = sorted(o for o, n in rows.items() if lane is None or n % LANES == lane)
        return self._held[key, lane]

    def between(self, key: str, lane: int | None, before: int, offset: int) -> list[int]:
        """The steps that lie between two offsets."""
        offsets = self.of(key, lane)
        return offsets[bisect_right(offsets, before) : max(bisect_right(offsets, offset - 1), 0)]


def skip(facts: Facts) -> Iterator[Anomaly]:
    """A consumer passes over rows, between two polls or inside of one."""
    lanes = _Lanes(facts)
    for step in steps(facts):
        left = lanes.between(step.key, step.consumer.lane, step.before, step.offset)
        if step.offset > step.before and left:
            said = f"consumer {step.consumer.number} went from {step.before} to {step.offset} in {step.key}"
            name = "int-poll-skip" if step.inside else "poll-skip"
            yield Anomaly(name, f"{said}, and was not given offset {left[0]}", (step.poll.invoked.index,))


def nonmonotonic(facts: Facts) -> Iterator[Anomaly]:
    """A consumer steps back, between two polls or inside of one."""
    for step in steps(facts):
        if step.offset <= step.before:
            said = f"consumer {step.consumer.number} was given {step.key} offset {step.offset} behind {step.before}"
            name = "int-nonmonotonic-poll" if step.inside else "nonmonotonic-poll"
            yield Anomaly(name, said, (step.poll.invoked.index,))


def wrong_start(facts: Facts) -> Iterator[Anomaly]:
    """A consumer that begins at the newest position, or at a token, is given older rows, or lacks later ones."""
    lanes = _Lanes(facts)
    for consumer in facts.consumers:
        first: dict[str, int] = {}
        for poll in consumer.polls:
            for key, rows in poll.value["rows"].items():
                if rows:
                    first.setdefault(key, rows[0][0])
        for key, offset in first.items():
            least, most = _start(facts, consumer, key)
            passed = lanes.between(key, consumer.lane, int(min(most, offset)) - 1, offset)
            told = f"consumer {consumer.number}, which begins at {consumer.start[:12]!r}, was first given {key}"
            operations = (consumer.polls[0].invoked.index,)
            if offset < least:
                said = f"{told} offset {offset}, and all below {least} was acknowledged before"
                yield Anomaly("nonmonotonic-poll", said, operations)
            elif passed:
                said = f"{told} offset {offset}, and not {passed[0]}, which was sent later"
                yield Anomaly("poll-skip", said, operations)


def _start(facts: Facts, consumer: Consumer, key: str) -> tuple[int, float]:
    """The least and the most offset that a consumer may begin at."""
    call = consumer.polls[0]
    window = facts.windows[key]
    if consumer.start == "latest":
        stands = next((each.completed for each in consumer.polls if each.value["token"]), None)
        return facts.least(key, call), window.most(stands.index) if stands else NEVER
    if consumer.start not in facts.given:
        return 0, NEVER
    begins, ends = facts.given[consumer.start]
    return max(window.least(begins), facts.own(consumer.start, key)), window.most(ends)


def part_of_a_commit(facts: Facts) -> Iterator[Anomaly]:
    """A poll, which ends between commits, has some rows of a commit and not the others that it is for.

    But for the snapshot that a stream begins with, which comes in pieces of any size.
    """
    lanes: dict[tuple[tuple[int, int], int | None], list[tuple[str, int]]] = {}
    for consumer in facts.consumers:
        for poll in (each for each in consumer.polls if not each.value["in_snapshot"]):
            given = {(key, offset) for key, rows in poll.value["rows"].items() for offset, _ in rows}
            for commit in {facts.commits.get(facts.truth[key][offset]) for key, offset in given} - {None}:
                assert commit is not None
                wanted = lanes.get((commit, consumer.lane))
                if wanted is None:
                    wanted = lanes[commit, consumer.lane] = _of_lane(facts, facts.members[commit], consumer.lane)
                mine = [each for each in wanted if each[0].rsplit("/", 1)[0] in consumer.tables]
                if not given.issuperset(mine):
                    there = len(given.intersection(mine))
                    said = f"consumer {consumer.number} was given {there} of {len(mine)} rows of one commit in one poll"
                    yield Anomaly("torn-poll", said, (poll.invoked.index, commit[0]))


def _of_lane(facts: Facts, places: list[tuple[str, int]], lane: int | None) -> list[tuple[str, int]]:
    return [each for each in places if lane is None or facts.truth[each[0]][each[1]] % LANES == lane]


def filtered(facts: Facts) -> Iterator[Anomaly]:
    """A consumer of one lane is given a row of another, or of a table that is not its."""
    for consumer in facts.consumers:
        for poll in consumer.polls:
            for key, rows in poll.value["rows"].items():
                alien = [n for _, n in rows if consumer.lane is not None and n % LANES != consumer.lane]
                if alien or key.rsplit("/", 1)[0] not in consumer.tables:
                    said = f"consumer {consumer.number} of lane {consumer.lane} of {consumer.tables} was given {key}"
                    yield Anomaly("unasked", f"{said}: {[*alien, *(n for _, n in rows)][0]}", (poll.invoked.index,))


def worst_lag(facts: Facts) -> float:
    """The longest time, in seconds, that a row had been acknowledged when a poll ended that did not give it.

    Of consumers of all lanes whose start is the beginning: they are to be given everything.
    """
    worst = 0.0
    for consumer in facts.consumers:
        if consumer.lane is not None or consumer.start not in ("earliest", "snapshot"):
            continue
        following: dict[str, int] = {}
        for poll in consumer.polls:
            assert poll.completed is not None
            for key, rows in poll.value["rows"].items():
                following[key] = max([following.get(key, 0), *(offset + 1 for offset, _ in rows)])
            for key, numbers in facts.truth.items():
                waiting = numbers.get(following.get(key, 0))
                send = facts.send_by_number.get(waiting) if waiting is not None else None
                if send is not None and key.rsplit("/", 1)[0] in consumer.tables:
                    worst = max(worst, (poll.completed.time - send.acknowledged_ns) / 1e9)
    return worst


CHECKS: Sequence[Callable[[Facts], Iterator[Anomaly]]] = (skip, nonmonotonic, wrong_start, part_of_a_commit, filtered)
