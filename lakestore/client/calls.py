"""Every call of a lake with its deadline and retries. This module alone decides what is sent again.

- A call is not sent after the caller's deadline.
- A passing failure (`retry.is_passing`) is retried for a minute within the deadline, by the rule of its RPC in `TRIES`.
- The final error covers all tries: a refusal does not mean that an earlier try without an answer was refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lakestore.client.retry import Backoff, has_deadline, is_passing, seconds_to_deadline, within
from lakestore.client.transport import Transport, Wire
from lakestore.errors import LakestoreError, NotLeader, Unavailable
from lakestore.release import RELEASE
from lakestore.rows import ipc
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.v1.lakestore_pb2 import Rule
from lakestore.wire import rpc, tracing
from lakestore.wire.row_messages import RowMessage

CALL_SECONDS = 120.0
"""Default limit of a call in seconds, retries included."""
PROBE_SECONDS = 2.0
"""Seconds for which a probe retries; a restarting server may be back by then."""
BACKUP_SECONDS = 86_400.0
"""A backup is one call of any size."""


_HELLO = rpc.METHODS["Hello"]


class Calls:
    """The RPCs of a wire, with retries. It is as thread-safe as the wire, and has the attributes of `Transport`."""

    def __init__(self, wire: Wire, *, call_seconds: float = CALL_SECONDS, knows_one: bool = False) -> None:
        """With `knows_one` no retry finds the leader that another server has named."""
        self._knows_one = knows_one
        self.wire = wire
        """Single tries, for callers that retry themselves."""
        self.credentials = wire.credentials
        self._call_seconds = call_seconds
        for method in rpc.METHODS.values():
            setattr(self, method.attribute, self._of(method))

    @property
    def server(self) -> pb.HelloAnswer:
        """The server's release information; empty before the first call."""
        return self.wire.server

    @property
    def address(self) -> str:
        """Host and port of the server that answers now."""
        return self.wire.address

    def greet(self) -> None:
        """Ask the server once whether it answers, unless it has answered before."""
        self.wire.greet(seconds_to_deadline(self._call_seconds))

    def probe(self) -> None:
        """Ask the server whether it answers now, with retries for seconds."""
        backoff = Backoff(PROBE_SECONDS)
        while True:
            try:
                hello = pb.HelloRequest(release=RELEASE, protocol=rpc.PROTOCOL)
                self.wire.call(_HELLO, hello, seconds_to_deadline(self._call_seconds))
            except LakestoreError as error:
                if not backoff.wait(error):
                    raise
            else:
                return

    def close(self) -> None:
        """End every call. Later calls raise `Stopped`."""
        self.wire.close()

    def _of(self, method: rpc.Method) -> Callable[[Any], Any]:
        retry = method.rule.retry
        if method.name == "Fetch":
            return lambda request: self._fetched(method, request)
        if retry == Rule.RESUMED:
            return lambda request: self._opened(method, request)
        if retry == Rule.PARTING:
            return lambda request: self._parting(method, request)
        return self._unary(method, retry)

    def _unary(self, method: rpc.Method, retry: int) -> Callable[[Any], Any]:
        longest = BACKUP_SECONDS if method.name == "Backup" else self._call_seconds
        wire = self.wire

        def call(request: Any) -> Any:
            began = time.monotonic()
            seconds = seconds_to_deadline(longest)
            if seconds <= 0.0:
                raise _late()
            try:
                return wire.call(method, request, seconds)
            except LakestoreError as error:
                is_elsewhere = self._knows_one and isinstance(error, NotLeader) and bool(error.leader)
                if not is_passing(error) or is_elsewhere or retry == Rule.ONCE:
                    raise
                with within(longest + began - time.monotonic()):
                    return self._again(method, retry, request, error)

        def traced(request: Any) -> Any:
            with tracing.span(method.name, "CLIENT"):
                return call(request)

        return traced

    def _again(self, method: rpc.Method, retry: int, request: Any, error: LakestoreError) -> Any:
        backoff, is_lost = Backoff(), False
        while True:
            is_lost = is_lost or error.applied == "unknown"
            if not _may_repeat(retry, request, is_lost=is_lost) or not backoff.wait(error):
                raise _told(error, is_lost=is_lost)
            try:
                return self.wire.call(method, request, seconds_to_deadline(self._call_seconds))
            except LakestoreError as failure:
                error = failure

    def _parting(self, method: rpc.Method, request: Any) -> Any:
        self.wire.send(method, request)
        return method.answer()

    def _opened(self, method: rpc.Method, request: Any) -> Iterator[Any]:
        if seconds_to_deadline(1.0) <= 0.0:
            raise _late()
        return self.wire.stream(method, request, None)

    def _fetched(self, method: rpc.Method, request: pb.FetchRequest) -> Iterator[RowMessage]:
        """The rows of a split over any number of connections. The same request returns the same rows."""
        backoff, given = Backoff(), 0
        while True:
            if seconds_to_deadline(1.0) <= 0.0:
                raise _late()
            again = given
            try:
                for message in self.wire.stream(method, request, _whole_deadline()):
                    backoff.reset()
                    left, passed = _behind(message, again)
                    again -= passed
                    if left is not None:
                        given += sum(map(ipc.rows_of, left.parts))
                        yield left
            except LakestoreError as error:
                if not backoff.wait(error):
                    raise
            else:
                return


def _may_repeat(retry: int, request: Any, *, is_lost: bool) -> bool:
    if retry == Rule.ALWAYS or (retry == Rule.NUMBERED and _is_known_again(request)):
        return True
    return not is_lost


def _is_known_again(request: pb.CommitRequest) -> bool:
    return bool(request.registers or (request.producer and request.sequence))


def _told(error: LakestoreError, *, is_lost: bool) -> LakestoreError:
    if is_lost and error.applied == "no":
        error.applied = "unknown"
        error.message += " (the answer to an earlier try was lost, and that try may have been applied)"
        error.args = (error.message,)
    return error


def _late() -> Unavailable:
    return Unavailable("the caller's deadline passed before the call was sent: nothing was done")


def _whole_deadline() -> float | None:
    return seconds_to_deadline(float("inf")) if has_deadline() else None


def _behind(message: RowMessage, rows: int) -> tuple[RowMessage | None, int]:
    """Drop the first rows of a message. Returns the rest, None if empty, and the number of dropped rows."""
    if not rows:
        return message, 0
    batches = ipc.decode_server_rows(message.rows, crc=message.crc32c)
    table = pa.Table.from_batches(batches)
    passed = min(rows, table.num_rows)
    if passed == table.num_rows:
        return None, passed
    parts = ipc.encoded_parts(table.schema, table.slice(passed).to_batches())
    return replace(message, parts=parts, crc32c=ipc.crc32c_of(parts)), passed


def transport_of(wire: Wire, *, call_seconds: float = CALL_SECONDS, knows_one: bool = False) -> Transport:
    """A transport over a wire."""
    made: Any = Calls(wire, call_seconds=call_seconds, knows_one=knows_one)
    found: Transport = made
    return found
