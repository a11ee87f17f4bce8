"""The bridge of one bridge.yaml: a consumer for each Kafka cluster and the tables that they share."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from lakestore.client.lake import Lake
from lakestore.client.retry import within
from lakestore.errors import Invalid, LakestoreError, NotFound
from lakestore.kafka.bridge.assembly import Assembly
from lakestore.kafka.bridge.commit import Committer, spec_of
from lakestore.kafka.bridge.consumer import BridgeConsumer, Pipeline, start_thread
from lakestore.kafka.bridge.counts import LATENCY_BOUNDS, Counts, Histogram
from lakestore.kafka.bridge.decode import decoders
from lakestore.kafka.bridge.expressions import known_tables
from lakestore.kafka.bridge.positions import AcceptedLoss, Ends, Place, prefix_of
from lakestore.kafka.bridge.source import Source, Starts
from lakestore.kafka.bridge.spec import BridgeSpec, SourceSpec, TopicSpec
from lakestore.kafka.bridge.whole_transactions import Whole
from lakestore.model.token import position_of
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import tracing


class BridgeCollector(Collector):
    """Serves a bridge's counts to Prometheus."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        seen = self._counts.copy()
        for name, text, value in (
            ("records", "Records that were committed: as rows, as dead letters, or left out.", seen.records),
            ("bytes", "Bytes of their keys and values.", seen.bytes),
            ("commits", "Commits.", seen.commits),
        ):
            yield CounterMetricFamily(f"lakestore_bridge_{name}", text, value)
        rows = CounterMetricFamily("lakestore_bridge_rows", "Rows that were committed.", labels=["table"])
        for table, count in seen.rows.items():
            rows.add_metric([table], count)
        rejected = CounterMetricFamily(
            "lakestore_bridge_rejected", "Records that could not be taken.", labels=["table", "code"]
        )
        for (table, code), count in seen.rejected.items():
            rejected.add_metric([table, code], count)
        passed = CounterMetricFamily("lakestore_bridge_passed", "Records that were left out.", labels=["reason"])
        for reason, count in seen.passed.items():
            passed.add_metric([reason], count)
        unread = CounterMetricFamily(
            "lakestore_bridge_unread", "Values of fields that no column has.", labels=["table", "field"]
        )
        for (table, field), count in seen.unread.items():
            unread.add_metric([table, field], count)
        lag = GaugeMetricFamily(
            "lakestore_bridge_lag_records",
            "Records that the brokers have and the lake has not.",
            labels=["source", "topic", "partition"],
        )
        for (source, place), behind in seen.lag.items():
            lag.add_metric([source, place.topic, str(place.partition)], behind)
        halted = GaugeMetricFamily("lakestore_bridge_halted", "Topics that are not read any more.", labels=["topic"])
        for topic in seen.halted:
            halted.add_metric([topic], 1)
        yield from (rows, rejected, passed, unread, lag, halted)
        yield _histogram("commit_seconds", "Duration of a commit.", seen.latency)
        yield _histogram("age_seconds", "From a record's time to its commit: the oldest and the newest.", seen.age)


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    buckets = [(str(bound), count) for bound, count in zip(LATENCY_BOUNDS, histogram.buckets, strict=True)]
    full = f"lakestore_bridge_{name}"
    return HistogramMetricFamily(full, text, [*buckets, ("+Inf", histogram.count)], histogram.total)


@contextmanager
def serve_metrics(counts: Counts, port: int | None) -> Iterator[int]:
    """Serve metrics within the block and yield the port. Port 0 picks a free one; None serves nothing."""
    if port is None:
        yield 0
        return
    registry = CollectorRegistry()
    registry.register(BridgeCollector(counts))
    try:
        server, thread = start_http_server(port, "127.0.0.1", registry)
    except OSError as error:
        raise Invalid(f"port {port} cannot be opened for metrics: {error.strerror or error}") from error
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


REPORT_SECONDS, CALL_SECONDS = 5.0, 2.0
DETAIL_BYTES_MAX = 15 << 10


