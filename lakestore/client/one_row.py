"""Single rows of one version of a table: a look-up's key as bytes, and its answer as a table, at little cost.

Anything out of the ordinary gives None, and takes the way of many rows: it says what is wrong, or casts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lakestore.model.table import Table
from lakestore.rows import ipc
from lakestore.rows.one_key import KeyCode
from lakestore.v1 import lakestore_pb2 as pb

COLUMNS_KEPT = 256
"""Lists of columns of one version whose schemas are kept."""


@dataclass(frozen=True, slots=True)
class OneRow:
    """One version of a table, as single rows need it."""

    definition: Table
    _code: KeyCode | None
    _schemas: dict[tuple[str, ...], pa.Schema] = field(default_factory=dict)

    @staticmethod
    def of(definition: Table) -> OneRow:
        """The form of a version."""
        return OneRow(definition, KeyCode.of(definition))

    def key(self, keys: Any) -> bytes | None:
        """The bytes of one whole key that is given as a dict; None for anything else."""
        if type(keys) is list and len(keys) == 1:
            keys = keys[0]
        code = self._code
        if code is None or type(keys) is not dict or len(keys) != len(code.names):
            return None
        try:
            # An empty key is no key on the wire.
            return code.key([keys[name] for name in code.names]) or None
        except KeyError:
            return None

    def found(self, answer: pb.RowBatch, columns: Sequence[str] | None) -> pa.Table | None:
        """The row of an answer in this version, or no row; None where the answer is in another one."""
        if answer.schema_id != self.definition.schema_id:
            return None
        named = tuple(columns or ())
        schema = self._schemas.get(named)
        if schema is None:
            schema = self.definition.read_schema(named)
            if len(self._schemas) < COLUMNS_KEPT:
                self._schemas[named] = schema
        batches = ipc.decode_trusted(answer.rows, crc=answer.crc32c)
        return pa.Table.from_arrays(batches[0].columns, schema=schema) if len(batches) == 1 else None
