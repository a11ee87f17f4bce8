"""Rows of records as rows of tables: routes, columns, conditions.

Each record ends in exactly one way. If one row of a record is refused, the whole record is refused, in every table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.kafka.bridge.columns import Faults, MappedColumn, declared_sources, mapped_columns
from lakestore.kafka.bridge.expressions import (
    ORIGIN,
    Expression,
    TableRouting,
    first_table,
    names_origin,
    origins,
    route_rows,
    table_name,
)
from lakestore.kafka.bridge.inputs import KINDS, Inputs
from lakestore.kafka.bridge.outcome import (
    TOMBSTONE,
    DecodedBlock,
    MappedBlock,
    Op,
    Reject,
    Stage,
    TableRows,
    half_a_change,
)
from lakestore.kafka.bridge.paths import Path
from lakestore.kafka.bridge.records import Ints, Records
from lakestore.kafka.bridge.spec import CHANGES, RouteSpec, TableSpec, TopicSpec
from lakestore.kafka.bridge.tables import OP, POSITION_MERGE
from lakestore.kafka.bridge.unread_fields import Tree, inside, unread_fields
from lakestore.limits import DEFAULT, Limits
from lakestore.model.table import Table
from lakestore.rows.condition import RowFilter
from lakestore.rows.condition_text import parse
from lakestore.rows.distinct import distinct
from lakestore.rows.ranges import OVERHEAD_BYTES
from lakestore.rows.scalar_casts import Mask

_Origin = Mapping[str, str | None]
_FIELDS = {"database": ("db",), "schema": ("schema",), "table": ("table", "collection")}
_SEEN_MAX = 2
"""Remembered origins; two are enough to see that the topic has several."""


class DeadLetterTables:
    """The tables of one topic's dead letters. One thread uses it at a time."""

    def __init__(self, topic: TopicSpec) -> None:
        self._topic = topic
        self._template = topic.tables[0].table
        self._seen: dict[tuple[str | None, ...], _Origin] = {}

    def note(self, origin: pa.StructArray | None) -> None:
        if origin is None or not names_origin(self._template) or len(self._seen) >= _SEEN_MAX:
            return
        for found, _ in origins(origin):
            if any(found.values()) and len(self._seen) < _SEEN_MAX:
                self._seen[tuple(found.get(name) for name in ORIGIN)] = found

    def by_table(self, records: Records, rejects: Sequence[Reject]) -> dict[str, list[Reject]]:
        """Rejects by the table that gets the dead letter."""
        if not names_origin(self._template):
            return {first_table(self._topic, records.topic): list(rejects)} if rejects else {}
        found: dict[str, list[Reject]] = {}
        for each in rejects:
            origin = _stated(records.values[each.record].as_py()) or self._usual(records.topic)
            found.setdefault(table_name(self._template, records.topic, origin), []).append(each)
        return found

    def _usual(self, topic: str) -> _Origin:
        if len(self._seen) == 1:
            return next(iter(self._seen.values()))
        parts = topic.split(".")
        return {"database": parts[-2], "schema": parts[-2], "table": parts[-1]} if len(parts) > _SEEN_MAX else {}


def _stated(value: bytes | None) -> _Origin | None:
    try:
        event = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    event = event.get("payload", event) if isinstance(event, dict) else None
    source = event.get("source") if isinstance(event, dict) else None
    if not isinstance(source, dict):
        return None
    found = {
        name: next((source[field] for field in fields if isinstance(source.get(field), str)), None)
        for name, fields in _FIELDS.items()
    }
    return found if found["table"] else None


def add_truncates(
    mapped: MappedBlock, decoded: DecodedBlock, topic: TopicSpec, records: Records, tables: Mapping[str, Table]
) -> MappedBlock:
    """Add the tables that a block truncates, including tables without a row in it. A log table keeps its rows."""
    last: dict[str, int] = {}
    for table, record in _tables(decoded, topic, records.topic):
        last[table] = max(record, last.get(table, -1))
    emptied = [
        _emptied(rows, records, last[rows.table])
        if rows.table in last and tables[rows.table].merge == POSITION_MERGE
        else rows
        for rows in mapped.tables
    ]
    return replace(mapped, tables=emptied, truncates=last)


