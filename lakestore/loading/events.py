"""Change events of Debezium in a file of JSON lines, as the bridge reads them of Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from lakestore.connectors.bridge.formats.debezium.debezium import DebeziumJson
from lakestore.connectors.bridge.outcome import Op
from lakestore.connectors.bridge.pipeline import Pipeline
from lakestore.connectors.bridge.records import Records as Block
from lakestore.connectors.bridge.spec import ColumnSpec, TableSpec, TopicSpec
from lakestore.connectors.debezium import CONNECTOR
from lakestore.errors import Invalid
from lakestore.loading import texts
from lakestore.loading.chunks import Bad, Chunk
from lakestore.loading.files import File
from lakestore.loading.progress import Place
from lakestore.loading.reading import Wanted
from lakestore.loading.texts import Records, Text
from lakestore.model.table import Table

_TOPIC = "file"


class DebeziumLines:
    """A file of change events, one on a line."""

    def __init__(self, file: File, text: Text, wanted: Wanted) -> None:
        table = wanted.table
        if not table.keyed:
            raise Invalid(f"table {table.name} is a log table: change events go into one with a primary key")
        self._text, self._table = text, table
        ours = f'"connector":"{CONNECTOR}"'.encode() in text.head.replace(b" ", b"")
        spec = TableSpec(table.name, columns=_micros(table) if ours else ())
        topic = TopicSpec(_TOPIC, _TOPIC, target=spec, format="debezium-json", wire="plain")
        self._pipeline = Pipeline(topic, {table.name: table}, DebeziumJson(wire="plain"))

    def chunks(self, place: Place) -> Iterator[Chunk]:
        """The events from a place on."""
        for records in self._text.blocks(place, texts.lines):
            yield self._chunk(records)

    def _chunk(self, records: Records) -> Chunk:
        count = len(records)
        values = [records.data[start:end] for start, end in zip(records.starts, records.ends, strict=True)]
        zeros = np.zeros(count, np.int64)
        block = Block(
            _TOPIC, "", zeros, np.arange(count, dtype=np.int64), zeros - 1, pa.nulls(count, pa.binary()),
            pa.array(values, pa.binary()),
        )  # fmt: skip
        mapped = self._pipeline.process(block)
        bad = [
            Bad(each.record, int(records.lines[each.record]), each.sentence, records.text(each.record))
            for rejects in mapped.rejects.values()
            for each in rejects
        ]
        bad = sorted({each.record: each for each in bad}.values(), key=lambda each: each.record)
        empty = pa.RecordBatch.from_pylist([], schema=self._table.nullable_schema)
        batch, record, deletes, kept = empty, np.zeros(0, np.int64), np.zeros(0, np.bool_), {}
        for rows in mapped.tables:
            batch, record, deletes, kept = rows.batch, rows.record, rows.op == Op.DELETE, dict(rows.kept)
        return Chunk(
            count, batch, record, records.lines, bad, records.place_after, records.text, deletes=deletes, kept=kept
        )


def _micros(table: Table) -> tuple[ColumnSpec, ...]:
    """Columns of events that this product wrote: times without a zone are numbers of microseconds."""
    return tuple(
        ColumnSpec(column.name, column.type, unit="us" if pa.types.is_temporal(column.arrow.type) else "")
        for column in table.columns
    )
