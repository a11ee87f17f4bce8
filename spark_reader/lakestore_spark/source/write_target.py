"""The target of a write: which table takes which of Spark's columns, and by which kind of change.

Everything that the driver can see is refused before a task runs: columns that the table has not, a key that is not
there, a mode that is not the table's. Values are cast by the server, as those of every client are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from lakestore.client.lake import Lake
from lakestore.errors import Invalid
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore.model.types import arrow_type
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_spark.source.options import Address, Options

CHANGE = "__change"
"""The column that says of each row what happened to it: +I, -U, +U or -D."""
CHANGES = "changes"
MODES = ("append", "upsert", "delete", CHANGES)
KINDS = {"append": pb.APPEND, "upsert": pb.UPSERT, "delete": pb.DELETE}


@dataclass(frozen=True, slots=True)
class Target:
    """A table as a write means it; goes to executors with their tasks."""

    address: Address
    table: Table
    """The version whose names the rows use."""
    mode: str
    """One of `MODES`."""

    @staticmethod
    def of(said: Options, schema: StructType, *, overwrite: bool) -> Target:
        """The target of a write with these options and columns; or `Invalid`."""
        if overwrite:
            raise Invalid(
                "a table of Lakestore is not overwritten by a write, neither with mode('overwrite') nor with"
                " outputMode('complete'): write with mode('append'), or outputMode 'append' or 'update', and delete"
                " what is to go"
            )
        address = said.address
        with Lake(address.connect(), address.server) as lake:
            table = lake.table(said.table).definition
        names = schema.fieldNames()
        target = Target(address, table, _mode(said.text("mode"), table, has_changes=CHANGE in names))
        target.check(names)
        return target

    def check(self, names: Sequence[str]) -> None:
        """`Invalid` for columns that the table does not take in this mode."""
        known = {column.name for column in self.table.columns}
        for name in names:
            if names.count(name) > 1:
                raise Invalid(f"table {self.table.name}: the rows have column {name!r} twice")
            if name not in known and name not in SYSTEM_TYPES:
                raise Invalid(
                    f"table {self.table.name} has no column {name!r}: drop it from the rows, or add it to the table"
                )
        needed = [column for column in self.table.columns if column.required and column.default is None]
        missing = [column.name for column in needed if column.name not in names]
        if self.mode == "delete":
            missing = [name for name in self.table.primary_key if name not in names]
        if missing:
            raise Invalid(f"table {self.table.name}: the rows have no column {missing[0]!r}, which it needs")

    def columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The table's columns of a batch, as the server takes them: of a delete, those of its key and version."""
        names = [name for name in batch.schema.names if name not in SYSTEM_TYPES]
        if self.mode == "delete":
            wanted = {*self.table.primary_key, *self.table.merge.version}
            names = [name for name in names if name in wanted]
        return pa.RecordBatch.from_arrays(
            [_as_declared(batch.column(name), arrow_type(self.table.column(name).type)) for name in names], names=names
        )


def _mode(said: str, table: Table, *, has_changes: bool) -> str:
    """The mode of a write, which the table and the rows decide where no option does."""
    if not said:
        return CHANGES if has_changes else "upsert" if table.keyed else "append"
    if said not in MODES:
        raise Invalid(f"option mode is one of {', '.join(MODES)}, not {said!r}")
    if said == CHANGES:
        if not has_changes:
            raise Invalid(f"mode {CHANGES!r} needs the column {CHANGE!r}, and the rows have none")
        return said
    if has_changes:
        raise Invalid(
            f"the rows have a column {CHANGE!r}, and mode {said!r} would take all of them as {said}s: say mode"
            f" {CHANGES!r}, or drop the column"
        )
    if table.keyed == (said == "append"):
        takes = "upsert, delete and changes" if table.keyed else "append and changes"
        raise Invalid(f"table {table.name} takes the modes {takes}, not {said!r}")
    return said


def _as_declared(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Times of the day, which Spark sees as microseconds; all else is cast by the server."""
    is_time = pa.types.is_time64(wanted) and pa.types.is_int64(column.type)
    return column.cast(pa.time64("us")) if is_time else column