def _tables(decoded: DecodedBlock, topic: TopicSpec, name: str) -> Iterator[tuple[str, int]]:
    for records, origin in decoded.truncates:
        for found, at in origins(origin):
            for spec in topic.tables:
                if spec.truncate == "follow":
                    yield table_name(spec.table, name, found), int(records[at].max())


def _emptied(rows: TableRows, records: Records, record: int) -> TableRows:
    gone = records.offset[rows.record] < records.offset[record]
    gone &= records.partition[rows.record] == records.partition[record]
    if not gone.any():
        return rows
    kept = {name: pa.array(mask.to_numpy(zero_copy_only=False) & ~gone) for name, mask in rows.kept.items()}
    return replace(rows, op=np.where(gone, Op.DELETE, rows.op).astype(np.int8), kept=kept)


class ReadFields:
    """The fields of values that a table's columns read."""

    def __init__(self, columns: Iterable[MappedColumn]) -> None:
        self._tree: Tree | None = {}
        for column in columns:
            source = column.source
            if isinstance(source, Expression):
                for path in source.paths:
                    self._add(path, None)
            elif source is not None:
                self._add(source, inside(column.kind))

    def _add(self, path: Path, below: Tree | None) -> None:
        if path.root != "value" or self._tree is None:
            return
        if not path.parts:
            self._tree = None
            return
        tree = self._tree
        for part in path.parts[:-1]:
            deeper = tree.setdefault(part, {})
            if deeper is None:
                return
            tree = deeper
        known = tree.get(path.parts[-1], {})
        tree[path.parts[-1]] = None if known is None or below is None else known | below

    def unread(self, values: pa.StructArray) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
        """Yield unread fields, as `a.b`, with the rows that have a value there."""
        if self._tree is not None:
            yield from unread_fields(values, self._tree)

    def reads(self, field: str) -> bool:
        tree = self._tree
        for part in field.split("."):
            if tree is None:
                return True
            if part not in tree:
                return False
            tree = tree[part]
        return True


FILTERED, NOT_ROUTED = "filtered", "not-routed"


@dataclass(slots=True)
class Ends:
    """The results of a block's records so far."""

    tables: list[TableRows] = field(default_factory=list)
    rejects: dict[str, list[Reject]] = field(default_factory=dict)
    passed: dict[str, list[Ints]] = field(default_factory=dict)
    unread: dict[tuple[str, str], list[Ints]] = field(default_factory=dict)

    def reject(self, table: str, rejects: Sequence[Reject]) -> None:
        if rejects:
            self.rejects.setdefault(table, []).extend(rejects)

    def leave(self, reason: str, records: Ints) -> None:
        if len(records):
            self.passed.setdefault(reason, []).append(records)


