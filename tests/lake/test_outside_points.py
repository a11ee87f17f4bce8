"""A log table and a keyed table in an outside catalog, with rounds that break at one point of X1 again and again.

`LAKESTORE_SEED` runs one seed again (`tests/support/seeds.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import LakestoreError
from lakestore.spark import session
from lakestore.union.verify import verify
from lakestore_server.catalog.outside_tables import COMMITTED, READY
from lakestore_tiering import Tierer
from lakestore_tiering.round import no_crash
from tests.lake.test_tier_crash import Died, at
from tests.support.outside import Outside, RestServer, kill
from tests.support.seeds import seeded
from tests.support.served import Served
from tests.support.spark import SPARK_CONF

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LOG, KEYED = "shop.log", "shop.keyed"
LOG_SCHEMA = pa.schema([("v", pa.int64())])
KEYED_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
CATALOGS = ("rest", "database")
POINTS = ("before-files", "after-files", "before-commit", "answer-lost", "not-journaled", "not-answered")
"""The five points of X1; an answer is lost between outside catalog and server, or between server and tierer."""
SEEDS, STEPS = 50, 4
"""The short form has one seed, one whole round and one broken round."""
IDS = 40
CONF = {**SPARK_CONF, "spark.sql.catalog.lake.rest.client.max-retries": "1"}
"""Iceberg would send a commit to a server that has ended six times in 31 s."""


@pytest.fixture(name="outside", params=CATALOGS)
def one_catalog(request: pytest.FixtureRequest) -> Outside:
    found: Outside = request.getfixturevalue(request.param)
    return found


@pytest.fixture(name="served")
def one_server(tmp_path: Path, outside: Outside) -> Iterator[Served]:
    with Served(tmp_path / "dätä set", ports=True, catalog=outside.settings()) as served:
        yield served
        for name in served.engine.view.names:
            served.lake.drop_table(name)


class Tables:
    """Both tables, what they must hold, and rounds that break."""

    def __init__(self, served: Served, outside: Outside, seed: int) -> None:
        self._served, self._outside, self.rng = served, outside, seeded(seed)
        served.lake.create_table(LOG, LOG_SCHEMA, buckets=2)
        served.lake.create_table(KEYED, KEYED_SCHEMA, primary_key=["id"], buckets=2)
        self._log: list[int] = []
        self._keyed: dict[int, int] = {}

    def write(self) -> None:
        """An append, an upsert and a delete."""
        rows = [self.rng.randrange(1_000_000) for _ in range(self.rng.randrange(1, 20))]
        self._served.append(LOG, *rows)
        self._log += rows
        table = self._served.lake.table(KEYED)
        new = {key: self.rng.randrange(1_000) for key in self.rng.sample(range(IDS), 12)}
        table.upsert([{"id": key, "v": value} for key, value in new.items()])
        self._keyed |= new
        gone = self.rng.sample(sorted(self._keyed), 4)
        table.delete([{"id": key} for key in gone])
        for key in gone:
            del self._keyed[key]

    def round(self, crash: str = "") -> None:
        """One round of both tables by a new tierer."""
        served = self._served
        served.clock.advance(3_600)  # the epoch of a tierer that died is over
        address = served.server.about["grpc"]
        with ExitStack() as opened:
            lake = opened.enter_context(ls.connect(address))
            spark = session(address, master="local[2]", conf=CONF)
            tierer = Tierer(lake, spark, holder="one", crash=at(crash) if crash else no_crash)
            if not crash:  # a tierer that died closes nothing
                opened.enter_context(tierer)
            tierer.run_once(compaction=False)

    def broken_round(self, point: str, patched: pytest.MonkeyPatch) -> None:
        """A round that breaks at the point, then kill -9 of the server and a new start."""
        catalogs = self._served.server.catalog.outside.catalogs
        crash = {"after-files": "before-commit", "not-answered": "after-commit"}.get(point, "")
        if point in ("before-commit", "not-journaled"):
            moment = READY if point == "before-commit" else COMMITTED
            patched.setattr(catalogs, "reach", lambda reached: kill() if reached == moment else None)
        elif point == "answer-lost":
            lose_one(self._outside, catalogs.named("prod"), patched)
        if point != "before-files":
            with suppress(LakestoreError, Died):
                self.round(crash)
        patched.undo()
        self._served.kill()
        self._served.start()

    def tiered(self) -> None:
        """A round, again if main moved since its plan or an answer is missing."""
        for _ in range(5):
            self.look()
            with suppress(ls.Conflict, ls.Unavailable):
                self.round()
                return
        raise AssertionError("no round succeeded")

    def look(self) -> None:
        """The server looks at the outside catalog."""
        self._served.clock.advance(60)
        self._served.server._outside_check.run_once()

    def check(self, *, tiered: bool) -> None:
        """Union reads are the model; after a round the lake in the outside catalog is it too."""
        lake = self._served.lake
        assert sorted(lake.table(LOG).scan().to_arrow()["v"].to_pylist()) == sorted(self._log)
        assert pairs(lake.table(KEYED).scan().to_arrow()) == sorted(self._keyed.items())
        if not tiered:
            return
        for name in (LOG, KEYED):
            assert verify(lake.transport, name).same
            place = self._served.engine.view.pointers["shop", name.removeprefix("shop.")].location
            assert self._outside.catalog().load_table(name).metadata_location == place
        theirs = self._outside.catalog()
        log = theirs.load_table(LOG).scan(selected_fields=("v",)).to_arrow()
        assert sorted(log["v"].to_pylist()) == sorted(self._log)
        keyed = theirs.load_table(KEYED).scan(selected_fields=("id", "v")).to_arrow()
        assert pairs(keyed) == sorted(self._keyed.items())


def pairs(rows: pa.Table) -> list[tuple[int, int]]:
    """Keys with values, in order."""
    return sorted(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))


def lose_one(outside: Outside, catalog: object, patched: pytest.MonkeyPatch) -> None:
    """The outside catalog does the next commit, and the server gets no answer."""
    if isinstance(outside, RestServer):
        outside.proxy.lose_commits = 1
        return
    commit, left = catalog.commit, iter([True])  # type: ignore[attr-defined]

    def lost(*given: object) -> object:
        done = commit(*given)
        if next(left, False):
            raise ls.Unavailable("the answer is lost", applied="unknown")
        return done

    patched.setattr(catalog, "commit", lost)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, SEEDS))])
@pytest.mark.parametrize("point", POINTS)
def test_rounds_that_break_at_a_point_lose_and_double_nothing(
    served: Served, outside: Outside, point: str, seed: int
) -> None:
    tables = Tables(served, outside, seed)
    tables.write()
    tables.tiered()
    for _ in range(STEPS if seed else 0):
        tables.write()
        if tables.rng.random() < 0.7:
            with pytest.MonkeyPatch.context() as patched:
                tables.broken_round(point, patched)
        if tables.rng.random() < 0.5:
            tables.look()
        tables.check(tiered=False)
        if tables.rng.random() < 0.5:
            tables.tiered()
            tables.check(tiered=True)
    tables.write()
    with pytest.MonkeyPatch.context() as patched:
        tables.broken_round(point, patched)
    tables.tiered()
    tables.check(tiered=True)
