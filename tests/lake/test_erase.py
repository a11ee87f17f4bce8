"""An erasure leaves no byte of the erased rows, in no file, and its certificate can be checked again."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

import lakestore as ls
from jepsen.raw_bytes import hits
from lakestore.cli.main import run_command
from lakestore.client.erasure import Erasure
from lakestore.spark import session
from lakestore.union.verify import verify
from lakestore_server.duties import erased_lake
from lakestore_server.duties.erased_lake import FORGOTTEN, UNNAMED
from lakestore_server.duties.erasure import ErasureDuty
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from lakestore_tiering import Tierer
from tests.lake.test_tier_crash import Died, at
from tests.support.spark import SPARK_CONF

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
NAME = "shop.people"
SCHEMA = pa.schema([("email", pa.string()), ("name", pa.string()), ("age", pa.int64())])
USERS = 60


def marker(user: int) -> str:
    """Text that only one user's rows have."""
    return f"mark-{user * 7919:09d}-{user:05d}é"


def rows(users: range, age: int) -> list[dict[str, Any]]:
    """One version of each user's row."""
    return [{"email": f"{marker(user)}@mail", "name": f"{marker(user)} of {age}", "age": age} for user in users]


class Place:
    """A server with its tierer, and the folders that may hold bytes."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.data, self.folder = folder / "data", folder
        settings = {"port": 0, "http_port": 0, "lease_grace_seconds": 0.0, "retention_check_seconds": 1.0, **settings}
        self.settings = Settings(self.data, warehouse=str(folder / "a warehouse é"), **settings)
        self.start()

    def start(self) -> None:
        """A server on the folders as they are."""
        self.server = Server(self.settings)
        self.server.start()
        self.lake = ls.connect(self.server.about["grpc"])

    def close(self) -> None:
        """End."""
        self.lake.close()
        self.server.close()

    def tier(self, spark: SparkSession) -> None:
        """One round of every table."""
        with Tierer(self.lake, spark) as tierer:
            tierer.run_once()

    def lake_folder(self) -> Path:
        """The folder of the lake table."""
        (found,) = (self.folder / "a warehouse é" / "shop").glob("people*")
        return found

    def hits(self, user: int) -> list[str]:
        """The files with bytes of a user."""
        warehouse = self.folder / "a warehouse é"
        named = [str(path) for path in warehouse.rglob("*") if marker(user)[:-1] in unquote(path.name)]
        return hits([self.data, warehouse], marker(user).encode()) + named


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """An empty server."""
    made = Place(tmp_path)
    yield made
    made.close()


@pytest.fixture
def spark(place: Place) -> SparkSession:
    """The tierer's session."""
    return session(place.server.about["grpc"], conf=SPARK_CONF)


def filled(place: Place, spark: SparkSession, **lake: Any) -> ls.Table:
    """Versions in the lake, in segments, in the journal; some replaced, some deleted."""
    table = place.lake.create_table(NAME, SCHEMA, primary_key=["email"], buckets=2, lake=lake)
    users = range(12 if "partition_by" in lake else USERS)
    for age in range(3):
        table.upsert(rows(users, age))
        place.tier(spark)
    table.delete([{"email": f"{marker(7)}@mail"}])
    place.tier(spark)
    table.upsert(rows(users[::2], 9))
    place.server.upkeep.checkpoint()
    table.upsert(rows(users[::3], 10))
    return table


def driven(place: Place, asked: Erasure, tier: Callable[[], None]) -> Erasure:
    """The end of an erasure, with a round of the tierer between its steps."""
    table = place.lake.table(asked.table)
    for _ in range(10):
        place.server.erasure.run_once()
        found = next(each for each in table.erasures() if each.id == asked.id)
        if found.is_done:
            return found
        tier()
    raise AssertionError(found.held_back_by)


def where(*users: int) -> str:
    """The condition of some users."""
    return " OR ".join(f"name LIKE '{marker(user)}%'" for user in users)


LAYOUTS = [
    pytest.param({}, id="plain"),
    pytest.param({"format_version": 3}, id="v3", marks=pytest.mark.long),
    pytest.param({"partition_by": ["name"], "sort_by": ["age"]}, id="partitioned"),
]