class TableMapping:
    """The mapping of rows into one table."""

    def __init__(self, spec: TableSpec, table: Table, limits: Limits, *, changes: bool = False) -> None:
        """Raises `Invalid`. With `changes` the rows come from change events."""
        self.spec, self.table = spec, table
        self._log = changes and (spec.events == "log" or not table.keyed)
        self.columns = mapped_columns(spec, table, log=self._log)
        self._where: RowFilter | None = parse(spec.where, table) if spec.where else None
        self._row_bytes = limits.message_bytes - OVERHEAD_BYTES
        self._reads = ReadFields(self.columns)

    def rows(self, inputs: Inputs, ends: Ends) -> None:
        faults = Faults.of(inputs)
        deletes = inputs.op == Op.DELETE
        if self._log and deletes.any():
            inputs = self._as_events(inputs, deletes, faults)
        arrays = [column.compute(inputs, faults) for column in self.columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.table.nullable_schema)
        kept = {column.column.name: mask for column in self.columns if (mask := column.unsent(inputs)) is not None}
        stays = self._held(batch, inputs, kept, faults) | deletes
        self._check_sizes(batch, faults)
        ends.reject(self.table.name, faults.rejects)
        ends.leave(FILTERED, inputs.record[~stays & ~faults.bad])
        good = stays & ~faults.bad
        if not good.all():
            rows = np.flatnonzero(good)
            batch, inputs = batch.take(pa.array(rows)), inputs.take(rows)
            kept = {name: mask[rows] for name, mask in kept.items()}
        if len(inputs):
            masks = {name: pa.array(mask) for name, mask in kept.items() if mask.any()}
            ends.tables.append(
                TableRows(self.table.name, self.spec, batch, inputs.record, inputs.op, masks, inputs.atomic)
            )
            self._count_unread(inputs, ends)

    def _count_unread(self, inputs: Inputs, ends: Ends) -> None:
        put = inputs.op == Op.PUT
        if inputs.values is not None:
            for name, flags in self._reads.unread(inputs.values):
                ends.unread.setdefault((self.table.name, name), []).append(inputs.record[flags & put])
        for name, records in inputs.unread.items():
            if not self._reads.reads(name):
                found = inputs.record[np.isin(inputs.record, records) & put]
                ends.unread.setdefault((self.table.name, name), []).append(found)

    def _as_events(self, inputs: Inputs, deletes: Mask, faults: Faults) -> Inputs:
        """The rows of a log. A delete is a row too, with the fields of its key, or all fields if it has no key."""
        if not any(column.source == Path("op") for column in self.columns):
            say = (
                f"a delete is a row of the log {self.table.name} only if a column has its operation: add the column"
                f" {OP!r} of type string, or say columns: with {{name: {OP}, type: string, from: op}}"
            )
            faults.add(deletes, Stage.CHANGE, "delete-in-log", say, "value.op")
        return inputs.as_events(deletes)

    def _held(self, batch: pa.RecordBatch, inputs: Inputs, kept: Mapping[str, Mask], faults: Faults) -> Mask:
        if self._where is None:
            return np.ones(len(inputs), dtype=np.bool_)
        for name in self._where.columns:
            if name in kept:
                say = f"the condition reads column {name!r}, which the source did not send"
                rows = kept[name] & (inputs.op != Op.DELETE)
                faults.add(rows, Stage.CHANGE, "kept-in-condition", say, name)
        return np.asarray(self._where.mask(batch) | (inputs.op == Op.DELETE))

    def _check_sizes(self, batch: pa.RecordBatch, faults: Faults) -> None:
        large = np.zeros(batch.num_rows, dtype=np.bool_)
        todo = [(0, batch.num_rows)]
        while todo:
            start, end = todo.pop()
            if start == end or batch.slice(start, end - start).nbytes <= self._row_bytes:
                continue
            if end - start == 1:
                large[start] = True
                continue
            middle = (start + end) // 2
            todo += [(start, middle), (middle, end)]
        if large.any():
            say = f"its row is larger than the {self._row_bytes} bytes of a message: raise message_bytes at the server"
            faults.add(large, Stage.CONSTRAINT, "too-large", say, "")


