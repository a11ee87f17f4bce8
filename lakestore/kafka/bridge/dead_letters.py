"""Dead letters: rejected records, stored in an ordinary table next to their target table.

A dead letter is stored in the commit that moves progress past its record. The commit that replays a dead letter deletes
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid, NotFound
from lakestore.kafka.bridge.outcome import Reject
from lakestore.kafka.bridge.records import Headers, Records
from lakestore.model.dead_letter_table import KEY, SCHEMA, SUFFIX, table_of
from lakestore.rows.literals import text_literal

__all__ = ["KEY", "SCHEMA", "SUFFIX", "table_of"]

if TYPE_CHECKING:
    from lakestore.client.lake import Lake
    from lakestore.client.registers import Registers
    from lakestore.model.table import Table


_LETTER_BYTES, _HEADER_BYTES = 1_024, 16
"""About the bytes of a dead letter and of a header, without their texts."""


def sources_of(records: Records) -> pa.Array:
    """The source of each record, as keyed tables store it."""
    partitions = pa.array(records.partition).cast(pa.string())
    return pc.binary_join_element_wise(f"{records.topic}/{records.topic_id}/", partitions, "")


def rows_of(records: Records, rejects: Sequence[Reject], bridge: str, value_bytes_max: int) -> pa.RecordBatch:
    """Rejected records as rows of a dead-letter table. The first reject of a record counts.

    Values are cut at `value_bytes_max`, keys and headers at half of it.
    """
    first: dict[int, Reject] = {}
    for each in rejects:
        first.setdefault(each.record, each)
    order = sorted(first)
    found = records.take(np.array(order, np.int64))
    told = [first[row] for row in order]
    columns = [
        sources_of(found),
        pa.array(found.offset),
        pa.array([found.topic] * len(found), pa.string()),
        pa.array(found.partition).cast(pa.int32()),
        _times(found),
        _cut(found.keys, value_bytes_max // 2),
        _cut(found.values, value_bytes_max),
        pa.array(_headers(found, value_bytes_max // 2), SCHEMA.field("headers").type),
        pc.fill_null(pc.binary_length(found.values), 0).cast(pa.int64()),
        pa.array([bridge] * len(found), pa.string()),
        pa.array([str(each.stage) for each in told], pa.string()),
        pa.array([each.code for each in told], pa.string()),
        pa.array([each.sentence for each in told], pa.string()),
        pa.array([each.path or None for each in told], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def bytes_of(records: Records, rows: Sequence[int], value_bytes_max: int) -> int:
    """About the bytes of records as dead letters; each counts at most about twice `value_bytes_max`."""
    numbers = sorted(set(rows))
    found = records.take(np.array(numbers, np.int64))
    headers = [0] * len(found)
    if found.headers is not None:
        headers = [
            sum(len(name) + len(value or b"") + _HEADER_BYTES for name, value in each or ()) for each in found.headers
        ]
    return len(found) * _LETTER_BYTES + sum(
        sum(min(size or 0, most) for size in sizes)
        for sizes, most in (
            (pc.binary_length(found.values).to_pylist(), value_bytes_max),
            (pc.binary_length(found.keys).to_pylist(), value_bytes_max // 2),
            (headers, value_bytes_max // 2),
        )
    )


def _times(records: Records) -> pa.Array:
    known = records.timestamp_ms >= 0
    return pa.array(records.timestamp_ms * 1_000, mask=~known).cast(pa.timestamp("us", tz="UTC"))


def _cut(values: pa.BinaryArray, most: int) -> pa.BinaryArray:
    longest = pc.max(pc.binary_length(values)).as_py() or 0
    return values if longest <= most else pc.binary_slice(values, 0, most)


def _headers(records: Records, most: int) -> list[list[dict[str, object]] | None]:
    if records.headers is None:
        return [None] * len(records)
    return [None if each is None else _header_list(each, most) for each in records.headers]


def _header_list(headers: Headers, most: int) -> list[dict[str, object]]:
    kept: list[dict[str, object]] = []
    for name, value in headers:
        most -= len(name) + len(value or b"") + _HEADER_BYTES
        if most < 0:
            break
        kept.append({"name": name, "value": value})
    return kept


CHUNK_ROWS = 2_000
CHUNK_BYTES = 4 << 20
"""Dead letters of one commit and their bytes. Their rows must fit in the same message."""
STORED = "__timestamp"
"""The time at which a dead letter was stored."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects dead letters of a table; empty: all."""

    codes: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    where: str = ""
    bridge: str = ""
    """The bridge that stored the dead letters; empty: any."""

    def condition(self) -> str | None:
        parts = [
            *([f"code IN ({_quoted(self.codes)})"] if self.codes else ()),
            *([f"stage IN ({_quoted(self.stages)})"] if self.stages else ()),
            *([f"bridge = {_quoted([self.bridge])}"] if self.bridge else ()),
            *([f"({self.where}\n)"] if self.where else ()),
        ]
        return " AND ".join(parts) or None


def _quoted(texts: Sequence[str]) -> str:
    return ", ".join(map(text_literal, texts))


@dataclass(frozen=True, slots=True)
class Count:
    """The number of dead letters of a table with one code."""

    table: str
    stage: str
    code: str
    letters: int
    first: datetime | None
    """The time at which the first one was stored."""
    last: datetime | None
    example: str
    """The reason of one of them."""


