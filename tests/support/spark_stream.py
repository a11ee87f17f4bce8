"""A Spark driver in a process of its own that streams a table into files, one per batch, so that it can be killed.

`python -m tests.support.spark_stream MASTER FOLDER OPTIONS TRIGGER`, options as JSON. The trigger is `now`, or seconds
between batches. It prints the rows of a batch read first, and the query's last progress at the end, as JSON lines.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from jepsen.system.jvm import SHORT_LIVED
from lakestore_spark.source import FORMAT, register

_JVM = " ".join(SHORT_LIVED)


def main(master: str, folder: Path, options: dict[str, str], trigger: str) -> None:
    """Read the table once, then stream its changes until the trigger is done or somebody kills this."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("stream")
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": _JVM,
        "spark.executor.extraJavaOptions": _JVM,
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    address = {name: options[name] for name in ("server", "table")}
    read = spark.read.format(FORMAT).options(**address).load()
    print(json.dumps({"rows": read.count()}), flush=True)
    changes = spark.readStream.format(FORMAT).options(**options).load()
    asked: dict[str, Any] = {"availableNow": True} if trigger == "now" else {"processingTime": f"{trigger} seconds"}
    writer = changes.writeStream.foreachBatch(lambda rows, number: write(folder, rows, number))
    progress: Any = None
    # A run of AvailableNow that finds a batch under way ends behind it, so there is a second one.
    for _ in range(2):
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(**asked).start()
        query.awaitTermination()
        progress = query.lastProgress
    print(json.dumps({"end": str(progress["sources"][0]["endOffset"]) if progress else ""}), flush=True)
    spark.stop()


def write(folder: Path, rows: DataFrame, number: int) -> None:
    """One batch as one file, which takes the place of an earlier try."""
    text = "\n".join(rows.toJSON().collect())
    new = folder / f"batch-{number}.new"
    new.write_text(text)
    new.rename(folder / f"batch-{number}.json")


def written(folder: Path) -> list[dict[str, Any]]:
    """The rows of all batches, in their order."""
    files = sorted(folder.glob("batch-*.json"), key=lambda file: int(file.stem.partition("-")[2]))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4])
