"""Tails: the newest changes of a table as server-sent events, for viewers that may be slow.

- Nothing is buffered for a viewer. The next event is made after the viewer has taken the last one, and holds only the
  newest changes and the number of the others.
- A viewer that takes longer than `SLOW_SECONDS` for an event is dropped, and told so.
- A tail that falls behind continues at the head.
- Rights are checked before each event, and every second while there is none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any

import orjson
import pyarrow as pa
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from lakestore.errors import LakestoreError, Unavailable
from lakestore.limits import Limits
from lakestore.rows import json_texts
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.access.admission import RpcCall
from lakestore_server.access.callers import Caller
from lakestore_server.changes.batch_cache import EncodedBatch
from lakestore_server.commit.durable import Bell, Pause
from lakestore_server.edge.console.answers import HEADERS, caller_of, problem
from lakestore_server.host.quota import Quota, share_of
from lakestore_server.operate.clients import Clients
from lakestore_server.queries.rpcs import Rpcs

ROWS_MAX, CHARS_MAX = 100, 200
"""The most rows of an event, and the most characters of a value."""
EVENT_SECONDS, SILENT_SECONDS, SLOW_SECONDS = 0.25, 10.0, 5.0
BEHIND_SECONDS = 3.0
"""A tail that has not reached the head for this long is behind and skips to the head."""
RECHECK_SECONDS = 1.0


class _Closed(StreamingResponse):
    """A stream that closes its source as soon as the viewer disconnects."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        source: Any = self.body_iterator
        async with aclosing(source):
            await super().__call__(scope, receive, send)


class _Listener:
    """The listener of a change stream: it is active until the tail ends."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []
        self.is_listening = True

    def is_active(self) -> bool:
        return self.is_listening

    def add_callback(self, callback: Callable[[], None], /) -> bool:
        """Register a callback for the end of the tail."""
        self._callbacks.append(callback)
        return True

    def end(self) -> None:
        self.is_listening = False
        for callback in self._callbacks:
            callback()


class Tails:
    """The tails of one server."""

    def __init__(self, rpcs: Rpcs, limits: Limits, clients: Clients) -> None:
        self._rpcs, self._clients = rpcs, clients
        refusal = f"{limits.tails} changelogs are followed by pages, the limit: close one"
        self._permits = Quota(limits.tails, 0.0, refusal, max(share_of(limits.tails, limits), 1))
        self._open: set[Tail] = set()
        self._is_closing = False

    async def follow(self, request: Request) -> Response:
        """The endpoint: events until the viewer disconnects."""
        caller, table = caller_of(request), request.path_params["table"]
        try:
            call = self._rpcs.begin(caller, "Changes")
            call.request(pb.ChangesRequest(tables=[table]))  # a refusal is a response, not an event
        except LakestoreError as error:
            return problem(error)
        peer = ":".join(map(str, request.client)) if request.client else ""
        events = self._events(Tail(self._rpcs, call, table), caller, peer)
        return _Closed(events, media_type="text/event-stream", headers=HEADERS)

    async def _events(self, tail: Tail, caller: Caller, peer: str) -> AsyncGenerator[bytes]:
        try:
            with self._permits.taken(1, caller.counted_as):
                self._clients.opens("http", caller.counted_as, peer)
                self._open.add(tail)
                try:
                    if self._is_closing:
                        raise Unavailable("the server is going down: try again")
                    async with aclosing(tail.events()) as events:
                        async for event in events:
                            yield event
                finally:
                    self._open.discard(tail)
                    self._clients.ends("http", caller.counted_as, peer)
        except LakestoreError as error:
            yield event_of("failed", {"message": error.message, "kind": error.kind})

    def close(self) -> None:
        """End all tails. Callable from any thread."""
        self._is_closing = True
        for tail in list(self._open):
            tail.end()


class Tail:
    """One tail. It runs on the event loop."""

    def __init__(self, rpcs: Rpcs, call: RpcCall, table: str) -> None:
        self._rpcs, self._call, self._table = rpcs, call, table
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._is_ended = False
        self._columns: list[str] = []

    def end(self) -> None:
        """End the tail. Callable from any thread."""
        self._is_ended = True
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop has ended: there is nothing to wake
            self._loop.call_soon_threadsafe(self._woken.set)

    async def events(self) -> AsyncGenerator[bytes]:
        """The events, until the tail ends."""
        yield event_of("begin", {"table": self._table})
        while not self._is_ended:
            async with aclosing(self._follow_head()) as events:
                async for event in events:
                    began = time.monotonic()
                    yield event
                    if time.monotonic() - began > SLOW_SECONDS:
                        yield event_of("dropped", {"message": "the changes were not read in time: follow again"})
                        return
            if not self._is_ended:
                yield event_of("skipped", {"message": "more changes than can be shown: continuing at the newest"})
        yield event_of("failed", {"message": "the server is going down", "kind": "Unavailable"})

    async def _follow_head(self) -> AsyncGenerator[bytes]:
        """The events from the head on, until the tail falls behind."""
        request, listener = pb.ChangesRequest(tables=[self._table], start="latest"), _Listener()
        items = self._rpcs.stream(self._call, "Changes", request, listener)
        bell: Bell | None = None
        quiet = time.monotonic()
        try:
            while not self._is_ended:
                item = await run_in_threadpool(next, items, None)
                if item is None:
                    self._is_ended = True
                elif isinstance(item, Pause):
                    bell, quiet = item.bell, time.monotonic()
                    async with aclosing(self._keep_alive(item)) as signs:
                        async for sign in signs:
                            yield sign
                    quiet = max(quiet, time.monotonic() - EVENT_SECONDS)
                else:
                    yield await run_in_threadpool(self._event, item)
                    await asyncio.sleep(EVENT_SECONDS)
                    if time.monotonic() - quiet > BEHIND_SECONDS:
                        return
        finally:
            if bell is not None:
                bell.listener = None
            listener.end()
            items.close()

    async def _keep_alive(self, pause: Pause) -> AsyncGenerator[bytes]:
        """A keep-alive from time to time, until the pause is over."""
        pause.bell.listener = self._wake
        ends = time.monotonic() + (SILENT_SECONDS if pause.seconds is None else pause.seconds)
        told = time.monotonic()
        while not (pause.bell.is_set() or self._is_ended):
            self._woken.clear()
            if pause.bell.is_set() or (pause.seconds is not None and time.monotonic() >= ends):
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), RECHECK_SECONDS)
            self._call.recheck()
            if time.monotonic() - told > SILENT_SECONDS:
                told = time.monotonic()
                yield b": nothing new\n\n"

    def _event(self, batch: EncodedBatch) -> bytes:
        message = batch.message
        table = pa.ipc.open_stream(message.rows).read_all()
        shown = table.slice(max(table.num_rows - ROWS_MAX, 0))
        told: dict[str, Any] = {
            "rows": json_texts.rows_of(shown, CHARS_MAX),
            "skipped": table.num_rows - shown.num_rows,
        }
        if table.column_names != self._columns:
            self._columns = told["columns"] = table.column_names
        return event_of("changes", told)


def event_of(kind: str, told: Any) -> bytes:
    """Encodes a server-sent event."""
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(told) + b"\n\n"
