"""Lake tables held against the changelog: a lake is the fold of the log below its tier point, and nothing else.

A row is `[bucket, offset, id, v]`, a change `[bucket, offset, change, id, v]`. The changelog is read at the end of
the run. It begins with the first change, because this workload has no retention.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any

from jepsen.anomaly import Anomaly
from jepsen.history import History
from jepsen.operation import Call, Kind

Row = tuple[int, int, int, int]


class Log:
    """The changelog of one table, which can be folded to any offsets."""

    def __init__(self, changes: Sequence[Sequence[Any]], *, keyed: bool) -> None:
        self.keyed = keyed
        self.buckets: dict[int, list[tuple[int, str, int, int]]] = defaultdict(list)
        for bucket, offset, change, key, v in changes:
            self.buckets[bucket].append((offset, change, key, v))
        self.values = {v for _, _, change, _, v in changes if change in ("+I", "+U")}

    def head(self, bucket: int) -> int:
        """The offset behind the last change."""
        return self.buckets[bucket][-1][0] + 1 if self.buckets[bucket] else 0

    def fold(self, bucket: int, end: int) -> set[Row]:
        """The rows of a bucket as the changes below an offset leave them."""
        below = [change for change in self.buckets[bucket] if change[0] < end]
        states = deque(_states(bucket, below, keyed=self.keyed), maxlen=1)
        return set(states[0].values())

    def fits(self, bucket: int, rows: set[Row]) -> bool:
        """Whether a bucket ever was like this."""
        states = _states(bucket, self.buckets[bucket], keyed=self.keyed)
        return any(len(state) == len(rows) and set(state.values()) == rows for state in states)


def _states(bucket: int, changes: Sequence[tuple[int, str, int, int]], *, keyed: bool) -> Iterator[dict[int, Row]]:
    """The rows before the first change and after each; one dict, which the next step changes."""
    rows: dict[int, Row] = {}
    yield rows
    for offset, change, key, v in changes:
        at = key if keyed else offset
        if change == "-D":
            rows.pop(at, None)
        else:
            rows[at] = bucket, offset, key, v
        yield rows


def check(history: History) -> Sequence[Anomaly]:
    """All anomalies."""
    anomalies = [*_unfinished(history), *_missing(history), *_cuts(history)]
    for call in history.calls("changelog"):
        if call.kind is Kind.OK:
            table = call.value["table"]
            log = Log(call.value["changes"], keyed=table == "keyed")
            anomalies += [*_writes(history, table, log), *_lakes(history, table, log), *_deletes(history, table, log)]
            anomalies += [*_reads(history, table, log), *_points(history, table, log)]
    return anomalies


def _of(history: History, table: str, *names: str) -> list[Call]:
    calls = history.calls(*names)
    return [
        call for call in calls if call.kind is Kind.OK and call.value["table"] == table and "missing" not in call.value
    ]


def _unfinished(history: History) -> Iterator[Anomaly]:
    """A lake that is still behind the log after everything has healed."""
    for call in history.calls("level"):
        if call.kind is Kind.OK and not call.value["done"]:
            said = f"the lake of {call.value['table']} stays at {call.value['point']}: {call.value['trouble']}"
            yield Anomaly("unfinished", said, (call.invoked.index,))


def _missing(history: History) -> Iterator[Anomaly]:
    for call in history.calls("lake", "cut", "deletes"):
        if call.kind is Kind.OK and "missing" in call.value:
            yield Anomaly("missing-file", f"{call.value['table']}: {call.value['missing']}", (call.invoked.index,))


def _cuts(history: History) -> Iterator[Anomaly]:
    """An engine and a scan that do not see the same rows at one token."""
    for call in history.calls("cut"):
        if call.kind is not Kind.OK or "missing" in call.value:
            continue
        engine, scanned = (Counter(map(tuple, call.value[name])) for name in ("rows", "scanned"))
        if engine != scanned:
            said = f"{call.value['engine']} sees {_few(engine - scanned)} more and {_few(scanned - engine)} less"
            yield Anomaly(
                "engines-differ",
                f"{call.value['table']}: {said} than a scan at {call.value['token']}",
                (call.invoked.index,),
            )


def _writes(history: History, table: str, log: Log) -> Iterator[Anomaly]:
    """Acknowledged values that are not in the log, and values in the log that nobody wrote."""
    tried: set[int] = set()
    for call in history.calls(*(("write", "hot") if table == "keyed" else ("append",))):
        value = call.invoked.value
        mine = {v for _, v in value["upsert"]} if table == "keyed" else set(value)
        lost = mine - log.values
        if call.kind is Kind.OK and lost:
            yield Anomaly("lost", f"{sorted(lost)} were acknowledged and are not in the log", (call.invoked.index,))
        if call.kind is Kind.FAIL and call.f != "hot" and mine & log.values:  # a hot write is tried again
            yield Anomaly(
                "aborted", f"{sorted(mine & log.values)} were refused, and are in the log", (call.invoked.index,)
            )
        tried |= mine
    if log.values - tried:
        yield Anomaly("phantom", f"{sorted(log.values - tried)[:5]} of {table} were never written")


def _lakes(history: History, table: str, log: Log) -> Iterator[Anomaly]:
    """Lakes that are not the fold at their tier point."""
    for call in _of(history, table, "lake"):
        rows = Counter(tuple(row) for row in call.value["rows"])
        point = call.value["point"]
        beyond = [bucket for bucket, end in enumerate(point) if end > log.head(bucket)]
        if beyond:
            yield Anomaly("beyond", f"the lake of {table} is at {point}, beyond the log's end", (call.invoked.index,))
        expected = {row for bucket, end in enumerate(point) for row in log.fold(bucket, end)}
        twice = [row for row, count in rows.items() if count > 1]
        lost, strange = expected - set(rows), set(rows) - expected
        at = f"{call.value['engine']}: the lake of {table} at {point} (snapshot {call.value['snapshot']})"
        if twice:
            yield Anomaly("lake-twice", f"{at} has {_few(twice)} twice", (call.invoked.index,))
        if lost:
            yield Anomaly("lake-lost", f"{at} lacks {_few(lost)}", (call.invoked.index,))
        if strange:
            yield Anomaly(
                "lake-stale", f"{at} has {_few(strange)}, which the log does not have there", (call.invoked.index,)
            )


def _deletes(history: History, table: str, log: Log) -> Iterator[Anomaly]:
    """Position deletes that hit nothing, or a live row, or a row twice."""
    for call in _of(history, table, "deletes"):
        point = call.value["point"]
        live = {row[:2] for bucket, end in enumerate(point) for row in log.fold(bucket, end)}
        hits = Counter((bucket, offset) for bucket, offset in call.value["hits"])
        if call.value["dangling"]:
            yield Anomaly(
                "dangling-delete", f"{call.value['dangling']} deletes of {table} hit no row", (call.invoked.index,)
            )
        if live & set(hits):
            yield Anomaly(
                "wrong-delete", f"live rows of {table} are deleted: {_few(live & set(hits))}", (call.invoked.index,)
            )
        twice = [place for place, count in hits.items() if count > 1]
        if twice:
            yield Anomaly("deleted-twice", f"rows of {table} are deleted twice: {_few(twice)}", (call.invoked.index,))


def _reads(history: History, table: str, log: Log) -> Iterator[Anomaly]:
    """Scans that are no state of the table; those of one moment in the log are states of all buckets."""
    for call in _of(history, table, "scan", "hot", "cut"):
        rows: list[Row] = [tuple(row) for row in call.value["scanned" if call.f == "cut" else "rows"]]
        if len(rows) != len(set(rows)):
            yield Anomaly("read-twice", f"a scan of {table} has rows twice", (call.invoked.index,))
        for bucket in {*log.buckets, *(row[0] for row in rows)}:
            mine = {row for row in rows if row[0] == bucket}
            if not log.fits(bucket, mine):
                yield Anomaly(
                    "no-state",
                    f"a scan of {table} has rows that bucket {bucket} never had together",
                    (call.invoked.index,),
                )


def _points(history: History, table: str, log: Log) -> Iterator[Anomaly]:
    """A tier point that goes back."""
    seen: list[tuple[int, list[int]]] = []
    calls = [call for call in _of(history, table, "lake", "level") if call.completed]
    for call in sorted(calls, key=lambda each: each.invoked.index):
        point = call.value["point"]
        earlier = [before for ended, before in seen if ended < call.invoked.index]
        if any(
            any(was > now for was, now in zip(before, point or [0] * len(before), strict=True)) for before in earlier
        ):
            yield Anomaly("point-back", f"the lake of {table} went back to {point}", (call.invoked.index,))
        if point and call.completed:
            seen.append((call.completed.index, point))


def _few(things: Any) -> str:
    listed = sorted(things)
    return f"{len(listed)} rows, as {listed[:3]}" if listed else "nothing"
