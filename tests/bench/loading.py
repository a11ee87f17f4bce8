"""Figures of `lakestore write`: files of six columns into a log table over gRPC, each row durable, reading included."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

import lakestore
from lakestore.loading.files import source_of
from lakestore.loading.load import Load
from lakestore.rows import json_texts
from tests.bench.report import Figure
from tests.bench.rows import rows
from tests.bench.streaming import rate
from tests.support.process import ServerProcess

ROWS, PART_ROWS, RUNS = 2_000_000, 100_000, 3
NESTED_ROWS = 600_000
FIRST_ROWS = 1_000_000
FIRST_TEXTS = (("name", 5), ("city", 1000), ("2024-01-01 order", 1 << 40))


def measure(folder: Path) -> Iterator[Figure]:
    """All figures, one after the other."""
    with ServerProcess(folder / "server") as server, lakestore.connect(server.address) as lake:
        yield from _flat(lake, folder)
        yield from _nested(lake, folder)
        yield _first(server.address, folder)


def _flat(lake: lakestore.Lake, folder: Path) -> Iterator[Figure]:
    schema = _batch(0).schema
    csv, parquet, lines = folder / "rows.csv", folder / "rows.parquet", folder / "rows.jsonl"
    with pacsv.CSVWriter(csv, schema) as commas, pq.ParquetWriter(parquet, schema) as file, lines.open("wb") as text:
        for part in range(ROWS // PART_ROWS):
            batch = _batch(part)
            commas.write_batch(batch)
            file.write_batch(batch)
            text.write(_lines(batch))
    for path, bar in ((csv, 1_000_000), (parquet, 1_000_000), (lines, 300_000)):
        yield _measured(lake, path, schema, ROWS, f"load of {path.suffix[1:]}, 6 columns", bar)
        path.unlink()


def _first(address: str, folder: Path) -> Figure:
    """A first load by the command: a CSV with three texts, one of which begins like dates, into a table it makes."""
    path = folder / "first.csv"
    numbers = np.arange(FIRST_ROWS)
    texts = [pa.array([f"{text} {number % count}" for number in numbers]) for text, count in FIRST_TEXTS]
    moments = pa.array(numbers * 1_000_000, pa.timestamp("us"))
    names = ["id", "name", "city", "note", "amount", "at"]
    pacsv.write_csv(pa.table([pa.array(numbers), *texts, pa.array(numbers / 100), moments], names=names), path)
    runs = []
    for run in range(RUNS):
        table = f"bench.first_{run}"
        arguments = ["write", table, str(path), "--key", "id", "-y", "--server", address]
        seconds = _seconds(partial(_run, arguments))
        runs.append(FIRST_ROWS / seconds)
    path.unlink()
    return rate("first load of csv by the command, 6 columns, 3 of them texts", 200_000, runs)


def _run(arguments: list[str]) -> None:
    subprocess.run([sys.executable, "-m", "lakestore", *arguments], check=True)


def _nested(lake: lakestore.Lake, folder: Path) -> Iterator[Figure]:
    schema = _nest(_batch(0)).schema
    path = folder / "nested.jsonl"
    with path.open("wb") as text:
        for part in range(NESTED_ROWS // PART_ROWS):
            text.write(_lines(_nest(_batch(part))))
    yield _measured(lake, path, schema, NESTED_ROWS, "load of jsonl, 6 columns, two of them nested", 300_000)
    path.unlink()


def _batch(part: int) -> pa.RecordBatch:
    """Rows of six columns."""
    batch = rows(np.arange(part * PART_ROWS, (part + 1) * PART_ROWS, dtype=np.int64))
    prices = pc.divide(batch.column("count").cast(pa.decimal128(12, 0)), pa.scalar(100, pa.decimal128(3, 0)))
    return batch.append_column("price", prices.cast(pa.decimal128(14, 2), safe=False))


def _nest(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same with a struct and a list in place of two columns."""
    place = pa.StructArray.from_arrays([batch.column("name"), batch.column("count")], ["city", "zip"])
    names = batch.column("name")
    ends = pa.array(np.arange(len(names) + 1, dtype=np.int32))
    tags = pa.ListArray.from_arrays(ends, names)
    kept = batch.select(["id", "score", "at", "price"])
    return kept.append_column("place", place).append_column("tags", tags)


def _lines(batch: pa.RecordBatch) -> bytes:
    texts = json_texts.objects(batch.schema.names, batch.columns, json_texts.PLAIN)
    return "".join(f"{text}\n" for text in texts.to_pylist()).encode()


def _measured(lake: lakestore.Lake, path: Path, schema: pa.Schema, count: int, name: str, bar: int) -> Figure:
    runs = []
    for run in range(RUNS):
        table = lake.create_table(f"bench.{path.stem}_{path.suffix[1:]}_{run}", schema, buckets=1)
        runs.append(count / _seconds(Load(lake, table.definition, source_of(str(path))).run))
        assert table.scan().count() == count
        lake.drop_table(table.name)
    return rate(name, bar, runs)


def _seconds(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
