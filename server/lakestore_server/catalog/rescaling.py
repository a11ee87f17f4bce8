"""Verbs of a rescale and of a replay: begin a copy of a table, stop it, and the commit that swaps.

- The copy is a table of its own: `<table>__rescale` under another number of buckets, or a branch with the user's name.
  It has the columns, ids and versions of its source, so that writers with an older version are understood after the
  swap too.
- The duty of rescales fills the copy. The swap is one commit: the last rows, the names, the pointers of the lake.
- A drop or a truncate of the source ends its rescale in the same commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lakestore.errors import Conflict, Internal, Invalid, NotFound, Unavailable
from lakestore.model.table import Table
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog import catalog, owners, tables
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.outside_tables import is_outside
from lakestore_server.catalog.owners import Decision
from lakestore_server.commit.copied_rows import CopiedRows, StoredRows, copied_rows, store
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.request import Completion, IndexEntries, Operation
from lakestore_server.read.positions import lsn_at, parse_token, reached
from lakestore_server.state.catalog_change import DROPPED, CatalogStep, DropPointer, SetNamespace, SetPointer
from lakestore_server.state.commit_record import CommitRecord, Shelving
from lakestore_server.state.rescale import CopyKind, Rescale, RescaleEnd, Swap
from lakestore_server.state.state import State
from lakestore_server.state.view import TableState, View

SUFFIX = "__rescale"
SWAP_ROWS_MAX = 10_000
"""Rows that the commit of the swap may still copy. Writers wait for it: some 0.1 s."""


@dataclass(frozen=True, slots=True)
class LakeMark:
    """The position of a copy at an LSN, to compare with its lake."""

    lsn: int
    done: tuple[int, ...]


Check = Callable[[View, TableState], None]


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


class Duty(Protocol):
    """The duty of rescales."""

    def wake(self) -> None: ...

    def marks(self, view: View, held: Rescale) -> Sequence[LakeMark]: ...


class Rescales:
    """The verbs of rescale and replay. Thread-safe."""

    def __init__(self, engine: Engine, catalog: Catalog, duty: Duty, wake_purge: Callable[[], None]):
        self._engine, self._catalog = engine, catalog
        self._duty, self._wake_purge = duty, wake_purge

    def rescale(self, request: pb.RescaleTableRequest) -> pb.RescaleTableAnswer:
        """Begin a rescale, or stop the running one."""
        if request.abort:
            return self._abort(request)
        source = self._engine.view.meant(request.table, request.table_uuid)
        copy = _copy_of(source.table, source.table.name + SUFFIX, request.buckets)

        def check(view: View, now: TableState) -> None:
            self._check(view, now, copy)
            if request.buckets == now.table.buckets:
                raise Invalid(f"table {now.table.name} has {request.buckets} buckets already")
            refuse_shared_subscription(view, now.table)

        return self._begin(source, copy, check, CopyKind.RESCALE, None)

    def replay(self, request: pb.ReplayTableRequest) -> pb.ReplayTableAnswer:
        """Begin a branch of a table, swap it, or remove it."""
        if request.step == pb.ReplayTableRequest.SWAP:
            return self._swap(request)
        if request.step == pb.ReplayTableRequest.DROP:
            done = self._abort(request)
            return pb.ReplayTableAnswer(token=done.token, branch=done.copy)
        source = self._engine.view.meant(request.table, request.table_uuid)
        copy = _copy_of(source.table, request.into, request.buckets or source.table.buckets)
        lsn = lsn_at(self._engine, request.at, [request.table]) if request.at else None
        if lsn is not None:
            reached(self._engine, lsn)
        kind = CopyKind.BRANCH if lsn is None else CopyKind.BRANCH_AT
        done = self._begin(source, copy, lambda view, now: self._check(view, now, copy), kind, lsn)
        return pb.ReplayTableAnswer(token=done.token, branch=done.copy)

    def _swap(self, request: pb.ReplayTableRequest) -> pb.ReplayTableAnswer:
        engine = self._engine
        view = engine.view
        table = view.meant(request.table, request.table_uuid).table
        held = _replay_of(view, table)
        if held.kind is CopyKind.BRANCH_AT and not request.reviewed:
            raise Invalid(
                f"the branch of table {table.name} has the rows of one position: a swap needs the token of a difference"
                f" that was looked at, see `lakestore replay {table.name} --diff`"
            )
        reviewed = parse_token(request.reviewed, engine).lsn if request.reviewed else None
        done = swap(engine, held, self._duty.marks(view, held), reviewed)
        self._wake_purge()
        return pb.ReplayTableAnswer(token=done.view.token(), branch=view.tables[held.copy].table.name)

    def _begin(
        self, source: TableState, copy: Table, check: Check, kind: CopyKind, lsn: int | None
    ) -> pb.RescaleTableAnswer:
        """Begin a copy. Its first rows are the rows at an LSN; None is the head at the commit that begins it."""
        engine = self._engine
        check(engine.view, source)
        by = Decision.of_caller("rescale" if kind is CopyKind.RESCALE else "replay", f"into {copy.name}")
        first = source.versions.tables[0]
        step = self._catalog.create_own(replace(tables.as_copy(first, copy), name=source.table.name))

        def plan(state: State, record: CommitRecord) -> None:
            view = state.view
            now = view.meant(source.table.name, source.table.uuid)
            check(view, now)
            if kind is CopyKind.RESCALE:
                by.make(view, record, now.table)
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
            record.rescale.append(Rescale(now.table.uuid, copy.uuid, _ends(now, lsn), (0,) * len(now.logs), kind))

        done = owners.decided(engine, plan)
        self._duty.wake()
        return pb.RescaleTableAnswer(token=done.view.token(), copy=copy.name)

    def _check(self, view: View, source: TableState, copy: Table) -> None:
        """Refuse a copy that cannot be made."""
        table = source.table
        view.refuse_rescale(table)
        view.refuse_erasing(table)
        if table.lake.adopted:
            raise Invalid(f"table {table.name} was adopted, and its lake keeps its files: it cannot be copied")
        if not 1 <= copy.buckets <= self._engine.limits.buckets:
            raise Invalid(f"table {table.name}: buckets must be 1 to {self._engine.limits.buckets}, not {copy.buckets}")
        tables.check_free(view, copy, self._engine.limits)
        if is_outside(table):
            raise Invalid(
                f"table {table.name} lives in an outside catalog, where no swap is one commit: it stays as it is"
            )
        if not source.has_all_rows:
            raise Invalid(
                f"log table {table.name} has old rows that are only in the lake, and a copy is made of rows of the"
                " server: it cannot be copied"
            )
        if table.merge.engine == "versioned" and table.deletes == "allow":
            raise Invalid(
                f"table {table.name} remembers versions of deleted rows (merge engine versioned), which are not"
                " copied: it cannot be copied; with deletes='ignore' or 'refuse' it can"
            )
        if table.merge.within:
            raise Invalid(
                f"table {table.name} compares times of commits (merge engine versioned with `within`), and a copied row"
                " has the time of its copy: it cannot be copied"
            )
        problem = self._engine.lake_ahead.get(table.uuid)
        if problem:
            raise Unavailable(f"table {table.name} cannot be copied until its lake is repaired: {problem}")

    def _abort(self, request: pb.RescaleTableRequest | pb.ReplayTableRequest) -> pb.RescaleTableAnswer:
        def plan(state: State, record: CommitRecord) -> str:
            view = state.view
            table = view.meant(request.table, request.table_uuid).table
            if isinstance(request, pb.ReplayTableRequest):
                held = _replay_of(view, table)
            else:
                held = _rescale_of(view, table)
            end_rescale(view, record, table.uuid)
            return view.tables[held.copy].table.name

        done = self._engine.operate(plan)
        self._wake_purge()
        return pb.RescaleTableAnswer(token=done.view.token(), copy=done.result)


def _copy_of(table: Table, name: str, buckets: int) -> Table:
    return replace(table, name=name, uuid=str(uuid.uuid4()), buckets=buckets)


def _ends(source: TableState, lsn: int | None) -> tuple[int, ...]:
    """The offsets of a table after an LSN, at which its live rows are copied."""
    if lsn is None:
        return tuple(source.heads())
    if lsn < max(source.created_lsn, source.swapped_lsn, source.truncated_lsn):
        raise Invalid(
            f"table {source.table.name} did not have its present rows at LSN {lsn}, it was created, rescaled, swapped"
            " or truncated since: choose a later position"
        )
    return tuple(log.at_lsn(lsn).end for log in source.logs)


def _rescale_of(view: View, table: Table) -> Rescale:
    """The running rescale of a table, or `NotFound`."""
    held = view.rescales.get(table.uuid)
    if held is None or held.is_replay:
        raise NotFound(f"table {table.name} is not being rescaled: it has {table.buckets} buckets")
    return held


def _replay_of(view: View, table: Table) -> Rescale:
    """The replay of a table, or `NotFound`."""
    held = view.rescales.get(table.uuid)
    if held is None or not held.is_replay:
        raise NotFound(f"table {table.name} has no branch: make one with `lakestore replay {table.name} --into NAME`")
    return held


def refuse_shared_subscription(view: View, table: Table) -> None:
    """`Conflict` if consumers share a subscription of the table: its marks name buckets."""
    shared = sorted(each.name for each in view.subscriptions.values() if each.is_shared and table.uuid in each.tables)
    if shared:
        raise Conflict(
            f"subscription {shared[0]} of table {table.name} is shared, and its positions name buckets: let one"
            " consumer open it alone, or drop it, then try again"
        )


def copy_rows(engine: Engine, expected: Rescale, rows: CopiedRows) -> Completion[IndexEntries]:
    """One commit of rows into the copy."""

    def plan(state: State, record: CommitRecord) -> IndexEntries:
        return store(state.view, record, expected, rows, engine.index, engine.limits).entries

    operation = Operation(plan, lambda entries: entries, nbytes=1024 + rows.nbytes)
    engine.await_room()
    engine.submit(operation)
    return operation.answer.result()


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
    is_whole = newest.tier_point == tuple(copy.heads())
    if held.kind is CopyKind.BRANCH_AT:
        return not is_whole
    if is_whole:
        return _is_behind(held.done, wanted.tier_point)
    known = [mark.done for mark in marks if mark.lsn <= newest.lsn]
    return not known or _is_behind(known[-1], wanted.tier_point)


def _is_behind(done: Sequence[int], points: Sequence[int]) -> bool:
    return any(offset < point for offset, point in zip(done, points, strict=True))


def swap(
    engine: Engine, expected: Rescale, marks: Sequence[LakeMark], reviewed: int | None = None
) -> Completion[IndexEntries]:
    """The commit that copies the last rows and swaps. `Conflict` if it is not possible at this moment, or if one of the
    two tables was written after the LSN `reviewed`."""
    grace_us = engine.limits.drop_grace_seconds * 1_000_000
    by = Decision.of_caller("swap", "with the branch of its replay")

    def plan(state: State, record: CommitRecord) -> IndexEntries:
        view = state.view
        if view.rescales.get(expected.source) != expected:
            raise Conflict("the rescale has ended or moved")
        source, copy = view.tables[expected.source], view.tables[expected.copy]
        if expected.is_replay:
            by.make(view, record, source.table)
        if reviewed is not None:
            _check_reviewed(source, copy, reviewed)
        left = [(bucket, expected.done[bucket], log.head) for bucket, log in enumerate(source.logs)]
        if expected.kind is CopyKind.BRANCH_AT:
            left = []
        if not expected.is_filled or sum(end - start for _, start, end in left) > SWAP_ROWS_MAX:
            raise Conflict("the copy is behind the table: try again")
        refuse_shared_subscription(view, source.table)
        tables.refuse_feeds(state, copy.table.name)
        if lake_gap(source, copy, expected, marks):
            raise Conflict("the lake of the copy is behind the table's: run `lakestore tier`, then try again")
        stored = [
            StoredRows(bucket, end, [(batch, version) for _, batch, version in source.logs[bucket].rows(start, end)])
            for bucket, start, end in left
            if start < end
        ]
        draft = store(view, record, expected, copied_rows(source, copy.table, stored), engine.index, engine.limits)
        if not expected.is_replay:
            _check_rows(source, copy, record)
        record.rescale[:] = [RescaleEnd(expected.source)]
        until_us = record.clock_us + grace_us if grace_us else 0
        record.swap.append(Swap(expected.source, expected.copy, until_us, expected.is_replay))
        _swap_pointers(view, record, source.table, copy.table)
        return draft.entries

    return owners.decided(engine, plan, lambda entries: entries)


def _check_reviewed(source: TableState, copy: TableState, lsn: int) -> None:
    for state in (source, copy):
        last = max(log.at_head.lsn for log in state.logs)
        if last > lsn:
            raise Conflict(
                f"table {state.table.name} was written at LSN {last}, after the difference of LSN {lsn} that was looked"
                " at: look at the difference again"
            )


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
