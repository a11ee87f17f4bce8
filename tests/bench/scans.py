"""Queries of Spark on presented cuts, beside the plain Iceberg scan of the same table as it was tiered.

All forms of a query take turns in each run, each time another one first; a ratio is the median over the runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from tests.bench.bed import BIG, Bed, timed
from tests.bench.orders import IS_SMALL, SCHEMA
from tests.bench.report import Figure

RUNS = 1 if IS_SMALL else 5
PLAIN = "tiered"
SUMS, GROUPS, ALL = "three sums", "filtered GROUP BY", "all columns"
QUERIES = {
    SUMS: "SELECT sum(amount), sum(quantity), sum(price) FROM {}",
    GROUPS: "SELECT status, count(*), sum(amount) FROM {} WHERE quantity > 2 GROUP BY status",
    ALL: f"SELECT {', '.join(SCHEMA.names)} FROM {{}}",
}
"""Name to text; of the last one the rows go nowhere."""
CHECK = "SELECT count(*), sum(order_id), sum(quantity), count(DISTINCT note) FROM {}"
_BARS = {1: {SUMS: 1.25, GROUPS: 1.15, ALL: 1.15}, 10: {SUMS: 1.6, GROUPS: 1.4, ALL: 1.4}}
_NO_CACHE = "spark.sql.iceberg.executor-cache.enabled"


@dataclass(frozen=True, slots=True)
class Form:
    """One way to read a table."""

    sql: Callable[[str], DataFrame]
    table: str

    def ask(self, query: str) -> None:
        """Ask one of `QUERIES` and take its rows."""
        frame = self.sql(QUERIES[query].format(self.table))
        if query == ALL:
            frame.write.format("noop").mode("overwrite").save()
        else:
            frame.collect()

    def checked(self) -> tuple[int, ...]:
        """Whole numbers that every right answer has in common."""
        return tuple(self.sql(CHECK.format(self.table)).collect()[0])


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut that is measured."""

    percent: int
    token: str


def cuts(bed: Bed, found: list[Cut]) -> Iterator[Figure]:
    """Every query at some cuts as v2, as v3 and by `lakestore.spark`, all of them in the same runs."""
    forms: dict[str, Form] = {PLAIN: Form(bed.spark.sql, f"lake.{BIG}")}
    for cut in found:
        forms |= _forms(bed, cut)
        answers = {name: forms[f"{cut.percent} {name}"].checked() for name in ("v2", "v3", "lakestore.spark")}
        if len(set(answers.values())) != 1:
            raise AssertionError(f"one cut, several answers: {answers}")
    took = interleaved(forms)
    for cut in found:
        for query, bar in _BARS[cut.percent].items():
            ratio, seconds = ratio_of(took, query, f"{cut.percent} v2")
            v3, _ = ratio_of(took, query, f"{cut.percent} v3")
            shown = f"{ratio:.2f}x ({median_of(took, query, PLAIN):.2f} → {seconds:.2f} s), as v3 {v3:.2f}x"
            yield Figure(f"{cut.percent} % hot, {query}, on now", shown, f"≤ {bar}x", ratio <= bar)
            ratio, seconds = ratio_of(took, query, f"{cut.percent} lakestore.spark")
            name = f"{cut.percent} % hot, {query}, by lakestore.spark"
            yield Figure(name, f"{ratio:.2f}x ({seconds:.2f} s)", f"≤ {bar}x", ratio <= bar)


def _forms(bed: Bed, cut: Cut) -> dict[str, Form]:
    number, token = cut.percent, cut.token
    v2 = bed.warehouse(f"cut{number}", f"at:{token}")
    v3 = bed.warehouse(f"cut{number}_v3", f"at-v3:{token}")
    return {
        f"{number} v2": Form(bed.spark.sql, f"{v2}.{BIG}"),
        f"{number} v3": Form(bed.spark.sql, f"{v3}.{BIG}"),
        f"{number} lakestore.spark": Form(bed.spark_lake.at(token).sql, BIG),
    }


def recent(bed: Bed) -> Iterator[Figure]:
    """Changes of the newest rows alone: most files have no row that died."""
    forms = {PLAIN: Form(bed.spark.sql, f"lake.{BIG}"), "v2": Form(bed.spark.sql, f"now.{BIG}")}
    took = interleaved(forms)
    for query in QUERIES:
        ratio, seconds = ratio_of(took, query, "v2")
        shown = f"{ratio:.2f}x ({median_of(took, query, PLAIN):.2f} → {seconds:.2f} s)"
        yield Figure(f"1 % hot, all of the newest rows, {query}, on now", shown, "≤ 1.05x", ratio <= 1.05)


def delete_forms(bed: Bed, percent: int) -> Iterator[Figure]:
    """v2 and v3 on a table of many files, with Iceberg's cache of deletes on executors and without."""
    spark = bed.spark
    files = spark.sql(f"SELECT count(*) FROM lake.{BIG}.data_files").collect()[0][0]
    v3 = bed.warehouse("now_v3", "now-v3")
    forms = {
        PLAIN: Form(spark.sql, f"lake.{BIG}"),
        "v2": Form(spark.sql, f"now.{BIG}"),
        "v3": Form(spark.sql, f"{v3}.{BIG}"),
    }
    for is_cached in (True, False):
        spark.conf.set(_NO_CACHE, str(is_cached).lower())
        took = interleaved(forms, runs=min(RUNS, 3))
        shown = "; ".join(
            f"{form} " + " / ".join(f"{ratio_of(took, query, form)[0]:.2f}x" for query in QUERIES)
            for form in ("v2", "v3")
        )
        kept = "in the executor's cache" if is_cached else "read again"
        name = f"{percent} % hot, {files} data files, sums / GROUP BY / all, deletes {kept}"
        yield Figure(name, shown, "", None)
    spark.conf.unset(_NO_CACHE)


Times = Mapping[tuple[str, str], list[float]]
"""(query, form) to seconds, run by run."""


def interleaved(forms: Mapping[str, Form], runs: int = RUNS) -> Times:
    """Seconds of every query by every form; a first run is not counted."""
    took: dict[tuple[str, str], list[float]] = {(query, name): [] for query in QUERIES for name in forms}
    names = list(forms)
    for run in range(runs + 1):
        for query in QUERIES:
            for name in (*names[run % len(names) :], *names[: run % len(names)]):
                seconds = timed(lambda: forms[name].ask(query))  # noqa: B023
                if run:
                    took[query, name].append(seconds)
    return took


def ratio_of(took: Times, query: str, form: str, plain: str = PLAIN) -> tuple[float, float]:
    """(times the plain form's seconds, median seconds)."""
    pairs = zip(took[query, plain], took[query, form], strict=True)
    return statistics.median(b / a for a, b in pairs), median_of(took, query, form)


def median_of(took: Times, query: str, form: str) -> float:
    """Median seconds of a query by a form."""
    return statistics.median(took[query, form])
