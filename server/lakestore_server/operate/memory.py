"""The most memory that the settings allow, part by part, and the memory that the present tables need.

- Every growing part has a bound: a setting, a constant of its module, or the number of tables, buckets, segments and
  rows.
- Only anonymous memory is counted. Segments and the index are mapped files, which the machine caches if it has room.
- docs/sizing.md says where the figures were measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lakestore.limits import Limits
from lakestore.model.table import Table
from lakestore.rows.keys import number_width
from lakestore_server.catalog.metadata_store import CACHE_BYTES_MAX
from lakestore_server.commit.queue import SMALL_STRETCH
from lakestore_server.files.segment import Segment
from lakestore_server.host.machine import MAPS_DEFAULT, maps_max, memory_bytes
from lakestore_server.host.quota import NESTED
from lakestore_server.read.piece_ranges import RANGES_KEPT
from lakestore_server.state.view import TableState, View

FILES_SHARE = 0.8
"""Share of the allowed mapped files from which on the server warns."""
LARGEST = 3
"""Parts in a log line."""
PROCESS_BYTES = 150 << 20
"""Server, index and snapshot builder without tables, measured."""
KEY_BYTES = 45
"""A number key in overlay and cache; measured at 1 M and 2 M keys: 41 and 44."""
LONG_KEY_BYTES = 120
"""A byte key in overlay and cache; measured with 16 and 36 characters: 92 and 116."""
LONG_KEY_BESIDE = 80
"""Bytes of a byte key beyond the key's own."""
ROW_BYTES_MIN = 25
"""The narrowest keyed row in the journal: kind, previous offset, key."""
RANGE_BYTES = 400
PRODUCER_BYTES = 1_000
ANSWER_BYTES = 200
STREAM_BYTES = 64 << 10
"""An open stream with its thread's stack, measured with 1,000 subscribers."""
TABLE_BYTES, BUCKET_BYTES, SEGMENT_BYTES = 15_000, 1_500, 4_000
"""Objects of a table, a bucket and a segment. Measured: 21 KB for a table with one of each (2,000 tables), 4.8 KB for a
segment with its bucket (24,576 segments)."""
MERGE_PROCESS_BYTES = 125 << 20
"""The process that merges index runs, with its slices: 105 MB measured with numbers, 125 with UUID texts."""
MERGE_ENTRY_BYTES, MERGE_LONG_ENTRY_BYTES = 1.5, 5.5
"""An entry of the runs that it merges: filter, samples and, for byte keys, the new rank."""
NAMED_BYTES = 4_000
"""A segment while a checkpoint names it: 100,000 with their buckets take 0.9 GB at most, measured."""


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """A part of the server's memory."""

    name: str
    nbytes: int
    """The most that the part takes."""
    by: str
    """The setting or number that bounds it."""


@dataclass(frozen=True, slots=True)
class MemoryCounts:
    """Counts that memory depends on whatever the settings are."""

    tables: int = 0
    buckets: int = 0
    segments: int = 0
    rows_below: int = 0
    """Rows of keyed tables below their log starts, including dead rows."""
    files: int = 0
    """Mapped segment files."""
    keys: int = 0
    """Live number keys."""
    long_keys: int = 0
    """Live byte keys."""

    @staticmethod
    def of(view: View) -> MemoryCounts:
        logs = [log for state in view.tables.values() for log in state.logs]
        segments = [chunk for log in logs for chunk in log.chunks if isinstance(chunk, Segment)]
        files = {segment.path for segment in segments} | {kept.path for each in segments for kept in each.files}
        below = (chunk for log in logs if log.keyed for chunk in log.chunks if chunk.end <= log.base.end)
        return MemoryCounts(
            tables=len(view.tables),
            buckets=len(logs),
            segments=len(segments),
            rows_below=sum(chunk.rows for chunk in below),
            files=len(files),
            keys=sum(_live(state) for state in view.tables.values() if _has_number_keys(state.table)),
            long_keys=sum(_live(state) for state in view.tables.values() if not _has_number_keys(state.table)),
        )


def _live(state: TableState) -> int:
    """The live rows of a keyed table: the entries that the index has for it."""
    return sum(log.at_head.live_rows for log in state.logs) if state.table.keyed else 0


def _has_number_keys(table: Table) -> bool:
    return not table.keyed or number_width(table.key_schema.types) is not None


