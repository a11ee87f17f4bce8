"""Every limit, as one value that is handed to the code that keeps it.

A request beyond one is refused with a sentence that names it. `DEFAULT` holds what a server keeps without settings;
the `limits` section of the settings changes them. Hard ends are set by a format or a library.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from lakestore.errors import Invalid
from lakestore.model.settings import option, range_of

LEASE_SECONDS_DEFAULT = 3_600
"""The seconds that a read may go on without a sign of life."""
TIERER_SECONDS_DEFAULT = 30
"""The seconds for which a silent tierer stays the tierer."""
FIXED_BYTES_MAX = 64 << 10
"""The largest `n` of the type `fixed(n)`."""
TYPE_CHARS_MAX = 1 << 20
"""The longest text of a declared type."""
MERGED_BYTES_MAX = 16 << 20
"""The largest value that an `aggregate` table makes: a list of strings or a bitmap."""
TYPES_KEPT = 4_096
"""Declared types that are kept parsed."""

_KB, _MB, _GB = 1 << 10, 1 << 20, 1 << 30
_INT32 = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that a server takes, keeps and gives. All values are whole numbers; units are in the names."""

    message_bytes: int = option(64 * _MB, low=1 * _MB, high=_INT32)
    """A gRPC message, either way; longer ones are refused, and rows that fit into none. gRPC counts in 32 bits."""
    batch_memory_bytes: int = option(256 * _MB, low=1 * _KB, high=_INT32)
    """Memory of one change's rows once decoded, and of the rows that one commit merges with; more is refused. A column
    of an Arrow batch ends at 2 GB."""
    batch_rows: int = option(4_000_000, low=1, high=_INT32)
    """Rows of one change; more are refused."""
    commit_changes: int = option(1_000, low=1, high=100_000)
    """Changes of one commit; more are refused."""
    commit_rows: int = option(5_000_000, low=1, high=_INT32)
    """Rows of one commit, those of its parts among them; more are refused. Other writers wait while it is made, about a
    second for each million rows that replace others."""
    commit_bytes: int = option(512 * _MB, low=1 * _KB, high=1 * _GB)
    """Rows of one commit as they are sent, those of its parts among them; more are refused. A commit is made in memory,
    and is one journal frame."""
    parts: int = option(20_000, low=1, high=1_000_000)
    """Uploaded parts that no commit has named yet; one more is `Exhausted`."""
    parts_bytes: int = option(16 * _GB, low=1 * _KB, high=1 << 50)
    """Bytes of such parts; more are `Exhausted`."""
    part_seconds: int = option(86_400, low=60, high=31 * 86_400)
    """Time for which a part waits for its commit; then it is removed."""
    progress_bytes: int = option(1 * _MB, low=0, high=16 * _MB)
    """Progress that a producer may attach to a commit; more is refused."""
    progress_total_bytes: int = option(64 * _MB, low=0, high=16 * _GB)
    """Progress of all producers of one principal, which every checkpoint holds; more is `LimitReached`."""
    columns: int = option(2_000, low=1, high=100_000)
    """Columns of a table; a definition with more is refused."""
    nesting_depth: int = option(16, low=0, high=32)
    """Depth of lists, structs and maps inside one another; a deeper definition is refused."""
    nested_fields: int = option(2_000, low=0, high=100_000)
    """Fields inside one column, at every depth; a definition with more is refused."""
    nested_values: int = option(64 * _MB, low=1, high=_INT32)
    """Elements of all lists of a column, or entries of its maps, in one change; more are refused."""
    name_chars: int = option(255, low=1, high=255)
    """Characters of a database's, table's, column's or producer's name; longer ones are refused."""
    key_bytes: int = option(64 * _KB, low=8, high=16 * _MB)
    """One encoded primary key; a longer one is refused. The index keeps a long one as prefix and hash."""
    buckets: int = option(4_096, low=1, high=65_536)
    """Buckets of a table; a definition with more is refused."""
    tables: int = option(100_000, low=1, high=10_000_000)
    """Tables of a server, dropped ones that are still kept among them; one more is `LimitReached`."""
    schema_versions: int = option(10_000, low=1, high=1_000_000)
    """Schema versions that a table may have, all of which are kept; one more is refused."""

    producers: int = option(10_000, low=1, high=1_000_000)
    """Named producers of one principal; one more is `LimitReached` until one is dropped."""
    unnamed_producers: int = option(50_000, low=1, high=1_000_000)
    """Producers of one principal that clients named at random; for one more the one that has rested longest is
    forgotten, and while all have written within five minutes it is `Exhausted`."""
    unnamed_producer_seconds: int = option(3_600, low=300, high=31 * 86_400)
    """Time after its last commit for which such a producer is remembered, so that its retries are known again."""
    producer_answers: int = option(64, low=16, high=1_024)
    """Answers kept of each producer, and so the commits it may have in flight; an older retry is refused."""
    registers: int = option(100_000, low=1, high=10_000_000)
    """Registers of one principal, which every checkpoint holds; one more is `LimitReached` until some are dropped."""
    register_name_chars: int = option(1_024, low=1, high=4_096)
    """Characters of a register's name; longer ones are refused."""
    register_bytes: int = option(1 * _KB, low=1, high=64 * _KB)
    """Value of a register; a longer one is refused."""
    queue_commits: int = option(1_024, low=1, high=1_000_000)
    """Commits that wait to be written; one more waits `queue_wait_ms` for room, then it is `Exhausted`."""
    queue_bytes: int = option(256 * _MB, low=1 * _KB, high=64 * _GB)
    """Rows that wait to be written; more wait `queue_wait_ms` for room, then they are `Exhausted`."""
    queue_wait_ms: int = option(500, low=0, high=30_000)
    """Wait of a commit for room, in the queue and in memory, before it is told to come again later."""
    in_flight_bytes: int = option(512 * _MB, low=1 * _MB, high=64 * _GB)
    """Requests that are being decoded and checked, each counted with what that takes; one more waits, as above. Of
    this, `queue_commits` and `queue_bytes` small requests have a quarter more."""
    group_bytes: int = option(4 * _MB, low=1, high=_INT32)
    """About what one journal frame takes from the queue; the rest goes into the next."""

    journal_checkpoint_bytes: int = option(96 * _MB, low=1 * _KB, high=32 * _GB)
    """Journal since the last checkpoint; a new one begins beyond it."""
    journal_bytes: int = option(256 * _MB, low=1 * _KB, high=64 * _GB)
    """Journal that a recovery would read. Large commits wait for their turns while a checkpoint runs, so that it ends
    before that much is there; beyond it commits are `Exhausted` until it does."""
    overlay_checkpoint_keys: int = option(1_000_000, low=1, high=100_000_000)
    """Keys in memory that no checkpoint has yet; one begins beyond it."""
    index_cache_keys: int = option(2_000_000, low=0, high=100_000_000)
    """Keys kept in memory after a checkpoint, up to about 150 bytes each; older ones are read from files."""
    index_silence_seconds: int = option(30, low=1, high=3_600)
    """Wait for an answer of the index's own process, ten times as long for a merge; then the process is ended and
    started again, and after the second time in a row the index is rebuilt beside serving."""
    dead_cache_ranges: int = option(64, low=1, high=10_000)
    """Ranges whose superseded offsets are remembered for union reads; the least recently used is forgotten."""
    dead_cache_bytes: int = option(256 * _MB, low=0, high=64 * _GB)
    """Memory of such ranges, once for plans and once for streams; the newest one is always kept."""
    segment_rows: int = option(1_000_000, low=1, high=_INT32)
    """Small segments are merged up to here."""
    segment_bytes: int = option(512 * _MB, low=1 * _KB, high=_INT32)
    """Small segments are merged up to here. A column of an Arrow batch ends at 2 GB."""
    merge_segments: int = option(8, low=2, high=64)
    """Neighbouring segments of a primary-key table's bucket that become one in the background, half as many where more
    would be too large; so a row is written again once for each time that segments grow by about this factor."""
    merged_segment_bytes: int = option(256 * _MB, low=1 * _KB, high=_INT32)
    """Segments are merged up to here, in as much memory."""
    merge_bytes: int = option(96 * _MB, low=0, high=16 * _GB)
    """Bytes per second that merging segments writes; 0 switches it off."""
    shared_segment_bytes: int = option(1 * _MB, low=0, high=16 * _MB)
    """Segments below it share one file with others of their checkpoint; 0 gives each one its own."""
    extent_bytes: int = option(64 * _KB, low=1, high=_INT32)
    """Rows of a log that one commit adds to one bucket stay where the journal wrote them from here on, unless they
    compress well; fewer are gathered into segments."""
    extent_file_percent: int = option(50, low=0, high=100)
    """Part of a journal file that must be of use for it to be kept; with less of it, its rows are gathered."""
    compressed_percent: int = option(80, low=0, high=100)
    """Rows of a log are compressed if at most so much is left of them; they are written a second time for it."""
    compaction_bytes: int = option(256 * _MB, low=1, high=64 * _GB)
    """About what one checkpoint reads of segments below log starts to rewrite them; the rest waits for the next one."""
    disk_free_bytes: int = option(2 * _GB, low=0, high=1 << 50)
    """Below it new rows are `Exhausted`; catalog commits, checkpoints and reads go on, so tiering can heal it."""

    scrub_bytes: int = option(16 * _MB, low=0, high=16 * _GB)
    """Bytes per second that the background check of all stored bytes reads; 0 switches it off."""

    changes_batch_rows: int = option(65_536, low=1, high=_INT32)
    """About the rows of each bucket that one batch of a change stream holds; whole commits only."""
    fetch_batch_rows: int = option(131_072, low=1, high=_INT32)
    """Rows that a scan reads at once."""
    read_batch_bytes: int = option(16 * _MB, low=1, high=1 * _GB)
    """Rows of a scan or a change stream are sent in batches of about this size; a single row may be larger."""
    threads: int = option(512, low=8, high=10_000)
    """gRPC calls that are worked for at once; one more is `Exhausted`. Streams that wait do not count."""
    streams: int = option(4_096, low=1, high=100_000)
    """Open streams (subscribers, writers, scans) at once; one more is `Exhausted`."""
    waiting_calls: int = option(1_024, low=8, high=100_000)
    """gRPC calls whose message has not come; for one more, the oldest of the connection with the most is refused."""
    first_message_ms: int = option(30_000, low=10, high=600_000)
    """Time of a gRPC call for its message to be there; then it is refused."""
    receiving_bytes: int = option(512 * _MB, low=1 * _MB, high=64 * _GB)
    """Bytes of gRPC messages that are not whole yet; beyond it the connection that holds the most is refused."""
    feed_cache_bytes: int = option(64 * _MB, low=0, high=64 * _GB)
    """Encoded changes kept for other subscribers of the same tables; the oldest are forgotten for more."""
    subscriptions: int = option(10_000, low=1, high=1_000_000)
    """Named subscriptions of a server; one more is `LimitReached` until one is dropped."""
    leases: int = option(10_000, low=1, high=1_000_000)
    """Reads that hold a cut; one more is `Exhausted` until one ends."""
    lease_seconds: int = option(86_400, low=1, high=31 * 86_400)
    """The longest lease that may be asked for; longer ones are refused."""
    present_lease_seconds: int = option(3_600, low=1, high=31 * 86_400)
    """Time for which the files of a presented cut stay after a load that asks for no other time. Loads get less, down
    to a minute, once such files take half of `present_bytes`."""
    present_bytes: int = option(16 * _GB, low=1 * _MB, high=1 << 50)
    """Files of presented cuts in the warehouse; beyond it no further cut is presented, and a load of one is `Exhausted`
    until leases end."""
    present_cache_bytes: int = option(64 * _MB, low=0, high=16 * _GB)
    """Answers to loads of presented cuts that are kept; the least recently used is made anew when it is asked for."""
    lake_manifests_bytes: int = option(256 * _MB, low=1 * _MB, high=256 * _GB)
    """Memory for manifests of lake tables whose cuts are presented, some 1 KB for each data file; the least recently
    used is read again when it is needed."""
    lake_offsets_bytes: int = option(128 * _MB, low=1 * _MB, high=256 * _GB)
    """Memory for offset indexes of data files that are too small for an index file, or were written for a cut."""
    lake_offsets_disk_bytes: int = option(4 * _GB, low=0, high=1 << 50)
    """Index files in the data folder, 8 to 12 bytes for each row of a data file that was looked at; the least recently
    used goes, and is made anew of its data file when it is needed. They are mapped, not held in memory."""
    http_body_bytes: int = option(64 * _MB, low=1 * _KB, high=_INT32)
    """The body of an HTTP request; a larger one is refused."""
    http_bodies_bytes: int = option(256 * _MB, low=1 * _KB, high=64 * _GB)
    """The bodies of all HTTP requests that are being taken or answered; one more is `Exhausted`."""
    http_connections: int = option(512, low=8, high=100_000)
    """HTTP connections; for one more, the one closes that has taken longest without a request of a known sender."""
    http_header_ms: int = option(10_000, low=10, high=600_000)
    """Time of a client for the head of a request, and for all of a request by which it does not say who it is, or
    without a request; then its connection is closed."""
    http_stall_ms: int = option(30_000, low=10, high=600_000)
    """Time for which a client may pause in a request's body or not read its answer; then its connection is closed."""
    header_bytes: int = option(32 * _KB, low=1 * _KB, high=1 * _MB)
    """HTTP headers or gRPC metadata of one request; more are refused."""
    connection_streams: int = option(1_024, low=8, high=100_000)
    """RPCs at once on one gRPC connection; more wait in the client."""
    clock_confirm_seconds: int = option(300, low=0, high=86_400)
    """Time for which a clock that has jumped, or that a start found, has to stand before it is believed: until then
    nothing is deleted because of its age. 0 believes every clock."""
    principal_percent: int = option(50, low=1, high=100)
    """Part of streams, calls, leases, subscriptions, parts, reports and HTTP that one principal may take; the rest is
    for others. A server without `auth` has one principal, which may take all."""
    access_token_seconds: int = option(3_600, low=1, high=31 * 86_400)
    """Life of a token that a catalog client got for its credentials."""
    history_bytes: int = option(64 * _MB, low=0, high=16 * _GB)
    """Memory of the console's curves: 115 KB for each table in which something moves, 14 KB for each subscription and
    bridge whose lag does, for two days. Beyond it what has been still for hours
    loses its curves, or new ones have none."""
    query_processes: int = option(2, low=0, high=64)
    """Queries of the console at once, each in a process of its own; one more is `Exhausted`. 0 switches queries off."""
    query_bytes: int = option(256 * _MB, low=64 * _MB, high=64 * _GB)
    """Memory that DuckDB may take for a query of the console; one that needs more fails."""
    query_rows: int = option(1_000, low=1, high=100_000)
    """Rows that a query of the console shows; it is told when there are more."""
    query_seconds: int = option(60, low=1, high=3_600)
    """Time of a query of the console; then its process is ended."""
    tails: int = option(32, low=0, high=1_000)
    """Changelogs that pages of the console follow at once; one more is `Exhausted`."""
    drop_grace_seconds: int = option(86_400, low=0, high=366 * 86_400)
    """Time for which a dropped table's rows and files stay, so that it can be undropped; 0: they go at once."""
    idempotency_keys: int = option(10_000, low=1, high=1_000_000)
    """Catalog requests remembered by their Idempotency-Key; the oldest is forgotten for one more."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value, (low, high) = getattr(self, each.name), range_of(each)
            if type(value) is not int or not low <= value <= high:
                raise Invalid(f"limit {each.name} is a whole number from {low} to {high}, not {value!r}")
        if self.journal_checkpoint_bytes >= self.journal_bytes:
            raise Invalid("limit journal_checkpoint_bytes is less than journal_bytes, or writers wait for ever")


DEFAULT = Limits()
"""The limits where nobody said otherwise, which a client checks before it sends."""
WIDEST = Limits(**{each.name: int(range_of(each)[1]) for each in fields(Limits)})
"""The limits of formats and libraries: stored data is read under them, whatever the settings say now."""


__all__ = [
    "DEFAULT",
    "FIXED_BYTES_MAX",
    "LEASE_SECONDS_DEFAULT",
    "MERGED_BYTES_MAX",
    "TIERER_SECONDS_DEFAULT",
    "TYPES_KEPT",
    "TYPE_CHARS_MAX",
    "WIDEST",
    "Limits",
]
