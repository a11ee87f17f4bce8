"""Prometheus metrics, computed from the server's state on request. `make docs` writes docs/metrics.md from
`FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from lakestore.release import RELEASE
from lakestore_server.host.histogram import Histogram
from lakestore_server.operate.metric_sources import (
    Family,
    Moment,
    Sample,
    Sources,
    budgets,
    bytes_beyond_retention,
    calls,
    expiring,
    in_lake,
    lag,
    of_doors,
    of_tables,
    overdue,
    promises,
    query_deaths,
    query_processes,
    query_seconds,
    reclaimed,
    refusals,
    reported,
    rounds,
    running,
    store_requests,
    subscriptions_behind,
    tier_failures,
    upkeep_debts,
    upkeep_delays,
    violations,
)
from lakestore_server.operate.status import kept_bytes

TABLE_FAMILIES = (
    Family("lakestore_table_rows", "gauge", "Live rows.", of_tables(lambda table: table.rows), ("table",)),
    Family(
        "lakestore_table_stored_rows",
        "gauge",
        "Rows in the server's files and memory: live, superseded and dead rows.",
        of_tables(lambda table: table.stored_rows),
        ("table",),
    ),
    Family(
        "lakestore_compaction_rows",
        "counter",
        "Superseded rows that local compaction dropped.",
        lambda m: m.upkeep.checkpointer.compactions.rows,
    ),
    Family(
        "lakestore_compaction_segments",
        "counter",
        "Segments that local compaction rewrote.",
        lambda m: m.upkeep.checkpointer.compactions.segments,
    ),
    Family("lakestore_compaction_reclaimed_bytes", "counter", "Bytes that compaction saved.", reclaimed, ("table",)),
    Family(
        "lakestore_table_hot_offsets",
        "gauge",
        "Offsets that the lake lacks.",
        of_tables(lambda table: table.hot),
        ("table",),
    ),
    Family(
        "lakestore_table_lake_files",
        "gauge",
        "Data files of the newest snapshot in the lake.",
        in_lake(lambda lake: lake.files),
        ("table",),
    ),
    Family(
        "lakestore_table_lake_delete_files",
        "gauge",
        "Delete files of that snapshot, deletion vectors included.",
        in_lake(lambda lake: lake.delete_files),
        ("table",),
    ),
    Family(
        "lakestore_table_lake_deleted_rows",
        "gauge",
        "Rows of its data files that position deletes name; compaction removes them.",
        in_lake(lambda lake: lake.deleted_rows),
        ("table",),
    ),
    Family(
        "lakestore_table_tier_lag_seconds",
        "gauge",
        "Age of the oldest change that the lake lacks; 0 if it has all.",
        lag,
        ("table",),
    ),
    Family(
        "lakestore_table_freshness_seconds",
        "gauge",
        "The lag that the table's freshness promises at most.",
        of_tables(lambda table: table.freshness_seconds),
        ("table",),
    ),
    Family(
        "lakestore_table_round_seconds",
        "gauge",
        "Seconds since a running round of the tierer began, if it takes two seconds or more.",
        rounds(lambda round_: round_.seconds),
        ("table",),
    ),
    Family(
        "lakestore_table_round_tasks",
        "gauge",
        "Tasks of the Spark job of a running round; 0 without a job.",
        rounds(lambda round_: round_.tasks),
        ("table",),
    ),
    Family(
        "lakestore_table_round_tasks_done",
        "gauge",
        "Tasks that this job has finished.",
        rounds(lambda round_: round_.tasks_done),
        ("table",),
    ),
    Family(
        "lakestore_table_tier_failures",
        "gauge",
        "Failed tiering rounds in a row, as the tierer reports; 0 after a success.",
        tier_failures,
        ("table",),
    ),
    Family(
        "lakestore_table_upkeep_debt",
        "gauge",
        "Files, manifests or snapshots that a duty of the table's upkeep would change now, as the tierer reports.",
        upkeep_debts,
        ("table", "duty"),
    ),
    Family(
        "lakestore_table_upkeep_slowed",
        "gauge",
        "1 while the tierer slows a table's rounds down because its upkeep is behind, else 0.",
        upkeep_delays,
        ("table",),
    ),
    Family(
        "lakestore_promise_promised",
        "gauge",
        "A promise of the table's contract: seconds of freshness or completeness, percent of availability.",
        promises(lambda promise: promise.promised),
        ("table", "promise"),
    ),
    Family(
        "lakestore_promise_measured",
        "gauge",
        "The same as measured: at the last look, availability in the last minute.",
        promises(lambda promise: promise.measured),
        ("table", "promise"),
    ),
    Family(
        "lakestore_promise_met",
        "gauge",
        "1 while the promise is met, 0 while it is not; none while nothing can be measured.",
        promises(lambda promise: promise.met),
        ("table", "promise"),
    ),
    Family(
        "lakestore_budget_bound",
        "gauge",
        "A bound of the contract's budget: files, share of deleted rows, seconds of snapshot age, percent of the time.",
        budgets(lambda bound: bound.bound),
        ("table", "part"),
    ),
    Family(
        "lakestore_budget_used",
        "gauge",
        "The same as it is: files that wait, deleted rows, age of the oldest snapshot, compactions in the last hour.",
        budgets(lambda bound: bound.used),
        ("table", "part"),
    ),
    Family(
        "lakestore_retention_held_bytes",
        "gauge",
        "Bytes of log beyond its retention that a holder keeps.",
        bytes_beyond_retention,
        ("table", "by"),
    ),
    Family(
        "lakestore_rows_expired",
        "counter",
        "Rows that a table's TTL has deleted.",
        lambda m: ((labels, figures.expired) for labels, figures in expiring(m)),
        ("table",),
    ),
    Family(
        "lakestore_expiry_overdue_seconds",
        "gauge",
        "Seconds for which rows may have been due to expire; high if the server cannot write or the clock jumped.",
        overdue,
        ("table",),
    ),
)
"""Families of tables, in the order of the page."""


def _loads(moment: Moment) -> Iterator[Sample]:
    for kind, count in sorted(moment.sources.presented.figures.loads.items()):
        yield (kind,), count


QUERY_FAMILIES = (
    Family(
        "lakestore_query_seconds",
        "histogram",
        "Duration of SQL queries, by door (`console`, `postgres`, `flight`) and outcome: `ok` or the kind of the "
        "error; `Cancelled` also for queries out of time. `_count` is the number of queries.",
        query_seconds,
        ("door", "outcome"),
    ),
    Family(
        "lakestore_query_rows",
        "counter",
        "Rows that a door has sent.",
        of_doors(lambda queries: queries.rows),
        ("door",),
    ),
    Family(
        "lakestore_query_bytes",
        "counter",
        "Bytes of these rows.",
        of_doors(lambda queries: queries.nbytes),
        ("door",),
    ),
    Family(
        "lakestore_query_keyed",
        "counter",
        "Queries that a look-up by key has answered, without a query process.",
        of_doors(lambda queries: queries.keyed),
        ("door",),
    ),
    Family(
        "lakestore_query_wait_seconds",
        "histogram",
        "Time that queries waited for a query process.",
        lambda m: m.sources.queries.waits,
    ),
    Family(
        "lakestore_query_processes",
        "gauge",
        "Query processes by state: `unused`, `idle` (bound to a principal) or `busy`.",
        query_processes,
        ("state",),
    ),
    Family(
        "lakestore_query_process_deaths",
        "counter",
        "Query processes that a signal ended: SIGSYS or SIGSEGV may be an attack.",
        query_deaths,
        ("signal",),
    ),
)
SNAPSHOT_FAMILIES = (
    Family(
        "lakestore_presented_cuts",
        "gauge",
        "Presented cuts whose files stay for other engines.",
        lambda m: m.sources.presented.status().cuts,
    ),
    Family(
        "lakestore_presented_tables",
        "gauge",
        "Tables with presented cuts.",
        lambda m: m.sources.presented.status().tables,
    ),
    Family(
        "lakestore_presented_files",
        "gauge",
        "Files of presented cuts in the warehouse.",
        lambda m: m.sources.presented.status().files,
    ),
    Family(
        "lakestore_presented_bytes",
        "gauge",
        "Bytes of those files, bounded by `limits.present_bytes`.",
        lambda m: m.sources.presented.status().bytes,
    ),
    Family(
        "lakestore_presented_written_bytes",
        "counter",
        "Bytes written for presented cuts.",
        lambda m: m.sources.presented.figures.written_bytes,
    ),
    Family(
        "lakestore_present_seconds",
        "histogram",
        "Duration of presenting one cut.",
        lambda m: m.sources.presented.figures.seconds,
    ),
    Family(
        "lakestore_presented_loads",
        "counter",
        "Loads of tables in `now` and `at:`: `new` made a cut or waited for one, `kept` got an earlier answer,"
        " `not modified` got no answer because nothing is new.",
        _loads,
        ("answer",),
    ),
    Family(
        "lakestore_store_requests",
        "counter",
        "Requests to object stores, by process (`server`, or `snapshots` for the snapshot builder) and kind; `create`"
        " is a put that never replaces. Files above 4 MB count one `get` or `put`.",
        store_requests,
        ("process", "kind"),
    ),
    Family(
        "lakestore_lake_offsets_read",
        "counter",
        "Offset indexes of the lake's data files that were read from the files, not from memory or the disk cache.",
        lambda m: m.sources.presented.figures.offsets_read,
    ),
    Family(
        "lakestore_lake_offsets_evicted",
        "counter",
        "Offset indexes removed for lack of room; if there are many, raise `limits.lake_offsets_bytes` or"
        " `limits.lake_offsets_disk_bytes`.",
        lambda m: m.sources.presented.figures.offsets_evicted,
    ),
    Family(
        "lakestore_scan_reports",
        "counter",
        "Reports that engines sent of their scans of presented tables.",
        lambda m: m.sources.presented.figures.reports,
    ),
)
"""Families of presented cuts and the lake's caches, in the order of the page."""


