"""Replay of dead letters that a server made of rows which broke a rule of a contract.

- A row and the deletion of its dead letter are one commit, so each dead letter is replayed once.
- The rows are read as JSON lines, as `lakestore write` reads them, and checked by the contract of today. A row that
  breaks a rule stays a dead letter, with the rule that it breaks now.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid, Violated
from lakestore.kafka.bridge import dead_letters
from lakestore.kafka.bridge.dead_letters import KEY, SCHEMA, STORED, RemovalLease, ReplayCounts, Selection, check_order
from lakestore.loading import json_blocks
from lakestore.loading.changes import Changes, add_to, violations
from lakestore.loading.files import File, Stdin
from lakestore.loading.progress import Place
from lakestore.loading.reading import Bools, Chunk, ColumnRequest, Options
from lakestore.model.times import moment_of

if TYPE_CHECKING:
    from lakestore.client.lake import Lake
    from lakestore.model.table import Table

_KEEP, _AS_OF = "lakestore-keep", "lakestore-as-of"
_DELETE, _INSERT = ("lakestore-change", b"delete"), ("lakestore-change", b"insert")
_BY_SERVER = "bridge = ''"


class RowReplay:
    """A replay of one table's dead letters that a server made. `run` is called once."""

    def __init__(
        self, lake: Lake, table: str, *, overwrite: bool = False, progress: Callable[[ReplayCounts], None] | None = None
    ) -> None:
        """`overwrite` allows keyed tables without an order, in which replayed rows replace later ones."""
        self._lake, self._overwrite, self._progress = lake, overwrite, progress
        self._table = table.removesuffix(dead_letters.SUFFIX)
        self._counts = ReplayCounts()

    def run(self, selection: Selection) -> ReplayCounts:
        """Replay the selected dead letters that exist now."""
        definition = self._lake.table(self._table).definition
        check_order(definition, overwrite=self._overwrite)
        where = f"{_BY_SERVER} AND ({selection.where}\n)" if selection.where else _BY_SERVER
        chosen = replace(selection, where=where)
        with RemovalLease(self._lake, self._table) as taking:
            for chunk in dead_letters.chunks(self._lake, taking.letters, chosen, [*SCHEMA.names, STORED]):
                self._replay(chunk.take(pa.array(_as_sent(chunk))), definition, taking)
                if self._progress is not None:
                    self._progress(self._counts)
        return self._counts

    def _replay(self, letters: pa.RecordBatch, table: Table, taking: RemovalLease) -> None:
        """Replay letters in their order. Rows of inserts are inserted again, so they replace nothing."""
        for start, end in _runs(letters):
            self._replay_run(letters.slice(start, end - start), table, taking)

    def _replay_run(self, letters: pa.RecordBatch, table: Table, taking: RemovalLease) -> None:
        start = 0
        for chunk in _chunks(letters, table):
            some = letters.slice(start, chunk.count)
            start += chunk.count
            for bad in chunk.bad:
                self._fail("convert", bad.reason)
            if len(chunk.record):
                self._replay_rows(some.take(pa.array(chunk.record)), replace(chunk, bad=[]), table, taking)

    def _replay_rows(self, letters: pa.RecordBatch, chunk: Chunk, table: Table, taking: RemovalLease) -> None:
        """Replay letters whose rows fit the table. Rows that break a rule stay; a commit that is refused for another
        reason is halved until the bad rows are isolated."""
        changes = Changes(ColumnRequest(table, Options())).of(chunk)
        try:
            with taking.registers.commit(taking.next()) as commit:
                commit.refuses_dead_letters = True
                inserts, as_of = _is_insert(letters)[0], _as_of(letters)
                add_to(commit, self._table, changes, keyed=table.keyed, inserts=inserts, as_of=as_of)
                commit.delete(taking.letters, letters.select(list(KEY)))
            self._counts.applied += len(letters)
        except Violated as error:
            found = violations(changes, error)
            bad, rest = sorted(found), np.setdiff1d(np.arange(len(letters)), list(found))
            reasons = [(found[row].rule, found[row].sentence) for row in bad]
            self._keep(letters.take(pa.array(bad)), reasons, taking)
            if len(rest):
                self._replay(letters.take(pa.array(rest)), table, taking)
        except Invalid as error:
            if len(letters) == 1:
                self._keep(letters, [("refused", error.message)], taking)
                return
            middle = len(letters) // 2
            for part in (letters.slice(0, middle), letters.slice(middle)):
                self._replay(part, table, taking)

    def _keep(self, letters: pa.RecordBatch, reasons: Sequence[tuple[str, str]], taking: RemovalLease) -> None:
        """Keep dead letters that are refused again, with the (code, sentence) of today."""
        for code, sentence in reasons:
            self._fail(code, sentence)
        rows = letters.select(SCHEMA.names)
        for name, texts in zip(("code", "sentence"), zip(*reasons, strict=True), strict=True):
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, rows.schema.field(at), pa.array(texts, pa.string()))
        changed = pc.or_(*(pc.not_equal(letters.column(name), rows.column(name)) for name in ("code", "sentence")))
        if changed.true_count:
            with taking.registers.commit(taking.next()) as commit:
                commit.upsert(taking.letters, rows.filter(changed))

    def _fail(self, code: str, sentence: str) -> None:
        self._counts.failed += 1
        self._counts.examples.setdefault(code, sentence)


