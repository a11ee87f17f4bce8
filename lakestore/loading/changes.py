"""Turns rows of a chunk into changes of the table, grouped by operation and named columns, in order for each key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid, RuleRows, Violated
from lakestore.loading.casts import missing
from lakestore.loading.reading import Bools, Chunk, ColumnRequest, without_rejects
from lakestore.model import defaults
from lakestore.rows.condition import RowFilter
from lakestore.rows.condition_text import parse
from lakestore.rows.user import NAMING

if TYPE_CHECKING:
    from lakestore.client.commit import Commit

CHANGES_MAX = 200
"""Most changes of one commit. A chunk with more goes in several commits."""
_PUT, _DELETE, _PASSED = 0, 1, 2
_OPS = {
    **dict.fromkeys(("i", "insert", "+i", "c", "create", "r", "read", "u", "update", "+u", "upsert"), _PUT),
    **dict.fromkeys(("d", "delete", "-d"), _DELETE),
    "-u": _PASSED,
}
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Change:
    """Rows with one operation."""

    is_delete: bool
    batch: pa.RecordBatch
    keep: dict[str, pa.BooleanArray]
    rows: Codes
    """The number of each row in the chunk."""


class Changes:
    """Turns chunks into changes of one table."""

    def __init__(self, wanted: ColumnRequest, where: str = "") -> None:
        """Raises `Invalid` for a condition that the table refuses, and for deletes from a log table."""
        self._wanted, self._table = wanted, wanted.table
        self._where: RowFilter | None = parse(where, self._table) if where else None
        if wanted.deletes and not self._table.keyed:
            raise Invalid(f"table {self._table.name} is a log table, from which no row can be deleted")
        self._naming = self._table.merge.engine in NAMING

    def prepare(self, chunk: Chunk) -> Chunk:
        """Rows to write: with a valid operation, within the condition, with all required columns."""
        chunk = self._of_ops(chunk)
        chunk = chunk if self._naming else self._with_defaults(chunk)
        return self._complete(self._filtered(chunk))

    def _of_ops(self, chunk: Chunk) -> Chunk:
        name = self._wanted.options.op_column
        if not name:
            return chunk
        if name not in chunk.batch.schema.names:
            refused = dict.fromkeys(range(len(chunk.record)), f"the line has no column {name!r}")
            return without_rejects(chunk, refused)
        told = chunk.batch.column(name).cast(pa.string()).dictionary_encode()
        kinds = np.array([_OPS.get(str(text).strip().lower(), -1) for text in told.dictionary.to_pylist()] or [-1])
        codes = kinds[told.indices.fill_null(0).to_numpy(zero_copy_only=False)] if len(told) else np.zeros(0, np.int64)
        codes = np.where(told.is_null().to_numpy(zero_copy_only=False), -1, codes)
        deletes = codes == _DELETE
        if deletes.any() and not self._table.keyed:
            codes = np.where(deletes, -2, codes)
        rows: Bools = codes != _PASSED
        refused = {
            int(row): (
                f"column {name!r}: a log table has no deletes"
                if codes[row] == -2
                else f"column {name!r}: {told[int(row)].as_py()!r} is not an insert, update or delete"
            )
            for row in np.flatnonzero(codes < 0)
        }
        if name not in self._table.schema.names:
            chunk = replace(chunk, batch=chunk.batch.drop_columns([name]))
        chunk = replace(chunk, deletes=deletes)
        refused_rows = without_rejects(chunk, refused)
        return refused_rows.where(rows[codes >= 0])

    def _filtered(self, chunk: Chunk) -> Chunk:
        """Rows within the condition. A delete that lacks the condition's columns is kept."""
        if self._where is None or not chunk.batch.num_rows:
            return chunk
        batch = chunk.batch
        for name in self._where.columns:
            if name not in batch.schema.names:
                batch = batch.append_column(name, pa.repeat(self._unnamed(name), batch.num_rows))
        rows = np.asarray(self._where.mask(batch))
        return chunk.where(rows if chunk.deletes is None else rows | chunk.deletes)

    def _unnamed(self, name: str) -> pa.Scalar:
        column = self._table.column(name)
        if column.default is None or self._naming:
            return pa.scalar(None, self._table.schema.field(name).type)
        return defaults.scalar(column.default, column.type, column.name)

    def _complete(self, chunk: Chunk) -> Chunk:
        """Refuse rows without a required value, unless a rule of the contract decides on it at the server.

        Columns that a row does not name get their default.
        """
        key, contract = set(self._table.primary_key), self._table.contract
        ruled = contract.required_columns(self._table) if contract and not self._wanted.deletes else frozenset()
        needed = pa.schema([f for f in self._table.schema if (not f.nullable or f.name in key) and f.name not in ruled])
        needed = pa.schema([field.with_nullable(False) for field in needed])
        refused = {}
        for row, name in missing(chunk.batch, needed).items():
            is_delete = self._wanted.deletes or (chunk.deletes is not None and chunk.deletes[row])
            is_absent = self._naming and name in chunk.absent and chunk.absent[name][row]
            if name in key or not (is_delete or is_absent):
                refused[row] = f"column {name!r} is required, and null or missing"
        return without_rejects(chunk, refused)

    def _with_defaults(self, chunk: Chunk) -> Chunk:
        batch = chunk.batch
        for name, absent in chunk.absent.items():
            column = self._table.column(name)
            if column.default is None:
                continue
            at = batch.schema.get_field_index(name)
            value = defaults.scalar(column.default, column.type, column.name)
            made = pc.if_else(pa.array(absent), value, batch.column(at))
            batch = batch.set_column(at, batch.schema.field(at), made)
        return replace(chunk, batch=batch, absent={})

    def of(self, chunk: Chunk) -> list[Change]:
        """The changes of a chunk's rows. Rows of one key stay in order."""
        if not chunk.batch.num_rows:
            return []
        codes, kinds = self._codes(chunk)
        return [self._change(chunk, rows, kinds[code]) for code, rows in self._runs(chunk, codes)]

    def _codes(self, chunk: Chunk) -> tuple[Codes, dict[int, tuple[bool, tuple[str, ...]]]]:
        count = chunk.batch.num_rows
        deletes = chunk.deletes if chunk.deletes is not None else np.full(count, self._wanted.deletes)
        names = sorted(chunk.absent) if self._naming else []
        flags = np.column_stack([deletes, *(chunk.absent[name] for name in names)])
        patterns, codes = np.unique(flags, axis=0, return_inverse=True) if flags.any() else (flags[:1], None)
        codes = np.zeros(count, np.int64) if codes is None else codes.reshape(-1)
        kinds = {
            at: (bool(pattern[0]), tuple(name for name, flag in zip(names, pattern[1:], strict=True) if flag))
            for at, pattern in enumerate(patterns)
        }
        return codes, kinds

    def _runs(self, chunk: Chunk, codes: Codes) -> Iterator[tuple[int, Codes | None]]:
        """(code, rows) in order. Rows of different keys may be reordered, rows of one key never."""
        if not codes.any():
            yield 0, None
            return
        turns = (
            np.zeros(len(codes), np.int64) if not self._table.keyed else _turns(chunk.batch, self._table.primary_key)
        )
        if not self._table.keyed:
            turns = np.cumsum(np.concatenate([[0], np.diff(codes) != 0]))
        runs = np.cumsum(np.concatenate([[0], np.diff(codes) != 0]))
        by = runs if runs[-1] <= 2 * turns.max() else turns
        pairs = np.column_stack([by, codes])
        order = np.lexsort((np.arange(len(codes)), codes, by))
        cuts = np.flatnonzero(np.any(np.diff(pairs[order], axis=0) != 0, axis=1)) + 1
        for rows in np.split(order, cuts):
            yield int(codes[rows[0]]), rows

    def _change(self, chunk: Chunk, rows: Codes | None, kind: tuple[bool, tuple[str, ...]]) -> Change:
        is_delete, absent = kind
        batch, keep = chunk.batch, dict(chunk.kept)
        if rows is not None:
            at = pa.array(rows)
            batch, keep = batch.take(at), {name: flags.take(at) for name, flags in keep.items()}
        names = [name for name in batch.schema.names if name not in absent]
        if is_delete:
            names, keep = [name for name in names if name in self._carried()], {}
        keep = {name: flags for name, flags in keep.items() if flags.true_count}
        batch = batch.select(names) if names != batch.schema.names else batch
        return Change(is_delete, batch, keep, np.arange(batch.num_rows) if rows is None else rows)

    def _carried(self) -> set[str]:
        if self._table.merge.engine == "partial" and self._wanted.deletes:
            return set(self._table.schema.names)
        return {*self._table.primary_key, *self._table.merge.version}


