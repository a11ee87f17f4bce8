"""Reads by Spark SQL, in a session that the client's own process holds."""

from __future__ import annotations

from typing import Any

import lakestore as ls

_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


class SparkReader:
    """One server's tables in Spark. Its session is made by the first read, which takes seconds."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._session: Any = None

    def sql(self, text: str) -> list[dict[str, Any]]:
        """The rows of a statement over our tables, all of them at the head of this moment."""
        return self._rows(text, attached=True)

    def by_catalog(self, text: str) -> list[dict[str, Any]]:
        """The rows of a statement that names the catalog `now`, as any Spark without code of ours runs it."""
        return self._rows(text, attached=False)

    def _rows(self, text: str, *, attached: bool) -> list[dict[str, Any]]:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from lakestore.spark import attach, session

        try:
            if self._session is None:
                self._session = session(self._address, master="local[1]", app="jepsen", conf=_SETTINGS)
            if not attached:
                return [row.asDict() for row in self._session.sql(text).collect()]
            lake = attach(self._session, self._address)
            try:
                return [row.asDict() for row in lake.sql(text).collect()]
            finally:
                lake.close()
        except (PySparkException, Py4JError, OSError) as error:
            raise ls.Unavailable(f"Spark: {type(error).__name__}: {error}"[:500]) from error
