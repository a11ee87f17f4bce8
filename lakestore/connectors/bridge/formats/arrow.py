"""Arrow records: each value an Arrow IPC stream of any number of rows, bounded and validated before it is touched.

Streams may differ in their schemas: fields of a name have the wider type of two, and a record whose types do not go
with those before it is refused. A stream without rows is passed.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lakestore.connectors.bridge.outcome import TOMBSTONE, Decoded, Reject, Stage
from lakestore.connectors.bridge.records import Ints, Records
from lakestore.errors import Invalid
from lakestore.limits import DEFAULT, Limits
from lakestore.model.types import arrow_type, type_name
from lakestore.rows import ipc
from lakestore.rows.casting import Cast

EMPTY = "empty"


class ArrowDecoder:
    """Arrow IPC streams."""

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self._schema: pa.Schema | None = None
        self._seen: tuple[pa.Schema, list[pa.Field]] | None = None

    def schema(self) -> pa.Schema | None:
        """The schema of the newest stream."""
        return self._schema

    def decode(self, records: Records, wanted: pa.Schema | None) -> Decoded:
        """The rows of a block; nulls are tombstones."""
        batches: list[tuple[int, pa.RecordBatch]] = []
        rejects: list[Reject] = []
        passed: dict[str, list[int]] = {TOMBSTONE: [], EMPTY: []}
        for number, value in enumerate(records.values.to_pylist()):
            if value is None:
                passed[TOMBSTONE].append(number)
                continue
            try:
                batch = self._rows(value)
            except Invalid as error:
                say = f"the record is no Arrow IPC stream that can be taken: {error.message}"
                rejects.append(Reject(number, Stage.DECODE, "bad-arrow", say))
                continue
            if batch.num_rows:
                batches.append((number, batch))
            else:
                passed[EMPTY].append(number)
        left = {reason: np.array(rows, np.int64) for reason, rows in passed.items() if rows}
        return self._together(batches, rejects, left)

    def _rows(self, value: bytes) -> pa.RecordBatch:
        """The rows of one stream in layouts of tables, so that nothing unfolds behind; or `Invalid`."""
        batch = ipc.decode(value, limits=self._limits)
        names = batch.schema.names
        if len(set(names)) != len(names):
            raise Invalid("it has a column twice")
        if self._seen is None or not batch.schema.equals(self._seen[0]):
            self._seen = (batch.schema, [pa.field(part.name, _plain(part)) for part in batch.schema])
        fields = self._seen[1]
        cast = Cast("", self._limits)
        arrays = [cast.column(array, field) for array, field in zip(batch.columns, fields, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _together(
        self, batches: list[tuple[int, pa.RecordBatch]], rejects: list[Reject], passed: dict[str, Ints]
    ) -> Decoded:
        """The rows of all streams; one whose types do not go with those before it is refused."""
        schema = self._schema or pa.schema([])
        taken: list[tuple[int, pa.RecordBatch]] = []
        for number, batch in batches:
            if batch.schema.equals(schema):
                taken.append((number, batch))
                continue
            try:
                schema = pa.unify_schemas([schema, batch.schema], promote_options="permissive")
                taken.append((number, batch))
            except pa.ArrowException as error:
                say = f"the types of its rows do not go with those of the records before it: {error}"
                rejects.append(Reject(number, Stage.DECODE, "other-types", say))
        self._schema = schema
        if not taken:
            return Decoded(pa.array([], pa.struct(list(schema))), np.zeros(0, np.int64), rejects=rejects, passed=passed)
        table = pa.concat_tables(
            [pa.Table.from_batches([batch]) for _, batch in taken], promote_options="permissive"
        ).select(schema.names)
        columns = [column.combine_chunks() for column in table.columns]
        record = np.repeat([number for number, _ in taken], [batch.num_rows for _, batch in taken])
        rows = pa.StructArray.from_arrays(columns, fields=list(table.schema))
        return Decoded(rows, record.astype(np.int64), rejects=rejects, passed=passed)


def _plain(part: pa.Field) -> pa.DataType:
    """The layout that tables have for a type."""
    return part.type if pa.types.is_uint64(part.type) else arrow_type(type_name(part.type, part.name))