def _turns(batch: pa.RecordBatch, key: tuple[str, ...]) -> Codes:
    table = pa.table({**{name: batch.column(name) for name in key}, "#": np.arange(batch.num_rows)})
    ids = np.zeros(batch.num_rows, np.int64)
    groups = table.group_by(list(key)).aggregate([("#", "list")]).column("#_list").combine_chunks()
    ids[groups.flatten().to_numpy()] = np.repeat(np.arange(len(groups)), np.diff(groups.offsets.to_numpy()))
    order = np.argsort(ids, kind="stable")
    starts = np.concatenate([[0], np.flatnonzero(np.diff(ids[order])) + 1])
    lengths = np.diff(np.append(starts, len(ids)))
    turns = np.zeros(len(ids), np.int64)
    turns[order] = np.arange(len(ids)) - np.repeat(starts, lengths)
    return turns


def violations(changes: Sequence[Change], error: Violated) -> dict[int, RuleRows]:
    """The rows of a chunk that break rules of the table's contract, with the first rule of each."""
    found: dict[int, RuleRows] = {}
    for each in error.changes:
        for row in changes[each.change].rows[list(each.rows)].tolist():
            found.setdefault(row, each)
    return found


def add_to(
    commit: Commit,
    table: str,
    changes: Sequence[Change],
    *,
    keyed: bool,
    inserts: bool = False,
    as_of: Sequence[datetime | None] = (),
) -> None:
    """Add changes to a commit. With `inserts` a row whose key exists changes nothing. `as_of` are the times of late
    rows, by their numbers."""
    for change in changes:
        put: Callable[..., Any] = commit.upsert if keyed else commit.append
        put = commit.insert_if_absent if inserts else put
        due = [as_of[row] for row in change.rows.tolist()] if any(as_of) else None
        if change.is_delete:
            commit.delete(table, change.batch, as_of=due)
        elif change.keep or due is not None:
            commit.upsert(table, change.batch, keep=change.keep, as_of=due)
        else:
            put(table, change.batch)
