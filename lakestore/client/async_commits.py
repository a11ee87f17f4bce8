"""Commits for asyncio. The blocking calls run in threads, so the loop never waits.

Cancelling a call cancels it on the wire and its thread ends soon. The request may have been applied, so the commit's
producer or registers cannot be used any more.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from lakestore.client.commit import Commit as SyncCommit
from lakestore.client.named_writes import NamedWrites as SyncNamedWrites
from lakestore.client.registers import Registers as SyncRegisters
from lakestore.client.scope import SCOPE, Scope
from lakestore.client.writer import Keep
from lakestore.v1 import lakestore_pb2 as pb

P = ParamSpec("P")
T = TypeVar("T")


class Bridge:
    """Runs blocking calls in threads."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="lakestore-aio")
        self.streams: set[Any] = set()
        """Open streams, closed with the lake."""

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call in a thread. If the task is cancelled, so are the call's RPCs."""
        scope = Scope()

        def work() -> T:
            SCOPE.set(scope)
            return call(*args, **kwargs)

        running = asyncio.get_running_loop().run_in_executor(self._pool, contextvars.copy_context().run, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            scope.cancel()
            running.add_done_callback(forget)
            raise

    def close(self) -> None:
        """Let the threads end after their calls."""
        self._pool.shutdown(wait=False)


def forget(done: asyncio.Future[Any]) -> None:
    """Retrieve the error of an abandoned call, so that asyncio does not log it."""
    if not done.cancelled():
        done.exception()


class Commit:
    """Changes to several tables, committed together at the end of the `async with` block. An error discards them."""

    def __init__(self, bridge: Bridge, block: AbstractContextManager[SyncCommit]) -> None:
        self._bridge, self._block = bridge, block
        self._commit: SyncCommit | None = None

    @property
    def sync(self) -> SyncCommit:
        """The underlying commit, inside the block."""
        if self._commit is None:
            raise RuntimeError("a commit is used in `async with lake.commit() as commit:`")
        return self._commit

    @property
    def token(self) -> str:
        """The commit's token, after the commit."""
        return self.sync.token

    @property
    def results(self) -> list[pb.ChangeResult]:
        """The counts of each change, after the commit."""
        return self.sync.results

    @property
    def repeated(self) -> bool:
        """True if the first answer was lost; see `lakestore.Commit.repeated`."""
        return self.sync.repeated

    async def upsert(self, table: str, data: Any, *, keep: Keep = (), as_of: Any = None) -> None:
        """Insert or update by key, with the options of the sync commit."""
        await self._bridge.run(self.sync.upsert, table, data, keep=keep, as_of=as_of)

    async def insert_if_absent(self, table: str, data: Any) -> None:
        """Insert the rows whose keys do not exist."""
        await self._bridge.run(self.sync.insert_if_absent, table, data)

    async def delete(self, table: str, data: Any, *, as_of: Any = None) -> None:
        """Delete by key, with the options of the sync commit."""
        await self._bridge.run(self.sync.delete, table, data, as_of=as_of)

    async def append(self, table: str, data: Any) -> None:
        """Append to a log table."""
        await self._bridge.run(self.sync.append, table, data)

    async def __aenter__(self) -> Self:
        self._commit = await self._bridge.run(self._block.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._bridge.run(self._block.__exit__, kind, error, trace)


class NamedWrites:
    """The commits of one opening of a named producer."""

    def __init__(self, bridge: Bridge, writes: SyncNamedWrites) -> None:
        self._bridge = bridge
        self.sync = writes
        """The blocking producer, with name and progress."""

    @property
    def progress(self) -> str:
        """The progress of the newest commit under this name, also of an earlier process; empty before the first."""
        return self.sync.progress

    def commit(self, progress: str = "") -> Commit:
        """Changes to several tables and the progress as one commit, in `async with`. If the task is cancelled, the
        outcome is unknown: open the name again.
        """
        return Commit(self._bridge, self.sync.commit(progress))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.sync.close()


class Registers:
    """Registers that are open here. Their commits follow one another."""

    def __init__(self, bridge: Bridge, registers: SyncRegisters) -> None:
        self._bridge = bridge
        self.sync = registers
        """The blocking registers."""

    @property
    def progress(self) -> Mapping[str, str]:
        """Name to value of all registers that are open here; empty for a new register."""
        return self.sync.progress

    async def open(self, names: Iterable[str]) -> None:
        """Open more registers in one commit, which fences their earlier owners."""
        await self._bridge.run(self.sync.open, names)

    def release(self, names: Iterable[str]) -> None:
        """Give up these registers. The server keeps them for the next owner."""
        self.sync.release(names)

    def commit(self, progress: Mapping[str, str]) -> Commit:
        """Changes to several tables and new register values as one commit, in `async with`. If the task is
        cancelled, the outcome is unknown: open the registers again.
        """
        return Commit(self._bridge, self.sync.commit(progress))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.sync.close()
