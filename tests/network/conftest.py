"""What the tests of ports and servers share."""

from __future__ import annotations

import pytest

from lakestore.client import servers


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client chooses among all its servers, however late they answer. Each must answer, or refuse at once."""
    monkeypatch.setattr(servers, "SETTLE_SECONDS", 5.0)
