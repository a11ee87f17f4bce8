"""A table's columns computed from rows of a block, with a list of the rows that do not fit.

A null or missing field gives the column's default. A null in a key column or a required column is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.kafka.bridge.expressions import Expression
from lakestore.kafka.bridge.inputs import Inputs
from lakestore.kafka.bridge.outcome import Op, Reject, Stage
from lakestore.kafka.bridge.paths import Path
from lakestore.kafka.bridge.spec import COORDINATES, POSITION, ColumnSpec, TableSpec
from lakestore.kafka.bridge.tables import OP, OP_BESIDE, event_paths
from lakestore.model import defaults
from lakestore.model.columns import Column
from lakestore.model.contract.event_time import BROKER_TIME
from lakestore.model.contract.late_data import time_columns
from lakestore.model.table import Table
from lakestore.model.types import arrow_type
from lakestore.rows import casting
from lakestore.rows.casting import RECORDS, Rules
from lakestore.rows.literals import short
from lakestore.rows.scalar_casts import Mask, python_value

SOURCE = POSITION[0]
_PLACES = {
    "kafka_topic": Path("topic"),
    "kafka_partition": Path("partition"),
    "kafka_offset": Path("offset"),
    "kafka_timestamp": Path("timestamp"),
}
"""Columns that are filled because of their name."""
_HEADERS = Path("headers")
_REASON_CHARS_MAX = 300
"""Characters of a reason: the path of a nested value, and the rule that the value breaks."""


@dataclass(slots=True)
class Faults:
    """The first fault of each bad row."""

    record: npt.NDArray[np.int64]
    bad: Mask
    rejects: list[Reject] = field(default_factory=list)

    @staticmethod
    def of(inputs: Inputs) -> Faults:
        return Faults(inputs.record, np.zeros(len(inputs), dtype=np.bool_))

    def add(self, rows: Mask, stage: Stage, code: str, say: str | Callable[[int], str], path: str) -> None:
        for row in np.flatnonzero(rows & ~self.bad).tolist():
            self.rejects.append(
                Reject(int(self.record[row]), stage, code, say if isinstance(say, str) else say(row), path)
            )
        self.bad |= rows


@dataclass(frozen=True, slots=True)
class MappedColumn:
    """A column and its source."""

    column: Column
    source: Path | Expression | None
    """None: the default, or the source position."""
    rules: Rules
    """Rules of the cast, with the unit and zone of times."""
    key: bool
    stays: bool
    """Whether deletes carry the column too: key, position, version."""
    fill: pa.Scalar | None
    """The value that replaces null."""

    @property
    def kind(self) -> pa.DataType:
        """The type of the column's values."""
        return self.column.arrow.type

    @property
    def _field(self) -> pa.Field:
        return pa.field("value", self.kind)

    @property
    def _code(self) -> str:
        """Code of a reject."""
        t = pa.types
        if t.is_integer(self.kind) or t.is_floating(self.kind) or t.is_decimal(self.kind):
            return "not-a-number"
        if t.is_temporal(self.kind):
            return "not-a-time"
        return "not-a-boolean" if t.is_boolean(self.kind) else "bad-type"

    @property
    def path(self) -> str:
        return str(self.source or self.column.name)

    @property
    def fields(self) -> Iterator[str]:
        paths = self.source.paths if isinstance(self.source, Expression) else (self.source,)
        return (path.parts[0] for path in paths if path is not None and path.root == "value" and path.parts)

    def compute(self, inputs: Inputs, faults: Faults) -> pa.Array:
        """Compute the column. A value that does not fit becomes null and a fault."""
        raw = self._raw(inputs, faults)
        array, bad = casting.mask(raw, self._field, self.rules)
        deletes = inputs.op == Op.DELETE
        if not self.stays and deletes.any():
            array = pc.if_else(pa.array(~deletes), array, pa.scalar(None, array.type))
            bad = None if bad is None else bad & ~deletes
        if bad is not None and bad.any():
            faults.add(bad, Stage.CONVERT, self._code, lambda row: self._misfit(raw, row), self.path)
        if self.fill is not None and array.null_count:
            filled = array.fill_null(self.fill)
            array = filled if self.key else pc.if_else(pa.array(deletes), array, filled)
        if array.null_count and (self.key or self.column.required):
            self._check_present(array, inputs, deletes, faults)
        return array

    def unsent(self, inputs: Inputs) -> Mask | None:
        """The rows that keep the live value because the source did not send one."""
        if not inputs.kept:
            return None
        masks = [inputs.kept[name] for name in self.fields if name in inputs.kept]
        return np.logical_or.reduce(masks) if masks else None

    def _raw(self, inputs: Inputs, faults: Faults) -> pa.Array:
        if isinstance(self.source, Expression):
            array, failed = self.source.values(inputs)
            if failed:
                rows = np.zeros(len(inputs), dtype=np.bool_)
                rows[list(failed)] = True
                if not self.stays:
                    rows &= inputs.op != Op.DELETE
                say = f"the expression of column {self.column.name!r} fails"
                faults.add(rows, Stage.CONVERT, "expression", lambda row: f"{say}: {failed[row]}", self.column.name)
            return array
        if self.source == _HEADERS and pa.types.is_map(self.kind):
            return inputs.header_map()
        if self.source is not None:
            return inputs.read(self.source)
        return inputs.source() if self.column.name == SOURCE else pa.nulls(len(inputs), self.kind)

    def _check_present(self, array: pa.Array, inputs: Inputs, deletes: Mask, faults: Faults) -> None:
        missing = array.is_null().to_numpy(zero_copy_only=False)
        kept = self.unsent(inputs)
        if self.stays and not self.key and (missing & deletes).any():
            say = (
                f"the delete has no value for {self.path}, the version of the row, or one that its source made up: say"
                " REPLICA IDENTITY FULL there, or take the version from: position"
            )
            faults.add(missing & deletes, Stage.CHANGE, "no-version", say, self.path)
        if not self.key:
            missing = missing & ~deletes if kept is None else missing & ~deletes & ~kept
        if not missing.any():
            return
        name = self.column.name
        if not self.key:
            say = f"column {name!r} is required, and {self.path} is null or missing: send it, or give a default"
            faults.add(missing, Stage.CONSTRAINT, "missing-value", say, self.path)
        elif inputs.values is None and not isinstance(self.source, Expression) and self.path.startswith("value"):
            say = (
                f"the record has no value (a tombstone), and key column {name!r} comes from {self.path}: take it from"
                " key.…, a header or metadata, or say tombstone: ignore"
            )
            faults.add(missing, Stage.CONSTRAINT, "tombstone-without-key", say, self.path)
        else:
            say = f"key column {name!r} is null, for {self.path} is null or missing: a key has no nulls"
            faults.add(missing, Stage.CONSTRAINT, "null-key", say, self.path)

    def _misfit(self, raw: pa.Array, row: int) -> str:
        value = raw.slice(row, 1)
        shown = short(repr(python_value(value, 0)))
        place = self.path if isinstance(self.source, Path) else self.column.name
        because = short(casting.why(value, self._field.with_name(place), self.rules), _REASON_CHARS_MAX)
        return (
            f"{self.path} is {shown}, which column {self.column.name!r} ({self.column.type}) does not take: {because}"
        )


