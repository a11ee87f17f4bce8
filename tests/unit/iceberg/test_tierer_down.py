"""The tierer is down for longer than the retention: the log grows, says who holds it, and is right when it is back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from lakestore.cli.main import cli
from lakestore.union.verify import verify
from lakestore_server.host.disk import RealDisk
from lakestore_server.operate.metrics import text as metrics_text
from tests.support.folding import Fold
from tests.support.log_start import compact
from tests.support.log_tierer import LogTierer
from tests.support.served import DAY, SCHEMA, Served

LOG, KEYED = "t.log", "t.keyed"
ROWS = pa.schema([("id", pa.int64()), ("n", pa.int64())])
DAYS, KEYS, A_DAY = 8, 40, 50


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    running = Served(tmp_path, ports=True)
    running.lake.create_table(LOG, SCHEMA, buckets=2, bucket_key=["v"], retention="1d")
    running.lake.create_table(KEYED, ROWS, primary_key=["id"], buckets=2, retention="1d")
    yield running
    running.close()


def status(served: Served, name: str) -> dict[str, Any]:
    """What the command line says of a table."""
    said = CliRunner().invoke(cli, ["status", "--json", "--server", served.server.about["grpc"]])
    assert said.exit_code == 0, said.output
    found: dict[str, Any] = next(part for part in json.loads(said.stdout)["tables"] if part["name"] == name)
    return found


def figures(served: Served) -> str:
    return metrics_text(served.server.sources).decode()


def a_day(served: Served, day: int) -> None:
    """Rows, updates and deletes, and what a server does beside them."""
    served.append(LOG, *range(day * A_DAY, (day + 1) * A_DAY))
    served.lake.table(KEYED).upsert([{"id": i, "n": day} for i in range(KEYS)])
    served.lake.table(KEYED).delete([{"id": day}])
    served.checkpoint()
    served.clock.advance(DAY)
    served.run()


def check(served: Served, days: int) -> None:
    """Every read of both tables."""
    log, keyed = served.lake.table(LOG), served.lake.table(KEYED)
    assert sorted(log.scan().to_arrow()["v"].to_pylist()) == list(range(days * A_DAY))
    assert sorted(served.values(LOG, "snapshot")) == list(range(days * A_DAY))
    live = {i: {"id": i, "n": days - 1} for i in range(KEYS) if i != days - 1}
    assert Fold().add(keyed.changes("snapshot", until="now", before_images=True)).rows == live
    assert keyed.lookup([{"id": i} for i in range(KEYS)]).to_pylist() == list(live.values())


@pytest.mark.parametrize("trouble", ["none", "restart", "kill"])
def test_the_tierer_down_for_longer_than_retention(served: Served, tmp_path: Path, trouble: str) -> None:
    sizes: list[int] = []
    for day in range(DAYS):
        a_day(served, day)
        if day == DAYS // 2 and trouble == "restart":
            served.restart()
        elif day == DAYS // 2 and trouble == "kill":
            served.kill()
            served.open(tmp_path, RealDisk())
        served.run()
        sizes.append(sum(file.stat().st_size for file in (tmp_path / "segments").rglob("*.seg")))
        for name in (LOG, KEYED):
            assert sum(served.state(name).starts()) == 0, "nothing leaves that is not in the lake"
            told = status(served, name)
            assert (told["held_by"], told["held_bytes"] > 0) == (["lake"], True)
            assert re.search(f'lakestore_retention_held_bytes{{by="lake",table="{name}"}} [1-9]', figures(served))
    assert sizes == sorted(set(sizes)), "the disk grows day by day"
    assert Fold().add(served.lake.table(KEYED).changes(until="now", before_images=True)).rows
    assert sorted(served.values(LOG)) == list(range(DAYS * A_DAY))
    check(served, DAYS)
    assert verify(served.lake.transport, KEYED).problems() == []
    served.tier(KEYED)
    LogTierer(served.server, served.lake.transport).flush(LOG)
    served.run()
    compact(served.server)
    for name in (LOG, KEYED):
        assert served.state(name).starts() == tuple(log.head for log in served.state(name).logs)
        served.run()
        assert status(served, name)["held_by"] == []
    assert not list((tmp_path / "segments" / served.state(LOG).table.uuid).glob("*.seg"))
    assert sum(file.stat().st_size for file in (tmp_path / "segments").rglob("*.seg")) < sizes[-1] / 3
    check(served, DAYS)
    assert verify(served.lake.transport, LOG).problems() == []
