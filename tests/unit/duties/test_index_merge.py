"""Merges of the index's runs give way to others, but not for as long as their process was stopped."""

from __future__ import annotations

import time
from pathlib import Path

from lakestore_server.duties.index_rebuild import PAUSE_SECONDS_MAX
from tests.support.served import Served


def test_an_hour_in_the_midst_of_a_slice_is_no_pause_of_an_hour(tmp_path: Path) -> None:
    served = Served(tmp_path)
    merger = served.server.upkeep._merger
    with merger._running:  # it merges nothing meanwhile
        began = time.monotonic()
        merger._began = began - 3_600
        assert merger._pause(1), "it goes on"
    assert time.monotonic() - began >= PAUSE_SECONDS_MAX
    served.close()
