"""Metrics of a bridge in the format of Prometheus, answered by a port of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from lakestore.connectors.bridge.lane.seen import LATENCY_BOUNDS, Counts, Histogram
from lakestore.errors import Invalid


class BridgeCollector(Collector):
    """Reads a bridge's counts when it is asked."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Every metric, at one moment."""
        seen = self._counts.copied()
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
def served(counts: Counts, port: int | None) -> Iterator[int]:
    """Answer at a port of this machine within the block, unless it is None; 0 picks one that is free. The port."""
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
