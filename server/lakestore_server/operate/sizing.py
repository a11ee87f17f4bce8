"""Sizing: disk, memory, bytes written and times of a planned table, and the resource that runs out first.

A calculation, no promise. Constants are measurements with their sources. `churn` simulates what follows from rules.
docs/sizing.md compares the results with measurements at 1, 10 and 50 million keys.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lakestore.errors import Invalid
from lakestore.limits import DEFAULT, Limits
from lakestore.rows.keys import INDEX_KEY_BYTES_MAX
from lakestore_server.host.machine import MAPS_DEFAULT
from lakestore_server.index.entry import PREFIX_BYTES
from lakestore_server.index.levels import due
from lakestore_server.operate import memory
from lakestore_server.operate.memory import MemoryCounts
from lakestore_server.segments.compaction import Amounts, are_joined, is_mostly_gone, join_last
from lakestore_server.segments.cut import SMALL_TOGETHER, is_taken_along
from lakestore_server.segments.merging import groups, is_mergeable

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A keyed table and its use."""

    keys: float
    rate: float
    """Updates per second, uniform over all keys."""
    stored_bytes: float
    """Bytes of a row in a segment."""
    checkpoint_rows: float
    buckets: int = 4
    retention_seconds: float = math.inf
    """Seconds for which the log is kept; older rows stay while they are live."""
    limits: Limits = DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingResult:
    """The result of a simulation."""

    checkpoints: int
    entries_written: float
    """Index entries written per update."""
    entries_most: float
    """The most entries of all runs per key, including the output of a merge."""
    entries_read: float
    """Entries of the largest merge."""
    rows_written: float
    """Segment rows written per update."""
    rows_most: float
    rows_by_day: tuple[float, ...]
    segments_most: int
    runs_most: int


class Runs:
    """The index runs by their entries, newest first; the oldest holds every key."""

    def __init__(self, keys: float) -> None:
        self._keys = keys
        self.sizes = [keys]
        self.written = 0.0
        self.most = keys
        self.largest = 0.0

    def add(self, rows: float) -> None:
        """Add the run of a checkpoint, then do the merges that are due."""
        self.sizes.insert(0, -self._keys * math.expm1(-rows / self._keys))
        self.written += self.sizes[0]
        while count := due([round(size) for size in self.sizes]):
            absent = 1.0
            for size in self.sizes[:count]:
                absent *= 1 - size / self._keys
            merged = self._keys * (1 - absent)
            self.most = max(self.most, sum(self.sizes) + merged)
            self.largest = max(self.largest, sum(self.sizes[:count]))
            self.sizes[:count] = [merged]
            self.written += merged
        self.most = max(self.most, sum(self.sizes))


class _Run(NamedTuple):
    """Neighbouring segments that become one."""

    first: int
    end: int
    amounts: Amounts
    is_due: bool

    def joined(self, after: _Run) -> _Run:
        amounts = Amounts(*(a + b for a, b in zip(self.amounts, after.amounts, strict=True)))
        return _Run(self.first, after.end, amounts, True)


