"""A change stream that outlives its connections: broken ones are opened again where the last one stopped.

The caller gets every row once. A token lies between whole batches, and a subscription goes on from its last ack, so
after a reconnect rows come again; they are known by bucket and offset, which only grow within a bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.client.head import head
from lakestore.client.retry import Backoff
from lakestore.client.shared_position import Share
from lakestore.client.transport import Transport
from lakestore.errors import LakestoreError, OtherTimeline
from lakestore.model.token import Token, position_of
from lakestore.rows import ipc
from lakestore.v1 import lakestore_pb2 as pb

Ints = npt.NDArray[np.int64]


class Seen:
    """Per table and bucket the last offset that was handed out, and how many rows of it: an update may show two."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], tuple[int, int]] = {}
        self._again: dict[tuple[str, int], int] = {}  # rows of the last offset that this connection brought again

    def reconnected(self) -> None:
        """From here on rows may come again."""
        self._again = {}

    def forget(self, table: str, bucket: int) -> None:
        """The rows of a bucket may come again."""
        self._last.pop((table, bucket), None)
        self._again.pop((table, bucket), None)

    def add(self, table: str, buckets: Ints, offsets: Ints) -> None:
        """Rows that were handed out."""
        for bucket in np.unique(buckets).tolist():
            here = offsets[buckets == bucket]
            last = int(here[-1])
            before, count = self._last.get((table, bucket), (-1, 0))
            handed = (count if before == last else 0) + int((here == last).sum())
            self._last[table, bucket] = last, handed
            self._again[table, bucket] = handed  # this connection brought them all

    def fresh(self, table: str, buckets: Ints, offsets: Ints) -> npt.NDArray[np.bool_]:
        """Which rows were not handed out yet."""
        mask = np.ones(len(offsets), dtype=np.bool_)
        for bucket in np.unique(buckets).tolist():
            key = (table, bucket)
            last, count = self._last.get(key, (-1, 0))
            here = np.flatnonzero(buckets == bucket)
            mask[here[offsets[here] < last]] = False
            repeated = here[offsets[here] == last][: count - self._again.get(key, 0)]
            mask[repeated] = False
            self._again[key] = self._again.get(key, 0) + len(repeated)
        return mask


class Resumed:
    """The messages of a request, over as many connections as it takes; `opened` is told a subscription's epoch."""

    def __init__(
        self,
        transport: Transport,
        request: pb.ChangesRequest,
        opened: Callable[[int], None] = lambda _: None,
        share: Share | None = None,
    ) -> None:
        fixed = pb.ChangesRequest()
        fixed.CopyFrom(request)
        if request.start == "latest" and not request.subscription:
            fixed.start = head(transport, request.tables[0] if request.tables else "")
        if request.until == "now":
            fixed.until = head(transport, request.tables[0] if request.tables else "")
        self._transport, self._request, self._opened = transport, fixed, opened
        self._handed, self._backoff = _Handed(fixed, share or Share()), Backoff()
        self._messages: Iterator[pb.ChangeBatch] | None = None
        self._ended, self._begins = False, True
        self.trouble: LakestoreError | None = None
        """The failure after which the stream is being opened again; None while it runs."""

    def __iter__(self) -> Iterator[pb.ChangeBatch]:
        return self

    def __next__(self) -> pb.ChangeBatch:
        while not self._ended:
            if self._messages is None:
                self._messages, self._begins = self._transport.changes(self._request), True
            try:
                message = next(self._messages)
            except StopIteration:
                self._ended = True
                break
            except LakestoreError as error:
                self._messages, self.trouble = None, error
                if not self._backoff.wait(error):
                    self._ended = True
                    raise
                self._handed.broken()
                continue
            self._backoff.reset()
            self.trouble = None
            if self._begins and message.token:
                self._bind(position_of(message.token))
            self._opened(message.subscription_epoch)
            fresh = self._handed.fresh(message)
            if fresh is not None:
                return fresh
        raise StopIteration

    def _bind(self, token: Token) -> None:
        """Hold the stream to the history and the tables of its first message, over all its connections."""
        self._begins, request = False, self._request
        if request.timeline not in ("", token.timeline):  # of a server that is too old to refuse it
            self._ended = True
            raise OtherTimeline("what this stream has handed out belongs to another history: the server was restored")
        request.timeline, request.table_uuids[:] = token.timeline, token.tables

    def close(self) -> None:
        """End the stream."""
        self._ended = True
        messages, self._messages = self._messages, None
        close = getattr(messages, "close", None)
        if close:
            close()


class _Handed:
    """The rows of a stream that the caller has, over all connections."""

    def __init__(self, request: pb.ChangesRequest, share: Share) -> None:
        self._request, self._share = request, share
        self._seen = Seen()
        self._since: list[pb.ChangeBatch] = []  # not yet in `_seen`; messages behind the newest token are forgotten
        self._lakes: set[tuple[str, str]] = set()
        self._again = False

    def fresh(self, message: pb.ChangeBatch) -> pb.ChangeBatch | None:
        """The message less what the caller has; None if that is everything."""
        if self._request.member:
            for bucket in self._share.begun(message.token):
                self._seen.forget(_table(message), bucket)
        left: pb.ChangeBatch | None = _fresh(message, self._seen) if self._again else message
        if message.read_the_lake:  # the caller reads that snapshot itself, once
            left = None if (message.table, message.token) in self._lakes else message
            self._lakes.add((message.table, message.token))
        if message.token != self._request.start and not self._request.subscription:
            self._since.clear()
        if left is not None:
            self._since.append(left)
        if self._request.subscription:
            _remember(self._since, self._seen)
        if not self._request.member:  # whose tokens are for acknowledging only
            self._request.start = message.token or self._request.start
        return left

    def broken(self) -> None:
        """The next connection may bring rows again."""
        _remember(self._since, self._seen)
        self._seen.reconnected()
        self._again = True


def _remember(since: list[pb.ChangeBatch], seen: Seen) -> None:
    for message in since:
        if message.rows:
            with pa.ipc.open_stream(message.rows) as reader:
                for batch in reader:
                    seen.add(_table(message), *_places(batch))
    since.clear()


def _fresh(message: pb.ChangeBatch, seen: Seen) -> pb.ChangeBatch | None:
    """The message less the rows that were handed out before the connection broke."""
    if not message.rows:
        return message
    with pa.ipc.open_stream(message.rows) as reader:
        schema, batches = reader.schema, list(reader)
    kept = []
    for batch in batches:
        mask = seen.fresh(_table(message), *_places(batch))
        kept.append(batch if mask.all() else batch.filter(pa.array(mask)))
    if all(left is batch for left, batch in zip(kept, batches, strict=True)):
        return message
    left = pb.ChangeBatch()
    left.CopyFrom(message)
    if not sum(batch.num_rows for batch in kept):
        return None
    left.rows = ipc.encode(schema, kept)
    return left


def _table(message: pb.ChangeBatch) -> str:
    """The table that offsets are of: its uuid, or its name from a server that does not say the uuid."""
    return message.table_uuid or message.table


def _places(batch: pa.RecordBatch) -> tuple[Ints, Ints]:
    names = batch.schema.names
    buckets = batch.column(names.index("__bucket")).to_numpy().astype(np.int64)
    return buckets, batch.column(names.index("__offset")).to_numpy()
