"""An erasure of a log table: the rows go from log and lake, offsets and positions behind them stay."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.errors import PositionExpired
from lakestore.evolution import SetOptions
from lakestore.union.verify import verify
from lakestore_tiering import Tierer
from tests.lake.test_erase import LAYOUTS, Place, driven, marker, place, spark, where
from tests.lake.test_tier_crash import Died, at

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
__all__ = ["place", "spark"]
NAME = "shop.people"
SCHEMA = pa.schema([("email", pa.string()), ("name", pa.string()), ("age", pa.int64())])
USERS, LATER = 20, range(8, 20)


def rows(age: int, users: range = range(USERS)) -> list[dict[str, Any]]:
    """One row of each user."""
    return [{"email": f"{marker(user)}@mail", "name": f"{marker(user)} of {age}", "age": age} for user in users]


def filled(place: Place, spark: SparkSession, **lake: Any) -> ls.Table:
    """Rows in the lake alone, in lake and log, in segments and in the journal."""
    table = place.lake.create_table(NAME, SCHEMA, buckets=2, lake=lake, retention={"bytes": 1})
    for age in range(2):
        table.append(rows(age, range(12) if "partition_by" in lake else range(USERS)))
        place.tier(spark)
    place.server.upkeep.checkpoint()
    place.server.retention.run_once()
    assert any(place.server.engine.view.named(NAME).starts()), "the first rows are in the lake alone"
    table.alter(SetOptions(retention="1000d"))
    table.append(rows(2))
    place.tier(spark)
    table.append(rows(3))
    place.server.upkeep.checkpoint()
    table.append(rows(4))
    return table


def counted(table: ls.Table) -> Counter[tuple[Any, ...]]:
    """Each row, with its number."""
    return Counter(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())


def is_of(row: tuple[Any, ...], *users: int) -> bool:
    """Whether a row is of one of the users."""
    return any(marker(user) in row[0] for user in users)


@pytest.mark.parametrize("lake", LAYOUTS)
def test_no_file_holds_a_byte_of_the_erased_rows(place: Place, spark: SparkSession, lake: dict[str, Any]) -> None:
    """Every reader finds all other rows, at the head and at later cuts; earlier positions are refused."""
    table = filled(place, spark, **lake)
    before, old = counted(table), place.lake.last_token
    assert place.hits(6)
    asked = table.erase(where=where(6, 7), within=0)
    place.server.erasure.run_once()
    table.append(rows(5, LATER))
    middle = place.lake.last_token
    table.append(rows(6, LATER))
    done = driven(place, asked, lambda: place.tier(spark))
    later = Counter(tuple(row.values()) for age in (5, 6) for row in rows(age, LATER))
    wanted = Counter({row: count for row, count in before.items() if not is_of(row, 6, 7)}) + later
    assert counted(table) == wanted
    assert (done.keys, done.versions) == (0, 10)
    certificate = done.certificate
    assert certificate is not None
    assert [place.hits(user) for user in (6, 7)] == [[], []]
    assert verify(place.lake.transport, NAME).same
    assert place.lake.verify_erased(certificate).findings == ()
    with pytest.raises(PositionExpired, match="an erase"):
        place.lake.at(old).scan(NAME).count()
    assert len(place.lake.at(middle).scan(NAME).to_arrow()) == wanted.total() - len(LATER)
    assert presented(place) == wanted.total()
    restart(place)
    again = place.lake.table(NAME)
    assert counted(again) == wanted
    again.append(rows(7, LATER))
    place.tier(spark)
    assert verify(place.lake.transport, NAME).same
    second = again.erase(where=where(8), within=0)
    assert driven(place, second, lambda: place.tier(spark)).versions == 8
    assert place.hits(8) == []
    assert again.scan().count() == wanted.total() + len(LATER) - 8
    assert verify(place.lake.transport, NAME).same
    assert place.lake.verify_erased(certificate).findings == ()


def restart(place: Place) -> None:
    """The server again, at its addresses: Spark's session knows them."""
    ports = {name: int(place.server.about[name].rpartition(":")[2]) for name in ("grpc", "http")}
    place.close()
    place.settings = replace(place.settings, port=ports["grpc"], http_port=ports["http"])
    place.start()