@dataclass(slots=True)
class Bucket:
    """The segments of a bucket: [start, end) of each, and their stored rows."""

    life: Life
    starts: Floats = field(default_factory=lambda: np.empty(0))
    ends: Floats = field(default_factory=lambda: np.empty(0))
    held: Floats = field(default_factory=lambda: np.empty(0))
    head: float = 0.0
    written: float = 0.0

    @property
    def keys(self) -> float:
        return self.life.keys / self.life.buckets

    def fill(self) -> None:
        """Store every key once, in segments of the largest size."""
        count = max(math.ceil(self.keys / self._rows_max), 1)
        bounds = np.linspace(0, self.keys, count + 1)
        self.starts, self.ends, self.held = bounds[:-1], bounds[1:], np.diff(bounds)
        self.head = self.keys

    @property
    def _rows_max(self) -> float:
        limits = self.life.limits
        return min(limits.segment_rows, limits.segment_bytes / self.life.stored_bytes)

    def live(self) -> Floats:
        """The rows of each segment that no later row supersedes."""
        return self._below(self.ends) - self._below(self.starts)

    def _below(self, offsets: Floats) -> Floats:
        later = np.maximum(offsets, self.keys)
        of_first = np.minimum(offsets, self.keys) * math.exp(-(self.head - self.keys) / self.keys)
        grown: Floats = np.exp(-(self.head - later) / self.keys) - math.exp(-(self.head - self.keys) / self.keys)
        return of_first + self.keys * grown

    def cut(self, rows: float) -> None:
        """Add a segment of new rows, together with small segments before it."""
        limits, stored = self.life.limits, self.life.stored_bytes
        start, size, base = self.head, rows, self.log_start
        first, most = len(self.starts), SMALL_TOGETHER * limits.shared_segment_bytes
        while first and self.ends[first - 1] > base:
            before = float(self.held[first - 1])
            if not is_taken_along(before, before * stored, size, size * stored, limits.segment_rows, most):
                break
            first -= 1
            start, size = float(self.starts[first]), size + before
        self.head += rows
        self._replace(first, len(self.starts), [(start, self.head, size)])

    def merge(self) -> None:
        """Merge neighbours in the log like background merging, once there are enough."""
        limits, stored = self.life.limits, self.life.stored_bytes
        first = end = len(self.starts)
        while first and is_mergeable(float(self.held[first - 1]) * stored, limits):
            if self.starts[first - 1] < self.log_start:
                break
            first -= 1
        sizes = (self.held[first:end] * stored).tolist()
        for low, high in reversed(list(groups(sizes, limits))):  # backwards, so that positions stay valid
            rows = float(self.held[first + low : first + high].sum())
            span = float(self.starts[first + low]), float(self.ends[first + high - 1])
            self._replace(first + low, first + high, [(*span, rows)])

    @property
    def log_start(self) -> float:
        """The offset below which only live rows must stay."""
        return max(self.head - self.life.rate / self.life.buckets * self.life.retention_seconds, 0.0)

    def compact(self) -> None:
        """Rewrite segments below the log start that are half dead, and small neighbours together."""
        below = int(np.searchsorted(self.ends, self.log_start, side="right"))
        if not below:
            return
        live, held, stored = self.live()[:below], self.held[:below], self.life.stored_bytes
        is_dead = np.asarray(is_mostly_gone(held, held - live))
        before, after = (
            Amounts(live[part], live[part] * stored, held[part] * stored) for part in (slice(None, -1), slice(1, None))
        )
        joins = are_joined(before, after, self.life.limits)
        if is_dead.any() or np.asarray(joins).any():
            self._rewrite(live, is_dead)

    def _rewrite(self, live: Floats, is_dead: npt.NDArray[np.bool_]) -> None:
        stored, limits = self.life.stored_bytes, self.life.limits
        runs: list[_Run] = []
        for at, rows in enumerate(live.tolist()):
            held = float(self.held[at])
            run = _Run(at, at + 1, Amounts(rows, rows * stored, held * stored), bool(is_dead[at]))
            join_last(runs, run, lambda a, b: bool(are_joined(a.amounts, b.amounts, limits)), _Run.joined)
        room = limits.compaction_bytes / self.life.buckets
        for first, end, amounts, is_due in reversed(runs):  # backwards, so that positions stay valid
            if is_due and room > 0:
                room -= float(amounts.nbytes)
                self._replace(first, end, [(float(self.starts[first]), float(self.ends[end - 1]), float(amounts.live))])

    def _replace(self, first: int, end: int, new: list[tuple[float, float, float]]) -> None:
        self.written += sum(rows for *_, rows in new)
        parts = np.array([each for each in new if each[2] >= 1]).reshape(-1, 3).T
        for name, values in zip(("starts", "ends", "held"), parts, strict=True):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old[:first], values, old[end:]]))


