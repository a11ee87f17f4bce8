"""Metrics of a bridge: all that it counts, by names that its page has."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest

from lakestore.errors import Invalid
from lakestore.kafka.bridge.bridge import serve_metrics
from lakestore.kafka.bridge.counts import Counts
from lakestore.kafka.bridge.positions import Place

PAGE = Path(__file__).resolve().parents[3] / "docs" / "bridge.md"


def test_a_port_answers_all_that_is_counted_and_the_page_names_it() -> None:
    counts = Counts()
    counts.records, counts.bytes, counts.commits = 7, 70, 1
    counts.rows["d.t"] = 5
    counts.rejected["d.t", "bad-json"] = 1
    counts.passed["filtered"] = 1
    counts.set_lag("", {Place("t", 3): 9}, ())
    counts.halted["u"] = "gone"
    counts.latency.add(0.02)
    with serve_metrics(counts, 0) as port:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
        with pytest.raises(Invalid, match="cannot be opened for metrics"), serve_metrics(counts, port):
            pass
    assert 'lakestore_bridge_rejected_total{code="bad-json",table="d.t"} 1.0' in text
    assert 'lakestore_bridge_lag_records{partition="3",source="",topic="t"} 9.0' in text
    assert 'lakestore_bridge_commit_seconds_bucket{le="0.025"} 1.0' in text
    assert 'lakestore_bridge_halted{topic="u"} 1.0' in text
    names = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
    assert names == set(re.findall(r"`(lakestore_bridge_\w+)`", PAGE.read_text()))


def test_without_a_port_nothing_listens() -> None:
    with serve_metrics(Counts(), None) as port:
        assert port == 0
