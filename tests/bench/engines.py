"""Engines that know nothing of us, on a cut and on the same table as it was tiered; and our own executor."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import load_catalog

from tests.bench.bed import BIG, Bed, timed
from tests.bench.orders import IS_SMALL, ROWS, SCHEMA
from tests.bench.report import Figure
from tests.bench.scans import ALL, GROUPS, QUERIES, SUMS, Cut
from tests.support.engines import DuckDb

RUNS = 1 if IS_SMALL else 5
_TIERED, _NOW, _NOW_V3 = "tiered", "now", "now-v3"
_COLUMNS = ("amount", "quantity", "price")
_MANY_ROWS = 1 << 16


def executor(bed: Bed) -> Iterator[Figure]:
    """Three columns of a table that has nothing hot, as Arrow."""
    table, runs = bed.lake.table(BIG), []
    for _ in range(4):
        began = time.perf_counter()
        found = sum(batch.num_rows for batch in table.scan(_COLUMNS).to_batches())
        runs.append(found / (time.perf_counter() - began))
        if found != ROWS:
            raise AssertionError(f"{found} rows of {ROWS}")
    median = statistics.median(runs[1:])
    yield Figure("scan of 3 columns as Arrow, nothing hot", f"{median:,.0f} rows/s", "≥ 10,000,000", median >= 1e7)


def on_cut(bed: Bed, cut: Cut) -> Iterator[Figure]:
    """DuckDB, PyIceberg and `lake.sql` at a cut."""
    warehouses = {_TIERED: "lake", _NOW: f"at:{cut.token}", _NOW_V3: f"at-v3:{cut.token}"}
    yield from _duckdb(bed, cut, warehouses)
    yield from _pyiceberg(bed, cut, warehouses)
    yield from _ours(bed, cut)


def _duckdb(bed: Bed, cut: Cut, warehouses: Mapping[str, str]) -> Iterator[Figure]:
    engine = DuckDb(bed.catalog)
    names = {form: engine.attach(warehouse) for form, warehouse in warehouses.items()}
    cpu: dict[tuple[str, str], list[float]] = defaultdict(list)
    wall: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in range(RUNS + 1):
        for query, text in QUERIES.items():
            if query == ALL and run > 2:
                continue
            for form, name in names.items():
                began = time.process_time(), time.perf_counter()
                _drained(engine, text.format(f"{name}.{BIG}"))
                if run:
                    cpu[query, form].append(time.process_time() - began[0])
                    wall[query, form].append(time.perf_counter() - began[1])
    engine.close()
    for form, bar in ((_NOW_V3, 2.0), (_NOW, 4.0)):
        pairs = zip(cpu[SUMS, _TIERED], cpu[SUMS, form], strict=True)
        ratio = statistics.median(b / a for a, b in pairs)
        times = f"{statistics.median(cpu[SUMS, _TIERED]):.2f} → {statistics.median(cpu[SUMS, form]):.2f} s"
        name = f"{cut.percent} % hot, {SUMS}, CPU of DuckDB on {form}"
        yield Figure(name, f"{ratio:.2f}x ({times})", f"≤ {bar:g}x", ratio <= bar)
    yield from _beside("DuckDB", cut, wall)


def _drained(engine: DuckDb, text: str) -> None:
    for _ in engine.batches(text, _MANY_ROWS):
        pass


def _pyiceberg(bed: Bed, cut: Cut, warehouses: Mapping[str, str]) -> Iterator[Figure]:
    wall: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(2):
        for query, read in _PYICEBERG.items():
            for form in (_TIERED, _NOW):
                wall[query, form].append(timed(lambda: read(bed.catalog, warehouses[form])))  # noqa: B023
    yield from _beside("PyIceberg", cut, wall)


def _sums(catalog: str, warehouse: str) -> None:
    rows = _scanned(catalog, warehouse, _COLUMNS)
    for name in _COLUMNS:
        pc.sum(rows[name])


def _groups(catalog: str, warehouse: str) -> None:
    rows = _scanned(catalog, warehouse, ("status", "amount"), "quantity > 2")
    rows.group_by("status").aggregate([("amount", "count"), ("amount", "sum")])


def _all(catalog: str, warehouse: str) -> None:
    _scanned(catalog, warehouse, tuple(SCHEMA.names))


def _scanned(catalog: str, warehouse: str, columns: tuple[str, ...], where: str = "true") -> pa.Table:
    table = load_catalog("bench", type="rest", uri=catalog, warehouse=warehouse).load_table(BIG)
    rows: pa.Table = table.scan(where, columns).to_arrow()
    return rows


_PYICEBERG: dict[str, Callable[[str, str], None]] = {SUMS: _sums, GROUPS: _groups, ALL: _all}


def _ours(bed: Bed, cut: Cut) -> Iterator[Figure]:
    """`lake.sql` and the executor at the cut; what is tiered is read by nobody but the engines."""
    runs = [timed(lambda: bed.lake.sql(QUERIES[SUMS].format(BIG), at=cut.token)) for _ in range(4)][1:]
    name = f"{cut.percent} % hot, {SUMS}, by lake.sql"
    yield Figure(name, f"{statistics.median(runs):.2f} s", "", None)
    table = bed.lake.table(BIG)
    rates = [ROWS / timed(lambda: _counted(table.scan(_COLUMNS, at=cut.token).to_batches())) for _ in range(4)][1:]
    name = f"scan of 3 columns as Arrow, {cut.percent} % hot"
    yield Figure(name, f"{statistics.median(rates):,.0f} rows/s", "", None)


def _counted(batches: Iterator[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def _beside(engine: str, cut: Cut, wall: Mapping[tuple[str, str], list[float]]) -> Iterator[Figure]:
    """The times of every query, as they are."""
    for query in QUERIES:
        times = {form: statistics.median(took) for (asked, form), took in wall.items() if asked == query}
        shown = ", ".join(
            f"{form} {seconds:.2f} s" + (f" ({seconds / times[_TIERED]:.1f}x)" if form != _TIERED else "")
            for form, seconds in times.items()
        )
        yield Figure(f"{cut.percent} % hot, {query}, {engine}", shown, "", None)
