"""Change batches as JSON events for other systems, each in the table version of its batch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from lakestore.client.changes import ChangeBatch
from lakestore.errors import Internal, Invalid
from lakestore.kafka.debezium import PIECE_ROWS, Debezium, Events, Pairs
from lakestore.model.table import Table
from lakestore.model.token import LogPosition, position_of
from lakestore.rows.json_texts import PLAIN, objects
from lakestore.v1 import lakestore_pb2 as pb

if TYPE_CHECKING:
    from lakestore.client.lake import Lake

FORMATS = ("debezium", "debezium-schema", "json")


class _Version(Protocol):
    def events(self, rows: pa.Table, *, snapshot: bool, now_ms: int) -> Iterator[Events]: ...


class _Plain:
    """Plain rows with the table's name and the change columns."""

    def __init__(self, table: Table) -> None:
        self._front = f'{{"__table":{json.dumps(table.name)},'
        self._key = list(table.primary_key)

    def events(self, rows: pa.Table, *, snapshot: bool, now_ms: int) -> Iterator[Events]:
        del snapshot, now_ms
        for start in range(0, rows.num_rows, PIECE_ROWS):
            for batch in rows.slice(start, PIECE_ROWS).combine_chunks().to_batches():
                yield self._of(batch)

    def _of(self, batch: pa.RecordBatch) -> Events:
        names = batch.schema.names
        text = objects(names, batch.columns, PLAIN, front=self._front)
        keys = objects(self._key, [batch.column(name) for name in self._key], PLAIN) if self._key else None
        deleted = batch.column("__change").to_numpy(zero_copy_only=False) == "-D"
        return Events(
            None if keys is None else keys.cast(pa.binary()),
            text.cast(pa.binary()),
            batch.column("__bucket").to_numpy().astype(np.int32),
            deleted,
        )


class Encoder:
    """Encodes the batches of one stream, in order."""

    def __init__(self, lake: Lake, kind: str, *, name: str = "lakestore", now: Callable[[], float] = time.time) -> None:
        if kind not in FORMATS:
            raise Invalid(f"the format {kind!r} of changes is none of {', '.join(FORMATS)}")
        self._lake, self._kind, self._name, self._now = lake, kind, name, now
        self._pairs = Pairs()
        self._versions: dict[tuple[str, int], _Version] = {}

    @property
    def before_images(self) -> bool:
        return self._kind != "json"

    def events(self, batch: ChangeBatch) -> Iterator[Events]:
        """The events of a batch. Half an update waits for its other half."""
        rows = self._pairs.whole(batch.name, batch.to_arrow()) if self.before_images else batch.to_arrow()
        if rows.num_rows:
            now_ms = int(self._now() * 1000)
            yield from self._version(batch).events(rows, snapshot=batch.snapshot, now_ms=now_ms)

    def _version(self, batch: ChangeBatch) -> _Version:
        known = self._versions.get((batch.name, batch.schema_id))
        if known is None:
            known = self._made(definition_of(self._lake, batch))
            self._versions[batch.name, batch.schema_id] = known
        return known

    def _made(self, table: Table) -> _Version:
        if self._kind == "json":
            return _Plain(table)
        return Debezium(table, name=self._name, with_schema=self._kind == "debezium-schema")


def definition_of(lake: Lake, batch: ChangeBatch) -> Table:
    """The table's definition in the version of a batch."""
    current = lake.table(batch.name).definition
    if current.schema_id == batch.schema_id:
        return current
    token = position_of(batch.token)
    for lsn in (token.lsn, token.lsn + 1):  # a batch that does not end its commit has the token before that commit
        at = str(LogPosition(token.timeline, lsn))
        plan = lake.transport.plan(pb.PlanRequest(tables=[batch.name], at=at, no_dead=True))
        found = Table.from_json(plan.tables[0].definition)
        if found.schema_id == batch.schema_id:
            return found
    raise Internal(f"version {batch.schema_id} of table {batch.name} is not found at its changes")
