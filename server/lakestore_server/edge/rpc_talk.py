"""Small calls on one open stream: each is judged and answered by itself, in any order; a silent stream has no thread.

So many of a stream's calls are under way at once; its next one is taken when one of them was answered and its answer
taken. A stream ends with the token that opened it, and when the server goes: what was begun is answered first, so a
call that is still open at an end that the server gave a reason for was not begun.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from google.protobuf.message import DecodeError

from lakestore.errors import Exhausted, Invalid, LakestoreError, Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors, rpc
from lakestore.wire.errors import BUSY_SECONDS
from lakestore.wire.grpc import grpc
from lakestore_server.access.admission import RpcCall
from lakestore_server.edge.rpc_dispatch import Dispatch
from lakestore_server.edge.rpc_port import Rpc
from lakestore_server.edge.rpc_streams import Failed
from lakestore_server.host.workers import Workers

CALLS_MAX = 64
"""Calls of one stream that are under way."""
ASK_BYTES_MAX = 2 * rpc.TALK_BYTES_MAX
"""A longer message ends its stream; a request that is a little too long is refused alone."""
_PATHS = {method.name: method.path for method in rpc.methods() if method.name in rpc.TALKED}


class Talk:
    """One stream of small calls. Thread-safe."""

    def __init__(self, stream: Rpc, call: RpcCall, dispatch: Dispatch, workers: Workers, failed: Failed) -> None:
        self._stream, self._call, self._dispatch = stream, call, dispatch
        self._workers, self._failed = workers, failed
        self._lock = threading.Lock()
        self._running = 0
        self._is_asking = False
        self._end: LakestoreError | None = None
        """Why the stream ends, once it does."""
        self._is_left = False
        """Whether the client has said its last word."""

    def begin(self) -> None:
        """Take the first call."""
        self._ask()

    def end(self, error: LakestoreError) -> None:
        """Take no more calls, and end the stream when those under way are answered."""
        with self._lock:
            self._end = self._end or error
            ends = not self._running
        if ends:
            self._failed(self._stream, self._end)

    def tick(self, now: float) -> None:
        """End a stream whose caller is no longer who it was."""
        try:
            self._call.tick(now)
        except LakestoreError as error:
            self.end(error)

    def _ask(self) -> None:
        with self._lock:
            if self._is_asking or self._is_left or self._end is not None or self._running >= CALLS_MAX:
                return
            self._is_asking = True
        self._stream.receive(self._came)

    def _came(self, data: bytes | None) -> None:
        """A call, or the end of them; in the port's thread."""
        came = time.monotonic()
        with self._lock:
            self._is_asking = False
            if data is None:
                self._is_left, leaves = True, not self._running
            elif self._end is None:
                self._running += 1
            else:
                return  # it was not begun, and the stream ends
        if data is None:
            if leaves:
                self._stream.finish(grpc.StatusCode.OK)
            return
        try:
            ask = _parsed(data)
        except Invalid as error:
            self._answered()
            self.end(error)
            return
        if self._workers.is_full:
            busy = Exhausted("the server serves as many calls as it can: try again later", retry_after=BUSY_SECONDS)
            self._reply(pb.Reply(id=ask.id, error=errors.error_fields(busy)))
        else:
            self._workers.run(lambda: self._answer(ask, came))
        self._ask()

    def _answer(self, ask: pb.Ask, came: float) -> None:
        """Answer one call; in a worker's thread."""
        try:
            reply = pb.Reply(id=ask.id, answer=self._answer_of(ask, came))
        except LakestoreError as error:
            reply = pb.Reply(id=ask.id, error=errors.error_fields(error))
        except Exception as error:  # the edge: whatever fails, the client is told, and the stream goes on
            reply = pb.Reply(id=ask.id, error=errors.error_fields(self._dispatch.defect(ask.method, error)))
        self._reply(reply)

    def _answer_of(self, ask: pb.Ask, came: float) -> bytes:
        path = _PATHS.get(ask.method)
        if path is None or len(ask.request) > rpc.TALK_BYTES_MAX:
            said = f"{ask.method or 'nothing'} of {len(ask.request)} bytes"
            raise Invalid(f"{said} is no small call: small ones are {', '.join(rpc.TALKED)} of {rpc.TALK_BYTES_MAX}")
        if ask.within_ms and time.monotonic() - came > ask.within_ms / 1_000:
            raise Unavailable("the call waited longer than its caller: try again", retry_after=BUSY_SECONDS)
        return self._dispatch.answer(self._call.other(path), ask.request)

    def _reply(self, reply: pb.Reply) -> None:
        self._stream.send(reply.SerializeToString(), self._answered)

    def _answered(self) -> None:
        """One answer less is on its way."""
        with self._lock:
            self._running -= 1
            end, is_last = self._end, not self._running
            leaves = is_last and self._is_left
        if end is not None and is_last:
            self._failed(self._stream, end)
        elif leaves:
            self._stream.finish(grpc.StatusCode.OK)
        else:
            self._ask()


def _parsed(data: bytes) -> pb.Ask:
    """The call that bytes are, or `Invalid`."""
    if len(data) <= ASK_BYTES_MAX:
        with suppress(DecodeError):
            return pb.Ask.FromString(data)
    raise Invalid(f"{len(data)} bytes are no Ask of the protocol, of {ASK_BYTES_MAX} bytes at most")
