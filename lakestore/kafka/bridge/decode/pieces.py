"""Merge rows of several schemas into one block, in record order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakestore.kafka.bridge.decode.framing import Bools, Fault
from lakestore.kafka.bridge.outcome import DecodedBlock, Reject, Stage
from lakestore.kafka.bridge.records import Ints

VALUE = "value"
"""The field name for values that are not records."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one schema, with the record number of each."""

    values: pa.Array
    record: Ints


def select_rows(values: pa.Array, rows: Bools) -> pa.Array:
    """Select rows of an array."""
    return values if rows.all() else values.filter(pa.array(rows))


def as_struct(values: pa.Array) -> pa.StructArray:
    """Wrap values that are not records as records of one field."""
    if pa.types.is_struct(values.type):
        return values
    return pa.StructArray.from_arrays([values], fields=[pa.field(VALUE, values.type)])


def fault_rejects(faults: Mapping[int, Fault], record: Ints) -> list[Reject]:
    """Turn faults of a piece's rows into rejects of their records."""
    return [
        Reject(int(record[row]), Stage.DECODE, fault.code, fault.sentence, fault.path)
        for row, fault in sorted(faults.items())
    ]


def join_pieces(
    pieces: Sequence[Piece], rejects: Sequence[Reject], passed: Mapping[str, Ints], empty: pa.DataType
) -> DecodedBlock:
    """Merge the pieces into one block; `empty` is the type of a block without rows."""
    told = {reason: records for reason, records in passed.items() if len(records)}
    ordered = tuple(sorted(rejects, key=lambda reject: reject.record))
    whole = [piece for piece in pieces if len(piece.record)]
    if not whole:
        none = as_struct(pa.nulls(0, empty))
        return DecodedBlock(none, np.zeros(0, np.int64), rejects=ordered, passed=told)
    values = pa.concat_arrays([piece.values for piece in whole]) if len(whole) > 1 else whole[0].values
    record = np.concatenate([piece.record for piece in whole])
    if (np.diff(record) < 0).any():
        order = np.argsort(record, kind="stable")
        values, record = values.take(pa.array(order)), record[order]
    return DecodedBlock(values, record, rejects=ordered, passed=told)
