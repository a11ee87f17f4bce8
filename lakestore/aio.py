"""The client for asyncio: `async with aio.connect(…) as lake`.

The sync client does the work, in a bounded thread pool and one thread per open stream, so both have the same models,
retries and errors. The loop never blocks; cancelling a task cancels its RPC. An interrupted `async for` loses nothing:
the pending batch comes next.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar

import pyarrow as pa

from lakestore.client import lake as sync
from lakestore.client.administration import DroppedTable, Truncated
from lakestore.client.async_commits import Bridge, Commit, NamedWrites, Registers, forget
from lakestore.client.changes import ChangeBatch, Start
from lakestore.client.commit import CommitToken
from lakestore.client.contract_measures import Measure
from lakestore.client.erasure import ErasedCheck, Erasure
from lakestore.client.proposals import OwnerReport
from lakestore.client.scope import SCOPE, Scope
from lakestore.client.snapshot import Snapshot as SyncSnapshot
from lakestore.client.table import Table as SyncTable
from lakestore.client.writer import Keep
from lakestore.client.writer import Writer as SyncWriter
from lakestore.errors import StreamEnded
from lakestore.evolution import Step
from lakestore.model.table_changes import TableChange
from lakestore.model.times import At
from lakestore.union.difference import Difference
from lakestore.union.scan import Scan as SyncScan
from lakestore.union.sql import Params, SqlResult

THREADS = 16
P = ParamSpec("P")
T = TypeVar("T")


class Stream(Generic[T]):
    """An async iterator over a blocking one, with a thread of its own. `aclose` cancels its RPC."""

    def __init__(self, bridge: Bridge, begin: Callable[[], Iterator[T]]) -> None:
        self._bridge, self._begin = bridge, begin
        self._scope, self._context = Scope(), contextvars.copy_context()
        self._context.run(SCOPE.set, self._scope)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lakestore-aio-stream")
        self._items: Iterator[T] | None = None
        self._next: asyncio.Future[list[T]] | None = None
        self._closed = False
        bridge.streams.add(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._closed:
            raise StopAsyncIteration
        if self._next is None:
            self._next = asyncio.get_running_loop().run_in_executor(self._thread, self._context.run, self._step)
        found = await asyncio.shield(self._next)  # a cancelled wait leaves the item for the next one
        self._next = None
        if not found:
            await self.aclose()
            raise StopAsyncIteration
        return found[0]

    def _step(self) -> list[T]:
        if self._items is None:
            self._items = self._begin()
        for item in self._items:
            return [item]
        return []

    async def aclose(self) -> None:
        """End the stream; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._scope.cancel()
        self._bridge.streams.discard(self)
        if self._next is not None:
            self._next.add_done_callback(forget)
        self._thread.submit(self._let_go)
        self._thread.shutdown(wait=False)

    def _let_go(self) -> None:
        """Release what the iterator holds, for example a read's lease. The loop must not wait for this call."""
        close = getattr(self._items, "close", None)
        if close:
            close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.aclose()


class Changes(Stream[ChangeBatch]):
    """A change stream."""

    async def next(self, timeout: float | None = None) -> ChangeBatch | None:  # noqa: ASYNC109 (the sync client's name)
        """The next batch, or None if none comes within `timeout` seconds; `StreamEnded` at the end."""
        try:
            return await asyncio.wait_for(anext(self), timeout)
        except TimeoutError:
            return None
        except StopAsyncIteration:
            raise StreamEnded("the stream is closed, or at its end: there are no more batches") from None

    async def ack(self, batch: ChangeBatch) -> None:
        """Acknowledge everything up to the batch, like `ChangeBatch.ack` without blocking the loop."""
        await self._bridge.run(batch.ack)


class Scan:
    """A union read; it starts when one of its methods is awaited."""

    def __init__(self, bridge: Bridge, scan: SyncScan) -> None:
        self._bridge, self._scan = bridge, scan

    def to_batches(self) -> Stream[pa.RecordBatch]:
        """The rows in batches, read while they are taken."""
        return Stream(self._bridge, self._scan.to_batches)

    async def to_arrow(self) -> pa.Table:
        """The rows as one table."""
        return await self._bridge.run(self._scan.to_arrow)

    async def to_pandas(self) -> Any:
        """The rows as a pandas frame."""
        return await self._bridge.run(self._scan.to_pandas)

    async def count(self) -> int:
        """The number of rows."""
        return await self._bridge.run(self._scan.count)


