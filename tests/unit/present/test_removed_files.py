"""Presented files that somebody removed under a running server: they are written anew."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa

from lakestore.model.names import PRESENTED
from lakestore_server.snapshots.presented_tables import LoadRequest
from lakestore_server.snapshots.upkeep import LOOK_SECONDS
from tests.support.present_stand_in import StandIn
from tests.support.presenting import Presenting
from tests.support.served import SCHEMA, Served


def test_the_presenter_begins_anew_without_its_folder(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    with Served(tmp_path / "data") as served:
        presenting = Presenting(served, tmp_path / "lake")
        table = served.lake.create_table("a.t", SCHEMA)
        table.append(pa.table({"v": [1, 2]}))
        assert presenting.rows("a.t").num_rows == 2
        for more in (0, 1):  # the same cut, and one that is made of earlier files
            shutil.rmtree(tmp_path / "lake" / PRESENTED)
            if more:
                table.append(pa.table({"v": [3]}))
            assert presenting.rows("a.t").num_rows == 2 + more


def test_a_kept_answer_goes_with_its_files(tmp_path: Path) -> None:
    stand_in = StandIn()
    with Served(tmp_path / "data", presenter=lambda: stand_in) as served:
        served.lake.create_table("a.t", SCHEMA)
        served.append("a.t", 1)
        presented = served.server.presented
        presented.load(LoadRequest("a.t"))
        presented.sweep()
        presented.load(LoadRequest("a.t"))
        assert len(stand_in.asked) == 1
        shutil.rmtree(tmp_path / "data" / "warehouse" / PRESENTED)
        served.clock.advance(LOOK_SECONDS)
        presented.sweep()
        assert len(stand_in.forgotten) == 1
        presented.load(LoadRequest("a.t"))
        assert len(stand_in.asked) == 2
