"""Histories of a log, judged: Jepsen's checks for Kafka, and those of cuts and tokens.

Shapes of values. A *key* is `table/bucket`; a *part* is [table, first number, how many numbers]; *rows* are lists of
[offset, number] by key, in the order in which they came.

`send`    {form, parts} -> {token, acked, failed, unknown}, lists of parts; a refused send has failed as a whole
`assign`  {tables, start, lane} -> {consumer, start, rows, torn, token, in_snapshot}
`poll`    the same consumer's next rows -> {consumer, rows, torn, token, in_snapshot}
`read`    everything until now -> {rows, torn}
`cut`     {by, lane} -> {token, tables, at: {key: [count, checksum]}, odd: {key: offsets}, torn}

`wake` -> {woken}. The *truth* is the offset and number of every row that any stream gave; the last reads are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from jepsen.anomaly import Anomaly, few
from jepsen.checkers import log_cuts, log_order, log_polls
from jepsen.checkers.log_facts import Facts
from jepsen.history import History
from jepsen.operation import Kind


def check(history: History) -> Sequence[Anomaly]:
    """All anomalies of a log's history, of each name the first few."""
    facts = Facts.of(history)
    return few([*asleep(history), *(anomaly for each in CHECKS for anomaly in each(facts))])


def figures(history: History) -> dict[str, float]:
    """Numbers for the report: rows and tokens that were checked, and how far consumers were behind."""
    facts = Facts.of(history)
    return {
        "rows": len(facts.places),
        "sends": len(facts.sends),
        "cuts": len(facts.cuts),
        "worst lag in seconds": round(log_polls.worst_lag(facts), 3),
    }


def asleep(history: History) -> Iterator[Anomaly]:
    """A stream that had nothing to give was not woken by a commit."""
    for call in history.calls("wake"):
        if call.kind is Kind.OK and not call.value["woken"]:
            yield Anomaly("asleep", "a stream slept through a commit to one of its tables", (call.invoked.index,))


def inconsistent_offsets(facts: Facts) -> Iterator[Anomaly]:
    """One offset has two numbers."""
    for (key, offset), numbers in facts.contradictions.items():
        told = ", ".join(str(each) for each in sorted(numbers))
        yield Anomaly("inconsistent-offsets", f"{key} offset {offset} was read as {told}")


def duplicate(facts: Facts) -> Iterator[Anomaly]:
    """One number is at two places."""
    for number, places in facts.doubled.items():
        told = ", ".join(f"{key} offset {offset}" for key, offset in sorted(places))
        yield Anomaly("duplicate", f"{number} is at {told}", facts.send_of(number))


def phantom(facts: Facts) -> Iterator[Anomaly]:
    """A number was read that nobody has sent."""
    for number, (key, offset) in facts.places.items():
        if number not in facts.send_by_number:
            yield Anomaly("phantom", f"{number} at {key} offset {offset} was never sent")
        elif not key.startswith(f"{facts.table_by_number[number]}/"):
            where = facts.table_by_number[number]
            yield Anomaly("phantom", f"{number} was sent to {where} and is in {key}", facts.send_of(number))


def aborted_read(facts: Facts) -> Iterator[Anomaly]:
    """A number of a send that failed for certain was read (G1a)."""
    for send in facts.sends:
        for number in send.numbers(send.failed):
            if place := facts.places.get(number):
                said = f"{number} of a send that failed is at {place[0]} offset {place[1]}"
                yield Anomaly("aborted-read", said, (send.operation,))
                break


def precommitted_read(facts: Facts) -> Iterator[Anomaly]:
    """A number was read before it was sent."""
    for number, (ended, operation) in facts.first_read.items():
        send = facts.send_by_number.get(number)
        if send is not None and ended < send.begins:
            said = f"{number} was read before it was sent"
            yield Anomaly("precommitted-read", said, (operation, send.operation))


def refused(facts: Facts) -> Iterator[Anomaly]:
    """A server says of rows that are in order that they are not."""
    for send in facts.sends:
        if send.form not in ("writer", "abandon") and send.error.startswith("Invalid:"):
            yield Anomaly("refused", f"a send was refused though it was in order: {send.error}", (send.operation,))


def lost(facts: Facts) -> Iterator[Anomaly]:
    """An acknowledged number, or one that was read before the last read of the end began, is in no read of the end."""
    if not facts.final:
        return
    known = set().union(*facts.final)
    for send in facts.sends:
        for number in send.numbers(send.acked):
            if number not in known:
                said = f"{number} was acknowledged to process {send.process} and is in no read of the end"
                yield Anomaly("lost", said, (send.operation,))
    for number, (ended, operation) in facts.first_read.items():
        if ended < facts.final_begun and number not in known and number in facts.send_by_number:
            yield Anomaly("lost", f"{number} was read, and is in no read of the end", (operation,))


def unseen(facts: Facts) -> Iterator[Anomaly]:
    """An acknowledged number is in some reads of the end, and not in others."""
    known = set().union(*facts.final)
    for at, numbers in enumerate(facts.final):
        missing = {each for each in known - numbers if each in facts.acknowledged}
        if missing:
            said = f"read {at} of the end lacks {len(missing)} acknowledged numbers that others have, as {min(missing)}"
            yield Anomaly("unseen", said, facts.send_of(min(missing)))


def hole(facts: Facts) -> Iterator[Anomaly]:
    """An offset below others holds no row."""
    if not facts.final:
        return
    for key, rows in facts.truth.items():
        missing = sorted(set(range(max(rows) + 1)) - set(rows))
        if missing:
            yield Anomaly("hole", f"{key} has rows up to offset {max(rows)}, and none at {missing[:5]}")


def torn(facts: Facts) -> Iterator[Anomaly]:
    """A body is not its number's, or a commit is there in part."""
    for operation, numbers in facts.torn:
        yield Anomaly("torn", f"the bodies of {numbers[:5]} are not those that were sent", (operation,))
    if not facts.final:
        return
    for send in facts.sends:
        for batch in send.batches:
            there = [number in facts.places for number in send.numbers(batch)]
            if any(there) and not all(there):
                said = f"{sum(there)} of the {len(there)} numbers of one commit, from {batch[0][1]} on, are there"
                yield Anomaly("torn", said, (send.operation,))


CHECKS: Sequence[Callable[[Facts], Iterator[Anomaly]]] = (
    inconsistent_offsets,
    duplicate,
    phantom,
    aborted_read,
    precommitted_read,
    refused,
    lost,
    unseen,
    hole,
    torn,
    *log_order.CHECKS,
    *log_polls.CHECKS,
    *log_cuts.CHECKS,
)