@pytest.mark.parametrize("lake", LAYOUTS)
def test_no_file_holds_a_byte_of_the_erased_rows(place: Place, spark: SparkSession, lake: dict[str, Any]) -> None:
    """Not in data files, delete files and manifests, nor in the names of folders; a file that comes back is found."""
    table = filled(place, spark, **lake)
    old = [path for path in place.hits(6) if path.endswith(".parquet")]
    kept = {path: (place.folder / path).read_bytes() for path in old}
    manifests = {path: path.read_bytes() for path in (place.lake_folder() / "metadata").glob("*.avro")}
    assert kept
    assert manifests
    before = table.scan().count()
    asked = table.erase(where=where(6, 7), within=0, why="a letter é")
    done = driven(place, asked, lambda: place.tier(spark))
    assert place.hits(6) == []
    assert place.hits(7) == []
    assert place.hits(8)
    assert table.scan().count() == before - 1
    assert verify(place.lake.transport, NAME).same
    assert (done.keys, done.certificate["table"] if done.certificate else "") == (2, NAME)
    certificate = done.certificate
    assert certificate is not None
    assert certificate["files"] == len(certificate["objects"]) > 5
    assert {each["kind"] for each in certificate["objects"]} >= {"journal", "index", "checkpoint", "lake", "metadata"}
    assert place.lake.verify_erased(certificate).findings == ()
    assert marker(6) not in json.dumps(certificate, ensure_ascii=False)
    for number, data in enumerate(kept.values()):
        back = place.lake_folder() / "data" / f"back-{number}.parquet"
        back.parent.mkdir(exist_ok=True)
        back.write_bytes(data)
        assert [f"{back}: it has erased rows"] == list(place.lake.verify_erased(certificate).findings)
        back.unlink()
    for path, data in manifests.items():
        path.write_bytes(data)
        assert [f"{path}: {UNNAMED}"] == list(place.lake.verify_erased(certificate).findings)
        path.unlink()


