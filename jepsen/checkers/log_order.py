"""The order of a log: that of each sender, of real time, and one for all buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from jepsen.anomaly import Anomaly
from jepsen.checkers.log_facts import Facts, Send


def nonmonotonic_send(facts: Facts) -> Iterator[Anomaly]:
    """A process's own acknowledged numbers, which it sends ascending, lie in another order."""
    for key, rows in facts.truth.items():
        last: dict[int | str, tuple[int, int]] = {}
        for offset in sorted(rows):
            number = rows[offset]
            if number not in facts.acknowledged:
                continue
            send = facts.send_by_number[number]
            before = last.get(send.process, (-1, -1))
            if number < before[0]:
                said = f"{key}: process {send.process} sent {number} before {before[0]}, and it lies behind"
                yield Anomaly("nonmonotonic-send", f"{said}: offsets {offset}, {before[1]}", (send.operation,))
            last[send.process] = max(before, (number, offset))


def int_send_skip(facts: Facts) -> Iterator[Anomaly]:
    """Between two rows of one commit in one bucket lies another's row."""
    for (operation, _), spans in facts.spans.items():
        for key, span in spans.items():
            if span.last - span.first + 1 != span.rows:
                said = f"{key}: the {span.rows} rows of one commit lie apart, from offset {span.first} to {span.last}"
                yield Anomaly("int-send-skip", said, (operation,))


def session_gap(facts: Facts) -> Iterator[Anomaly]:
    """A later part of a pipelined session is there, and an earlier one is not."""
    if not facts.final:
        return
    for send in facts.sends:
        if send.form != "writer":
            continue
        parts = sorted([*send.acked, *send.unknown, *send.failed], key=lambda part: part[1])
        there = [any(number in facts.places for number in Send.numbers([part])) for part in parts]
        if there != sorted(there, reverse=True):
            missing, present = parts[there.index(False)], parts[len(there) - 1 - there[::-1].index(True)]
            said = f"of one writer the numbers from {present[1]} on are there, and those from {missing[1]} on are not"
            yield Anomaly("session-gap", said, (send.operation,))


def realtime_order(facts: Facts) -> Iterator[Anomaly]:
    """A send that was acknowledged before another one began lies behind it."""
    for key, rows in facts.truth.items():
        latest: Send | None = None
        for offset in sorted(rows):
            send = facts.send_by_number.get(rows[offset])
            if send is None:
                continue
            if latest is not None and send.ends < latest.begins and rows[offset] in facts.acknowledged:
                said = f"{key}: {rows[offset]} at offset {offset} was acknowledged before a send began that lies below"
                yield Anomaly("realtime-order", said, (send.operation, latest.operation))
                break
            latest = send if latest is None or send.begins > latest.begins else latest


def order_cycle(facts: Facts) -> Iterator[Anomaly]:
    """Two buckets have the same commits in different orders (G0)."""
    graph: TopologicalSorter[tuple[int, int]] = TopologicalSorter()
    for rows in facts.truth.values():
        before = None
        for offset in sorted(rows):
            commit = facts.commits.get(rows[offset])
            if commit is not None and before is not None and commit != before:
                graph.add(commit, before)
            before = commit or before
    try:
        graph.prepare()
    except CycleError as error:
        cycle = [operation for operation, _ in error.args[1]]
        said = " before ".join(f"the send of line {operation}" for operation in reversed(cycle))
        yield Anomaly("order-cycle", f"buckets disagree on the order of commits: {said}", tuple(sorted(set(cycle))))


CHECKS: Sequence[Callable[[Facts], Iterator[Anomaly]]] = (
    nonmonotonic_send,
    int_send_skip,
    session_gap,
    realtime_order,
    order_cycle,
)
