"""The data source `format("lakestore")` as a stream: changes a second that one executor takes in."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from typing import Any

from tests.bench.bed import BIG, Bed
from tests.bench.orders import ROWS
from tests.bench.report import Figure
from tests.support.waiting import until

BATCHES = 4
_WAIT_SECONDS = 300.0


def measure(bed: Bed) -> Iterator[Figure]:
    """All columns of the changelog from its start; the first batch, which starts Python workers, is not counted."""
    options = {
        "server": bed.server.address,
        "table": BIG,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(ROWS // 10),
    }
    changes = bed.spark.readStream.format("lakestore").options(**options).load()
    writer = changes.writeStream.format("noop").option("checkpointLocation", str(bed.folder / "checkpoint"))
    query = writer.start()

    def batches() -> list[Any]:
        """The progress of batches that had rows; a batch ends with a commit."""
        return [each for each in query.recentProgress if each["numInputRows"]]

    def is_done() -> bool:
        found = batches()
        return len(found) >= BATCHES or sum(each["numInputRows"] for each in found) == ROWS

    until(lambda: query.exception() or is_done(), "batches of the stream", _WAIT_SECONDS)
    problem = query.exception()
    query.stop()
    if problem:
        raise AssertionError(f"the stream ended: {problem}")
    rates = [each["numInputRows"] * 1_000 / each["durationMs"]["triggerExecution"] for each in batches()[1:BATCHES]]
    median = statistics.median(rates)
    shown = f"{median:,.0f} changes/s (of {', '.join(f'{rate:,.0f}' for rate in sorted(rates))})"
    name = f"streaming source of Spark, one executor of {os.cpu_count()} cores"
    yield Figure(name, shown, "≥ 300,000", median >= 300_000)