def test_a_file_of_a_killed_round_is_vouched_for_by_nobody(
    place: Place, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has versions that the log forgot, whose offsets no erasure names. The tierer removes it at the deadline."""
    monkeypatch.setattr(erased_lake, "SETTLE_SECONDS", 0.0)  # nobody writes the file
    table = filled(place, spark)
    old = next(path for path in place.hits(9) if path.endswith(".parquet") and marker(9))
    data = (place.folder / old).read_bytes()
    driven(place, table.erase(where=where(6), within=0), lambda: place.tier(spark))
    back = place.lake_folder() / "data" / "of-a-killed-round.parquet"
    back.write_bytes(data)
    asked = table.erase(where=where(9), within="1h")
    for _ in range(3):
        place.server.erasure.run_once()
        place.tier(spark)
    found = next(each for each in table.erasures() if each.id == asked.id)
    assert found.held_back_by == (f"{back}: {FORGOTTEN}",)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ErasureDuty, "past_deadline", lambda *_: True)
        patch.setattr("lakestore_server.state.erasure.Erasure.is_past", lambda *_, **__: True)
        driven(place, asked, lambda: place.tier(spark))
    assert place.hits(9) == []
    assert table.scan().count() == USERS - 3


def test_files_of_a_commit_under_way_are_no_findings(
    place: Place, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifests and lists of files without erased rows. For a file that is being written the scan waits."""
    table = filled(place, spark)
    done = driven(place, table.erase(where=where(6), within=0), lambda: place.tier(spark))
    certificate, metadata = done.certificate, place.lake_folder() / "metadata"
    assert certificate is not None
    for path in list(metadata.glob("*.avro")):
        path.with_name(f"copy-of-{path.name}").write_bytes(path.read_bytes())
    assert place.lake.verify_erased(certificate).findings == ()
    half = place.lake_folder() / "data" / "half.parquet"
    whole = next(half.parent.rglob("*.parquet")).read_bytes()
    half.write_bytes(whole[:1000])
    waits: list[float] = []

    def written(seconds: float) -> None:
        waits.append(seconds)
        half.write_bytes(whole)

    monkeypatch.setattr("lakestore_server.duties.erased_lake.time.sleep", written)
    assert place.lake.verify_erased(certificate).findings == ()
    assert len(waits) == 1
    monkeypatch.setattr(erased_lake, "SETTLE_SECONDS", 0.0)
    half.write_bytes(whole[:1000])
    (finding,) = place.lake.verify_erased(certificate).findings
    assert finding.startswith(f"{half}: it cannot be read")


@pytest.mark.parametrize(
    "point",
    [
        "compact-rewritten",
        pytest.param("compact-landed", marks=pytest.mark.long),
        "erase-rewritten",
        pytest.param("erase-expired", marks=pytest.mark.long),
    ],
)
def test_the_next_tierer_goes_on_after_a_kill(place: Place, spark: SparkSession, point: str) -> None:
    """What the killed one has left, such as a branch and files in no snapshot, goes too."""
    table = filled(place, spark)
    asked = table.erase(where=where(6), within=0)
    place.server.erasure.run_once()
    crashing = Tierer(place.lake, spark, holder="one", crash=at(point))
    with pytest.raises(Died):
        crashing.run_once(compaction=False)

    def round_of_one() -> None:
        with Tierer(place.lake, spark, holder="one") as tierer:
            tierer.run_once(compaction=False)

    driven(place, asked, round_of_one)
    assert place.hits(6) == []
    assert table.scan().count() == USERS - 2


def test_readers_and_tags_hold_the_lake_back_until_the_deadline(
    place: Place, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of the lake, a tag of a user and a presented cut; each is named. The deadline ends them."""
    table = filled(place, spark)
    spark.sql(f"ALTER TABLE lake.{NAME} CREATE TAG `year end`")
    asked = table.erase(where=where(6), within="1h")
    for _ in range(2):
        place.server.erasure.run_once()
        place.tier(spark)
    place.server.erasure.run_once()
    (found,) = table.erasures()
    assert (found.step, "year end" in found.held_back_by[0]) == ("lake", True)
    spark.sql(f"ALTER TABLE lake.{NAME} DROP TAG `year end`")
    load_catalog("now", uri=f"http://{place.server.about['http']}/iceberg", warehouse="now").load_table(NAME)
    place.tier(spark)
    place.server.erasure.run_once()
    (found,) = table.erasures()
    assert (found.step, found.held_back_by) == ("log", ("presented cuts of table shop.people, which readers hold",))
    monkeypatch.setattr(ErasureDuty, "past_deadline", lambda *_: True)
    driven(place, asked, lambda: place.tier(spark))
    assert place.hits(6) == []


def test_the_deadline_removes_tags(place: Place, spark: SparkSession) -> None:
    table = filled(place, spark)
    spark.sql(f"ALTER TABLE lake.{NAME} CREATE TAG `year end`")
    asked = table.erase(where=where(6), within=0)
    driven(place, asked, lambda: place.tier(spark))
    assert place.hits(6) == []
    assert "year end" not in [row.name for row in spark.sql(f"SELECT name FROM lake.{NAME}.refs").collect()]


def test_rows_are_erased_by_the_command_while_others_write(
    place: Place, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`lakestore erase --wait` with a tierer that runs, and `lakestore verify --erased`."""
    table, stop = filled(place, spark, freshness="1s"), threading.Event()

    def write() -> None:
        for age in itertools.count(20):
            if stop.is_set():
                return
            table.upsert(rows(range(8, 40), age))

    server, file = ["--server", place.server.about["grpc"]], tmp_path / "a certificate é.json"
    with Tierer(place.lake, spark) as tierer:
        threads = [threading.Thread(target=write), threading.Thread(target=tierer.run_forever, args=(stop,))]
        for thread in threads:
            thread.start()
        try:
            erase = ["erase", NAME, "--where", where(6, 7), "--wait", "--within", "0s", "--yes"]
            assert run_command([*erase, "--certificate", str(file), *server]) == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert place.hits(6) == []
    assert place.hits(7) == []
    capsys.readouterr()
    code, told = run_command(["verify", "--erased", str(file), *server]), capsys.readouterr()
    assert (code, told.err) == (0, "")
    assert "the erased rows are nowhere" in told.out
    assert verify(place.lake.transport, NAME).same