def by_settings(limits: Limits) -> tuple[MemoryPart, ...]:
    """Parts bounded by settings and constants, largest first."""
    names = limits.register_name_chars + limits.register_bytes + RANGE_BYTES
    each_producer = PRODUCER_BYTES + limits.producer_answers * ANSWER_BYTES
    overlay_keys = max(limits.journal_bytes // ROW_BYTES_MIN, limits.overlay_checkpoint_keys)
    queries = limits.query_processes + NESTED if limits.query_processes else 0
    return _sorted(
        [
            MemoryPart("process", PROCESS_BYTES, "a server without tables"),
            MemoryPart("rows not yet in segments", limits.journal_bytes, "journal_bytes"),
            MemoryPart("keys not yet in the index", overlay_keys * KEY_BYTES, "journal_bytes"),
            MemoryPart("keys kept of the index", limits.index_cache_keys * LONG_KEY_BYTES, "index_cache_keys"),
            MemoryPart("commits that wait", int(limits.queue_bytes * SMALL_STRETCH), "queue_bytes"),
            MemoryPart("requests being decoded", int(limits.in_flight_bytes * SMALL_STRETCH), "in_flight_bytes"),
            MemoryPart("memory for messages, kept for the next ones", limits.journal_bytes, "journal_bytes"),
            MemoryPart("the commit being made", limits.commit_bytes + limits.batch_memory_bytes, "commit_bytes"),
            MemoryPart("messages not yet whole", limits.receiving_bytes, "receiving_bytes"),
            MemoryPart("messages of Postgres not yet whole", limits.sql_receiving_bytes, "sql_receiving_bytes"),
            MemoryPart("bodies over HTTP", limits.http_bodies_bytes, "http_bodies_bytes"),
            MemoryPart("superseded offsets for reads", 2 * limits.dead_cache_bytes, "dead_cache_bytes"),
            MemoryPart("changes for subscribers", limits.feed_cache_bytes, "feed_cache_bytes"),
            MemoryPart("streams and calls", (limits.streams + limits.threads) * STREAM_BYTES, "streams"),
            MemoryPart("answers of presented cuts", limits.present_cache_bytes, "present_cache_bytes"),
            MemoryPart("offset indexes of the lake", limits.lake_offsets_bytes, "lake_offsets_bytes"),
            MemoryPart("files of the lake", limits.lake_manifests_bytes, "lake_manifests_bytes"),
            MemoryPart("curves of the console", limits.history_bytes, "history_bytes"),
            MemoryPart("queries in SQL", queries * limits.query_bytes, "query_processes"),
            MemoryPart("metadata of the lake", CACHE_BYTES_MAX, "a constant"),
            MemoryPart("value ranges of pieces", RANGES_KEPT * RANGE_BYTES, "a constant"),
            MemoryPart("registers", limits.registers * names, "registers, each principal"),
            MemoryPart("progress", limits.progress_total_bytes, "progress_total_bytes, each principal"),
            MemoryPart("producers", (limits.producers + limits.unnamed_producers) * each_producer, "producers"),
            MemoryPart("compacting segments", 2 * max(limits.compaction_bytes, limits.segment_bytes), "segment_bytes"),
            MemoryPart("merging segments", limits.merged_segment_bytes, "merged_segment_bytes"),
            MemoryPart("the process that merges the index", MERGE_PROCESS_BYTES, "a constant"),
        ]
    )


def by_tables(held: MemoryCounts) -> tuple[MemoryPart, ...]:
    """Parts that depend on the tables, largest first."""
    return _sorted(
        [
            MemoryPart("tables", held.tables * TABLE_BYTES, f"{held.tables:,} tables"),
            MemoryPart("buckets", held.buckets * BUCKET_BYTES, f"{held.buckets:,} buckets"),
            MemoryPart("segments", held.segments * SEGMENT_BYTES, f"{held.segments:,} segments"),
            MemoryPart("names at a checkpoint", held.segments * NAMED_BYTES, f"{held.segments:,} segments"),
            MemoryPart("merging the index", _merging_bytes(held), f"{held.keys + held.long_keys:,} keys"),
            MemoryPart("superseded offsets below log starts", held.rows_below // 8, f"{held.rows_below:,} rows there"),
        ]
    )


def _merging_bytes(held: MemoryCounts) -> int:
    """Memory of a merge of all runs, in which a key may be in two runs."""
    return round(2 * (held.keys * MERGE_ENTRY_BYTES + held.long_keys * MERGE_LONG_ENTRY_BYTES))


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """Memory in a status."""

    machine_bytes: int
    """Memory that the process may take."""
    settings_bytes: int
    """Sum of the parts bounded by settings, all full at once."""
    tables_bytes: int
    """Sum of the parts that depend on the tables."""
    parts: tuple[MemoryPart, ...]
    """All parts, largest first."""
    mapped_files: int = 0
    mapped_files_max: int = MAPS_DEFAULT
    """Mapped files that the machine allows a process."""

    @staticmethod
    def from_limits(limits: Limits, view: View) -> MemoryStatus:
        """The most memory that a server's limits and its tables need."""
        held = MemoryCounts.of(view)
        settings, tables = by_settings(limits), by_tables(held)
        parts = _sorted([*settings, *tables])
        return MemoryStatus(memory_bytes(), total(settings), total(tables), parts, held.files, maps_max())

    def logged(self) -> dict[str, Any]:
        """The fields of a log line: the sums and the largest parts."""
        largest = {part.name: f"{part.nbytes >> 20} MB by {part.by}" for part in self.parts[:LARGEST]}
        return {
            "settings_mb": self.settings_bytes >> 20,
            "tables_mb": self.tables_bytes >> 20,
            "machine_mb": self.machine_bytes >> 20,
            "mapped_files": self.mapped_files,
            "mapped_files_max": self.mapped_files_max,
            "largest": largest,
        }

    @property
    def is_too_much(self) -> bool:
        """True if the machine has less memory, or nearly too few mapped files."""
        files = self.mapped_files > FILES_SHARE * self.mapped_files_max
        return files or self.settings_bytes + self.tables_bytes > self.machine_bytes


def long_key_bytes(key_bytes: int) -> int:
    """Bytes of a key of this length in overlay and cache."""
    return max(LONG_KEY_BYTES, key_bytes + LONG_KEY_BESIDE)


def total(bounds: Iterable[MemoryPart]) -> int:
    """The sum of the bounds."""
    return sum(bound.nbytes for bound in bounds)


def _sorted(bounds: Sequence[MemoryPart]) -> tuple[MemoryPart, ...]:
    return tuple(sorted(bounds, key=lambda bound: -bound.nbytes))