def simulate(life: Life, seconds: float) -> SizingResult:
    """Simulate a table for `seconds`, after one write of every key."""
    runs, bucket = Runs(life.keys), Bucket(life)
    bucket.fill()
    rows = life.checkpoint_rows
    steps = max(round(seconds * life.rate / rows), 1)
    each_day = max(round(86_400 * life.rate / rows), 1)
    rows_most, segments_most, runs_most = 0.0, 0, 0
    by_day: list[float] = []
    for step in range(1, steps + 1):
        runs.add(rows)
        before = float(bucket.held.sum())
        bucket.cut(rows / life.buckets)
        bucket.merge()
        bucket.compact()
        after = float(bucket.held.sum())
        rows_most = max(rows_most, before + rows / life.buckets, after)
        segments_most, runs_most = max(segments_most, len(bucket.held)), max(runs_most, len(runs.sizes))
        if step % each_day == 0:
            by_day.append(after * life.buckets)
    updates = steps * rows
    return SizingResult(
        checkpoints=steps,
        entries_written=runs.written / updates,
        entries_most=runs.most / life.keys,
        entries_read=runs.largest,
        rows_written=bucket.written * life.buckets / updates,
        rows_most=rows_most * life.buckets,
        rows_by_day=tuple(by_day),
        segments_most=segments_most * life.buckets,
        runs_most=runs_most,
    )


WEEK_SECONDS = 7 * 86_400
STEPS_MAX = 10_000
"""The most simulated checkpoints: cycles of merges and compaction repeat long before."""
NUMBER_KEY_BYTES = 8
"""Keys up to this length are numbers, unless the workload says otherwise."""
NUMBER, BYTES = "number", "bytes"


