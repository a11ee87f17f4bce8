"""Prometheus metrics, read from the server's state when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lakestore.server.audit import table_status
from lakestore.server.engine import Engine
from lakestore.server.retention import Retention
from lakestore.server.state import View
from lakestore.server.subscriptions import behind


class EngineCollector(Collector):
    """Figures of the engine and of each table."""

    def __init__(self, engine: Engine, retention: Retention) -> None:
        self._engine, self._retention = engine, retention

    def collect(self) -> Iterable[Metric]:
        """The families, at one view."""
        view, totals = self._engine.view, self._engine.totals
        yield CounterMetricFamily("lakestore_commits", "Journal frames written.", value=totals.frames)
        yield CounterMetricFamily("lakestore_rows", "Rows that took an offset.", value=totals.rows)
        yield CounterMetricFamily("lakestore_journal_bytes", "Bytes written to the journal.", value=totals.bytes)
        yield CounterMetricFamily("lakestore_sync_seconds", "Time in journal writes and syncs.", value=totals.seconds)
        yield GaugeMetricFamily("lakestore_lsn", "Newest visible commit.", value=view.lsn)
        yield GaugeMetricFamily(
            "lakestore_overlay_keys", "Keys since the last checkpoint.", self._engine.index.overlay_keys
        )
        yield GaugeMetricFamily(
            "lakestore_index_ready", "1 if the key index answers, 0 while it is rebuilt.", int(self._engine.index.ready)
        )
        scrubber = self._engine.scrubber
        yield GaugeMetricFamily("lakestore_damage", "Damaged places that are known of.", len(scrubber.damage))
        yield CounterMetricFamily("lakestore_scrub_bytes", "Bytes read again by the scrub.", value=scrubber.bytes)
        yield CounterMetricFamily("lakestore_scrub_rounds", "Scrubs of everything.", value=scrubber.rounds)
        rows = GaugeMetricFamily("lakestore_table_rows", "Live rows.", labels=["table"])
        hot = GaugeMetricFamily("lakestore_table_hot_offsets", "Offsets not yet in the lake.", labels=["table"])
        for state in view.tables.values():
            status = table_status(state)
            rows.add_metric([state.table.name], status["rows"])
            hot.add_metric([state.table.name], status["hot"])
        yield rows
        yield hot
        yield from self._kept(view)

    def _kept(self, view: View) -> Iterable[Metric]:
        """What retention would let go and who holds it; how far subscriptions are behind."""
        held = GaugeMetricFamily(
            "lakestore_retention_held_bytes", "Log beyond its retention that somebody holds.", labels=["table", "by"]
        )
        for uuid, state in view.tables.items():
            decision = self._retention.decision(uuid)
            for by in decision.holders() if decision else []:
                held.add_metric([state.table.name, by], decision.held_bytes if decision else 0)
        yield held
        lag = GaugeMetricFamily(
            "lakestore_subscription_behind", "Changes that a subscription has before it.", labels=["subscription"]
        )
        for name, subscription in view.subscriptions.items():
            lag.add_metric([name], behind(view, subscription))
        yield lag


def text(engine: Engine, retention: Retention) -> bytes:
    """The exposition of a server's metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(engine, retention))
    return generate_latest(registry)
