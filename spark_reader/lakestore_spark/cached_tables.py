"""Tables that `CACHE TABLE` keeps in Spark: the cut that each was cached at.

A query over one of them reads all of its tables at that cut, so that it is one; of several cuts at the newest, where
tables cached at another one are read from their files.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import SparkSession

from lakestore.model.token import position_of
from lakestore_spark.cut_tables import CutTable


class CachedTables:
    """The cached tables of one session at the head."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._cuts: dict[str, CutTable] = {}

    def position(self, names: Iterable[str]) -> str:
        """The newest cut at which one of these tables is cached; empty if none is."""
        held = [cut for name in names if (cut := self._cuts.get(name)) and self._is_held(name, cut)]
        return max((cut.token for cut in held), key=lambda token: position_of(token).lsn, default="")

    def kept(self, cuts: Iterable[CutTable]) -> None:
        """Spark has cached these tables now."""
        self._cuts |= {cut.table.name: cut for cut in cuts}

    def renew(self, cuts: Iterable[CutTable]) -> None:
        """Let Spark cache these tables when they are read next."""
        for cut in cuts:
            self._spark.sql(f"CACHE LAZY TABLE {cut.name}")
            self._cuts[cut.table.name] = cut

    def release(self, names: Iterable[str]) -> list[str]:
        """Let Spark forget these tables; the names of those that it held."""
        held = [name for name in names if name in self._cuts]
        for cut in [self._cuts.pop(name) for name in held]:
            self._spark.sql(f"UNCACHE TABLE IF EXISTS {cut.name}")
        return held

    def _is_held(self, name: str, cut: CutTable) -> bool:
        """Whether Spark still holds the table: its cache is cleared by other ways too."""
        if self._spark.catalog.isCached(cut.name):
            return True
        del self._cuts[name]
        return False