def _as_sent(letters: pa.RecordBatch) -> list[int]:
    """The order in which rows were sent: by time of the commit, then by source, whose numbers are no texts."""
    stored, sources, offsets = (letters.column(name).to_pylist() for name in (STORED, *KEY))
    parts = [[(len(part) if part.isdigit() else 0, part) for part in source.split("/")] for source in sources]
    return sorted(range(len(letters)), key=lambda row: (stored[row], parts[row], offsets[row]))


def _is_insert(letters: pa.RecordBatch) -> list[bool]:
    return [
        any((header["name"], header["value"]) == _INSERT for header in headers or ())
        for headers in letters.column("headers").to_pylist()
    ]


def _as_of(letters: pa.RecordBatch) -> list[datetime | None]:
    """The time for which each late row was due."""
    found: list[datetime | None] = [None] * len(letters)
    for row, headers in enumerate(letters.column("headers").to_pylist()):
        for header in headers or ():
            if header["name"] == _AS_OF:
                found[row] = moment_of(int(header["value"]))
    return found


def _runs(letters: pa.RecordBatch) -> list[tuple[int, int]]:
    """Start and end of each run of letters that are all of inserts, or none is."""
    is_insert = _is_insert(letters)
    starts = [row for row in range(len(letters)) if not row or is_insert[row] != is_insert[row - 1]]
    return list(zip(starts, [*starts[1:], len(letters)], strict=True))


def _chunks(letters: pa.RecordBatch, table: Table) -> Iterator[Chunk]:
    """The rows in dead letters, in the columns of the table and in order. Rows that do not fit are `bad`."""
    lines = b"".join(value + b"\n" for value in letters.column("value").to_pylist())
    file = File("", f"the dead letters of {table.name}", "jsonl", stdin=Stdin(io.BytesIO(lines)))
    wanted = ColumnRequest(table, Options())
    kept: dict[str, Bools] = {}
    deletes = np.zeros(len(letters), np.bool_)
    for row, headers in enumerate(letters.column("headers").to_pylist()):
        for header in headers or ():
            if (header["name"], header["value"]) == _DELETE:
                deletes[row] = True
            if header["name"] == _KEEP and header["value"].decode() in table.schema.names:
                kept.setdefault(header["value"].decode(), np.zeros(len(letters), np.bool_))[row] = True
    start = 0
    for chunk in json_blocks.chunks_of(file, wanted, Place()):
        flags = {name: pa.array(rows[start:][chunk.record]) for name, rows in kept.items()}
        gone = deletes[start:][chunk.record]
        start += chunk.count
        yield Changes(wanted).prepare(replace(chunk, kept=flags, deletes=gone if gone.any() else None))