class Writer:
    """Pipelined writing: it waits only while the window is full."""

    def __init__(self, bridge: Bridge, begin: Callable[[], SyncWriter]) -> None:
        self._bridge, self._begin = bridge, begin
        self._writer: SyncWriter | None = None

    @property
    def sync(self) -> SyncWriter:
        """The sync writer, once the block is entered."""
        if self._writer is None:
            raise RuntimeError("a writer is used in `async with table.writer() as writer:`")
        return self._writer

    async def append(self, data: Any, *, progress: str = "") -> None:
        """Append rows to a log table."""
        await self._bridge.run(self.sync.append, data, progress=progress)

    async def upsert(self, data: Any, *, progress: str = "", keep: Keep = ()) -> None:
        """Insert or update rows by key; `keep` as in the sync writer."""
        await self._bridge.run(self.sync.upsert, data, progress=progress, keep=keep)

    async def insert_if_absent(self, data: Any, *, progress: str = "") -> None:
        """Insert rows whose keys do not exist."""
        await self._bridge.run(self.sync.insert_if_absent, data, progress=progress)

    async def delete(self, data: Any, *, progress: str = "") -> None:
        """Delete keys."""
        await self._bridge.run(self.sync.delete, data, progress=progress)

    async def flush(self) -> str:
        """Wait until everything is durable; returns the last commit's token."""
        return await self._bridge.run(self.sync.flush)

    async def __aenter__(self) -> Self:
        self._writer = await self._bridge.run(self._begin)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._bridge.run(self.sync.__exit__, kind, error, trace)


class Table:
    """One table."""

    def __init__(self, bridge: Bridge, table: SyncTable) -> None:
        self._bridge = bridge
        self.sync = table
        """The same table for blocking code, with its name, schema and definition."""

    @property
    def contract_text(self) -> str:
        """The table's contract as it was applied, or else an ODCS contract of its definition."""
        return self.sync.contract_text

    async def test_contract(self, text: str = "") -> list[Measure]:
        """The checks of the table's contract, or of the contract `text`, measured on the newest rows."""
        return await self._bridge.run(self.sync.test_contract, text)

    async def alter(self, *steps: Step, **changes: Any) -> Self:
        """Change the table's definition, like `lakestore.Table.alter`."""
        await self._bridge.run(self.sync.alter, *steps, **changes)
        return self

    async def append(self, data: Any) -> CommitToken:
        """Append rows to a log table; returns the commit's token."""
        return await self._bridge.run(self.sync.append, data)

    async def upsert(self, data: Any, *, keep: Keep = ()) -> CommitToken:
        """Insert or update rows by key, except the columns that they keep; returns the commit's token."""
        return await self._bridge.run(self.sync.upsert, data, keep=keep)

    async def delete(self, data: Any = None, **options: Any) -> CommitToken:
        """Delete keys, or with `where=` the rows that meet a condition; returns the commit's token."""
        return await self._bridge.run(self.sync.delete, data, **options)

    async def erase(self, **options: Any) -> Erasure:
        """Remove the bytes of the rows that meet `where=`, like `lakestore.Table.erase`."""
        return await self._bridge.run(self.sync.erase, **options)

    async def erasures(self) -> list[Erasure]:
        """The erasures of this table, newest first."""
        return await self._bridge.run(self.sync.erasures)

    async def truncate(self, *, check_only: bool = False) -> Truncated:
        """Remove all rows in one commit; with `check_only` report what it would remove."""
        return await self._bridge.run(self.sync.truncate, check_only=check_only)

    async def rescale(self, buckets: int, **options: Any) -> Self:
        """Give the table another number of buckets; with `wait=False` return once the copy has begun."""
        await self._bridge.run(self.sync.rescale, buckets, **options)
        return self

    async def stop_rescale(self) -> None:
        """Stop the running rescale and remove its copy."""
        await self._bridge.run(self.sync.stop_rescale)

    async def replay(self, into: str, **options: Any) -> Table:
        """Fill a branch, a table of the name `into` with the rows of this one; returns its handle."""
        return Table(self._bridge, await self._bridge.run(self.sync.replay, into, **options))

    async def replay_difference(self, *, sample: int = 10) -> Difference:
        """The rows that a swap of the branch would change, remove and add."""
        return await self._bridge.run(self.sync.replay_difference, sample=sample)

    async def swap_replay(self, reviewed: str | None = None) -> str:
        """Put the branch into the place of this table, in one commit; returns the commit's token."""
        return await self._bridge.run(self.sync.swap_replay, reviewed)

    async def drop_replay(self) -> None:
        """Remove the branch of this table."""
        await self._bridge.run(self.sync.drop_replay)

    async def rename(self, name: str) -> Self:
        """Rename the table; this handle has the new name."""
        await self._bridge.run(self.sync.rename, name)
        return self

    async def insert_if_absent(self, data: Any) -> pa.Table:
        """Insert the rows whose keys do not exist; returns the row of every key."""
        return await self._bridge.run(self.sync.insert_if_absent, data)

    async def lookup(
        self, keys: Any, *, columns: Sequence[str] | None = None, at: At | None = None, **required: Any
    ) -> pa.Table:
        """The rows of these keys, or key prefixes, in order, now or at a token or a time."""
        return await self._bridge.run(self.sync.lookup, keys, columns=columns, at=at, **required)

    def scan(
        self, columns: Sequence[str] | None = None, where: str | None = None, at: At | None = None, **required: Any
    ) -> Scan:
        """A union read; `require_freshness` and `require_complete_through` as in the sync client."""
        return Scan(self._bridge, self.sync.scan(columns, where, at, **required))

    def writer(self, *, producer: str | None = None) -> Writer:
        """Pipelined writing, in `async with`."""
        return Writer(self._bridge, lambda: self.sync.writer(producer=producer))

    def changes(self, start: str = "earliest", **options: Any) -> Changes:
        """The changelog, with the options of the sync client's `changes`; it starts with the first awaited batch."""
        return Changes(self._bridge, lambda: self.sync.changes(start, **options))