FAMILIES = (
    Family(
        "lakestore_info",
        "gauge",
        "1, with the release and the timeline of the history as labels.",
        lambda m: [((RELEASE, m.engine.timeline), 1.0)],
        ("release", "timeline"),
    ),
    Family("lakestore_commits", "counter", "Journal frames written.", lambda m: m.engine.totals.frames),
    Family("lakestore_rows", "counter", "Rows that took an offset.", lambda m: m.engine.totals.rows),
    Family(
        "lakestore_contract_violations",
        "counter",
        "Rows that broke a rule of their table's contract, by table, rule and what happened to them: refuse,"
        " dead_letter, count, or the policy for late rows.",
        violations,
        ("table", "rule", "action"),
    ),
    Family(
        "lakestore_journal_written_bytes", "counter", "Bytes written to the journal.", lambda m: m.engine.totals.bytes
    ),
    Family("lakestore_lsn", "gauge", "Newest visible commit.", lambda m: m.view.lsn),
    Family(
        "lakestore_commit_seconds",
        "histogram",
        "Time from the queue to the answer, per request.",
        lambda m: m.engine.totals.commit_seconds,
    ),
    Family(
        "lakestore_commit_group_requests",
        "histogram",
        "Requests in one journal frame.",
        lambda m: m.engine.totals.group_requests,
    ),
    Family(
        "lakestore_journal_sync_seconds",
        "histogram",
        "Time to write and sync one frame.",
        lambda m: m.engine.totals.sync_seconds,
    ),
    Family(
        "lakestore_queue_requests",
        "gauge",
        "Requests that wait for the commit loop.",
        lambda m: len(m.loop.queue),
    ),
    Family("lakestore_queue_bytes", "gauge", "Bytes of their rows.", lambda m: m.loop.queue.nbytes),
    Family(
        "lakestore_writers_held_seconds",
        "counter",
        "Time that requests waited for room, and large requests for their turn behind a checkpoint.",
        lambda m: m.loop.queue.held_seconds,
    ),
    Family("lakestore_parts", "gauge", "Uploaded parts that wait for their commit.", lambda m: m.loop.parts.count),
    Family("lakestore_parts_bytes", "gauge", "Bytes of their rows.", lambda m: m.loop.parts.nbytes),
    Family(
        "lakestore_journal_bytes",
        "gauge",
        "Bytes of journal that a recovery would read.",
        lambda m: m.status.journal_bytes,
    ),
    Family(
        "lakestore_leading",
        "gauge",
        "1 while this server commits, 0 while it follows another.",
        lambda m: int(m.engine.is_leading),
    ),
    Family(
        "lakestore_journal_epoch",
        "gauge",
        "Claims so far: a server claims when it begins to lead, and at each checkpoint as leader.",
        lambda m: m.status.journal.epoch,
    ),
    Family(
        "lakestore_journal_void",
        "counter",
        "Messages of a shared journal that do not count: of a server that leads no more, or of somebody else. Reports"
        " of servers are left out.",
        lambda m: m.engine.loop.journal.void,
    ),
    Family(
        "lakestore_journal_gaps",
        "counter",
        "Times that messages of others, reports too, lay between the messages of this leader, which read them before it"
        " acknowledged its own.",
        lambda m: m.engine.loop.journal.gaps,
    ),
    Family(
        "lakestore_follower_lag_seconds",
        "gauge",
        "Age of the newest applied commit while more of the journal is to be read; time since the last message of the"
        " journal if that is longer than a lease, as without Kafka; else 0.",
        lambda m: m.status.journal.lag_ms / 1000,
    ),
    Family(
        "lakestore_checkpoint_seconds",
        "histogram",
        "Duration of a checkpoint.",
        lambda m: m.upkeep.checkpointer.figures.seconds,
    ),
    Family(
        "lakestore_checkpoint_failures",
        "counter",
        "Failed checkpoints; the previous one stays valid.",
        lambda m: m.status.checkpoints_failed,
    ),
    Family(
        "lakestore_checkpoint_age_seconds",
        "gauge",
        "Seconds since the newest checkpoint, or since the start.",
        lambda m: m.status.checkpoint_age_seconds,
    ),
    Family(
        "lakestore_store_behind_seconds",
        "gauge",
        "Seconds for which the store of `checkpoints` lacks a checkpoint that is on disk; 0 at a follower.",
        lambda m: m.status.store.behind_seconds,
    ),
    Family(
        "lakestore_store_sent_bytes",
        "counter",
        "Bytes of checkpoints that were put into that store.",
        lambda m: m.upkeep.upload.figures.sent_bytes if m.upkeep.upload else 0,
    ),
    Family(
        "lakestore_recovery_seconds",
        "gauge",
        "Seconds that the start took to read the data folder.",
        lambda m: m.engine.recovery_seconds,
    ),
    Family(
        "lakestore_index_overlay_keys",
        "gauge",
        "Keys written since the last checkpoint began.",
        lambda m: m.engine.index.overlay_keys,
    ),
    Family(
        "lakestore_index_keys",
        "gauge",
        "Live keys: the live rows of primary-key tables.",
        lambda m: sum(each.table.rows for each in m.status.tables if each.table.keyed),
    ),
    Family(
        "lakestore_index_ready",
        "gauge",
        "1 if the key index answers, 0 while it is rebuilt.",
        lambda m: int(m.engine.index.ready),
    ),
    Family(
        "lakestore_duty_failures",
        "counter",
        "Failures of each background thread; its work is tried again.",
        lambda m: [((name,), float(state.failures)) for name, state in m.status.duties.items()],
        ("duty",),
    ),
    Family(
        "lakestore_duty_failing",
        "gauge",
        "1 from a duty's failure until its next success.",
        lambda m: [((name,), float(bool(state.in_a_row))) for name, state in m.status.duties.items()],
        ("duty",),
    ),
    Family("lakestore_damage", "gauge", "Known damaged places.", lambda m: len(m.status.damage)),
    Family("lakestore_scrub_bytes", "counter", "Bytes read again by the scrub.", lambda m: m.upkeep.scrubber.bytes),
    Family("lakestore_scrub_rounds", "counter", "Scrubs of everything.", lambda m: m.upkeep.scrubber.rounds),
    Family("lakestore_index_bytes", "gauge", "Files of the index.", lambda m: m.status.index_size.file_bytes),
    Family(
        "lakestore_index_runs",
        "gauge",
        "Sorted files of the index; a look-up may search each.",
        lambda m: m.status.index_size.runs,
    ),
    Family(
        "lakestore_index_merge_entries",
        "gauge",
        "Entries of the runs that are due to be merged.",
        lambda m: m.status.index_size.merge_entries,
    ),
    Family(
        "lakestore_index_entries",
        "gauge",
        "Entries in those files at the last checkpoint, including tombstones and replaced entries.",
        lambda m: m.status.index_size.entries,
    ),
    Family(
        "lakestore_index_used_bytes",
        "gauge",
        "Bytes of the index runs.",
        lambda m: m.status.index_size.bytes,
    ),
    Family(
        "lakestore_index_entry_bytes",
        "gauge",
        "Bytes of the index per entry.",
        lambda m: m.engine.index.size.entry_bytes,
    ),
    Family(
        "lakestore_index_grown_bytes",
        "gauge",
        "Bytes by which the index grew since the server's start.",
        lambda m: m.status.index_size.grown_bytes,
    ),
    Family(
        "lakestore_segments",
        "gauge",
        "Segments; small ones share files.",
        lambda m: sum(each.table.segments for each in m.status.tables),
    ),
    Family(
        "lakestore_segment_bytes",
        "gauge",
        "Bytes in them.",
        lambda m: sum(each.table.segment_bytes for each in m.status.tables),
    ),
    Family(
        "lakestore_kept_journal_bytes",
        "gauge",
        "Bytes of journal files kept for rows of log tables; these rows count as bytes of segments too.",
        lambda m: kept_bytes(m.engine.view),
    ),
    Family(
        "lakestore_disk_free_bytes",
        "gauge",
        "Free space for the data folder.",
        lambda m: m.status.disk_free_bytes,
    ),
    Family("lakestore_leases", "gauge", "Reads that hold a cut.", lambda m: m.status.leases),
    Family(
        "lakestore_follower_holds",
        "gauge",
        "Snapshots, metadata files and cuts that a leader holds for reads at followers.",
        lambda m: m.status.follower_holds,
    ),
    Family(
        "lakestore_registers",
        "gauge",
        "Registers: positions in other systems that commits move.",
        lambda m: m.status.registers,
    ),
    Family("lakestore_tables", "gauge", "Tables.", lambda m: len(m.view.tables)),
    *TABLE_FAMILIES,
    Family(
        "lakestore_clock_confirmed",
        "gauge",
        "1 if the clock is confirmed; 0 while it is in doubt and nothing is removed by age.",
        lambda m: int(m.engine.time.read().may_delete),
    ),
    Family(
        "lakestore_clock_offset_seconds",
        "gauge",
        "The machine's clock minus the time of new commits.",
        lambda m: m.engine.time.read().offset_us / 1e6,
    ),
    Family(
        "lakestore_stamps_ahead_seconds",
        "gauge",
        "Seconds by which the newest commit's stamp is ahead of the time, after a wrong clock.",
        lambda m: max(m.view.time_us - m.engine.now_us(), 0) / 1e6,
    ),
    Family(
        "lakestore_subscription_behind",
        "gauge",
        "Unread changes of a subscription.",
        subscriptions_behind,
        ("subscription",),
    ),
    Family(
        "lakestore_catalog_commits", "counter", "Commits to the Iceberg catalog.", lambda m: m.sources.catalog.commits
    ),
    Family(
        "lakestore_catalog_refusals",
        "counter",
        "Refused catalog commits, by kind of error.",
        refusals,
        ("code",),
    ),
    Family(
        "lakestore_postgres_connections",
        "gauge",
        "Connections of the Postgres port, by whether the client has proved who it is.",
        lambda m: [(("yes",), m.sources.postgres.known), (("no",), m.sources.postgres.unknown)],
        ("authenticated",),
    ),
    Family(
        "lakestore_postgres_refused_connections",
        "counter",
        "Connections of the Postgres port that were refused or closed for a limit of number, bytes or time.",
        lambda m: m.sources.postgres.refused,
    ),
    Family(
        "lakestore_flight_streams", "gauge", "Open streams of the Flight port.", lambda m: m.sources.flight.streams()
    ),
    Family(
        "lakestore_flight_handles",
        "gauge",
        "Prepared statements, transactions and sessions that the Flight port keeps for its clients, by kind.",
        lambda m: [((kind,), count) for kind, count in m.sources.flight.handles().items()],
        ("kind",),
    ),
    Family(
        "lakestore_flight_refused_calls",
        "counter",
        "Calls of the Flight port that were refused for a limit of number, bytes or time.",
        lambda m: m.sources.flight.refused,
    ),
    Family(
        "lakestore_port_limit",
        "gauge",
        "The most connections of the port `postgres`, and the most open streams of the port `flight`.",
        lambda m: [(("postgres",), m.engine.limits.sql_connections), (("flight",), m.engine.limits.streams)],
        ("port",),
    ),
    Family(
        "lakestore_rpc_seconds",
        "histogram",
        "Duration of gRPC calls, by method and outcome: `ok` or the kind of the error; a stream is one call. "
        "`_count` is the number of calls.",
        calls,
        ("method", "code"),
    ),
    Family(
        "lakestore_report_lag_records",
        "gauge",
        "Unread records of another process, for example a bridge, in its last report.",
        reported(lambda report: report.lag),
        ("process",),
    ),
    Family(
        "lakestore_report_records",
        "gauge",
        "Records that the process has taken since its start.",
        reported(lambda report: report.records),
        ("process",),
    ),
    Family(
        "lakestore_report_bytes",
        "gauge",
        "Their bytes.",
        reported(lambda report: report.bytes),
        ("process",),
    ),
    Family(
        "lakestore_report_rejected",
        "gauge",
        "Records that the process could not take since its start.",
        reported(lambda report: report.rejected),
        ("process",),
    ),
    *QUERY_FAMILIES,
    *SNAPSHOT_FAMILIES,
    Family("lakestore_rpc_running", "gauge", "Running calls, including open streams.", running, ("method",)),
)
"""All metrics, in the order of the page."""

_MADE: dict[str, type[CounterMetricFamily] | type[GaugeMetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
}


class SourcesCollector(Collector):
    """All families at one view."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        view = self._sources.engine.view
        moment = Moment(self._sources, view, self._sources.status.at(view))
        for family in FAMILIES:
            found = family.read(moment)
            yield _metric(family, [((), found)] if isinstance(found, int | float | Histogram) else found)


def _metric(family: Family, samples: Iterable[Sample]) -> Metric:
    if family.kind == "histogram":
        made = HistogramMetricFamily(family.name, family.text, labels=family.labels)
        for labels, value in samples:
            if isinstance(value, Histogram):
                made.add_metric(labels, value.buckets(), value.total)
        return made
    plain = _MADE[family.kind](family.name, family.text, labels=family.labels)
    for labels, value in samples:
        if not isinstance(value, Histogram):
            plain.add_metric(labels, value)
    return plain


def text(sources: Sources) -> bytes:
    """The exposition of a server's metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SourcesCollector(sources))
    return generate_latest(registry)
