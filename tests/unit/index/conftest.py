"""Tests of the index: its processes are started as a server starts them."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def index_processes() -> None:
    """Real ones, instead of the forked ones of all other tests."""
