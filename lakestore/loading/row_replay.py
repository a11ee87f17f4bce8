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
from lakestore.loading.changes import Change, Changes, add_to, violations
from lakestore.loading.files import File, Stdin
from lakestore.loading.progress import Place
from lakestore.loading.reading import Bools, Chunk, ColumnRequest, Options
from lakestore.model.times import moment_of

if TYPE_CHECKING:
    from lakestore.client.lake import Lake
    from lakestore.model.table import Table

_KEEP, _AS_OF = "lakestore-keep", "lakestore-as-of"
_KIND, _DELETE, _INSERT = "lakestore-change", b"delete", b"insert"
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
        for start, end, kind in _runs(letters):
            self._replay_run(letters.slice(start, end - start), kind, table, taking)

    def _replay_run(self, letters: pa.RecordBatch, kind: bytes, table: Table, taking: RemovalLease) -> None:
        start, wanted = 0, ColumnRequest(table, Options(), deletes=kind == _DELETE)
        for chunk in _chunks(letters, wanted):
            some = letters.slice(start, chunk.count)
            start += chunk.count
            for bad in chunk.bad:
                self._fail("convert", bad.reason)
            if len(chunk.record):
                rows = Changes(wanted).of(replace(chunk, bad=[]))
                self._replay_rows(some.take(pa.array(chunk.record)), rows, kind, table, taking)

    def _replay_rows(
        self, letters: pa.RecordBatch, changes: list[Change], kind: bytes, table: Table, taking: RemovalLease
    ) -> None:
        """Replay letters whose rows fit the table. Rows that break a rule stay; a commit that is refused for another
        reason is halved until the bad rows are isolated."""
        try:
            with taking.registers.commit(taking.next()) as commit:
                commit.refuses_dead_letters = True
                inserts, due = kind == _INSERT, _as_of(letters)
                add_to(commit, self._table, changes, keyed=table.keyed, inserts=inserts, as_of=due)
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


def _kinds(letters: pa.RecordBatch) -> list[bytes]:
    """The kind of change of each letter; empty for an upsert or append."""
    kinds = [
        next((header["value"] for header in headers or () if header["name"] == _KIND), b"")
        for headers in letters.column("headers").to_pylist()
    ]
    return [kind if kind in (_DELETE, _INSERT) else b"" for kind in kinds]


def _as_of(letters: pa.RecordBatch) -> list[datetime | None]:
    """The time for which each late row was due."""
    found: list[datetime | None] = [None] * len(letters)
    for row, headers in enumerate(letters.column("headers").to_pylist()):
        for header in headers or ():
            if header["name"] == _AS_OF:
                found[row] = moment_of(int(header["value"]))
    return found


def _runs(letters: pa.RecordBatch) -> list[tuple[int, int, bytes]]:
    """Start, end and kind of each run of letters of one kind of change."""
    kinds = _kinds(letters)
    starts = [row for row in range(len(letters)) if not row or kinds[row] != kinds[row - 1]]
    return [(start, end, kinds[start]) for start, end in zip(starts, [*starts[1:], len(letters)], strict=True)]


def _chunks(letters: pa.RecordBatch, wanted: ColumnRequest) -> Iterator[Chunk]:
    """The rows in dead letters, in the columns of the table and in order. Rows that do not fit are `bad`."""
    table = wanted.table
    lines = b"".join(value + b"\n" for value in letters.column("value").to_pylist())
    file = File("", f"the dead letters of {table.name}", "jsonl", stdin=Stdin(io.BytesIO(lines)))
    kept: dict[str, Bools] = {}
    for row, headers in enumerate(letters.column("headers").to_pylist()):
        for header in headers or ():
            if header["name"] == _KEEP and header["value"].decode() in table.schema.names:
                kept.setdefault(header["value"].decode(), np.zeros(len(letters), np.bool_))[row] = True
    start = 0
    for chunk in json_blocks.chunks_of(file, wanted, Place()):
        flags = {name: pa.array(rows[start:][chunk.record]) for name, rows in kept.items()}
        start += chunk.count
        yield Changes(wanted).prepare(replace(chunk, kept=flags))
