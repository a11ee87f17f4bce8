"""Tests by model: runs of the index are merged as soon as there are two, in slices of few entries."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from lakestore_server.index import levels, run_merge


@pytest.fixture(autouse=True, scope="package")
def merging_runs() -> Iterator[None]:
    """Merges at nearly every checkpoint."""
    with patch.object(levels, "SIMILAR", 2), patch.object(run_merge, "SLICE_ENTRIES", 5):
        yield
