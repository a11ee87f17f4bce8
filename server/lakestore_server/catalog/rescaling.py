"""Verbs of a rescale: begin a copy of a table under another number of buckets, stop it, and the commit that swaps.

- The copy is a table of its own with the name `<table>__rescale`. It has the columns, ids and versions of its source,
  so that writers with an older version are understood after the swap too.
- The duty of rescales fills the copy. The swap is one commit: the last rows, the names, the pointers of the lake.
- A drop or a truncate of the source ends its rescale in the same commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lakestore.errors import Conflict, Internal, Invalid, NotFound, Unavailable
from lakestore.model.table import Table
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog import catalog, tables
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.outside_tables import is_outside
from lakestore_server.commit.copied_rows import CopiedRows, StoredRows, copied_rows, store
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.request import Completion, IndexEntries, Operation
from lakestore_server.state.catalog_change import DROPPED, CatalogStep, DropPointer, SetNamespace, SetPointer
from lakestore_server.state.commit_record import CommitRecord, Shelving
from lakestore_server.state.rescale import Rescale, RescaleEnd, Swap
from lakestore_server.state.state import State
from lakestore_server.state.view import TableState, View

SUFFIX = "__rescale"
SWAP_ROWS_MAX = 10_000
"""Rows that the commit of the swap may still copy. Writers wait for it: some 0.1 s."""


def end_rescale(view: View, record: CommitRecord, source: str) -> None:
    """End the rescale of a table in a commit, if there is one: its copy is removed at once."""
    held = view.rescales.get(source)
    if held is None:
        return
    record.rescale.append(RescaleEnd(source))
    copy = view.tables.get(held.copy)
    if copy is not None:
        record.shelve.append(Shelving(held.copy, 0))
        name = copy.table.namespace, copy.table.short_name
        catalog.move_pointer(view, record, name, (DROPPED, held.copy))


class Rescales:
    """The verb of rescale. Thread-safe."""

    def __init__(self, engine: Engine, catalog: Catalog, wake_duty: Callable[[], None], wake_purge: Callable[[], None]):
        self._engine, self._catalog = engine, catalog
        self._wake_duty, self._wake_purge = wake_duty, wake_purge

    def rescale(self, request: pb.RescaleTableRequest) -> pb.RescaleTableAnswer:
        """Begin a rescale, or stop the running one."""
        return self._abort(request) if request.abort else self._begin(request)

    def _begin(self, request: pb.RescaleTableRequest) -> pb.RescaleTableAnswer:
        engine = self._engine
        source = engine.view.meant(request.table, request.table_uuid)
        self._check(engine.view, source, request.buckets)
        first = source.versions.tables[0]
        copy = self._copy_of(source.table, request.buckets)
        step = self._catalog.create_own(replace(tables.as_copy(first, copy), name=source.table.name))

        def plan(state: State, record: CommitRecord) -> None:
            view = state.view
            now = view.meant(request.table, source.table.uuid)
            self._check(view, now, request.buckets)
            if now.versions.tables[0] != first:
                raise Conflict(f"table {source.table.name} was changed meanwhile: try again")
            tables.check_room(state, engine.limits.tables)
            here = replace(copy, number=state.next_number)
            versions = [tables.as_copy(table, here) for table in now.versions.tables]
            record.create.append(versions[0])
            record.alter += versions[1:]
            steps: list[CatalogStep] = [replace(step, namespace=copy.namespace, name=copy.short_name)]
            if copy.namespace not in view.namespaces:
                steps.insert(0, SetNamespace(copy.namespace))
            catalog.add_steps(view, record, *steps)
            ends = tuple(now.heads())
            record.rescale.append(Rescale(now.table.uuid, copy.uuid, ends, (0,) * len(ends)))

        done = engine.operate(plan)
        self._wake_duty()
        return pb.RescaleTableAnswer(token=done.view.token(), copy=copy.name)

    def _copy_of(self, table: Table, buckets: int) -> Table:
        return replace(table, name=table.name + SUFFIX, uuid=str(uuid.uuid4()), buckets=buckets)

    def _check(self, view: View, source: TableState, buckets: int) -> None:
        """Refuse a rescale that cannot be done."""
        table = source.table
        view.refuse_copy(table)
        if table.lake.adopted:
            raise Invalid(f"table {table.name} was adopted, and its lake keeps its files: it cannot be rescaled")
        held = view.rescales.get(table.uuid)
        if held is not None:
            running = view.tables[held.copy].table.buckets
            raise Conflict(
                f"table {table.name} is being rescaled to {running} buckets: wait for its end, or stop it with"
                f" `lakestore rescale {table.name} --abort`"
            )
        if buckets == table.buckets:
            raise Invalid(f"table {table.name} has {buckets} buckets already")
        copy = self._copy_of(table, buckets)
        if not 1 <= buckets <= self._engine.limits.buckets:
            raise Invalid(f"table {table.name}: buckets must be 1 to {self._engine.limits.buckets}, not {buckets}")
        tables.check_free(view, copy, self._engine.limits)
        if is_outside(table):
            raise Invalid(
                f"table {table.name} lives in an outside catalog, where no swap is one commit: it stays as it is"
            )
        if not source.has_all_rows:
            raise Invalid(
                f"log table {table.name} has old rows that are only in the lake, and a rescale copies rows of the"
                " server: it cannot be rescaled"
            )
        if table.merge.engine == "versioned" and table.deletes == "allow":
            raise Invalid(
                f"table {table.name} remembers versions of deleted rows (merge engine versioned), which a rescale does"
                " not copy: it cannot be rescaled; with deletes='ignore' or 'refuse' it can"
            )
        if table.merge.within:
            raise Invalid(
                f"table {table.name} compares times of commits (merge engine versioned with `within`), and a copied row"
                " has the time of its copy: it cannot be rescaled"
            )
        refuse_shared_subscription(view, table)
        problem = self._engine.lake_ahead.get(table.uuid)
        if problem:
            raise Unavailable(f"table {table.name} cannot be rescaled until its lake is repaired: {problem}")

    def _abort(self, request: pb.RescaleTableRequest) -> pb.RescaleTableAnswer:
        def plan(state: State, record: CommitRecord) -> str:
            view = state.view
            table = view.meant(request.table, request.table_uuid).table
            held = view.rescales.get(table.uuid)
            if held is None:
                raise NotFound(f"table {table.name} is not being rescaled: it has {table.buckets} buckets")
            end_rescale(view, record, table.uuid)
            return view.tables[held.copy].table.name

        done = self._engine.operate(plan)
        self._wake_purge()
        return pb.RescaleTableAnswer(token=done.view.token(), copy=done.result)


def refuse_shared_subscription(view: View, table: Table) -> None:
    """`Conflict` if consumers share a subscription of the table: its marks name buckets."""
    shared = sorted(each.name for each in view.subscriptions.values() if each.is_shared and table.uuid in each.tables)
    if shared:
        raise Conflict(
            f"subscription {shared[0]} of table {table.name} is shared, and its positions name buckets: let one"
            " consumer open it alone, or drop it, then rescale"
        )


def copy_rows(engine: Engine, expected: Rescale, rows: CopiedRows) -> Completion[IndexEntries]:
    """One commit of rows into the copy."""

    def plan(state: State, record: CommitRecord) -> IndexEntries:
        return store(state.view, record, expected, rows, engine.index, engine.limits).entries

    operation = Operation(plan, lambda entries: entries, nbytes=1024 + rows.nbytes)
    engine.await_room()
    engine.submit(operation)
    return operation.answer.result()


@dataclass(frozen=True, slots=True)
class LakeMark:
    """The position of a copy at an LSN, to compare with its lake."""

    lsn: int
    done: tuple[int, ...]


def lake_gap(source: TableState, copy: TableState, held: Rescale, marks: Sequence[LakeMark]) -> bool:
    """Whether the lake of the copy may lack rows that the lake of the source has. A reader of the lake would go back
    in time at the swap."""
    if not source.tiers:
        return False
    wanted = max(source.tiers.values(), key=lambda tier: tier.lsn)
    if wanted.live_rows == 0:
        return False
    if not copy.tiers:
        return True
    newest = max(copy.tiers.values(), key=lambda tier: tier.lsn)
    if newest.tier_point == tuple(copy.heads()):
        return _is_behind(held.done, wanted.tier_point)
    known = [mark.done for mark in marks if mark.lsn <= newest.lsn]
    return not known or _is_behind(known[-1], wanted.tier_point)


def _is_behind(done: Sequence[int], points: Sequence[int]) -> bool:
    return any(offset < point for offset, point in zip(done, points, strict=True))


def swap(engine: Engine, expected: Rescale, marks: Sequence[LakeMark]) -> Completion[IndexEntries]:
    """The commit that copies the last rows and swaps. `Conflict` if it is not possible at this moment."""
    grace_us = engine.limits.drop_grace_seconds * 1_000_000

    def plan(state: State, record: CommitRecord) -> IndexEntries:
        view = state.view
        if view.rescales.get(expected.source) != expected:
            raise Conflict("the rescale has ended or moved")
        source, copy = view.tables[expected.source], view.tables[expected.copy]
        left = [(bucket, expected.done[bucket], log.head) for bucket, log in enumerate(source.logs)]
        if _is_behind(expected.done, expected.ends) or sum(end - start for _, start, end in left) > SWAP_ROWS_MAX:
            raise Conflict("the copy is behind")
        refuse_shared_subscription(view, source.table)
        if lake_gap(source, copy, expected, marks):
            raise Conflict("the lake of the copy is behind")
        stored = [
            StoredRows(bucket, end, [(batch, version) for _, batch, version in source.logs[bucket].rows(start, end)])
            for bucket, start, end in left
            if start < end
        ]
        draft = store(view, record, expected, copied_rows(source, copy.table, stored), engine.index, engine.limits)
        _check_rows(source, copy, record)
        record.rescale[:] = [RescaleEnd(expected.source)]
        record.swap.append(Swap(expected.source, expected.copy, record.clock_us + grace_us if grace_us else 0))
        _swap_pointers(view, record, source.table, copy.table)
        return draft.entries

    operation = Operation(plan, lambda entries: entries)
    engine.submit(operation)
    return operation.answer.result()


def _check_rows(source: TableState, copy: TableState, record: CommitRecord) -> None:
    """`Internal` if the copy has not as many live rows as its source: nothing is swapped then."""
    rows = [log.at_head.live_rows for log in copy.logs]
    for part in record.rows:
        if part.table == copy.table.uuid:
            rows[part.bucket] = part.live_rows
    wanted = sum(log.at_head.live_rows for log in source.logs)
    if sum(rows) != wanted:
        raise Internal(
            f"the copy of table {source.table.name} has {sum(rows)} rows and the table {wanted}: it is not swapped;"
            f" stop it with `lakestore rescale {source.table.name} --abort`, and report this"
        )


def _swap_pointers(view: View, record: CommitRecord, source: Table, copy: Table) -> None:
    here, there = (source.namespace, source.short_name), (copy.namespace, copy.short_name)
    steps: list[CatalogStep] = []
    before, after = view.pointers.get(here), view.pointers.get(there)
    if before is not None:
        steps += [DropPointer(*here), SetPointer(DROPPED, source.uuid, None, before)]
    if after is not None:
        steps += [DropPointer(*there), SetPointer(*here, None, after)]
    if steps:
        catalog.add_steps(view, record, *steps)
