"""All crash points, by name: every step after which a crash leaves a different state on disk.

The server passes each one by `Disk.reach`, which does nothing on a real disk. Tests cut power or kill the process at
each of them, and fail if one is never reached.
"""

from __future__ import annotations

from enum import StrEnum


class CrashPoint(StrEnum):
    """A step, named by what has just been done."""

    JOURNAL_READY = "journal.ready-to-write"
    JOURNAL_WRITTEN = "journal.frame-written"
    JOURNAL_SYNCED = "journal.frame-synced"
    JOURNAL_CUT = "journal.failed-write-cut-off"
    COMMIT_PUBLISHED = "commit.published-not-answered"
    PART_WRITTEN = "part.written"
    PART_SYNCED = "part.synced"
    PART_RENAMED = "part.renamed"
    PART_DURABLE = "part.durable-not-answered"
    PART_REMOVED = "part.removed"
    ROLL_WRITTEN = "journal.file-begun"
    ROLL_SYNCED = "journal.file-synced"
    ROLL_RENAMED = "journal.file-named"
    ROLL_DURABLE = "journal.file-durable"

    CHECKPOINT_FROZEN = "checkpoint.frozen"
    EXTENTS_LINKED = "extents.journal-file-linked"
    EXTENTS_GATHERED = "extents.rows-of-a-kept-file-gathered"
    SEGMENT_WRITTEN = "segment.written"
    SEGMENT_SYNCED = "segment.synced"
    SHARED_WRITTEN = "segment.shared-file-written"
    SHARED_SYNCED = "segment.shared-file-synced"
    BASE_REWRITTEN = "checkpoint.base-segment-rewritten"
    SEGMENTS_DURABLE = "checkpoint.segments-durable"
    SEGMENTS_COMPACTED = "merging.segments-written-without-their-dead"
    SEGMENTS_MERGED = "merging.segments-written-as-one"
    RUN_WRITTEN = "index.run-written"
    RUN_SYNCED = "index.run-synced"
    RUN_DURABLE = "index.run-durable"
    RUN_MERGED = "index.runs-merged"
    RUN_REMOVED = "index.run-removed"
    INDEX_MERGED = "index.merged"
    CHECKPOINT_WRITTEN = "checkpoint.written"
    CHECKPOINT_SYNCED = "checkpoint.synced"
    CHECKPOINT_RENAMED = "checkpoint.renamed"
    CHECKPOINT_DURABLE = "checkpoint.durable"
    CHECKPOINT_INSTALLED = "checkpoint.installed"
    CHECKPOINT_UNDONE = "checkpoint.failed-files-removed"
    TRIM_FILE_REMOVED = "trim.old-file-removed"
    TRIM_SEGMENT_REMOVED = "trim.segment-removed"
    TRIM_SEGMENTS_REMOVED = "trim.segments-removed"
    TRIM_DURABLE = "trim.durable"

    RECOVERY_REPLAYED = "recovery.replayed"
    RECOVERY_COPIED = "recovery.journal-copied"
    RECOVERY_RENAMED = "recovery.journal-renamed"
    RECOVERY_DURABLE = "recovery.journal-durable"

    REBUILD_QUARANTINED = "rebuild.damaged-index-set-aside"
    REBUILD_MARKED = "rebuild.marked"
    REBUILD_STAGED = "rebuild.part-written"
    REBUILD_FINISHED = "rebuild.finished"
    REBUILD_NAMED = "rebuild.named-mark-removed"

    CATALOG_READY = "catalog.metadata-written"
    CATALOG_COMMITTED = "catalog.journaled-not-answered"
    PURGE_BEGUN = "purge.table-is-going"
    PURGED_FROM_LAKE = "purge.lake-files-removed"
