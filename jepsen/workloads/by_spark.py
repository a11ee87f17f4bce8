"""Reads by Spark SQL, in a session that this process holds."""

from __future__ import annotations

import threading
from typing import Any

import lakestore as ls

_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # it lives for seconds
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


class SparkReader:
    """One server's tables in Spark. Its session is made by the first read, which takes many seconds.

    Thread-safe, one read after the other; it does not pickle, so the clients that share it stay together.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._session: Any = None

    def sql(self, address: str, text: str) -> list[dict[str, Any]]:
        """The rows of a statement over our tables, all of them at the head of this moment."""
        with self._turn:
            return self._rows(address, text, attached=True)

    def by_catalog(self, address: str, text: str) -> list[dict[str, Any]]:
        """The rows of a statement that names the catalog `now`, as any Spark without code of ours runs it."""
        with self._turn:
            return self._rows(address, text, attached=False)

    def _rows(self, address: str, text: str, *, attached: bool) -> list[dict[str, Any]]:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from lakestore.spark import attach, session

        try:
            if self._session is None:
                self._session = session(address, master="local[1]", app="jepsen", conf=_SETTINGS)
            if not attached:
                return [row.asDict() for row in self._session.sql(text).collect()]
            lake = attach(self._session, address)
            try:
                return [row.asDict() for row in lake.sql(text).collect()]
            finally:
                lake.close()
        except (PySparkException, Py4JError, OSError) as error:
            raise ls.Unavailable(f"Spark: {type(error).__name__}: {error}"[:500]) from error
