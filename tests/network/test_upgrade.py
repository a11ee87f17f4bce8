"""The script that records a golden folder for a release makes one that opens."""

from __future__ import annotations

import json
from pathlib import Path

import lakestore as ls
from tests.support import golden


def test_a_folder_can_be_recorded_for_this_release(tmp_path: Path) -> None:
    archive = golden.record("now", tmp_path)
    said = json.loads((tmp_path / "data-now.json").read_text())
    assert said["shop.orders"]["rows"] > 100
    data = golden.unpacked(archive, tmp_path / "again")
    with ls.open(data) as lake:
        assert golden.contents(lake) == said
