"""The progress line of a bridge: told now and then, and not again while nothing changes."""

from __future__ import annotations

import pytest

from lakestore.cli import bridge
from lakestore.kafka.bridge.counts import Counts


def test_an_idle_bridge_does_not_repeat_its_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "_LINE_SECONDS", 0.0)
    progress, counts = bridge._Progress("bridge b"), Counts()
    progress.show(counts)
    progress.show(counts)
    assert len(capsys.readouterr().err.splitlines()) == 1
    counts.records = 5
    progress.show(counts)
    progress.show(counts, last=True)
    assert len(capsys.readouterr().err.splitlines()) == 2
