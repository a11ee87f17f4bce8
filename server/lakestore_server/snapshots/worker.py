"""The process that builds snapshots: `python -m …snapshots.worker RUN ROOM`, on the pipes of `host/child.py`.

Imports little, for its start is part of the first answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pyarrow as pa

from lakestore.rows import ipc
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.row_messages import RowMessage
from lakestore_server.host.child import Parent
from lakestore_server.host.yield_points import at_yield_points
from lakestore_server.snapshots.builder import SnapshotBuilder
from lakestore_server.snapshots.messages import BuildRequest, Room, Verb


def main(run: str, room: str) -> None:
    """Serve until the server closes the pipe."""
    parent = Parent()
    builder = SnapshotBuilder(run, Room.decode(room))

    def answer(verb: int, question: bytes) -> bytes:
        with at_yield_points(parent.working):
            if verb == Verb.FORGET:
                builder.forget(json.loads(question))
                return b""
            return builder.present(BuildRequest.decode(question), fetch).encode()

    def fetch(request: pb.FetchRequest) -> Iterator[pa.RecordBatch]:
        for data in parent.ask(Verb.FETCH, request.SerializeToString()):
            message = RowMessage.of(data)
            yield from ipc.decode_server_rows(message.rows, crc=message.crc32c)

    while parent.reply(answer):
        builder.tidy()
    builder.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