def mapped_columns(spec: TableSpec, table: Table, *, log: bool = False) -> tuple[MappedColumn, ...]:
    """The sources of a table's columns. Raises `Invalid`. `log`: rows are change events."""
    said = {column.name: column for column in spec.columns}
    for name in said:
        table.column(name)
    names = {column.name for column in table.columns}
    events = event_paths(spec, op=(OP_BESIDE if OP_BESIDE in names else OP) if log else "")
    return tuple(_mapped(spec, table, column, said.get(column.name), events) for column in table.columns)


def declared_sources(spec: TableSpec) -> list[tuple[Path | Expression | None, pa.DataType]]:
    """The sources and types of the columns that bridge.yaml names, before the table exists."""
    return [(_said_source(spec.table, column), arrow_type(column.type)) for column in spec.columns]


def _mapped(
    spec: TableSpec, table: Table, column: Column, column_spec: ColumnSpec | None, events: Mapping[str, Path]
) -> MappedColumn:
    event_part = events.get(column.name) if column_spec is None else None
    source = event_part or _source(spec, table, column, column_spec)
    rules = RECORDS.read_as(column_spec.unit, column_spec.zone) if column_spec else RECORDS
    default = column_spec.default if column_spec is not None and column_spec.default is not None else column.default
    fill = None if default is None else defaults.scalar(default, column.type, column.name)
    key = column.name in table.primary_key
    place = column_spec is None and column.name in (*POSITION, *COORDINATES)
    stays = key or place or column.name in (spec.version, table.merge.column)
    return MappedColumn(column, source, rules, key, stays, fill)


def _source(spec: TableSpec, table: Table, column: Column, column_spec: ColumnSpec | None) -> Path | Expression | None:
    if column_spec is not None:
        return _said_source(table.name, column_spec)
    if column.name in _PLACES:
        return _PLACES[column.name]
    if column.name == BROKER_TIME and table.contract is not None and column.name in time_columns(table.contract):
        return Path("timestamp")
    return Path("value", (column.name,)) if not spec.columns and column.name != SOURCE else None


def _said_source(table: str, column_spec: ColumnSpec) -> Path | Expression:
    if column_spec.expression and column_spec.source:
        raise Invalid(f"table {table}: column {column_spec.name!r} has a path and an expression: leave one out")
    if column_spec.expression:
        return Expression(column_spec.expression, column_spec.name)
    return Path.of(column_spec.source) if column_spec.source else Path("value", (column_spec.name,))
