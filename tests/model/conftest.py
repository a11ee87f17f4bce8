"""Tests by model: runs of the index are merged as soon as there are two, in slices of few entries; all keys are looked
up ahead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from unittest.mock import patch

import pytest

from lakestore_server.commit.engine import Engine
from lakestore_server.index import hints, levels, run_merge


@pytest.fixture(autouse=True, scope="package")
def merging_runs() -> Iterator[None]:
    """Merges at nearly every checkpoint."""
    with ExitStack() as patches:
        for where, name, value in (
            (levels, "SIMILAR", 2),
            (run_merge, "SLICE_ENTRIES", 5),
            (run_merge, "PAUSE_ENTRIES", 5),
            (hints, "HINTED_MIN", 1),
            (Engine, "is_busy", True),
        ):
            patches.enter_context(patch.object(where, name, value))
        yield