def count_by_code(lake: Lake, table: str = "") -> list[Count]:
    """Count dead letters by table, stage and code; of one table if it is named."""
    names = [_there(lake, table).name] if table else _tables(lake)
    found = []
    for name in names:
        columns = ["stage", "code", "sentence", STORED]
        rows = lake.table(name).scan(columns=columns).to_arrow()
        groups = rows.group_by(["stage", "code"]).aggregate(
            [("sentence", "count"), ("sentence", "min"), (STORED, "min"), (STORED, "max")]
        )
        of = name.removesuffix(SUFFIX)
        found += [
            Count(
                of,
                row["stage"],
                row["code"],
                row["sentence_count"],
                row[f"{STORED}_min"],
                row[f"{STORED}_max"],
                row["sentence_min"],
            )
            for row in groups.to_pylist()
        ]
    return sorted(found, key=lambda each: (each.table, -each.letters, each.code))


def _tables(lake: Lake) -> list[str]:
    return sorted(table.name for table in lake.tables() if is_dead_letter_table(table.definition))


def is_dead_letter_table(table: Table) -> bool:
    """Whether a table holds dead letters, by its name and columns."""
    names = {column.name for column in table.columns}
    return table.name.endswith(SUFFIX) and names >= set(SCHEMA.names)


def _there(lake: Lake, table: str) -> Table:
    name = table if table.endswith(SUFFIX) else table_of(table)
    try:
        found = lake.table(name).definition
    except NotFound as error:
        raise NotFound(f"table {table} has no dead letters: there is no table {name}") from error
    if not is_dead_letter_table(found):
        raise Invalid(f"table {name} holds no dead letters of a bridge: its columns are others")
    return found


def name_of(lake: Lake, table: str) -> str:
    """The name of a table's dead-letter table. Raises `NotFound` if none exists."""
    return _there(lake, table).name


def sample_rows(lake: Lake, table: str, selection: Selection, limit: int) -> pa.Table:
    """Some dead letters, complete, in the order of their sources."""
    name = name_of(lake, table)
    scan = lake.table(name).scan(columns=[*SCHEMA.names, STORED], where=selection.condition())
    found: list[pa.RecordBatch] = []
    for batch in scan.to_batches():
        found.append(batch.slice(0, limit - sum(map(len, found))))
        if sum(map(len, found)) >= limit:
            break
    schema = SCHEMA.append(pa.field(STORED, pa.timestamp("us", tz="UTC")))
    rows = pa.Table.from_batches([batch.cast(schema) for batch in found], schema)
    return rows.sort_by([(name, "ascending") for name in KEY])


def register_of(table: str) -> str:
    """The name of the register of a dead-letter table."""
    return f"dlq/{table}"


class RemovalLease:
    """The exclusive right to remove dead letters of a table. Fences the previous holder. A context manager."""

    def __init__(self, lake: Lake, table: str) -> None:
        self.letters = name_of(lake, table)
        self.register = register_of(self.letters)
        self.registers: Registers = lake.registers([self.register])

    def next(self) -> dict[str, str]:
        """The register move of the next commit."""
        return {self.register: str(int(self.registers.progress[self.register] or 0) + 1)}

    def __enter__(self) -> RemovalLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.registers.close()


def chunks(lake: Lake, letters: str, selection: Selection, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the selected dead letters at one cut in bounded chunks, each in source order."""
    held: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in lake.snapshot().scan(letters, columns=columns, where=selection.condition()).to_batches():
        for start in range(0, len(batch), CHUNK_ROWS):
            piece = batch.slice(start, CHUNK_ROWS)
            for part in _small(piece):
                if rows and (rows + len(part) > CHUNK_ROWS or nbytes + part.nbytes > CHUNK_BYTES):
                    yield _ordered(held)
                    held, rows, nbytes = [], 0, 0
                held.append(part)
                rows, nbytes = rows + len(part), nbytes + part.nbytes
    if held:
        yield _ordered(held)


def _small(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if len(batch) < 2 or batch.nbytes <= CHUNK_BYTES:
        yield batch
        return
    middle = len(batch) // 2
    yield from _small(batch.slice(0, middle))
    yield from _small(batch.slice(middle))


def _ordered(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches)
    order = pc.sort_indices(table, [(name, "ascending") for name in KEY])
    return table.take(order).combine_chunks().to_batches()[0]


def drop(lake: Lake, table: str, selection: Selection) -> int:
    """Delete the selected dead letters and return their number."""
    dropped = 0
    with RemovalLease(lake, table) as taking:
        for chunk in chunks(lake, taking.letters, selection, KEY):
            with taking.registers.commit(taking.next()) as commit:
                commit.delete(taking.letters, chunk.select(list(KEY)))
            dropped += len(chunk)
    return dropped


@dataclass(slots=True)
class ReplayCounts:
    """Numbers of replayed dead letters."""

    applied: int = 0
    superseded: int = 0
    """Skipped: a later record of the key was already there."""
    left_out: int = 0
    """By a condition, a route or a tombstone's policy."""
    failed: int = 0
    examples: dict[str, str] = field(default_factory=dict)
    """Code to the reason of one failed dead letter."""

    @property
    def letters(self) -> int:
        return self.applied + self.superseded + self.left_out + self.failed


ORDERED_ENGINES = ("versioned", "first_row")
"""Merge engines in which an older row never replaces a newer one."""


def check_order(table: Table, *, overwrite: bool) -> None:
    """Refuse to replay into a keyed table in which a replayed row replaces later rows of its key, unless that is
    meant."""
    if table.keyed and table.merge.engine not in ORDERED_ENGINES and not overwrite:
        raise Invalid(
            f"table {table.name} keeps no source positions and no versions, so a replayed record would replace what"
            " later ones of its key wrote: say --overwrite if that is meant"
        )
