"""The memory that the settings allow, part by part, and what the tables that are there take beside it.

Every part that grows has a bound: a setting, a constant of its module, or the number of tables, buckets, segments and
rows. Anonymous memory alone is counted: segments and the index are mapped files, which the machine keeps in
memory as far as it has room. docs/sizing.md tells where the figures were measured.
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
from lakestore_server.read.piece_ranges import RANGES_KEPT
from lakestore_server.state.view import TableState, View

FILES_SHARE = 0.8
"""Part of the mapped files that a process may have from which on the server warns."""
LARGEST = 3
"""Parts that a log line names."""
PROCESS_BYTES = 150 << 20
"""Server, index and presenter with no table, measured."""
KEY_BYTES = 45
"""A key that is a number, in overlay and cache; measured at 1 M and 2 M keys: 41 and 44."""
LONG_KEY_BYTES = 120
"""A key of bytes there; measured with 16 and 36 characters: 92 and 116."""
LONG_KEY_BESIDE = 80
"""The part of it beside the key's own bytes."""
ROW_BYTES_MIN = 25
"""The narrowest row with a key in the journal: kind, offset before, and key."""
RANGE_BYTES = 400
PRODUCER_BYTES = 1_000
ANSWER_BYTES = 200
STREAM_BYTES = 64 << 10
"""An open stream with its thread's stack in use, measured with 1,000 subscribers."""
TABLE_BYTES, BUCKET_BYTES, SEGMENT_BYTES = 15_000, 1_500, 4_000
"""Objects of a table, a bucket and a segment: 21 KB measured for each of 2,000 tables with one of both, 4.8 KB for each
of 24,576 segments with its bucket."""
MERGE_PROCESS_BYTES = 125 << 20
"""The process that merges runs of the index, with its slices: 105 MB measured with numbers, 125 with UUID texts."""
MERGE_ENTRY_BYTES, MERGE_LONG_ENTRY_BYTES = 1.5, 5.5
"""An entry of the runs that it merges, for filter, samples and, of a key of bytes, its new rank."""
NAMED_BYTES = 4_000
"""A segment while a checkpoint names it: 100,000 take 0.9 GB at most with their buckets, measured."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A part of the server's memory."""

    name: str
    nbytes: int
    """The most that it takes."""
    by: str
    """The setting or the number that it goes by."""


@dataclass(frozen=True, slots=True)
class Held:
    """The numbers that memory goes by whatever the settings are."""

    tables: int = 0
    buckets: int = 0
    segments: int = 0
    rows_below: int = 0
    """Rows that primary-key tables keep below their log starts, dead ones included."""
    files: int = 0
    """Files that segments lie in, each of which is mapped."""
    keys: int = 0
    """Live keys that are numbers."""
    long_keys: int = 0
    """Live keys that are bytes."""

    @staticmethod
    def of(view: View) -> Held:
        """The numbers of a view."""
        logs = [log for state in view.tables.values() for log in state.logs]
        segments = [chunk for log in logs for chunk in log.chunks if isinstance(chunk, Segment)]
        files = {segment.path for segment in segments} | {kept.path for each in segments for kept in each.files}
        below = (chunk for log in logs if log.keyed for chunk in log.chunks if chunk.end <= log.base.end)
        return Held(
            tables=len(view.tables),
            buckets=len(logs),
            segments=len(segments),
            rows_below=sum(chunk.rows for chunk in below),
            files=len(files),
            keys=sum(_live(state) for state in view.tables.values() if _has_number_keys(state.table)),
            long_keys=sum(_live(state) for state in view.tables.values() if not _has_number_keys(state.table)),
        )


def _live(state: TableState) -> int:
    """The live rows of a table with a primary key, which the index has."""
    return sum(log.at_head.live_rows for log in state.logs) if state.table.keyed else 0


def _has_number_keys(table: Table) -> bool:
    return not table.keyed or number_width(table.key_schema.types) is not None


