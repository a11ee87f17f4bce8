"""SQL of the console's viewers. Each query runs in a process of its own, which reads over a pipe, as the viewer.

- The process has no token, no connection and no key. Plans and rows come from the service's RPCs, which check the
  viewer's rights. The server reads the lake files that the plans name.
- `host/sandbox.py` confines the process.
- A query that takes too long or too much memory, or whose viewer has left, is ended. The commit loop never waits for
  it.
"""

from __future__ import annotations

import asyncio
import gzip
import json as json_text
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable
from functools import partial
from itertools import count
from typing import Any

import anyio.to_thread
import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response

from lakestore.errors import Denied, Exhausted, Invalid, LakestoreError, Unavailable
from lakestore.iceberg import places
from lakestore.iceberg.manifest_entries import Entries
from lakestore.iceberg.manifest_lists import Manifest, read_list
from lakestore.limits import Limits
from lakestore.release import RELEASE
from lakestore.rows.literals import short
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import pipe, rpc
from lakestore.wire.pipe import Verb
from lakestore_server.access.callers import Caller
from lakestore_server.catalog import locations
from lakestore_server.edge.console.answers import body_of, caller_of, json, problem, text_in
from lakestore_server.edge.console.rpcs import Reads, Rpcs
from lakestore_server.host import sandbox
from lakestore_server.host.child import Child, Gone
from lakestore_server.host.quota import Quota, share_of
from lakestore_server.operate.metric_sources import QueryDeaths

_OPEN_MAX = 16
_GZIP = b"\x1f\x8b"
Reader = Callable[[bytes], None]


class LakeFiles:
    """The lake files of one query. Not thread-safe."""

    def __init__(self) -> None:
        self._readers: dict[str, Reader | None] = {}
        """Location to the function that collects the file names in it; None once it was called, and for data files."""
        self._open: OrderedDict[str, Any] = OrderedDict()

    def add_plan(self, plan: pb.PlanAnswer) -> None:
        """Admit the metadata files of a plan that the server made for the query."""
        for table in plan.tables:
            if place := table.metadata_location:
                self._readers.setdefault(place, partial(self._metadata, table.snapshot_id))

    def answer(self, verb: Verb, question: bytes) -> bytes | None:
        """The answer to SIZE or READ; None if the file is gone. Raises `Denied` for a file that nothing named."""
        is_part = verb is Verb.READ
        head = pipe.FILE_PART.size if is_part else 0
        location = question[head:].decode()
        if location not in self._readers:
            raise Denied("a query reads files that its plan names, and no others")
        try:
            stream = self._open_file(location)
            if not is_part:
                return pipe.FILE_SIZE.pack(stream.size())
            begin, size = pipe.FILE_PART.unpack_from(question)
            data: bytes = stream.read_at(min(size, pipe.FILE_PART_BYTES_MAX), begin)
            return data
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"file {location} cannot be read: {error}", applied="no") from error

    def close(self) -> None:
        """Close all open files."""
        for stream in self._open.values():
            stream.close()
        self._open.clear()

    def _open_file(self, location: str) -> Any:
        stream = self._open.pop(location, None)
        if stream is None:
            stream = places.open_file(location)
            if len(self._open) >= _OPEN_MAX:
                self._open.popitem(last=False)[1].close()
            if (reader := self._readers[location]) is not None:
                reader(stream.read_at(stream.size(), 0))
                self._readers[location] = None
        self._open[location] = stream
        return stream

    def _admit(self, folder: str, names: Iterable[str], reader: Reader | None = None) -> None:
        for name in names:
            if not locations.is_file_of(name, folder):
                raise Denied("a file of this table's lake lies outside the table's folder: a query does not read it")
            self._readers.setdefault(name, reader)

    def _metadata(self, number: int, data: bytes) -> None:
        document = orjson.loads(gzip.decompress(data) if data.startswith(_GZIP) else data)
        folder = document["location"]
        for snapshot in document.get("snapshots", ()):
            if snapshot["snapshot-id"] == number:
                listed = snapshot["manifest-list"]
                self._admit(folder, [listed], partial(self._list, folder, listed))

    def _list(self, folder: str, listed: str, data: bytes) -> None:
        for manifest in read_list(data, listed):
            self._admit(folder, [manifest.path], partial(self._manifest, folder, manifest))

    def _manifest(self, folder: str, manifest: Manifest, data: bytes) -> None:
        entries = Entries(data, manifest)
        self._admit(folder, entries.paths(np.arange(len(entries))))