class TopicMapping:
    """The mapping of a topic's rows into its tables."""

    def __init__(self, topic: TopicSpec, tables: Mapping[str, Table], limits: Limits = DEFAULT) -> None:
        """`tables` by full name may gain tables later; a changed definition takes effect at the next block."""
        self.topic = topic
        self._tables, self._limits = tables, limits
        self._made: dict[tuple[str, int], tuple[Table, TableMapping]] = {}
        self._types: dict[Path, pa.DataType] = {}
        self._declared = {id(spec): declared_sources(spec) for spec in topic.tables}

    def table(self, name: str, spec: TableSpec) -> TableMapping | None:
        """The mapping into a table; None if the table does not exist."""
        table = self._tables.get(name)
        if table is None:
            return None
        held = self._made.get((name, id(spec)))
        if held is None or held[0] is not table:
            held = (table, TableMapping(spec, table, self._limits, changes=self.topic.format in CHANGES))
            self._made[name, id(spec)] = held
            self._bind()
        return held[1]

    def _bind(self) -> None:
        columns = [column for _, mapping in self._made.values() for column in mapping.columns]
        self._types = types_of([(column.source, column.kind) for column in columns])
        for _, mapping in self._made.values():
            for column in mapping.columns:
                if isinstance(column.source, Expression):
                    column.source.bind(self._types)
                    kinds = {path: self._kind(path) for path in column.source.paths}
                    known = {path: kind for path, kind in kinds.items() if kind is not None}
                    if len(known) == len(kinds):
                        column.source.check(known)

    def wanted(self, name: str, root: str) -> pa.Schema | None:
        """The fields of values or keys that the columns, expressions and route of a topic read.

        None means all fields: a table is unknown and bridge.yaml does not name its columns.
        """
        sources: list[tuple[Path | Expression | None, pa.DataType]] = []
        for spec in self.topic.tables:
            made = [table for table, of in self._made if of == id(spec)]
            if names_origin(spec.table) and len(made) == 1 and self.table(made[0], spec) is not None:
                continue  # so far all records are for one table
            if self.table(table_name(spec.table, name), spec) is None:
                if not spec.columns:
                    return None
                sources += self._declared[id(spec)]
        sources += [(each.source, each.kind) for _, made in self._made.values() for each in made.columns]
        paths = types_of(sources)
        for source, _ in sources:
            for path in source.paths if isinstance(source, Expression) else ():
                paths.setdefault(path, pa.string())
        if isinstance(self.topic.target, RouteSpec):
            paths.setdefault(Path.of(self.topic.target.by), pa.string())
        return nest_fields({path.parts: kind for path, kind in paths.items() if path.root == root and path.parts})

    def _kind(self, path: Path) -> pa.DataType | None:
        if path.parts and path.root != "headers":
            of_json = path.root == "value" and self.topic.format == "json"
            return self._types.get(path, pa.string()) if of_json else None
        return KINDS.get((path.root, bool(path.parts)))

    def rows(self, inputs: Inputs, ends: Ends) -> None:
        for name, spec, rows in self._routed(inputs, ends):
            mapping = self.table(name, spec)
            if mapping is None:
                say = f"table {name} is not there: create it, or mend the name under table:"
                lost = [Reject(r, Stage.ROUTE, "no-table", say) for r in inputs.record[rows].tolist()]
                ends.reject(name, lost)
            else:
                mapping.rows(inputs.take(rows), ends)

    def tombstones(self, inputs: Inputs, ends: Ends) -> None:
        """Add the results of null values: deletes by key, or the table's policy."""
        for name, spec, rows in self._routed(inputs, ends):
            some, mapping = inputs.take(rows), self.table(name, spec)
            if spec.tombstone == "ignore":
                ends.leave(TOMBSTONE, some.record)
                continue
            if spec.tombstone == "delete" and mapping is not None and mapping.table.keyed:
                mapping.rows(some, ends)
                continue
            why = "a log table has no rows to delete by key" if spec.tombstone == "delete" else "tombstone: dlq says so"
            say = f"the record has no value (a tombstone), and {why}: say tombstone: ignore to leave such records out"
            ends.reject(name, [Reject(r, Stage.CHANGE, TOMBSTONE, say) for r in some.record.tolist()])

    def _routed(self, inputs: Inputs, ends: Ends) -> list[tuple[str, TableSpec, Ints]]:
        found: TableRouting = route_rows(self.topic, inputs)
        ends.reject(first_table(self.topic, inputs.records.topic), found.rejects)
        for records in found.skipped:
            ends.leave(NOT_ROUTED, records)
        return found.tables


def reads_key_fields(topic: TopicSpec) -> bool:
    """Whether a column, an expression or the route reads a field inside keys. Keys must be decoded then."""
    paths = [Path.of(topic.target.by)] if isinstance(topic.target, RouteSpec) else []
    for source, _ in (each for spec in topic.tables for each in declared_sources(spec)):
        if source is not None:
            paths += source.paths if isinstance(source, Expression) else (source,)
    return any(path.root == "key" and path.parts for path in paths)


def types_of(sources: Sequence[tuple[Path | Expression | None, pa.DataType]]) -> dict[Path, pa.DataType]:
    """The type of each part that a column reads or an expression casts at once; text if there are two types."""
    found: dict[Path, pa.DataType] = {}
    for source, kind in sources:
        if isinstance(source, Path) and (other := found.setdefault(source, kind)) != kind:
            found[source] = pa.int64() if _counts(kind) and _counts(other) else pa.string()
    for source, _ in sources:
        for path, kind in source.wanted.items() if isinstance(source, Expression) else ():
            if found.setdefault(path, kind) != kind:
                found[path] = pa.string()
    return found


def _counts(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind))


def nest_fields(kinds: Mapping[tuple[str, ...], pa.DataType]) -> pa.Schema:
    """Nest fields by path. Raises `Invalid` for a field that is read both in part and, not as a struct, whole."""
    tops: dict[str, dict[tuple[str, ...], pa.DataType]] = {}
    for parts, kind in kinds.items():
        tops.setdefault(parts[0], {})[parts[1:]] = kind
    return pa.schema([pa.field(name, _kind(name, below)) for name, below in tops.items()])