def by_settings(limits: Limits) -> tuple[Bound, ...]:
    """The parts that settings and constants bound, largest first."""
    names = limits.register_name_chars + limits.register_bytes + RANGE_BYTES
    each_producer = PRODUCER_BYTES + limits.producer_answers * ANSWER_BYTES
    overlay_keys = max(limits.journal_bytes // ROW_BYTES_MIN, limits.overlay_checkpoint_keys)
    return _sorted(
        [
            Bound("process", PROCESS_BYTES, "a server without tables"),
            Bound("rows not yet in segments", limits.journal_bytes, "journal_bytes"),
            Bound("keys not yet in the index", overlay_keys * KEY_BYTES, "journal_bytes"),
            Bound("keys kept of the index", limits.index_cache_keys * LONG_KEY_BYTES, "index_cache_keys"),
            Bound("commits that wait", int(limits.queue_bytes * SMALL_STRETCH), "queue_bytes"),
            Bound("requests being decoded", int(limits.in_flight_bytes * SMALL_STRETCH), "in_flight_bytes"),
            Bound("memory for messages, kept for the next ones", limits.journal_bytes, "journal_bytes"),
            Bound("the commit being made", limits.commit_bytes + limits.batch_memory_bytes, "commit_bytes"),
            Bound("messages not yet whole", limits.receiving_bytes, "receiving_bytes"),
            Bound("bodies over HTTP", limits.http_bodies_bytes, "http_bodies_bytes"),
            Bound("superseded offsets for reads", 2 * limits.dead_cache_bytes, "dead_cache_bytes"),
            Bound("changes for subscribers", limits.feed_cache_bytes, "feed_cache_bytes"),
            Bound("streams and calls", (limits.streams + limits.threads) * STREAM_BYTES, "streams"),
            Bound("answers of presented cuts", limits.present_cache_bytes, "present_cache_bytes"),
            Bound("offset indexes of the lake", limits.lake_offsets_bytes, "lake_offsets_bytes"),
            Bound("files of the lake", limits.lake_manifests_bytes, "lake_manifests_bytes"),
            Bound("curves of the console", limits.history_bytes, "history_bytes"),
            Bound("queries of the console", limits.query_processes * limits.query_bytes, "query_processes"),
            Bound("metadata of the lake", CACHE_BYTES_MAX, "a constant"),
            Bound("value ranges of pieces", RANGES_KEPT * RANGE_BYTES, "a constant"),
            Bound("registers", limits.registers * names, "registers, each principal"),
            Bound("progress", limits.progress_total_bytes, "progress_total_bytes, each principal"),
            Bound("producers", (limits.producers + limits.unnamed_producers) * each_producer, "producers"),
            Bound("compacting segments", 2 * max(limits.compaction_bytes, limits.segment_bytes), "segment_bytes"),
            Bound("merging segments", limits.merged_segment_bytes, "merged_segment_bytes"),
            Bound("the process that merges the index", MERGE_PROCESS_BYTES, "a constant"),
        ]
    )


def by_tables(held: Held) -> tuple[Bound, ...]:
    """The parts that follow the tables, largest first."""
    return _sorted(
        [
            Bound("tables", held.tables * TABLE_BYTES, f"{held.tables:,} tables"),
            Bound("buckets", held.buckets * BUCKET_BYTES, f"{held.buckets:,} buckets"),
            Bound("segments", held.segments * SEGMENT_BYTES, f"{held.segments:,} segments"),
            Bound("names at a checkpoint", held.segments * NAMED_BYTES, f"{held.segments:,} segments"),
            Bound("merging the index", _merging_bytes(held), f"{held.keys + held.long_keys:,} keys"),
            Bound("superseded offsets below log starts", held.rows_below // 8, f"{held.rows_below:,} rows there"),
        ]
    )


def _merging_bytes(held: Held) -> int:
    """The part that follows the entries, when all runs are merged: each key may be in two."""
    return round(2 * (held.keys * MERGE_ENTRY_BYTES + held.long_keys * MERGE_LONG_ENTRY_BYTES))


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """Memory as a status tells of it."""

    machine_bytes: int
    """Memory that the process may take."""
    settings_bytes: int
    """The sum of the parts that settings bound: all of them full at once."""
    tables_bytes: int
    """The sum of the parts that follow the tables."""
    parts: tuple[Bound, ...]
    """Both, largest first."""
    mapped_files: int = 0
    mapped_files_max: int = MAPS_DEFAULT
    """The most that the machine allows a process."""

    @staticmethod
    def of(limits: Limits, view: View) -> MemoryStatus:
        """The memory that a server's limits and its tables take at most."""
        held = Held.of(view)
        settings, tables = by_settings(limits), by_tables(held)
        parts = _sorted([*settings, *tables])
        return MemoryStatus(memory_bytes(), total(settings), total(tables), parts, held.files, maps_max())

    def logged(self) -> dict[str, Any]:
        """The fields of a log line: the sums, and the largest parts with what they go by."""
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
        """Whether the machine has less, or nearly as few mapped files."""
        files = self.mapped_files > FILES_SHARE * self.mapped_files_max
        return files or self.settings_bytes + self.tables_bytes > self.machine_bytes


def long_key_bytes(key_bytes: int) -> int:
    """A key of so many bytes in overlay and cache."""
    return max(LONG_KEY_BYTES, key_bytes + LONG_KEY_BESIDE)


def total(bounds: Iterable[Bound]) -> int:
    """The sum."""
    return sum(bound.nbytes for bound in bounds)


def _sorted(bounds: Sequence[Bound]) -> tuple[Bound, ...]:
    return tuple(sorted(bounds, key=lambda bound: -bound.nbytes))
