"""Changes of 10,000 and 100,000 orders into tables of a lake."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.orders import MILLION, told
from tests.bench.peers.contest import LESS, Contestant, Measure, Workload
from tests.bench.peers.contestants import ducklake, lakestore_lake, paimon, py_iceberg, spark_iceberg
from tests.bench.peers.order_changes import OrderLake, OrderTable, measures_of

Size = tuple[int, int]
"""Rows of the table, rows of a change."""
CAUSE = (
    "DuckLake's merge is one statement in one process of DuckDB. A round of Lakestore asks the server for the changes,"
    " writes files and deletes, and commits to a catalog; of many rows it runs several jobs of Spark. Paimon adds a"
    " sorted run and leaves the merge to readers and to a later change, which then takes 20 s."
)


def _name(rows: int, changed: int) -> str:
    return f"{told(changed)} rows into {told(rows)}"


def prepare(system: OrderLake, scale: float, sizes: Sequence[Size]) -> dict[str, OrderTable]:
    """The tables, each changed once. A system that is too slow for one gets no larger one."""
    tables: dict[str, OrderTable] = {}
    for rows, changed in sizes:
        if any(table.is_slow for table in tables.values()):
            break
        tables[_name(rows, changed)] = OrderTable(system, int(rows * scale), int(changed * scale))
    return tables


def turn(stage: dict[str, OrderTable], _: int) -> dict[str, float]:
    """Seconds of one change of each table."""
    return measures_of(stage)


def workload(title: str, sizes: Sequence[Size], slow: Sequence[Contestant] = ()) -> Workload:
    """Changes of tables of these sizes. `slow` are the systems that take part beside those that are fast enough for
    every size."""
    return Workload(
        title=title,
        what=(
            "New values of uniformly chosen rows, which lie in a Parquet file, are upserted into a table of orders of"
            " eight columns with a key. *Readable*: the change is acknowledged and every query sees it. *In the lake*:"
            " the data files of the table have it; of Lakestore this is the upsert and a round of its tierer. The"
            " others write into their lake at once, so both are one. Each table was changed once before."
        ),
        measures=[
            Measure(f"{_name(rows, changed)}, {when}", "s", LESS, 2, CAUSE)
            for rows, changed in sizes
            for when in ("readable", "in the lake")
        ],
        contestants=(
            lakestore_lake.CONTESTANT,
            spark_iceberg.contestant(2),
            spark_iceberg.contestant(3),
            ducklake.CONTESTANT,
            paimon.CONTESTANT,
            *slow,
        ),
        prepare=lambda system, scale: prepare(system, scale, sizes),
        turn=turn,
    )


WORKLOAD = workload(
    "Changes into a lake",
    ((MILLION, 10_000), (MILLION, 100_000), (10 * MILLION, 100_000)),
    (py_iceberg.CONTESTANT,),
)