def presented(place: Place) -> int:
    """The rows that another engine sees now."""
    catalog = load_catalog("now", uri=f"http://{place.server.about['http']}/iceberg", warehouse="now")
    return len(catalog.load_table(NAME).scan().to_arrow())


def test_streams_and_reads_hold_an_erasure_back_and_go_on(place: Place, spark: SparkSession) -> None:
    """A read of the log and a subscription from before are named. A stream at a later position misses nothing."""
    table = filled(place, spark)
    with place.lake.changes([NAME], subscription="s", start="snapshot", until="now") as stream:
        for batch in stream:  # to its end: a snapshot that is left half read is kept for an hour
            batch.ack()
    asked = table.erase(where=where(6), within="1h")
    place.server.erasure.run_once()
    table.append(rows(5, LATER))
    place.tier(spark)
    place.server.erasure.run_once()
    (found,) = table.erasures()
    assert found.step == "lake"
    assert any("subscription s" in reason for reason in found.held_back_by), found.held_back_by
    since = place.lake.last_token
    place.lake.reset_subscription("s", "latest")
    driven(place, asked, lambda: place.tier(spark))
    table.append(rows(6, LATER))
    with place.lake.changes([NAME], start=since) as stream:
        batch = next(iter(stream))
    assert len(batch.to_arrow()) == len(LATER)
    assert place.hits(6) == []


@pytest.mark.parametrize("point", ["erase-deleted", pytest.param("erase-found", marks=pytest.mark.long)])
def test_the_next_tierer_goes_on_after_a_kill(place: Place, spark: SparkSession, point: str) -> None:
    """The lake has lost the rows, and the server knows it, whether the tierer heard the answer or not."""
    table = filled(place, spark)
    asked = table.erase(where=where(6), within=0)
    place.server.erasure.run_once()
    table.append(rows(5, LATER))
    middle, wanted = place.lake.last_token, {row for row in counted(table) if not is_of(row, 6)}
    place.tier(spark)
    place.server.erasure.run_once()
    table.append(rows(6, LATER))
    newest = wanted | {row for row in counted(table) if row[2] == 6}
    crashing = Tierer(place.lake, spark, holder="one", crash=at(point))
    with pytest.raises(Died):
        crashing.run_once(compaction=False)
    is_deleted = point == "erase-deleted"
    assert (set(counted(table)) == newest) == is_deleted
    at_middle = place.lake.at(middle).scan(NAME).to_arrow().to_pylist()
    assert (len(at_middle) == len(wanted)) == is_deleted, "of an earlier cut as well"
    assert verify(place.lake.transport, NAME).same
    restart(place)

    def round_of_one() -> None:
        with Tierer(place.lake, spark, holder="one") as tierer:
            tierer.run_once(compaction=False)

    driven(place, asked, round_of_one)
    table = place.lake.table(NAME)
    assert set(counted(table)) == newest
    assert place.hits(6) == []
    assert verify(place.lake.transport, NAME).same


def test_rows_that_nobody_has_end_too(place: Place, spark: SparkSession) -> None:
    """An erasure without a row ends on a table that is written no more; a table with a key as well."""
    table = filled(place, spark)
    keyed = place.lake.create_table("shop.keyed", SCHEMA, primary_key=["email"])
    keyed.upsert(rows(1))
    place.tier(spark)
    for each in (table, keyed):
        done = driven(place, each.erase(where="age = 1000", within=0), lambda: place.tier(spark))
        assert (done.keys, done.versions) == (0, 0)
        assert verify(place.lake.transport, each.name).same
