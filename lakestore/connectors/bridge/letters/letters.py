"""Dead letters that are there: lists of them, a selection, and its end by `drop`. `replay` takes them back in.

A command that takes letters away has opened the register of their table, so that two of them never take the same one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakestore.connectors.bridge import dead_letters
from lakestore.errors import Invalid, NotFound

if TYPE_CHECKING:
    from lakestore.client.lake import Lake
    from lakestore.client.registers import Registers
    from lakestore.model.table import Table

CHUNK_ROWS = 2_000
CHUNK_BYTES = 4 << 20
"""Letters of one commit, and their bytes, which have room in a message beside the rows that they become."""
STORED = "__timestamp"
"""When a letter was stored, as the lake says it."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Some of a table's dead letters; empty: all."""

    codes: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    where: str = ""
    """A condition on the columns of dead letters."""
    bridge: str = ""
    """The bridge that stored them; empty: any."""

    def condition(self) -> str | None:
        """The selection as a condition on the table of dead letters."""
        parts = [
            *([f"code IN ({_quoted(self.codes)})"] if self.codes else ()),
            *([f"stage IN ({_quoted(self.stages)})"] if self.stages else ()),
            *([f"bridge = {_quoted([self.bridge])}"] if self.bridge else ()),
            *([f"({self.where}\n)"] if self.where else ()),
        ]
        return " AND ".join(parts) or None


def _quoted(texts: Sequence[str]) -> str:
    return ", ".join("'" + text.replace("'", "''") + "'" for text in texts)


@dataclass(frozen=True, slots=True)
class Count:
    """Dead letters of a table that have one code."""

    table: str
    """The table that the records were for."""
    stage: str
    code: str
    letters: int
    first: datetime | None
    """When the first of them was stored."""
    last: datetime | None
    example: str
    """The sentence of one of them."""


def counted(lake: Lake, table: str = "") -> list[Count]:
    """Numbers of dead letters by table, stage and code; of one table if it is named."""
    names = [_there(lake, table).name] if table else _tables(lake)
    found = []
    for name in names:
        columns = ["stage", "code", "sentence", STORED]
        rows = lake.table(name).scan(columns=columns).to_arrow()
        groups = rows.group_by(["stage", "code"]).aggregate(
            [("sentence", "count"), ("sentence", "min"), (STORED, "min"), (STORED, "max")]
        )
        of = name.removesuffix(dead_letters.SUFFIX)
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
    return sorted(table.name for table in lake.tables() if is_letters(table.definition))


def is_letters(table: Table) -> bool:
    """Whether a table is one of dead letters: by its name and its columns."""
    names = {column.name for column in table.columns}
    return table.name.endswith(dead_letters.SUFFIX) and names >= set(dead_letters.SCHEMA.names)


def _there(lake: Lake, table: str) -> Table:
    """The table of a table's dead letters, which may itself be named."""
    name = table if table.endswith(dead_letters.SUFFIX) else dead_letters.table_of(table)
    try:
        found = lake.table(name).definition
    except NotFound as error:
        raise NotFound(f"table {table} has no dead letters: there is no table {name}") from error
    if not is_letters(found):
        raise Invalid(f"table {name} holds no dead letters of a bridge: its columns are others")
    return found


def name_of(lake: Lake, table: str) -> str:
    """The name of the table of a table's dead letters; `NotFound` if there is none."""
    return _there(lake, table).name


def shown(lake: Lake, table: str, selection: Selection, limit: int) -> pa.Table:
    """Some dead letters, each whole, the order being that of their sources."""
    name = name_of(lake, table)
    scan = lake.table(name).scan(columns=[*dead_letters.SCHEMA.names, STORED], where=selection.condition())
    found: list[pa.RecordBatch] = []
    for batch in scan.to_batches():
        found.append(batch.slice(0, limit - sum(map(len, found))))
        if sum(map(len, found)) >= limit:
            break
    schema = dead_letters.SCHEMA.append(pa.field(STORED, pa.timestamp("us", tz="UTC")))
    rows = pa.Table.from_batches([batch.cast(schema) for batch in found], schema)
    return rows.sort_by([(name, "ascending") for name in dead_letters.KEY])


def register_of(table: str) -> str:
    """The register of a table of dead letters."""
    return f"dlq/{table}"


class Taking:
    """The right to take letters of a table away; somebody who had it is fenced. A context manager."""

    def __init__(self, lake: Lake, table: str) -> None:
        self.letters = name_of(lake, table)
        self.register = register_of(self.letters)
        self.registers: Registers = lake.registers([self.register])

    def next(self) -> dict[str, str]:
        """The move of the register that the next commit makes."""
        return {self.register: str(int(self.registers.progress[self.register] or 0) + 1)}

    def __enter__(self) -> Taking:
        return self

    def __exit__(self, *_: object) -> None:
        self.registers.close()


def chunks(lake: Lake, letters: str, selection: Selection, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The selected letters at one cut, a bounded number at a time, each chunk in the order of its sources."""
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
    """A batch in pieces that are not larger than a chunk, but for single rows."""
    if len(batch) < 2 or batch.nbytes <= CHUNK_BYTES:
        yield batch
        return
    middle = len(batch) // 2
    yield from _small(batch.slice(0, middle))
    yield from _small(batch.slice(middle))


def _ordered(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches)
    order = pc.sort_indices(table, [(name, "ascending") for name in dead_letters.KEY])
    return table.take(order).combine_chunks().to_batches()[0]


def drop(lake: Lake, table: str, selection: Selection) -> int:
    """Delete the selected letters; the number of them."""
    dropped = 0
    with Taking(lake, table) as taking:
        for chunk in chunks(lake, taking.letters, selection, dead_letters.KEY):
            with taking.registers.commit(taking.next()) as commit:
                commit.delete(taking.letters, chunk.select(list(dead_letters.KEY)))
            dropped += len(chunk)
    return dropped
