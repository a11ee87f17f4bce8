"""A server in this process whose warehouse is in a bucket, with a client, and the one Spark of the process."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession

import lakestore as ls
from jepsen.system.store_requests import LIST, Request, StoreRequests
from lakestore.iceberg import places
from lakestore.spark import SparkLake, attach, session
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from lakestore_tiering import Tierer
from tests.support.spark import SPARK_CONF, store_conf


class StoreLake:
    """The environment of this process must name the store. A context manager."""

    def __init__(self, data: Path, warehouse: str, requests: StoreRequests) -> None:
        self.warehouse, self._requests, self._open = warehouse, requests, ExitStack()
        settings = Settings(data, port=0, http_port=0, warehouse=warehouse, lease_grace_seconds=0.0)
        places.forget_stores()
        self._open.callback(places.forget_stores)
        self.server = Server(settings)
        try:
            self.server.start()
            self._open.callback(self.server.close)
            self.lake = self._open.enter_context(ls.connect(self.server.about["grpc"]))
        except BaseException:
            self.close()
            raise

    @property
    def catalog(self) -> str:
        """The address of the server's Iceberg catalog."""
        return f"http://{self.server.about['http']}/iceberg"

    def spark(self) -> SparkSession:
        """A session whose catalogs reach the store. The JVM began before the store, so its environment names none."""
        return session(self.server.about["grpc"], master="local[2]", conf={**SPARK_CONF, **store_conf()})

    def tierer(self) -> Tierer:
        return self._open.enter_context(Tierer(self.lake, self.spark()))

    def attached(self) -> SparkLake:
        """The lake in a session of Spark."""
        made = attach(self.spark(), self.server.about["grpc"])
        self._open.callback(made.close)
        return made

    def requests(self) -> list[Request]:
        """The requests to the store since the last call, without lists: duties of the server list by the clock."""
        return [each for each in self._requests.take() if each.kind != LIST]

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()
