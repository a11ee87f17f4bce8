"""Parts: rows of a commit larger than a message, uploaded before it.

The server keeps parts durable and invisible until one commit names them all. Parts that no commit names expire after a
day.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from lakestore.client.transport import Transport, message_bytes
from lakestore.errors import Invalid, LakestoreError
from lakestore.limits import DEFAULT
from lakestore.rows.ranges import OVERHEAD_BYTES
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc

PART_BYTES = 16 << 20
"""Approximate bytes of rows in a part; a server checks several at once."""
MESSAGE_BYTES = DEFAULT.message_bytes
"""The most bytes of rows in a commit without parts, also if a server in this process takes longer messages."""
DROPPED_AT_ONCE = 1_000


def has_parts(server: pb.HelloAnswer) -> bool:
    """True if a server accepts parts. The server must have been greeted."""
    return server.protocol >= rpc.METHODS["UploadPart"].since


def part_bytes(server: pb.HelloAnswer) -> int:
    """Bytes of rows in one part: less than half of a message, which also holds metadata."""
    return min(PART_BYTES, MESSAGE_BYTES // 2, message_bytes(server) // 2)


def upload(transport: Transport, change: pb.Change, timeline: str = "") -> pb.Change:
    """Upload a change as a durable part. Returns the change that names it in a commit."""
    info = transport.upload_part(pb.UploadPartRequest(change=change, timeline=timeline))
    named = pb.Change(table=change.table, kind=change.kind, crc32c=change.crc32c, part=info.part)
    named.table_uuid = change.table_uuid
    return named


def drop(transport: Transport, parts: Sequence[str]) -> None:
    """Ask the server to forget parts that no commit will name. A failure is harmless, because parts expire."""
    with suppress(LakestoreError):
        for at in range(0, len(parts), DROPPED_AT_ONCE):
            transport.drop_parts(pb.DropPartsRequest(parts=parts[at : at + DROPPED_AT_ONCE]))


def has_room(changes: Sequence[pb.Change], server: pb.HelloAnswer) -> bool:
    """True if these changes fit in one message."""
    most = min(MESSAGE_BYTES, message_bytes(server)) - OVERHEAD_BYTES
    return sum(len(change.rows) for change in changes) <= most


def check_whole(change: pb.Change, server: pb.HelloAnswer) -> None:
    """Raise `Invalid` for a change that no message can hold, which can only be a single row."""
    if len(change.rows) > message_bytes(server) - OVERHEAD_BYTES:
        raise Invalid(
            f"table {change.table}: a row takes {len(change.rows)} bytes, more than the {message_bytes(server)} of one"
            " message: raise message_bytes at the server, or keep large values elsewhere"
        )
