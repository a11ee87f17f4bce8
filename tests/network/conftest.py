"""A fixture for tests whose client chooses among several servers."""

from __future__ import annotations

import pytest

from lakestore.client import servers


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client waits five seconds for answers of all its servers before it chooses one, not a quarter of a second."""
    monkeypatch.setattr(servers, "SETTLE_SECONDS", 5.0)
