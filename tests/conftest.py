"""A server on free ports, a client of it, and sessions of one Spark."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from hypothesis import HealthCheck, settings
from pytest_timeout import _get_item_settings

os.environ["LAKESTORE_CACHE"] = "off"  # tests make other files under one name

import lakestore as ls
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.support import seeds
from tests.support.served import Served
from tests.support.spark import SPARK_CONF
from tests.support.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer

    from jepsen.system.kafka import KafkaProcess
    from jepsen.system.store import Store
    from lakestore.spark import SparkLake
    from tests.support.outside import DatabaseCatalog, RestServer
    from tests.support.side_by_side import FilesSideBySide

settings.register_profile(
    "fixed",
    deadline=None,
    print_blob=True,
    derandomize=True,
    database=None,
    max_examples=seeds.examples(100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("explore" if seeds.explores() else "fixed")
"""No example is timed, because a busy machine would fail it. `fixed` draws the same examples in every run."""


for part in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, part, WAIT_SECONDS)
"""Requests of tests wait as long as everything else: on a busy machine the five seconds of httpx are soon over."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesSideBySide | None:
    """The way that files are handed to the processes of `make test`."""
    from tests.support.side_by_side import FilesSideBySide

    return FilesSideBySide(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """The end of a test has a time limit too: pytest-timeout ends its own one when a test has failed."""
    settings = _get_item_settings(item)
    if settings.timeout:
        item.config.hook.pytest_timeout_set_timer(item=item, settings=settings)


def pytest_collection_finish() -> None:
    """A collection of garbage looks at no module and no test again: they are a million objects, half a second each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def processes_without_pandas() -> None:
    """For servers, commands and Spark's Python workers; this process has pandas for tests of frames."""
    hidden = Path(__file__).parent / "support" / "without_pandas"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(hidden), os.environ.get("PYTHONPATH"))))


@pytest.fixture(scope="session", autouse=True)
def synced_at_once() -> Iterator[None]:
    """Syncs of this process take no time: a test that loses power does so on a `SimDisk`, which knows what was synced.

    Real syncs were half of what tests of `tests/unit` waited for. Servers in processes of their own still sync.
    """

    def synced(fd: int) -> None:
        os.fstat(fd)  # a closed file is refused

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", synced)
        patch.setattr(os, "fdatasync", synced)
        yield


@pytest.fixture(scope="session", autouse=True)
def http_ends_at_once() -> Iterator[None]:
    """HTTP servers of this process wait 10 ms where uvicorn waits 100: before it sees its end, and within it.

    A test whose server has ports waited 0.2 s for that.
    """

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 10)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvicorn.server.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
        yield


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A server without ports in this process, on a clock that the test moves."""
    with Served(tmp_path) as running:
        yield running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server with both ports open."""
    running = Server(Settings(tmp_path / "data", port=0, http_port=0, lease_grace_seconds=0.0))
    running.start()
    yield running
    running.close()


@pytest.fixture
def lake(server: Server) -> Iterator[ls.Lake]:
    """A client of that server."""
    with ls.connect(server.about["grpc"]) as connected:
        yield connected


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaProcess]:
    """The one broker of this process. Tests take names of topics and groups that no other test takes (`serial`)."""
    from jepsen.system.kafka import KafkaProcess

    with KafkaProcess(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    """Iceberg's REST server, for the tests of one module."""
    from tests.support.outside import RestServer

    with RestServer(tmp_path_factory.mktemp("rest")) as server:
        yield server


@pytest.fixture(scope="module")
def database() -> Iterator[DatabaseCatalog]:
    """PyIceberg's catalog in a PostgreSQL server, for the tests of one module."""
    from tests.support.outside import DatabaseCatalog
    from tests.support.postgres import Postgres

    with Postgres() as postgres, closing(DatabaseCatalog(postgres)) as catalog:
        yield catalog


@pytest.fixture
def store() -> Iterator[Store]:
    """Our S3 in memory. The environment names it to servers and clients."""
    from jepsen.system.store import Store
    from lakestore.iceberg import places

    made = Store()
    made.tell()
    places.forget_stores()
    yield made
    made.close()
    places.forget_stores()


@pytest.fixture
def spark(server: Server) -> SparkSession:
    """A session of its own on the one Spark of this process."""
    from lakestore.spark import session

    return session(server.about["grpc"], master="local[2]", conf=SPARK_CONF)


@pytest.fixture
def spark_lake(server: Server, spark: SparkSession) -> Iterator[SparkLake]:
    """This lake, attached to that session."""
    from lakestore.spark import attach

    attached = attach(spark, server.about["grpc"])
    yield attached
    attached.close()