def _kind(name: str, below: Mapping[tuple[str, ...], pa.DataType]) -> pa.DataType:
    whole = below.get(())
    inner = {parts: kind for parts, kind in below.items() if parts}
    if whole is None:
        return pa.struct(list(nest_fields(inner)))
    if not inner or pa.types.is_map(whole):
        return whole
    if not pa.types.is_struct(whole):
        raise Invalid(f"field {name!r} is read whole, as {whole}, and by its parts: give it the type struct<…>")
    held = {(part.name,): part.type for part in whole}
    return pa.struct(list(nest_fields(held | {parts: kind for parts, kind in inner.items() if parts not in held})))


def refuse_companions(inputs: Inputs, ends: Ends) -> None:
    """Refuse the companions of refused records: half a key change would lose a row."""
    if inputs.atomic is None:
        return
    refused = [reject.record for rejects in ends.rejects.values() for reject in rejects]
    groups = np.unique(inputs.atomic[np.isin(inputs.record, refused) & (inputs.atomic >= 0)])
    if not len(groups):
        return
    for rows in ends.tables:
        if rows.atomic is not None:
            found = distinct(rows.record[np.isin(rows.atomic, groups)])
            ends.reject(rows.table, [half_a_change(r) for r in found.tolist()])


def settle_records(records: Records, ends: Ends, extra: Mapping[str, pa.DataType]) -> MappedBlock:
    """Settle each record: refused if any of its rows is refused, skipped if none of its rows remains."""
    seen = np.zeros(len(records), dtype=np.bool_)
    rejects: dict[str, Sequence[Reject]] = {}
    for table, refused in ends.rejects.items():
        first: list[Reject] = []
        for reject in refused:
            if not seen[reject.record]:
                seen[reject.record] = True
                first.append(reject)
        if first:
            rejects[table] = first
    tables = list(_without(ends.tables, seen) if seen.any() else ends.tables)
    for rows in tables:
        seen[rows.record] = True
    passed: dict[str, Ints] = {}
    for reason, parts in ends.passed.items():
        left = distinct(np.concatenate(parts))
        left = left[~seen[left]]
        seen[left] = True
        if len(left):
            passed[reason] = left
    return MappedBlock(_merged(tables), rejects, passed, extra, unread=_unread(ends, rejects))


def _unread(ends: Ends, rejects: Mapping[str, Sequence[Reject]]) -> dict[tuple[str, str], Ints]:
    refused = np.array([reject.record for found in rejects.values() for reject in found], np.int64)
    unread = {}
    for name, parts in ends.unread.items():
        records = np.setdiff1d(np.concatenate(parts), refused)
        if len(records):
            unread[name] = records
    return unread


def _without(tables: Sequence[TableRows], bad: Mask) -> Iterator[TableRows]:
    for rows in tables:
        good = np.flatnonzero(~bad[rows.record])
        if len(good) == len(rows.record):
            yield rows
        elif len(good):
            yield _taken(rows, good)


def _taken(rows: TableRows, at: Ints) -> TableRows:
    places = pa.array(at)
    kept = {name: mask.take(places) for name, mask in rows.kept.items()}
    atomic = None if rows.atomic is None else rows.atomic[at]
    return TableRows(rows.table, rows.spec, rows.batch.take(places), rows.record[at], rows.op[at], kept, atomic)


def _merged(tables: Sequence[TableRows]) -> list[TableRows]:
    by_table: dict[str, list[TableRows]] = {}
    for rows in tables:
        by_table.setdefault(rows.table, []).append(rows)
    return [_one(parts) for parts in by_table.values()]


def _one(parts: Sequence[TableRows]) -> TableRows:
    if len(parts) == 1:
        return parts[0]
    batch = pa.concat_batches([part.batch for part in parts])
    record = np.concatenate([part.record for part in parts])
    kept = {}
    for name in {name for part in parts for name in part.kept}:
        masks = [part.kept.get(name, pa.repeat(pa.scalar(False), len(part.record))) for part in parts]
        kept[name] = pa.concat_arrays(masks)
    atomic = None
    if any(part.atomic is not None for part in parts):
        alone = [part.atomic if part.atomic is not None else np.full(len(part.record), -1) for part in parts]
        atomic = np.concatenate(alone)
    whole = TableRows(
        parts[0].table, parts[0].spec, batch, record, np.concatenate([part.op for part in parts]), kept, atomic
    )
    return _taken(whole, np.argsort(record, kind="stable"))
