"""What the key index takes is told: keys, bytes, bytes per key, and how much it has grown since the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

import lakestore as ls
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.served import Served
from tests.unit.index.test_index_faults import lose

SCHEMA = pa.schema([("id", pa.int64())])
KEYS = 20_000


def said(lake: ls.Lake) -> dict[str, Any]:
    """The size as `status` says it."""
    size: dict[str, Any] = json.loads(lake.transport.status(pb.StatusRequest()).status)["index_size"]
    return size


def test_status_tells_the_size_of_the_index_and_its_growth_since_the_start(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        lake = served.lake
        assert said(lake)["entries"] == said(lake)["bytes_per_entry"] == 0
        table = lake.create_table("a.b", SCHEMA, primary_key=["id"])
        table.upsert(pa.table({"id": range(KEYS)}))
        assert said(lake)["entries"] == 0, "as of the last checkpoint"
        served.checkpoint()
        size = said(lake)
        assert size["entries"] == size["grown_entries"] == KEYS
        assert size["file_bytes"] >= size["bytes"] == size["grown_bytes"] >= KEYS * 16
        assert size["bytes_per_entry"] == round(size["bytes"] / KEYS, 1)
        assert size["bytes_per_entry"] < 20, "an entry, its part of samples and filter"
    with Served(tmp_path) as served:
        lake = served.lake
        assert said(lake)["entries"] == KEYS
        lake.table("a.b").delete(pa.table({"id": range(100)}))
        served.checkpoint()
        assert (said(lake)["runs"], said(lake)["merge_entries"]) == (2, 0)
        assert said(lake)["grown_entries"] == 100, "in two runs until they are merged"
    lose(tmp_path)
    with Served(tmp_path) as served:
        lake = served.lake
        served.until_indexed()
        assert said(lake)["entries"] == KEYS - 100
