"""Change streams as a user iterates them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from lakestore.client.transport import Transport
from lakestore.v1 import lakestore_pb2 as pb


class ChangeBatch:
    """Whole commits of one table."""

    def __init__(self, message: pb.ChangeBatch) -> None:
        self.name = message.table
        """`database.table`."""
        self.token = message.token
        """Go on from here: `changes(start=batch.token)`."""
        self.schema_id = message.schema_id
        """The version of the table that these rows are in; all of a batch are in one."""
        self.snapshot = message.snapshot
        """Whether this is part of the snapshot that comes first."""
        with pa.ipc.open_stream(message.rows) as reader:
            self.table: pa.Table = reader.read_all()
            """The changes: `__change`, `__bucket`, `__offset`, `__timestamp`, then the row."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def to_arrow(self) -> pa.Table:
        """The rows."""
        return self.table

    def to_pandas(self) -> Any:
        """The rows as a pandas frame."""
        return self.table.to_pandas()

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows as dicts, for looking at."""
        found: list[dict[str, Any]] = self.table.to_pylist()
        return found


class ChangeStream:
    """An iterator of `ChangeBatch`; `close` ends it."""

    def __init__(self, transport: Transport, request: pb.ChangesRequest) -> None:
        self._messages = transport.changes(request)

    def __iter__(self) -> Iterator[ChangeBatch]:
        return self

    def __next__(self) -> ChangeBatch:
        return ChangeBatch(next(self._messages))

    def close(self) -> None:
        """End the stream."""
        close = getattr(self._messages, "close", None)
        if close:
            close()