class Reporter:
    """Sends a bridge's reports to its server. A failure is only logged: reports are for people."""

    def __init__(self, lake: Lake, bridge: str) -> None:
        self._lake = lake
        self._name = tracing.name_of(tracing.BRIDGE, bridge, socket.gethostname(), os.getpid())
        self._at = 0.0
        self._refused = False

    def tell(self, counts: Counts, *, last: bool = False) -> None:
        """Report, unless the previous report was recent and this is not the `last` one."""
        now = time.monotonic()
        if self._refused or (now - self._at < REPORT_SECONDS and not last):
            return
        self._at = now
        said = counts.shown()
        detail = json.dumps(said)
        if len(detail) > DETAIL_BYTES_MAX:
            detail = json.dumps({key: value for key, value in said.items() if not isinstance(value, dict)})
        request = pb.ReportRequest(
            producer=self._name,
            records=said["records"],
            bytes=said["bytes"],
            rejected=sum(said["rejected"].values()),
            lag=sum(said["lag"].values()),
            detail=detail,
        )
        try:
            with within(CALL_SECONDS):
                self._lake.transport.report(request)
        except Invalid as error:  # an old server does not know reports
            self._refused = True
            _LOG.info("the server takes no reports of this bridge: %s", error.message)
        except LakestoreError as error:
            _LOG.info("the bridge did not report to the server: %s", error.message)


MEASURE_SECONDS, WAITING_SECONDS = 2.0, 5.0
_LOG = logging.getLogger("lakestore.bridge")

MakePipeline = Callable[[TopicSpec, str], Pipeline]
"""Makes the pipeline of a topic from its part of bridge.yaml and its name."""


@dataclass(frozen=True, slots=True)
class _Job:
    """The parts of a bridge that its consumers share."""

    spec: BridgeSpec
    lake: Lake
    pipeline: MakePipeline
    accepted: AcceptedLoss
    counts: Counts
    stop: threading.Event


class Bridge:
    """A bridge in this process."""

    def __init__(
        self,
        spec: BridgeSpec,
        lake: Lake,
        *,
        pipeline: MakePipeline | None = None,
        accepted: AcceptedLoss | None = None,
        progress: Callable[[Counts], None] = lambda _: None,
    ) -> None:
        """`pipeline` replaces the pipeline that bridge.yaml describes."""
        self._spec, self._lake = spec, lake
        self._pipeline: MakePipeline = pipeline or Assembly(spec, lake).pipeline
        self._accepted, self._progress = accepted or AcceptedLoss(), progress
        self.counts = Counts()

    def run(self, *, once: bool = False, stop: threading.Event | None = None) -> Counts:
        """Run until `stop` is set. With `once`, read up to the current ends and return."""
        stop = stop or threading.Event()
        job = _Job(self._spec, self._lake, self._pipeline, self._accepted, self.counts, stop)
        groups = dict.fromkeys((topic.source, topic.transactions) for topic in self._spec.topics)
        clusters = [_Cluster(job, self._spec.sources[source], marks) for source, marks in groups]
        threads = [start_thread("reading", partial(cluster.run, once), cluster.failed) for cluster in clusters]
        measured, reporter = time.monotonic(), Reporter(self._lake, self._spec.name)
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(0.1)
            if time.monotonic() - measured > MEASURE_SECONDS:
                waits = [cluster.measure() for cluster in clusters]
                self.counts.waiting = next((each for each in waits if each), "")
                self._progress(self.counts)
                reporter.tell(self.counts)
                measured = time.monotonic()
            if any(cluster.failure is not None for cluster in clusters):
                stop.set()
        for cluster in clusters:
            cluster.count_lag()
        reporter.tell(self.counts, last=True)
        for cluster in clusters:
            if cluster.failure is not None:
                raise cluster.failure
        return self.counts


