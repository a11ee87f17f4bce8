"""Checks copies of a source by processes that take over partitions from each other: rows and positions agree.

Calls are those of `jepsen.workloads.copying`; rows are told as partition, first number, number behind the last one, and
the copy that made them. Of a partition the records from 0 up to its position are there at any cut, each once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate

from jepsen.anomaly import Anomaly, few
from jepsen.checkers.freshness import Bound, Freshness
from jepsen.history import History
from jepsen.operation import Call, Kind

LAST = -1
"""The number of the opening of all registers at the end."""
Row = tuple[int, int, int]
"""Partition, number of the record, copy."""


def check(history: History) -> Sequence[Anomaly]:
    """All anomalies, a few of each name."""
    reads = [call for call in history.calls("read") if call.kind is Kind.OK]
    opens = [call for call in history.calls("open") if call.kind is Kind.OK]
    copies = history.calls("copy")
    made = [call for call in copies if call.kind is Kind.OK and call.value["spans"]]
    freshness = Freshness(history, [*opens, *made])
    found = [each for read in reads for each in _rows(read)]
    found += _positions(opens, copies, reads, freshness)
    found += _fenced(opens, copies)
    found += [each for read in reads for each in _copies(read, copies, freshness.bound(read))]
    return few([*found, *_apart(reads, opens, copies)])


def _logged(read: Call, table: str = "log") -> list[Row]:
    return [(p, n, by) for p, begin, end, by in read.value[table] for n in range(begin, end)]


def _rows(read: Call) -> Iterator[Anomaly]:
    """Records that are there twice, or not before a later one; or in one table and not in the other."""
    at, numbers = (read.invoked.index,), Counter((p, n) for p, n, _ in _logged(read))
    twice = sorted(place for place, times in numbers.items() if times > 1)
    if twice:
        yield Anomaly("twice", f"record {twice[0][1]} of partition {twice[0][0]} was copied twice", at)
    ends: dict[int, int] = defaultdict(int)
    for p, n in numbers:
        ends[p] = max(ends[p], n + 1)
    missing = sorted((p, n) for p, end in ends.items() for n in range(end) if (p, n) not in numbers)
    if missing:
        yield Anomaly(
            "gap", f"record {missing[0][1]} of partition {missing[0][0]} is not there, and a later one is", at
        )
    differing = sorted(numbers.keys() ^ {(p, n) for p, n, _ in _logged(read, "keyed")})
    if differing:
        yield Anomaly("half-commit", f"{differing[:3]} are in one of two tables at one cut", at)


def _copies(read: Call, copies: Sequence[Call], bound: Bound) -> Iterator[Anomaly]:
    """Copies that were refused and are there, in part or not at all though acknowledged, or that nobody made."""
    rows: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for p, n, by in _logged(read):
        rows[by].add((p, n))
    known = {call.invoked.value["by"]: call for call in copies}
    unknown = {call.invoked.value["by"] for call in copies if call.kind is Kind.INFO}
    """The last copy is made again after an unknown outcome, by a process without registers: the second try is empty."""
    for by in sorted(rows.keys() - known.keys()):
        yield Anomaly("phantom", f"rows of copy {by} are there, which nobody made", (read.invoked.index,))
    for by, call in known.items():
        at = read.invoked.index, call.invoked.index
        if call.kind is Kind.FAIL and by in rows:
            yield Anomaly("aborted", f"rows of copy {by} are there, which was refused", at)
        if call.kind is Kind.OK:
            spans = [span for span in call.value["spans"] if span[0] >= read.value["first"]]
            due = {(p, n) for p, begin, end in spans for n in range(begin, end)}
            if bound.covers(call) and due - rows[by]:
                yield Anomaly("lost", f"copy {by} was acknowledged, and {sorted(due - rows[by])[0]} is not there", at)
            elif rows[by] and rows[by] != due and (due or by not in unknown):
                yield Anomaly("torn-commit", f"of copy {by} there are {len(rows[by])} rows, and {len(due)} are due", at)


def _positions(
    opens: Sequence[Call], copies: Sequence[Call], reads: Sequence[Call], freshness: Freshness
) -> Iterator[Anomaly]:
    """Positions that are lower than somebody knew before; at a follower, than what the read must show."""
    told: dict[int, list[tuple[float, int]]] = defaultdict(list)
    """Places in the history of each partition, and the positions that were known there."""
    for call in copies:
        for p, _, end in call.value["spans"] if call.kind is Kind.OK else []:
            told[p].append((call.acknowledged, end))
    for call in [*opens, *reads]:
        for p, at in call.value["at"]:
            told[p].append((call.acknowledged, at))
    for read in reads:
        for p, end in _ends(read).items():
            told[p].append((read.acknowledged, end))
    known = {p: sorted(places) for p, places in told.items()}
    highest = {p: list(accumulate((at for _, at in places), max)) for p, places in known.items()}
    own = {call.invoked.index: call for call in copies if call.kind is Kind.OK}
    for call in [*opens, *reads]:
        bound = freshness.bound(call) if call.f == "read" else Bound(call.invoked.index)
        moved = {p: end for p, _, end in own[bound.own].value["spans"]} if bound.own in own else {}
        for p, at in call.value["at"]:
            place = bisect_left(known[p], (bound.place, 0))
            due = max(highest[p][place - 1] if place else 0, moved.get(p, 0))
            if at < due:
                yield Anomaly("position-back", f"partition {p} is at {at}, and was at {due}", (call.invoked.index,))


def _ends(read: Call) -> Counter[int]:
    """The number of records of each partition that are there."""
    return Counter(p for p, _ in {(p, n) for p, n, _ in _logged(read)})


def _fenced(opens: Sequence[Call], copies: Sequence[Call]) -> Iterator[Anomaly]:
    """Copies that were accepted although another process had opened the register before they began."""
    mine = {call.value["reader"]: call for call in opens}
    for copy in copies:
        if copy.kind is not Kind.OK or copy.value["reader"] not in mine:
            continue
        own, moved = mine[copy.value["reader"]], {p for p, _, _ in copy.value["spans"]}
        for other in opens:
            came_between = own.acknowledged < other.invoked.index and other.acknowledged < copy.invoked.index
            if other is not own and came_between and moved & {p for p, _ in other.value["at"]}:
                said = f"copy {copy.value['by']} moved partitions {sorted(moved)}, which {other.value['reader']} had"
                yield Anomaly("fenced-moved", f"{said} opened since", (other.invoked.index, copy.invoked.index))
                break


def _apart(reads: Sequence[Call], opens: Sequence[Call], copies: Sequence[Call]) -> Iterator[Anomaly]:
    """Positions that are not where the rows end: ahead of rows that are read later, or, at the end, anywhere else."""
    for read in reads:
        ends = _ends(read)
        for p, at in read.value["at"]:
            if at > ends[p] or (at < ends[p] and _is_last(read, opens, copies)):
                said = f"partition {p} is at {at}, and {ends[p]} of its records are there"
                yield Anomaly("apart", said, (read.invoked.index,))


def _is_last(read: Call, opens: Sequence[Call], copies: Sequence[Call]) -> bool:
    """Whether all registers were opened before a read, and no copy that began since can be under way."""
    own = [call for call in opens if call.value["reader"] == LAST and call.acknowledged < read.invoked.index]
    since = [call for call in copies if own and call.invoked.index > own[-1].invoked.index]
    return bool(own) and all(call.ended < read.invoked.index for call in since)
