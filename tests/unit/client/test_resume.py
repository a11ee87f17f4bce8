"""A change stream whose connection breaks after any message gives every row once, in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.changes import ChangeBatch, DeliveredRows, ResumingStream
from lakestore.errors import Unavailable
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.row_messages import ChangeMessage

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


class Breaking:
    """A transport whose change streams break after some messages, for a number of times."""

    def __init__(self, transport: Any, after: int, times: int) -> None:
        self._transport, self._after, self._times = transport, after, times

    def head(self, request: pb.HeadRequest) -> pb.HeadAnswer:
        """As the server's."""
        answer: pb.HeadAnswer = self._transport.head(request)
        return answer

    def changes(self, request: pb.ChangesRequest) -> Iterator[ChangeMessage]:
        """As the server's, for a while."""
        for i, message in enumerate(self._transport.changes(request)):
            if i == self._after and self._times:
                self._times -= 1
                raise Unavailable("cut", applied="no")
            yield message


@pytest.mark.parametrize("start", ["earliest", "snapshot"])
@pytest.mark.parametrize("after", [1, 2, 5, 9])
def test_every_row_comes_once_whatever_message_was_the_last(tmp_path: Path, start: str, after: int) -> None:
    with ls.open(tmp_path / "data", limits=Limits(read_batch_bytes=500)) as lake:
        table = lake.create_table("a.b", SCHEMA, primary_key=["id"], buckets=2)
        for text in ("one", "two"):
            table.upsert([{"id": i, "v": text} for i in range(60)])
        request = pb.ChangesRequest(tables=["a.b"], start=start, until="now", before_images=True)

        def rows(transport: Any) -> list[dict[str, Any]]:
            return [row for message in ResumingStream(transport, request) for row in ChangeBatch(message).to_pylist()]

        assert rows(Breaking(lake.transport, after, 3)) == rows(lake.transport)


def test_an_update_that_two_messages_share_comes_whole_after_a_reconnect() -> None:
    """What this connection has brought already is not taken for what an earlier one had brought."""
    seen, bucket = DeliveredRows(), np.zeros(1, dtype=np.int64)
    seen.add("t", bucket, np.array([7]))
    seen.reconnected()
    assert not seen.fresh("t", bucket, np.array([7])).any()
    for _ in range(2):  # before and after the update
        assert seen.fresh("t", bucket, np.array([9])).all()
        seen.add("t", bucket, np.array([9]))