class _Cluster:
    """A consumer of one cluster with its callbacks. Topics with `transactions` get a consumer for each topic of
    BEGIN and END records.
    """

    def __init__(self, job: _Job, source: SourceSpec, marks: str) -> None:
        self._job, self._spec, self._marks = job, source, marks
        self.topics = [topic for topic in job.spec.topics if topic.source == source.name]
        self._lagging: set[Place] = set()
        self.failure: LakestoreError | None = None
        self._consumer: BridgeConsumer | None = None
        self._known: set[Place] | None = None
        """The partitions that existed at the start."""
        self._began = 0
        """The server's LSN at the start."""
        self._ends: dict[Place, Ends] = {}

    def failed(self, error: LakestoreError) -> None:
        self.failure = error

    def run(self, once: bool) -> None:
        job = self._job
        self._consumer = consumer = BridgeConsumer(
            source=lambda consumer: Source(self._spec, consumer.revoked, consumer.lost),
            committer=self._committer,
            topics=self._named,
            pipeline=lambda topic: job.pipeline(self._topic_spec(topic), topic),
            bounds=job.spec.batch,
            counts=job.counts,
            stop=job.stop,
            whole=self._whole() if self._marks else None,
        )
        consumer.run(once=once)

    def _whole(self) -> Whole:
        marks = next(spec for spec in self.topics if spec.transactions == self._marks)
        return Whole(
            self._marks,
            lambda topic: decoders.decoder(replace(self._topic_spec(topic), topic=topic, pattern=""), self._spec),
            decoders.marks_decoder(replace(marks, topic=self._marks, pattern=""), self._spec),
            self._job.spec.batch,
        )

    def _committer(self, source: Source) -> Committer:
        job = self._job
        return Committer(
            lake=job.lake,
            bridge=job.spec.name,
            source_name=self._spec.name,
            source=source,
            starts=Starts(source, self._topic_spec, self._is_later),
            accepted=job.accepted,
            table_spec=lambda topic, table: spec_of(self._topic_spec(topic), table),
            counts=job.counts,
            is_stopped=job.stop.is_set,
            tables=lambda topic: known_tables(self._topic_spec(topic), topic),
        )

    def _topic_spec(self, topic: str) -> TopicSpec:
        telling = (spec for spec in self.topics if spec.transactions == topic)
        found = next(telling, None) or self._job.spec.entry(topic, self._spec.name)
        if found is None:
            raise NotFound(f"the file says nothing about topic {topic!r}")
        return found

    def _named(self, source: Source) -> Sequence[str]:
        names = {spec.topic for spec in self.topics if spec.topic}
        marks = {spec.transactions for spec in self.topics}
        patterns = [spec for spec in self.topics if not spec.topic and spec.transactions == self._marks]
        places = source.partitions() if patterns or self._known is None else set()
        if self._known is None:
            self._known = places
            self._began = position_of(self._job.lake.snapshot().token).lsn
        there = {place.topic for place in places}
        names |= {name for name in there if any(spec.matches(name) for spec in patterns)}
        return sorted(name for name in names - marks if self._topic_spec(name).transactions == self._marks)

    def _is_later(self, place: Place) -> bool:
        """True if a partition is newer than the bridge: new since the start, or in a topic with progress."""
        if place not in (self._known or ()):
            return True
        prefix = f"{prefix_of(self._job.spec.name, self._spec.name)}{place.topic}/"
        return any(0 < each.moved <= self._began for each in self._job.lake.list_registers(prefix))

    def measure(self) -> str:
        if self._consumer is None:
            return ""
        since = self._consumer.committer.since
        seconds = time.monotonic() - since if since else 0.0
        waits = f"the server has not taken a commit for {seconds:.0f} s" if seconds > WAITING_SECONDS else ""
        self._measure_ends(self._consumer)
        return waits

    def _measure_ends(self, consumer: BridgeConsumer) -> None:
        try:
            self._ends = consumer.source.ends(consumer.committer.held)
        except LakestoreError as error:
            _LOG.info("the lag is not known now: %s", error.message)
            return
        self.count_lag()

    def count_lag(self) -> None:
        if self._consumer is None:
            return
        held = self._consumer.committer.held
        lag = {place: max(end.stable - held[place], 0) for place, end in self._ends.items() if place in held}
        self._job.counts.set_lag(self._spec.name, lag, self._lagging)
        self._lagging = set(lag)