_CONFINED, _WORKER = "lakestore_server.host.confined_process", "lakestore.client.query_process"
WALLS = sandbox.WALLS
"""The walls around each process. A test removes one wall to test the other."""
log = logging.getLogger("lakestore.console")
TEXT_CHARS_MAX = 64 << 10
RECHECK_SECONDS = 1.0
"""Seconds between two checks of the rights to everything that a query has read."""
STREAMS_MAX = 1_000
"""The most streams that one query holds open. Each keeps one RPC of the server open."""
GRACE_SECONDS = 5.0
"""A process may be silent for the time of a query and this long."""
_SIGNALS = {
    "SIGKILL": "it may have needed more memory than it may take",
    "SIGALRM": "it took too long",
    "SIGSYS": "it made a system call that no query makes, which its sandbox does not allow",
    "SIGSEGV": "a fault in a library, or a text that was made to cause one",
}


class Queries:
    """The queries of one server."""

    def __init__(self, rpcs: Rpcs, limits: Limits, deaths: QueryDeaths) -> None:
        self._rpcs, self._limits, self._deaths = rpcs, limits, deaths
        refusal = f"{limits.query_processes} queries of the console run, the limit: try again when one has ended"
        self._permits = Quota(limits.query_processes, 0.0, refusal, share_of(limits.query_processes, limits))
        self._threads = anyio.CapacityLimiter(max(limits.query_processes, 1))
        self._running: set[Query] = set()
        self._is_closing = False

    async def answer(self, request: Request) -> Response:
        """The endpoint: rows, or an error."""
        caller = caller_of(request)
        try:
            text = text_in(await body_of(request), "sql")
            if len(text) > TEXT_CHARS_MAX:
                raise Invalid(f"the query has {len(text):,} characters, the console takes {TEXT_CHARS_MAX:,}")
            if not self._limits.query_processes or self._is_closing:
                raise Unavailable("this server answers no queries on its console: limits.query_processes is 0")
            with self._permits.taken(1, caller.counted_as):
                return json(await self._run(request, Query(self._rpcs, caller, self._limits, text, self._deaths)))
        except Exception as error:  # the edge: an error becomes a response
            return problem(error)

    async def _run(self, request: Request, query: Query) -> dict[str, Any]:
        """The result. The process is ended if its viewer leaves, loses a right to data that was read, or at timeout."""
        self._running.add(query)
        work = asyncio.ensure_future(anyio.to_thread.run_sync(query.answer, limiter=self._threads))
        gone = asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            await self._watch(work, gone, query)
            found: dict[str, Any] = await work
            query.reads.recheck()
            return found
        finally:
            query.cancel("its reader is gone")
            gone.cancel()
            self._running.discard(query)

    async def _watch(self, work: asyncio.Future[Any], gone: asyncio.Future[None], query: Query) -> None:
        """Wait for the result, and end the query at timeout, when its viewer leaves, or when a right is lost."""
        began, most = time.monotonic(), self._limits.query_seconds
        while True:
            left = began + most - time.monotonic()
            pause = max(min(left, RECHECK_SECONDS), 0.0)
            await asyncio.wait({work, gone}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return
            if gone.done() or left <= 0:
                query.cancel("its reader is gone" if gone.done() else f"it took {most} seconds")
                return
            try:
                query.reads.recheck()
            except LakestoreError as error:
                query.cancel(error)
                return

    def close(self) -> None:
        """End all queries. Callable from any thread."""
        self._is_closing = True
        for query in list(self._running):
            query.cancel("the server is going down")


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Query:
    """One query and its process."""

    def __init__(self, rpcs: Rpcs, caller: Caller, limits: Limits, text: str, deaths: QueryDeaths) -> None:
        self.reads, self._limits, self._text = Reads(rpcs, caller), limits, text
        self._why: str | LakestoreError = ""
        self._streams: dict[int, Generator[bytes]] = {}
        self._numbers = count()
        self._files = LakeFiles()
        self._child = Child(
            f"a query (principal {caller.counted_as!r}, text {short(text)!r})",
            _CONFINED,
            lambda: (_WORKER, *WALLS),
            silence_seconds=limits.query_seconds + GRACE_SECONDS,
            is_trusted=False,
            bytes_max=pipe.ASKED_BYTES_MAX,
            died=deaths.count,
            log=log,
        )

    @property
    def pid(self) -> int | None:
        """The process id; None if there is no process."""
        return self._child.pid

    def cancel(self, why: str | LakestoreError) -> None:
        """End the query unless it is over. The viewer gets `why`, a reason or the error. Callable from any thread."""
        self._why = self._why or why
        self._child.kill()

    def answer(self) -> dict[str, Any]:
        """The result as JSON for the page. Blocks, so it runs in a thread."""
        try:
            found: dict[str, Any] = json_text.loads(self._child.ask(0, self._question(), self._serve))
            return found
        except Gone as error:
            raise self._exit_error(error.signal) from error
        except ValueError as error:
            raise self._exit_error() from error
        finally:
            for stream in self._streams.values():
                stream.close()
            self._files.close()
            self._child.kill()
            self._child.close()

    def _question(self) -> bytes:
        hello = pb.HelloAnswer(release=RELEASE, protocol_min=rpc.PROTOCOL_MIN, protocol=rpc.PROTOCOL)
        hello.message_bytes = self._limits.message_bytes
        bounds = {
            "rows": self._limits.query_rows,
            "bytes": self._limits.query_bytes,
            "seconds": self._limits.query_seconds,
        }
        return json_text.dumps({"text": self._text, "server": hello.SerializeToString().hex(), **bounds}).encode()

    def _serve(self, verb: int, question: bytes) -> list[bytes]:
        answer = self._answer_to(Verb(verb), question)
        return [] if answer is None else [answer]

    def _answer_to(self, verb: Verb, question: bytes) -> bytes | None:
        if verb is Verb.CALL:
            name, request = pipe.parted(question)
            data = self.reads.read(name, request)
            if name == "Plan":
                self._files.add_plan(pb.PlanAnswer.FromString(data))
            return data
        if verb in (Verb.SIZE, Verb.READ):
            return self._files.answer(verb, question)
        if verb is Verb.OPEN:
            if len(self._streams) >= STREAMS_MAX:
                raise Exhausted(
                    f"the query reads {STREAMS_MAX:,} parts of tables at once, the limit: name fewer tables"
                )
            number = next(self._numbers)
            self._streams[number] = self.reads.rows(*pipe.parted(question))
            return pipe.NUMBER.pack(number)
        (number,) = pipe.NUMBER.unpack(question)
        if verb is Verb.NEXT:
            return next(self._streams[number], None)
        self._streams.pop(number).close()
        return None

    def _exit_error(self, signal: str = "") -> LakestoreError:
        """The error for a process that ended without a result, by exit or by signal."""
        if isinstance(self._why, LakestoreError):
            return self._why
        if self._why:
            return Exhausted(f"the query was ended: {self._why}")
        if not signal:
            return Unavailable("the query's process has ended: it may have needed more memory than it may take")
        why = _SIGNALS.get(signal, "its log line has the query")
        return Unavailable(f"the query's process has ended by {signal}: {why}")
