"""A bridge's pipeline for tests that are about other stages: JSON of flat rows, whatever cannot be read is rejected."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

import lakestore as ls
from lakestore.connectors.bridge.dead_letters import sources_of
from lakestore.connectors.bridge.outcome import Mapped, Op, Reject, Stage, TableRows
from lakestore.connectors.bridge.records import Records
from lakestore.connectors.bridge.spec import TableSpec, TopicSpec


class JsonLines:
    """Rows of one table; a null value deletes by `{"id": …}` as the key."""

    def __init__(self, lake: ls.Lake, topic: TopicSpec) -> None:
        assert isinstance(topic.target, TableSpec)
        self._spec = topic.target
        self._schema: pa.Schema = lake.table(self._spec.table).schema

    def process(self, records: Records) -> Mapped:
        """The ends of a block's records."""
        rows: list[dict[str, Any]] = []
        numbers, ops, rejects = [], [], []
        places = sources_of(records).to_pylist()
        values = zip(records.keys.to_pylist(), records.values.to_pylist(), strict=True)
        for number, (key, value) in enumerate(values):
            try:
                row = json.loads(key if value is None else value)
                row = {"kafka_source": places[number], "kafka_offset": int(records.offset[number]), **row}
                pa.RecordBatch.from_pylist([row], schema=self._schema)
            except (ValueError, TypeError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
                rejects.append(Reject(number, Stage.DECODE, "bad-json", str(error)))
                continue
            rows.append(row)
            numbers.append(number)
            ops.append(Op.DELETE if value is None else Op.PUT)
        batch = pa.RecordBatch.from_pylist(rows, schema=self._schema)
        found = TableRows(self._spec.table, self._spec, batch, np.array(numbers, np.int64), np.array(ops, np.int8))
        return Mapped([found] if rows else [], {self._spec.table: rejects} if rejects else {}, {})
