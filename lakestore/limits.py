"""Every limit, as one value that is passed to the code that enforces it.

A request beyond a limit is refused with a sentence that names the limit. `DEFAULT` holds the defaults; the section
`limits` of the settings changes them. The outer bounds come from a format or a library.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from lakestore.errors import Invalid
from lakestore.model.settings import option, range_of

LEASE_SECONDS_DEFAULT = 3_600
"""Seconds for which a read may continue without a sign of life."""
TIERER_SECONDS_DEFAULT = 30
"""Seconds after which a silent tierer is replaceable."""
FIXED_BYTES_MAX = 64 << 10
"""The largest `n` of the type `fixed(n)`."""
TYPE_CHARS_MAX = 1 << 20
"""The longest text of a declared type."""
MERGED_BYTES_MAX = 16 << 20
"""The largest value that an `aggregate` table makes: a list of strings or a bitmap."""
TYPES_KEPT = 4_096
"""Parsed types in the cache."""

_KB, _MB, _GB = 1 << 10, 1 << 20, 1 << 30
_INT32 = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that a server accepts, keeps and returns. All values are whole numbers; names have units."""

    message_bytes: int = option(64 * _MB, low=1 * _MB, high=_INT32)
    """A gRPC message, either way. Longer messages, and rows too large for one, are refused. gRPC counts in 32 bits."""
    batch_memory_bytes: int = option(256 * _MB, low=1 * _KB, high=_INT32)
    """Memory of one change's decoded rows, and of the rows that one commit merges with; more is refused. A column of an
    Arrow batch ends at 2 GB."""
    batch_rows: int = option(4_000_000, low=1, high=_INT32)
    """Rows of one change; more are refused."""
    commit_changes: int = option(1_000, low=1, high=100_000)
    """Changes of one commit; more are refused."""
    commit_rows: int = option(5_000_000, low=1, high=_INT32)
    """Rows of one commit, including its parts; more are refused. Other writers wait while it is made, about a second
    for each million rows that replace others."""
    commit_bytes: int = option(512 * _MB, low=1 * _KB, high=1 * _GB)
    """Bytes of one commit as sent, including its parts; more are refused. A commit is made in memory and is one journal
    frame."""
    parts: int = option(20_000, low=1, high=1_000_000)
    """Uploaded parts that no commit has named; one more is `Exhausted`."""
    parts_bytes: int = option(16 * _GB, low=1 * _KB, high=1 << 50)
    """Bytes of uploaded parts; more are `Exhausted`."""
    part_seconds: int = option(86_400, low=60, high=31 * 86_400)
    """Time for which a part waits for its commit before it is removed."""
    progress_bytes: int = option(1 * _MB, low=0, high=16 * _MB)
    """Progress that a producer may attach to a commit; more is refused."""
    progress_total_bytes: int = option(64 * _MB, low=0, high=16 * _GB)
    """Progress of all producers of one principal, which every checkpoint holds; more is `LimitReached`."""
    columns: int = option(2_000, low=1, high=100_000)
    """Columns of a table; a definition with more is refused."""
    nesting_depth: int = option(16, low=0, high=32)
    """Nesting depth of lists, structs and maps; a deeper definition is refused."""
    nested_fields: int = option(2_000, low=0, high=100_000)
    """Fields in one column, at every depth; a definition with more is refused."""
    nested_values: int = option(64 * _MB, low=1, high=_INT32)
    """Elements of all lists of a column, or entries of its maps, in one change; more are refused."""
    name_chars: int = option(255, low=1, high=255)
    """Characters of a database's, table's, column's or producer's name; longer ones are refused."""
    key_bytes: int = option(64 * _KB, low=8, high=16 * _MB)
    """One encoded primary key; a longer one is refused. The index stores a long key as prefix and hash."""
    buckets: int = option(4_096, low=1, high=65_536)
    """Buckets of a table; a definition with more is refused."""
    tables: int = option(100_000, low=1, high=10_000_000)
    """Tables of a server, including dropped ones in their grace; one more is `LimitReached`."""
    schema_versions: int = option(10_000, low=1, high=1_000_000)
    """The most schema versions of a table. A table keeps all its versions; one more is refused."""

    producers: int = option(10_000, low=1, high=1_000_000)
    """Named producers of one principal; one more is `LimitReached` until one is dropped."""
    unnamed_producers: int = option(50_000, low=1, high=1_000_000)
    """Producers of one principal with random client names. One more replaces the one that was idle longest; if all
    wrote within five minutes it is `Exhausted`."""
    unnamed_producer_seconds: int = option(3_600, low=300, high=31 * 86_400)
    """Time after its last commit for which such a producer is remembered, so that its retries are recognised."""
    producer_answers: int = option(64, low=16, high=1_024)
    """Stored answers of each producer, and so its commits in flight; an older retry is refused."""
    registers: int = option(100_000, low=1, high=10_000_000)
    """Registers of one principal, which every checkpoint holds; one more is `LimitReached` until some are dropped."""
    register_name_chars: int = option(1_024, low=1, high=4_096)
    """Characters of a register's name; longer ones are refused."""
    register_bytes: int = option(1 * _KB, low=1, high=64 * _KB)
    """Bytes of a register's value; a longer one is refused."""
    queue_commits: int = option(1_024, low=1, high=1_000_000)
    """Commits that wait to be written; one more waits `queue_wait_ms` for room, then it is `Exhausted`."""
    queue_bytes: int = option(256 * _MB, low=1 * _KB, high=64 * _GB)
    """Bytes of rows that wait to be written; more wait `queue_wait_ms` for room, then they are `Exhausted`."""
    queue_wait_ms: int = option(500, low=0, high=30_000)
    """Time that a commit waits for room, in the queue and in memory, before it is `Exhausted`."""
    in_flight_bytes: int = option(512 * _MB, low=1 * _MB, high=64 * _GB)
    """Memory of requests that are decoded and checked; one more waits like above. Small requests, up to `queue_commits`
    and `queue_bytes`, have a quarter more."""
    group_bytes: int = option(4 * _MB, low=1, high=_INT32)
    """About the bytes that one journal frame takes from the queue; the rest goes into the next frame."""

    journal_checkpoint_bytes: int = option(96 * _MB, low=1 * _KB, high=32 * _GB)
    """Journal since the last checkpoint beyond which a new checkpoint begins."""
    journal_bytes: int = option(256 * _MB, low=1 * _KB, high=64 * _GB)
    """Bytes of journal that a recovery would read. Large commits wait for their turn while a checkpoint runs, so that
    it ends in time. If the journal is full, commits are `Exhausted` until it ends."""
    overlay_checkpoint_keys: int = option(1_000_000, low=1, high=100_000_000)
    """Keys in memory that no checkpoint has; a checkpoint begins beyond it."""
    index_cache_keys: int = option(2_000_000, low=0, high=100_000_000)
    """Keys in memory after a checkpoint, up to about 150 bytes each; other keys are read from files."""
    dead_cache_ranges: int = option(64, low=1, high=10_000)
    """Ranges whose superseded offsets are cached for union reads; the least recently used is removed."""
    dead_cache_bytes: int = option(256 * _MB, low=0, high=64 * _GB)
    """Memory of these ranges, once for plans and once for streams; the newest range always stays."""
    segment_rows: int = option(1_000_000, low=1, high=_INT32)
    """The most rows of a merged small segment."""
    segment_bytes: int = option(512 * _MB, low=1 * _KB, high=_INT32)
    """The most bytes of a merged small segment. A column of an Arrow batch ends at 2 GB."""
    merge_segments: int = option(8, low=2, high=64)
    """Neighbouring segments of a keyed table's bucket that are merged in the background; half as many if more would be
    too large. A row is rewritten once each time segments grow by about this factor."""
    merged_segment_bytes: int = option(256 * _MB, low=1 * _KB, high=_INT32)
    """The most bytes of a segment merged in the background; a merge needs as much memory."""
    merge_bytes: int = option(96 * _MB, low=0, high=16 * _GB)
    """Bytes per second that background merging writes; 0 switches it off."""
    shared_segment_bytes: int = option(1 * _MB, low=0, high=16 * _MB)
    """Smaller segments of a checkpoint share one file; 0 gives each segment its own."""
    extent_bytes: int = option(64 * _KB, low=1, high=_INT32)
    """From this size the rows that one commit appends to one bucket of a log table stay in the journal file, unless
    they compress well; fewer bytes are gathered into segments."""
    extent_file_percent: int = option(50, low=0, high=100)
    """Share of a journal file that must be in use to keep it; below, its rows are gathered into segments."""
    compressed_percent: int = option(80, low=0, high=100)
    """Rows of a log table are compressed if they shrink to this percentage. Others stay as they are; if the journal is
    in files, they are written once."""
    compaction_bytes: int = option(256 * _MB, low=1, high=64 * _GB)
    """About the segment bytes below log starts that one checkpoint reads to rewrite them; the rest waits for the next
    checkpoint."""
    disk_free_bytes: int = option(2 * _GB, low=0, high=1 << 50)
    """Free disk below which new rows are `Exhausted`; catalog commits, checkpoints and reads continue, so tiering can
    free disk."""

    scrub_bytes: int = option(16 * _MB, low=0, high=16 * _GB)
    """Bytes per second that the scrub reads; 0 switches it off."""
    copy_bytes: int = option(160 * _MB, low=0, high=64 * _GB)
    """Bytes per second that are sent to a new server while commits come; 0 is no bound."""

    changes_batch_rows: int = option(65_536, low=1, high=_INT32)
    """About the rows of each bucket in one batch of a change stream; commits stay whole."""
    fetch_batch_rows: int = option(131_072, low=1, high=_INT32)
    """Rows that a scan reads at once."""
    read_batch_bytes: int = option(16 * _MB, low=1, high=1 * _GB)
    """About the bytes of rows in one batch of a scan or change stream; a single row may be larger."""
    threads: int = option(512, low=8, high=10_000)
    """gRPC calls that are processed at once; one more is `Exhausted`. Waiting streams do not count."""
    streams: int = option(4_096, low=1, high=100_000)
    """Open streams (subscribers, writers, scans) at once; one more is `Exhausted`."""
    waiting_calls: int = option(1_024, low=8, high=100_000)
    """gRPC calls without a message; one more refuses the oldest of the connection with the most."""
    first_message_ms: int = option(30_000, low=10, high=600_000)
    """Time in which a gRPC call's message must come; then the call is refused."""
    receiving_bytes: int = option(512 * _MB, low=1 * _MB, high=64 * _GB)
    """Bytes of unfinished gRPC messages; beyond it the connection that holds the most is refused."""
    feed_cache_bytes: int = option(64 * _MB, low=0, high=64 * _GB)
    """Encoded changes cached for other subscribers of the same tables; the oldest are removed."""
    subscriptions: int = option(10_000, low=1, high=1_000_000)
    """Named subscriptions of a server; one more is `LimitReached` until one is dropped."""
    leases: int = option(10_000, low=1, high=1_000_000)
    """Reads that hold a cut; one more is `Exhausted` until one ends."""
    lease_seconds: int = option(86_400, low=1, high=31 * 86_400)
    """The longest lease; longer ones are refused."""
    present_lease_seconds: int = option(3_600, low=1, high=31 * 86_400)
    """Time for which the files of a presented cut stay after a load with no other time. Loads get less, down to a
    minute, while these files take more than half of `present_bytes`."""
    present_bytes: int = option(16 * _GB, low=1 * _MB, high=1 << 50)
    """Bytes of presented cuts in the warehouse; beyond it no cut is presented, and a load is `Exhausted` until leases
    end."""
    present_cache_bytes: int = option(64 * _MB, low=0, high=16 * _GB)
    """Cached answers to loads of presented cuts; the least recently used is removed."""
    lake_manifests_bytes: int = option(256 * _MB, low=1 * _MB, high=256 * _GB)
    """Memory for manifests of lake tables with presented cuts, about 1 KB per data file; the least recently used is
    removed."""
    lake_offsets_bytes: int = option(128 * _MB, low=1 * _MB, high=256 * _GB)
    """Memory for offset indexes that are not mapped: of small data files, and of files that were written for a cut."""
    lake_offsets_disk_bytes: int = option(4 * _GB, low=0, high=1 << 50)
    """The derived cache in the data folder: about 700 bytes per data file of a table with presented cuts, and 8 to 12
    bytes per row of a data file with dead rows. The least recently used is removed and made again on demand. The files
    are mapped and need no memory of their own; 0 disables the cache."""
    http_body_bytes: int = option(64 * _MB, low=1 * _KB, high=_INT32)
    """The body of an HTTP request; a larger one is refused."""
    http_bodies_bytes: int = option(256 * _MB, low=1 * _KB, high=64 * _GB)
    """Bodies of all HTTP requests that are received or answered; one more is `Exhausted`."""
    http_connections: int = option(512, low=8, high=100_000)
    """HTTP connections; one more closes the connection that is longest without a request of a known sender."""
    http_header_ms: int = option(10_000, low=10, high=600_000)
    """Time for the head of a request, for a whole request without authentication, and for a connection without a
    request; then the connection is closed."""
    http_stall_ms: int = option(30_000, low=10, high=600_000)
    """Time for which a client may pause in a request's body or not read its answer; then the connection is closed."""
    header_bytes: int = option(32 * _KB, low=1 * _KB, high=1 * _MB)
    """HTTP headers or gRPC metadata of one request; more are refused."""
    connection_streams: int = option(1_024, low=8, high=100_000)
    """RPCs at once on one gRPC connection; more wait in the client."""
    clock_confirm_seconds: int = option(300, low=0, high=86_400)
    """Time for which a clock must be stable after a start or a jump before it is confirmed; until then nothing is
    removed by age. 0 confirms every clock."""
    principal_percent: int = option(50, low=1, high=100)
    """Share of streams, calls, leases, subscriptions, parts, reports and HTTP that one principal may use. A server
    without `auth` has one principal, which may use all. Of the query processes, a principal may use more while nobody
    with fewer waits."""
    access_token_seconds: int = option(3_600, low=1, high=31 * 86_400)
    """Lifetime of an access token that a catalog client exchanges for its credentials."""
    history_bytes: int = option(64 * _MB, low=0, high=16 * _GB)
    """Memory of the console's curves for two days: 115 KB for each changing table, 14 KB for each subscription and
    bridge with a changing lag. If it is full, series that are unchanged for hours lose their curves; otherwise new ones
    get none."""
    query_processes: int = option(4, low=0, high=64)
    """Processes that answer queries in SQL, one query at a time each; another query waits. One more process answers
    sessions that ask while they hold an unfinished answer. 0 switches queries off."""
    query_wait_seconds: int = option(30, low=0, high=3_600)
    """Time that a query waits for a process before it is `Exhausted`."""
    query_bytes: int = option(256 * _MB, low=64 * _MB, high=64 * _GB)
    """Memory of DuckDB for a query; a query that needs more fails."""
    query_rows: int = option(1_000, low=1, high=100_000)
    """Rows in a query's answer on the console, which says if there are more."""
    query_seconds: int = option(60, low=1, high=3_600)
    """Time of a query, until its last row is read, before its process is ended."""
    sql_connections: int = option(200, low=4, high=10_000)
    """Connections of the Postgres port, each with a thread while it works; one more is refused. A quarter of them may
    belong to clients who have not proved who they are; one more closes the oldest of this quarter."""
    sql_start_ms: int = option(10_000, low=10, high=600_000)
    """Time from the begin of a Postgres connection to the proof of who its client is; then it is closed."""
    sql_receiving_bytes: int = option(128 * _MB, low=1 * _MB, high=64 * _GB)
    """Bytes of unfinished messages of all Postgres connections; a connection beyond it is closed. One message has at
    most `message_bytes`."""
    tails: int = option(32, low=0, high=1_000)
    """Changelogs that pages of the console follow at once; one more is `Exhausted`."""
    drop_grace_seconds: int = option(86_400, low=0, high=366 * 86_400)
    """Time for which a dropped table's rows and files stay for `undrop`; 0 removes them at once."""
    idempotency_keys: int = option(10_000, low=1, high=1_000_000)
    """Idempotency-Keys of catalog requests that are remembered; one more removes the oldest."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value, (low, high) = getattr(self, each.name), range_of(each)
            if type(value) is not int or not low <= value <= high:
                raise Invalid(f"limit {each.name} is a whole number from {low} to {high}, not {value!r}")
        if self.journal_checkpoint_bytes >= self.journal_bytes:
            raise Invalid("limit journal_checkpoint_bytes is less than journal_bytes, or writers would wait for ever")


DEFAULT = Limits()
"""The default limits, which a client checks before it sends."""
WIDEST = Limits(**{each.name: int(range_of(each)[1]) for each in fields(Limits)})
"""The limits of formats and libraries, under which stored data is read whatever the settings are."""


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
