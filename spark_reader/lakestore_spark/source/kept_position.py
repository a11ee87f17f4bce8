"""The position that the server keeps for a stream with the option `subscription`, so that retention leaves the log.

Spark's checkpoint alone says where the stream goes on; the subscription follows behind it.
"""

from __future__ import annotations

import time

from lakestore.client import changes
from lakestore.client.subscription import Subscription
from lakestore.client.transport import Transport
from lakestore.errors import Invalid
from lakestore.v1 import lakestore_pb2 as pb

TOUCH_SECONDS = 60.0
"""Seconds after which a stream without news says that it is there."""


class KeptPosition:
    """One named subscription, read by nobody."""

    def __init__(self, transport: Transport, table: str, uuid: str, name: str) -> None:
        self._transport, self._table, self._uuid, self._name = transport, table, uuid, name
        self._stream: changes.ChangeStream | None = None
        self._acked = ""
        self._said = 0.0

    def open(self, position: str) -> None:
        """Take the subscription over, or begin one at this position; once. An earlier query of the name is `Fenced`."""
        if self._stream is not None:
            return
        known = {info.name: Subscription.of(info) for info in self._listed()}.get(self._name)
        if known is not None and (known.snapshot or known.shared):
            raise Invalid(f"subscription {self._name!r} is read by other consumers: name another one")
        # The stream ends where it stands, so it brings no row: only the epoch that acknowledgements name.
        end = known.token if known is not None else position
        asked = changes.request([self._table], position, end, None, self._name, before_images=False, uuids=[self._uuid])
        stream = changes.ChangeStream(self._transport, asked)
        for _ in stream:
            continue
        self._stream, self._acked, self._said = stream, end, time.monotonic()

    def ack(self, position: str) -> None:
        """Everything up to here is done."""
        self.open(position)
        assert self._stream is not None
        self._stream.ack(position)
        self._acked, self._said = position, time.monotonic()

    def touch(self) -> None:
        """Say now and then that the stream is still there: a subscription that nobody minds is forgotten."""
        if self._stream is not None and time.monotonic() - self._said > TOUCH_SECONDS:
            self.ack(self._acked)

    def _listed(self) -> list[pb.SubscriptionInfo]:
        return list(self._transport.list_subscriptions(pb.ListSubscriptionsRequest()).subscriptions)