class Constant(Enum):
    """A measured figure with its unit and source."""

    KEYED_ROW = 13.0, "bytes", "kind (1), offset before (8) and a text's end (4) beside the values: `Segment` files"
    LOG_ROW = 4.0, "bytes", "a text's end beside the values of random rows, which nothing compresses"
    RUN_ENTRY = 17.5, "bytes", "number, value, filter and sample of a run's entry: format of the index's runs"
    BYTE_ENTRY = 25.5, "bytes", "value, place, hash, filter and sample of an entry whose key is bytes: format of runs"
    KEY_WORD = 8.0, "bytes", "a key of bytes, with 4 of its table before it, is filled up to a multiple in a run"
    RUNS_MOST = 2.0, "times", "runs before all are merged: the rule merges when the newer hold as much as the oldest"
    COMMIT_ENTRY = 40.0, "bytes", "a commit in the commit index of each bucket that it touches: five numbers"
    DISK_RATE = 250e6, "bytes/s", "synced writes on the bench's disk: Kafka with fsync gets 195 to 305 MB/s there"
    MERGE_RATE = 12e6, "entries/s", "8 M entries of three runs merged and written: 82 ns of a processor each"
    BYTE_MERGE_RATE = 5e6, "entries/s", "keys of 40 bytes merged and written: 0.2 µs of a processor each"
    REPLAY_RATE = (
        60e6,
        "bytes/s",
        "journal read and put into the index: 10 M rows killed serve after 2.0 s (benchmarks.md)",
    )
    START = 1.0, "s", "a process with nothing to recover: `make bench life`"
    SEGMENT_START = 35e-6, "s", "a processor's time for each of 24,576 segments at a start"
    SEGMENT_CHECKPOINT = 12e-6, "s", "a processor's time for each of 24,576 segments at a checkpoint"
    MAPS = float(MAPS_DEFAULT), "maps", "mapped files of a process, Linux's default `vm.max_map_count`"

    def __init__(self, amount: float, unit: str, source: str) -> None:
        self.amount, self.unit, self.source = amount, unit, source


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A table and its use. `Invalid` for an impossible number."""

    rows: float
    """Keys of a keyed table; initial rows of a log table."""
    rate: float
    """Rows per second: uniform updates, or appends to a log."""
    row_bytes: float = 44.0
    key_bytes: int = NUMBER_KEY_BYTES
    """Bytes of a key; 0 for a log table."""
    key_kind: str = ""
    """`number`, `bytes` (texts, keys of several columns), or empty: decided by the length."""
    buckets: int = 4
    retention_seconds: float = math.inf
    batch_rows: float = 10_000.0
    limits: Limits = DEFAULT
    memory_bytes: float = 0.0
    """Memory of the machine; 0 skips the check."""
    disk_bytes: float = 0.0
    """Disk of the machine; 0 skips the check."""

    def __post_init__(self) -> None:
        for name in ("rows", "rate", "row_bytes", "batch_rows", "retention_seconds", "buckets"):
            if not getattr(self, name) > 0:
                raise Invalid(f"{name} is above 0, not {getattr(self, name)}")
        if self.key_kind not in ("", NUMBER, BYTES):
            raise Invalid(f"key_kind is {NUMBER} or {BYTES}, not {self.key_kind!r}")
        if self.key_kind == NUMBER and self.key_bytes > NUMBER_KEY_BYTES:
            raise Invalid(
                f"a number has up to {NUMBER_KEY_BYTES} bytes: key_bytes {self.key_bytes} are of kind {BYTES}"
            )
        if self.key_bytes < 0 or self.memory_bytes < 0 or self.disk_bytes < 0:
            raise Invalid("key_bytes, memory_bytes and disk_bytes are not below 0")

    @property
    def stored_bytes(self) -> float:
        return self.row_bytes + (Constant.KEYED_ROW if self.key_bytes else Constant.LOG_ROW).amount

    @property
    def has_number_keys(self) -> bool:
        by_bytes = 0 < self.key_bytes <= NUMBER_KEY_BYTES
        return by_bytes and self.key_kind != BYTES

    @property
    def entry_bytes(self) -> float:
        """Bytes of an index entry; a longer key is stored as prefix and hash."""
        if not self.key_bytes:
            return 0.0
        if self.has_number_keys:
            return Constant.RUN_ENTRY.amount
        words = -(-(PREFIX_BYTES + min(self.key_bytes, INDEX_KEY_BYTES_MAX)) // Constant.KEY_WORD.amount)
        return Constant.BYTE_ENTRY.amount + words * Constant.KEY_WORD.amount

    @property
    def checkpoint_rows(self) -> float:
        """Rows between two checkpoints."""
        by_journal = self.limits.journal_checkpoint_bytes / self.stored_bytes
        return min(by_journal, self.limits.overlay_checkpoint_keys) if self.key_bytes else by_journal


@dataclass(frozen=True, slots=True)
class Figure:
    """A calculated figure."""

    part: str
    name: str
    value: float
    unit: str
    """bytes, seconds or times."""
    why: str


@dataclass(frozen=True, slots=True)
class Breaking:
    """A growing figure and its limit."""

    name: str
    value: float
    most: float
    why: str

    @property
    def share(self) -> float:
        """1 means the limit is reached."""
        return self.value / self.most


@dataclass(frozen=True, slots=True)
class Sizing:
    """The result for a workload."""

    figures: tuple[Figure, ...]
    breaking: tuple[Breaking, ...]
    """Sorted, the nearest to its limit first."""

    def value(self, part: str, name: str) -> float:
        return next(each.value for each in self.figures if (each.part, each.name) == (part, name))

    def as_dict(self) -> dict[str, Any]:
        """The JSON form, constants included."""
        return {
            "figures": [asdict(each) for each in self.figures],
            "breaking": [{**asdict(each), "share": round(each.share, 3)} for each in self.breaking],
            "constants": [
                {"name": each.name.lower(), "value": each.amount, "unit": each.unit, "source": each.source}
                for each in Constant
            ],
        }


def sized(workload: Workload, seconds: float = WEEK_SECONDS) -> Sizing:
    """The sizes of a workload after `seconds`."""
    parts = _Parts(workload, _lived(workload, seconds), seconds)
    return Sizing(
        (*parts.disk(), *parts.memory(), *parts.writes(), *parts.times()),
        tuple(sorted(parts.breaking(), key=lambda each: -each.share)),
    )


def _lived(workload: Workload, seconds: float) -> SizingResult | None:
    if not workload.key_bytes:
        return None
    steps = seconds * workload.rate / workload.checkpoint_rows
    life = Life(
        keys=workload.rows,
        rate=workload.rate,
        stored_bytes=workload.stored_bytes,
        checkpoint_rows=workload.checkpoint_rows,
        buckets=workload.buckets,
        retention_seconds=workload.retention_seconds,
        limits=workload.limits,
    )
    return simulate(life, seconds * min(STEPS_MAX / steps, 1.0))


class _Parts:
    """The parts of one result."""

    def __init__(self, workload: Workload, lived: SizingResult | None, seconds: float) -> None:
        self._of, self._lived, self._limits = workload, lived, workload.limits
        kept = min(workload.retention_seconds, seconds) * workload.rate
        self._log_rows = kept + (0 if math.isfinite(workload.retention_seconds) else workload.rows)
        self._is_number = workload.has_number_keys
        self._rows_max = min(self._limits.segment_rows, self._limits.segment_bytes / workload.stored_bytes)
        if workload.key_bytes:  # merged into few large runs, the smallest of them half as large
            self._rows_max = max(self._rows_max, self._limits.merged_segment_bytes / 2 / workload.stored_bytes)

    @property
    def _stored_rows(self) -> float:
        if self._of.key_bytes and math.isfinite(self._of.retention_seconds):
            return self._log_rows + 2 * self._of.rows
        return self._log_rows

    @property
    def _segments(self) -> float:
        return max(self._stored_rows / self._rows_max, self._of.buckets) * 4 / 3 + 10 * self._of.buckets

    @property
    def _index_bytes(self) -> float:
        return self._of.rows * self._of.entry_bytes

    @property
    def _index_most(self) -> float:
        if self._lived is None:
            return 0.0
        return self._index_bytes * max(self._lived.entries_most, Constant.RUNS_MOST.amount + 1)

    @property
    def _commit_bytes(self) -> float:
        return self._log_rows / self._of.batch_rows * self._of.buckets * Constant.COMMIT_ENTRY.amount

    def disk(self) -> tuple[Figure, ...]:
        segments = self._stored_rows * self._of.stored_bytes + self._commit_bytes
        journal, runs = self._limits.journal_bytes, "runs, and the output while they are merged"
        total = segments + self._index_most + journal
        return (
            Figure("disk", "segments", segments, "bytes", f"{self._stored_rows:.3g} rows and their commits"),
            Figure("disk", "index at rest", self._index_bytes, "bytes", "one entry a key"),
            Figure("disk", "index at most", self._index_most, "bytes", runs),
            Figure("disk", "journal at most", journal, "bytes", "journal_bytes"),
            Figure("disk", "total at most", total, "bytes", "all of these"),
        )

    def memory(self) -> tuple[Figure, ...]:
        below = 2 * self._of.rows if self._of.key_bytes and math.isfinite(self._of.retention_seconds) else 0
        keys = {"keys" if self._is_number else "long_keys": round(self._of.rows)} if self._of.key_bytes else {}
        numbers = {"tables": 1, "buckets": self._of.buckets, "segments": round(self._segments), **keys}
        held = MemoryCounts(**numbers, rows_below=round(below))
        key = memory.KEY_BYTES if self._is_number else memory.long_key_bytes(self._of.key_bytes)
        overlay = 2 * self._of.checkpoint_rows * key if self._of.key_bytes else 0
        cached = self._limits.index_cache_keys * key if self._of.key_bytes else 0
        rows, index = self._limits.journal_checkpoint_bytes * 2, self._index_bytes
        processes = memory.PROCESS_BYTES + (memory.MERGE_PROCESS_BYTES if self._of.key_bytes else 0)
        used = processes + overlay + cached + rows + memory.total(memory.by_tables(held))
        return (
            Figure("memory", "overlays", overlay, "bytes", "keys of two checkpoints"),
            Figure("memory", "cache of keys", cached, "bytes", "index_cache_keys"),
            Figure("memory", "rows not yet in segments", rows, "bytes", "journal of two checkpoints"),
            Figure("memory", "tables", memory.total(memory.by_tables(held)), "bytes", f"{held.segments:,} segments"),
            Figure("memory", "in use", used, "bytes", "all of these and the processes"),
            Figure("memory", "allowed", memory.total(memory.by_settings(self._limits)), "bytes", "all bounds at once"),
            Figure("memory", "of the machine, for the index", index, "bytes", "else look-ups read the disk"),
        )

    def writes(self) -> tuple[Figure, ...]:
        copy = self._of.stored_bytes / self._of.row_bytes
        copies = self._copies
        index, why = self._index_written()
        return (
            Figure("writes", "journal", copy, "times", "each row once"),
            Figure("writes", "segments", copies * copy, "times", f"each row {copies:.1f} times"),
            Figure("writes", "index", index, "times", why),
            Figure("writes", "in all", copy * (1 + copies) + index, "times", "bytes written per byte of row"),
        )

    @property
    def _copies(self) -> float:
        """Copies of a row in segments. Large commits of a log table have none: they stay in the journal file."""
        if self._lived is not None:
            return self._lived.rows_written
        part = self._of.batch_rows * self._of.stored_bytes / self._of.buckets
        return 0.0 if part >= self._limits.extent_bytes else 1.0

    def _index_written(self) -> tuple[float, str]:
        if self._lived is None:
            return 0.0, "a log has none"
        entries = self._lived.entries_written
        return entries * self._of.entry_bytes / self._of.row_bytes, f"{entries:.1f} entries an update"

    @property
    def _checkpoint_seconds(self) -> float:
        rows, copies = self._of.checkpoint_rows, self._copies
        written = rows * (copies * self._of.stored_bytes + self._of.entry_bytes)
        return written / Constant.DISK_RATE.amount + self._segments * Constant.SEGMENT_CHECKPOINT.amount

    @property
    def _recovery_seconds(self) -> float:
        replay = self._limits.journal_bytes / Constant.REPLAY_RATE.amount
        return Constant.START.amount + replay + self._segments * Constant.SEGMENT_START.amount

    def times(self) -> tuple[Figure, ...]:
        every = self._of.checkpoint_rows / self._of.rate
        rate = Constant.MERGE_RATE if self._is_number else Constant.BYTE_MERGE_RATE
        merge = (self._lived.entries_read if self._lived else 0) / rate.amount
        return (
            Figure("times", "between checkpoints", every, "seconds", f"{self._of.checkpoint_rows:,.0f} rows"),
            Figure("times", "a checkpoint", self._checkpoint_seconds, "seconds", "segments, a run, and all names"),
            Figure("times", "the largest merge of runs", merge, "seconds", "beside serving, twice that at half pace"),
            Figure("times", "recovery at most", self._recovery_seconds, "seconds", "a full journal, every segment"),
        )

    def breaking(self) -> tuple[Breaking, ...]:
        _, _, _, in_all = self.writes()
        rate = in_all.value * self._of.row_bytes * self._of.rate
        every = self._of.checkpoint_rows / self._of.rate
        found = [
            Breaking("bytes written a second", rate, Constant.DISK_RATE.amount, "the disk: writers are held back"),
            Breaking("time of a checkpoint", self._checkpoint_seconds, every * self._slack, "the journal fills up"),
            Breaking("segments", self._segments, Constant.MAPS.amount, "mapped files of a process"),
            Breaking("recovery", self._recovery_seconds, 60.0, "a minute without the server"),
        ]
        if self._of.memory_bytes:
            room = self._of.memory_bytes / 2
            wanted = self._index_bytes
            used = next(each.value for each in self.memory() if each.name == "in use")
            found.append(Breaking("index in half of the memory", wanted, room, "look-ups and updates read the disk"))
            found.append(Breaking("memory in use", used, room, "the process, beside the mapped files"))
        if self._of.disk_bytes:
            total = next(each.value for each in self.disk() if each.name == "total at most")
            found.append(Breaking("disk", total, self._of.disk_bytes, "rows are Exhausted"))
        return tuple(found)

    @property
    def _slack(self) -> float:
        return (self._limits.journal_bytes - self._limits.journal_checkpoint_bytes) / (
            self._of.checkpoint_rows * self._of.stored_bytes
        )
