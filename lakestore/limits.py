"""Every limit, with its unit in its name. A request beyond one is refused with a sentence that names it."""

MESSAGE_BYTES_MAX = 64 << 20
"""A gRPC message, either way."""
BATCH_MEMORY_BYTES_MAX = 256 << 20
"""What the Arrow rows of one change may occupy once decoded."""
BATCH_ROWS_MAX = 4_000_000
COLUMNS_MAX = 2_000
NAME_CHARS_MAX = 255
BUCKETS_MAX = 4_096
TABLES_MAX = 100_000
KEY_BYTES_MAX = 64 << 10
"""Of one encoded primary key; longer than LMDB takes is stored as prefix and hash."""

PRODUCER_ANSWERS_KEPT = 64
"""Answers a retry can still be given, and so the window of batches in flight."""
EPOCH_MAX = (1 << 32) - 1
PRODUCERS_MAX = 20_000
"""The least recently used go first."""

QUEUE_COMMITS_MAX = 1_024
QUEUE_BYTES_MAX = 256 << 20
GROUP_BYTES_MAX = 32 << 20
"""One journal frame takes no more than about this from the queue."""

JOURNAL_BYTES_BEFORE_CHECKPOINT = 96 << 20
JOURNAL_BYTES_MAX = 256 << 20
"""Writers wait while the journal since the last checkpoint is longer."""
OVERLAY_KEYS_BEFORE_CHECKPOINT = 1_000_000
SEGMENT_ROWS_MAX = 1_000_000
SEGMENT_BYTES_MAX = 512 << 20
"""Small segments are merged up to here: a column of an Arrow batch ends at 2 GB."""
SEGMENT_BLOCK_BYTES = 64 << 10

CHANGES_BATCH_ROWS_MAX = 65_536
FETCH_BATCH_ROWS_MAX = 131_072
READ_BATCH_BYTES_MAX = 16 << 20
"""Rows of a scan or a change stream are sent in batches of about this size, far below a message's limit."""
LEASE_SECONDS_DEFAULT = 3_600
LEASE_SECONDS_MAX = 86_400
TIERER_SECONDS_DEFAULT = 30
DISK_FREE_BYTES_MIN = 2 << 30
"""Below it new rows are refused; catalog commits, checkpoints and reads go on, so that a tiering round can heal it."""
