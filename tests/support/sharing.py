"""Consumers of a shared subscription that a test drives step by step, without threads: what one is sent, and when."""

from __future__ import annotations

from contextlib import ExitStack

from lakestore.client.changes import ChangeBatch, Share
from lakestore.model.token import Place, stream_position
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.changes.batches import Shape
from lakestore_server.changes.sharing.stream import MemberStream
from lakestore_server.changes.subscriptions import Subscriptions
from lakestore_server.read.rows import DeadCache
from tests.support.served import Served


class Consumer:
    """One process: over its connections it keeps its name and session."""

    def __init__(self, served: Served, member: str, session: int, tables: list[str], *, name: str = "billing") -> None:
        self._served, self.member, self.session, self._names, self._name = served, member, session, tables, name
        self._share = Share()
        self._stack = ExitStack()
        self._stream: MemberStream | None = None

    def connect(self, *, snapshot: bool = False) -> None:
        """Open the stream, a new subscription at the earliest change or with a snapshot."""
        self.disconnect()
        engine = self._served.engine
        view = engine.view
        tables = tuple(view.named(name).table.uuid for name in self._names)
        place = Place(tables[0], 0, 0) if snapshot else None
        start = stream_position(engine.timeline, view.lsn if snapshot else 0, tables, place)
        verbs: Subscriptions = self._served.verbs("Ack")
        self._stack.enter_context(verbs.consumed(self._name, shared=True))
        held = verbs.open(self._name, tables, lambda _: start, shared=True)
        seat = self._stack.enter_context(verbs.shared.joined(held, self.member, self.session))
        shape = Shape(tables, before_images=False, columns=())
        self._stream = MemberStream(engine, DeadCache(8), seat, shape, None, reads_lake=False)

    def disconnect(self) -> None:
        """The connection ends."""
        self._stream = None
        self._stack.close()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self._stream is not None

    def poll(self, rounds: int = 1 << 30) -> list[ChangeBatch]:
        """What the server sends now."""
        found: list[ChangeBatch] = []
        assert self._stream is not None, "connect first"
        for _ in range(rounds):
            found += [ChangeBatch(prepared.message) for prepared in self._stream.messages()]
            if not self._stream.moved:
                break
        return found

    def ack(self, batch: ChangeBatch) -> None:
        """Everything up to and with the batch is done."""
        request = pb.AckRequest(subscription=self._name, token=batch.token, member=self.member, session=self.session)
        self._served.lake.transport.ack(request)


def values(batches: list[ChangeBatch]) -> list[int]:
    """The column `v` of what was sent."""
    return [v for batch in batches for v in batch.to_arrow()["v"].to_pylist()]


def buckets(batches: list[ChangeBatch]) -> set[int]:
    """The buckets of what was sent."""
    return {bucket for batch in batches for bucket in batch.to_arrow()["__bucket"].to_pylist()}
