"""Spark's micro-batch engine as a data source sees it, without Spark: its calls, their order, its checkpoint.

As in Spark 4.1: ends of batches are written down before they are read, a batch that was not committed is read again
between the same offsets, the first batch's start is asked for anew, and objects reach tasks pickled.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from lakestore_spark.source import LakestoreSource


class Killed(Exception):
    """The driver died here."""


def loaded(**options: str) -> tuple[Any, StructType]:
    """The data source as Spark has it after `load`, and its schema."""
    said: Any = CaseInsensitiveDict(options)
    source = LakestoreSource(said)
    schema = source.schema()
    assert isinstance(schema, StructType)
    return through_pickle(source), StructType.fromJson(json.loads(schema.json()))


def through_pickle(value: Any) -> Any:
    """The value as it arrives elsewhere."""
    return pickle.loads(pickle.dumps(value))


def read_rows(options: dict[str, str], schema: StructType | None = None) -> list[dict[str, Any]]:
    """A batch read: every part, read twice, as by a task that was tried again."""
    source, own = loaded(**options)
    reader = source.reader(schema or own)
    rows: list[dict[str, Any]] = []
    for part in map(through_pickle, reader.partitions()):
        rows += _twice(through_pickle(reader), part)
    return rows


def _twice(reader: Any, part: Any) -> list[dict[str, Any]]:
    first, again = ([row for batch in reader.read(part) for row in batch.to_pylist()] for _ in range(2))
    assert repr(first) == repr(again), "a task that is tried again reads other rows"  # a NaN is not equal to itself
    return first


@dataclass
class Checkpoint:
    """A query's checkpoint and its idempotent sink."""

    offsets: list[str] = field(default_factory=list)
    """The end of each batch, as JSON."""
    committed: int = 0
    """Batches that are done."""
    sink: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """Rows of each batch that was written."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Everything that was committed."""
        return [row for batch in range(self.committed) for row in self.sink[batch]]

    def behind(self) -> int:
        """The lag that the newest end names."""
        return int(json.loads(self.offsets[-1])["behind"])


class Query:
    """One run of a query on a checkpoint."""

    def __init__(self, checkpoint: Checkpoint, **options: str) -> None:
        self.checkpoint = checkpoint
        source, schema = loaded(**options)
        self.reader: Any = source.streamReader(schema)
        self._tasks = through_pickle(source.streamReader(schema))
        if checkpoint.offsets:
            last = json.loads(checkpoint.offsets[-1])
            assert self.reader.partitions(last, last) == []

    def run(self, batches: int = 100, *, dies: str = "", after: int = 0) -> int:
        """Run until nothing is new, or so many batches were run; `dies` names where the driver dies, in which batch."""
        done = 0
        point = self.checkpoint
        while done < batches:
            if point.committed == len(point.offsets):
                if point.committed:
                    self.reader.commit(json.loads(point.offsets[-1]))
                end = json.dumps(self.reader.latestOffset())
                if point.offsets and end == point.offsets[-1]:
                    return done
                point.offsets.append(end)
            self._die(dies, after, done, "planned")
            self._batch(point)
            self._die(dies, after, done, "written")
            point.committed += 1
            done += 1
        return done

    def stop(self) -> None:
        """The query is over."""
        self.reader.stop()

    def _batch(self, point: Checkpoint) -> None:
        number = point.committed
        start = json.loads(point.offsets[number - 1]) if number else json.loads(json.dumps(self.reader.initialOffset()))
        parts = self.reader.partitions(start, json.loads(point.offsets[number]))
        rows = [row for part in parts for row in _twice(self._tasks, through_pickle(part))]
        assert point.sink.setdefault(number, rows) == rows, "a batch that is run again has other rows"

    def _die(self, dies: str, after: int, done: int, here: str) -> None:
        if dies == here and done == after:
            raise Killed(here)