class Snapshot:
    """All tables at one cut, in `async with` or not."""

    def __init__(self, bridge: Bridge, snapshot: SyncSnapshot) -> None:
        self._bridge, self.sync = bridge, snapshot
        self.token = snapshot.token
        """The cut."""

    def scan(self, table: str, columns: Sequence[str] | None = None, where: str | None = None) -> Scan:
        """A union read at the cut."""
        return Scan(self._bridge, self.sync.scan(table, columns, where))

    async def sql(self, text: str, params: Params = None, *, external_access: bool = False) -> SqlResult:
        """DuckDB over union reads at the cut."""
        return await self._bridge.run(self.sync.sql, text, params, external_access=external_access)

    async def aclose(self) -> None:
        """Release the cut; idempotent."""
        await self._bridge.run(self.sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.aclose()


class Lake:
    """Tables, and queries over them."""

    def __init__(self, begin: Callable[[], sync.Lake], threads: int) -> None:
        self._begin, self._bridge = begin, Bridge(threads)
        self._lake: sync.Lake | None = None

    @property
    def sync(self) -> sync.Lake:
        """The lake for blocking code, once the block is entered."""
        if self._lake is None:
            raise RuntimeError("a lake is used in `async with aio.connect(…) as lake:`")
        return self._lake

    async def create_table(self, name: str, schema: pa.Schema, **options: Any) -> Table:
        """Create a table, with the options of the sync client."""
        return Table(self._bridge, await self._bridge.run(self.sync.create_table, name, schema, **options))

    async def apply_contract(self, text: str, **options: Any) -> list[TableChange]:
        """Create or alter the tables of an ODCS contract, like `lakestore.Lake.apply_contract`."""
        return await self._bridge.run(self.sync.apply_contract, text, **options)

    async def table(self, name: str) -> Table:
        """A table by name."""
        return Table(self._bridge, await self._bridge.run(self.sync.table, name))

    async def tables(self) -> list[Table]:
        """All tables, by name."""
        return [Table(self._bridge, table) for table in await self._bridge.run(self.sync.tables)]

    async def drop_table(self, name: str, *, purge: bool = False, uuid: str = "") -> str:
        """Drop a table; `undrop` restores it for a time unless it is purged. Returns the commit's token."""
        return await self._bridge.run(self.sync.drop_table, name, purge=purge, uuid=uuid)

    async def verify_erased(self, certificate: dict[str, Any]) -> ErasedCheck:
        """Scan every file again for the rows of an erasure's certificate."""
        return await self._bridge.run(self.sync.verify_erased, certificate)

    async def undrop(self, name: str, *, uuid: str = "", as_name: str = "") -> Table:
        """Restore a dropped table under its own or another name."""
        return Table(self._bridge, await self._bridge.run(self.sync.undrop, name, uuid=uuid, as_name=as_name))

    async def proposals(self, table: str = "") -> list[dict[str, Any]]:
        """Changes of tables that wait for an approver, and the decided ones."""
        return await self._bridge.run(self.sync.proposals, table)

    async def approve(self, proposal: str, *, why: str = "") -> dict[str, Any]:
        """Change a table by a proposal."""
        return await self._bridge.run(self.sync.approve, proposal, why=why)

    async def reject(self, proposal: str, *, why: str = "") -> dict[str, Any]:
        """Reject a proposal."""
        return await self._bridge.run(self.sync.reject, proposal, why=why)

    async def who(self, table: str) -> OwnerReport:
        """Owner, delegates, approvers, contract version and the last ten decisions about a table."""
        return await self._bridge.run(self.sync.who, table)

    async def dropped_tables(self) -> list[DroppedTable]:
        """The dropped tables that `undrop` can restore, newest first."""
        return await self._bridge.run(self.sync.dropped_tables)

    async def databases(self) -> dict[str, int]:
        """The databases, each with the number of its tables."""
        return await self._bridge.run(self.sync.databases)

    async def reset_subscription(self, name: str, to: Start) -> str:
        """Set a subscription's position and fence its readers; returns the position."""
        return await self._bridge.run(self.sync.reset_subscription, name, to)

    def commit(self) -> Commit:
        """Changes to several tables, in `async with`: committed together at its end; an error discards them."""
        return Commit(self._bridge, self.sync.commit())

    async def producer(self, name: str) -> NamedWrites:
        """Open a named producer: it fences its predecessor and gets its last progress."""
        return NamedWrites(self._bridge, await self._bridge.run(self.sync.producer, name))

    async def registers(self, names: Iterable[str]) -> Registers:
        """Open registers, named positions in other systems, and get their values."""
        return Registers(self._bridge, await self._bridge.run(self.sync.registers, names))

    async def sql(self, text: str, params: Params = None, **options: Any) -> SqlResult:
        """DuckDB over union reads, all tables of the query at one cut, with the options of the sync client's `sql`."""
        return await self._bridge.run(self.sync.sql, text, params, **options)

    async def snapshot(self, **options: Any) -> Snapshot:
        """One cut over all tables, held until `aclose` or the end of `async with`; options as in the sync client."""
        return Snapshot(self._bridge, await self._bridge.run(self.sync.snapshot, **options))

    def at(self, position: At, **required: Any) -> Snapshot:
        """All tables exactly at a token, or as of a time (UTC without a zone)."""
        return Snapshot(self._bridge, self.sync.at(position, **required))

    def changes(self, tables: Sequence[str], start: str = "earliest", **options: Any) -> Changes:
        """The changelogs of several tables in one stream, like `Table.changes`."""
        return Changes(self._bridge, lambda: self.sync.changes(tables, start, **options))

    async def aclose(self) -> None:
        """End the streams and the connection."""
        for stream in list(self._bridge.streams):
            await stream.aclose()
        if self._lake is not None:
            await self._bridge.run(self._lake.close)
        self._bridge.close()

    async def __aenter__(self) -> Self:
        self._lake = await self._bridge.run(self._begin)
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.aclose()


def connect(address: str | None = None, *, threads: int = THREADS, **options: Any) -> Lake:
    """A server's lake, with the options of `lakestore.connect`; at most `threads` calls run at once."""
    return Lake(lambda: sync.connect(address, **options), threads)


__all__ = [
    "Changes",
    "Commit",
    "Lake",
    "NamedWrites",
    "Registers",
    "Scan",
    "Snapshot",
    "Stream",
    "Table",
    "Writer",
    "connect",
]
