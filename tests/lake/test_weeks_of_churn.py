"""Weeks of change on a table that stays as large as it is: the lake's files, metadata and all that is kept are bounded.

Each day has writes, deletes, a load by another engine, a round, and what the server's duties do; every few days a
compaction, a pin that moves, and the removal of what nobody names. A day goes by on the server's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

import lakestore as ls
from lakestore.iceberg import places
from lakestore.iceberg.manifest_lists import read_list
from lakestore.iceberg.offset_cache import BUNDLES, bundle_names
from lakestore.limits import Limits
from lakestore.spark import session
from lakestore.union.verify import verify
from lakestore_tiering import Tierer, orphans
from tests.support.seeds import seeded
from tests.support.served import DAY, Served
from tests.support.spark import SPARK_CONF

pytestmark = [pytest.mark.spark, pytest.mark.long]
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
NAME, KEYS, CHANGED, SNAPSHOTS = "shop.churned", 2_000, 300, 6
WARM_DAYS, DAYS = 16, 30
GROWTH_MAX = 1.25
"""Part of the most that there was of anything in the first weeks, beyond which it has grown."""


@pytest.fixture(name="served")
def _served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", ports=True, limits=Limits(drop_grace_seconds=DAY)) as served:
        yield served


@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", [2, 3])
def test_what_weeks_leave_behind_is_bounded(served: Served, tmp_path: Path, version: int) -> None:
    chance, address = seeded(f"churn {version}"), served.server.about["grpc"]
    spark = session(address, master="local[2]", conf=SPARK_CONF)
    with ls.connect(address) as lake, Tierer(lake, spark) as tierer:
        said = {"format_version": version, "snapshots": SNAPSHOTS}
        table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2, lake=said)
        table.upsert(_rows(np.arange(KEYS), 0))
        before: dict[str, int] = {}
        for day in range(1, DAYS + 1):
            ids = chance.sample(range(KEYS), CHANGED)
            table.delete([{"id": each} for each in ids[:20]])
            table.upsert(_rows(np.array(ids), day))
            assert _loaded(served, f"now{'-v3' if day % 2 else ''}") == KEYS
            tierer.run_once(compaction=day % 5 == 0)
            _administered(served, lake, day)
            if day % 5 == 0:
                orphans.remove(tierer.tools, table.definition, keep_seconds=0.0)
            served.clock.advance(DAY)
            served.run()
            served.server.dropped.run_once()
            served.server.presented.sweep()
            served.checkpoint()
            counts = _counts(served, tmp_path / "data", tierer)
            if day <= WARM_DAYS:
                before = {name: max(before.get(name, 0), count) for name, count in counts.items()}
            else:
                grown = {name: (before[name], n) for name, n in counts.items() if n > before[name] * GROWTH_MAX + 3}
                assert not grown, f"day {day}: {grown}"
        assert verify(lake.transport, NAME).problems() == []


def _rows(ids: np.ndarray, value: int) -> pa.Table:
    return pa.table({"id": ids, "v": np.full(len(ids), value)}, schema=SCHEMA)


def _loaded(served: Served, warehouse: str) -> int:
    """Rows that another engine counts by the catalog of presented cuts."""
    catalog = RestCatalog("now", uri=f"http://{served.server.about['http']}/iceberg", warehouse=warehouse)
    return int(catalog.load_table(NAME).scan().to_arrow().num_rows)


def _administered(served: Served, lake: ls.Lake, day: int) -> None:
    """A pin that moves, and a table that comes and goes."""
    if day % 3 == 0:
        pointer = served.engine.view.pointers["shop", "churned"]
        newest = served.server.catalog.metadata(pointer.location).doc["current-snapshot-id"]
        served.server.catalog.pin(served.state(NAME).table, "week", newest)
    if day % 7 == 0:
        lake.create_table(f"shop.day{day}", SCHEMA).append(_rows(np.arange(10), day))
        lake.drop_table(f"shop.day{day}")


def _counts(served: Served, data: Path, tierer: Tierer) -> dict[str, int]:
    """All that could grow."""
    files = [path for path in data.rglob("*") if path.is_file()]
    server, state = served.server, served.state(NAME)
    doc = server.catalog.metadata(served.engine.view.pointers["shop", "churned"].location).doc
    main = next(each for each in doc["snapshots"] if each["snapshot-id"] == doc["current-snapshot-id"])
    lake = [path for path in files if "warehouse" in path.parts]
    names = bundle_names(state.table.uuid)  # there are 64 after months: a new data file is in any of them
    bundles = [path for path in files if path.name in names]
    return {
        "snapshots": len(doc["snapshots"]),
        "refs": len(doc["refs"]),
        "tier records": len(state.tiers),
        "metadata log": len(doc["metadata-log"]),
        "manifests of main": len(read_list(places.read(main["manifest-list"]), "list")),
        "metadata files": sum(path.name.endswith(".metadata.json") for path in lake),
        "manifest files": sum(path.suffix == ".avro" for path in lake),
        "data files": sum(path.suffix in (".parquet", ".puffin") for path in lake),
        "lake files": len(lake),
        "files of the server": len(files) - len(lake) - len(bundles),
        "bytes": sum(path.stat().st_size for path in files) >> 20,
        "leases": server.retention._leases.count,
        "presented": server.presented._upkeep.measure().files,
        "pointers": len(served.engine.view.pointers),
        "dropped": len(served.engine.view.dropped),
        "offset indexes": max(tierer.tools.indexes.figures.files, BUNDLES),
        "tables that the tierer knows": len(tierer.tools.known),
    }
