"""Drop, undrop and truncate of tables.

A drop frees the name at once. Log, index entries, uuid, offsets and lake files stay for `drop_grace_seconds`, with the
pointer under a name of no catalog; then the duty of dropped tables removes them. Nobody reads, writes, tiers or trims a
dropped table, but checkpoints still name its rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

from lakestore.errors import Conflict, Invalid, LakestoreError, NotFound, Unavailable
from lakestore.model import times
from lakestore.model.outside_values import shown_name
from lakestore.model.table import Table
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog import catalog, owners, rescaling, tables
from lakestore_server.catalog.catalog import Catalog, move_pointer
from lakestore_server.catalog.commits import TruncatedSnapshot
from lakestore_server.catalog.outside_tables import is_outside
from lakestore_server.catalog.owners import Decision
from lakestore_server.commit.engine import Engine
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.read.leases import Leases
from lakestore_server.state.catalog_change import DROPPED, TierRecord
from lakestore_server.state.commit_record import CommitRecord, Shelving, Truncation, Undrop
from lakestore_server.state.state import State
from lakestore_server.state.view import DroppedTable, TableState, View

ATTEMPTS_MAX = 20


class Truncations:
    """The verb of truncate. Thread-safe."""

    def __init__(self, engine: Engine, catalog: Catalog, leases: Leases, wake_checkpoint: Callable[[], None]) -> None:
        self._engine, self._catalog, self._leases = engine, catalog, leases
        self._wake_checkpoint = wake_checkpoint

    def truncate(self, request: pb.TruncateTableRequest) -> pb.TruncateTableAnswer:
        """Remove all rows of a table, or say what a truncate would do."""
        view = self._engine.view
        held = view.meant(request.table, request.table_uuid)
        self._check(held)
        if request.check_only:
            return _answer(view, held)
        for _ in range(ATTEMPTS_MAX):
            made = self._catalog.write_truncated(held.table)
            self._engine.reach(CrashPoint.CATALOG_READY)
            try:
                before, view = self._commit(request, held, made)
            except Conflict:
                self._catalog.settled(made, done=False)
                held = self._engine.view.meant(request.table, request.table_uuid)
                continue
            except LakestoreError as error:
                if error.applied == "no":
                    self._catalog.settled(made, done=False)
                raise
            self._engine.reach(CrashPoint.CATALOG_COMMITTED)
            self._catalog.settled(made, done=True)
            self._wake_checkpoint()
            answer = _answer(view, before)
            answer.token = view.token()
            return answer
        raise Conflict(f"the lake of table {request.table} changes faster than a truncate can follow: try again")

    def _check(self, held: TableState) -> None:
        self._engine.view.refuse_change(held.table)
        problem = self._engine.lake_ahead.get(held.table.uuid)
        if problem:
            raise Unavailable(f"table {held.table.name} cannot be truncated until its lake is repaired: {problem}")
        if is_outside(held.table):
            raise Invalid(
                f"table {held.table.name} lives in catalog {held.table.lake.catalog}, and such a table cannot be"
                f" truncated: use `lakestore delete {held.table.name} --where …`, or drop and create it"
            )

    def _commit(
        self, request: pb.TruncateTableRequest, held: TableState, made: TruncatedSnapshot
    ) -> tuple[TableState, View]:
        starts: list[tuple[int, ...]] = []
        by = Decision.of_caller("truncate", f"table {held.table.name}")

        def plan(state: State, record: CommitRecord) -> TableState:
            now = state.view.meant(request.table, request.table_uuid or held.table.uuid)
            known = None if made.before is None else now.tiers.get(made.before)
            heads, epoch = tuple(now.heads()), state.view.tierer_epoch
            schema_id = known.schema_id if known else 0
            tier = TierRecord(made.snapshot_id, heads, (0,) * len(heads), record.lsn, epoch, 0, schema_id)
            catalog.add_steps(state.view, record, replace(made.step, tiers=(tier,)))
            state.view.refuse_change(now.table)
            by.make(state.view, record, now.table)
            rescaling.end_rescale(state.view, record, now.table.uuid)
            record.truncate.append(Truncation(now.table.uuid, state.next_number))
            starts.append(now.starts())
            self._leases.truncate(now, record.lsn)
            return now

        try:
            done = owners.decided(self._engine, plan)
        except LakestoreError:
            if starts:
                self._leases.reset_log_start(held.table.uuid, starts[0])
            raise
        return done.result, done.view


def _answer(view: View, held: TableState) -> pb.TruncateTableAnswer:
    uuid = held.table.uuid
    rows = sum(log.at_head.live_rows for log in held.logs)
    names = sorted(each.name for each in view.subscriptions.values() if uuid in each.tables)
    return pb.TruncateTableAnswer(rows=rows, subscriptions=names)


log = logging.getLogger("lakestore.dropped")


class Droppings:
    """The verbs of drop and undrop. Thread-safe."""

    def __init__(self, engine: Engine, catalog: Catalog, wake_purge: Callable[[], None]) -> None:
        self._engine, self._catalog, self._wake_purge = engine, catalog, wake_purge

    def drop_table(self, request: pb.TableRequest) -> pb.DropTableAnswer:
        """Drop a table, or remove a dropped one at once."""
        grace_us = self._engine.limits.drop_grace_seconds * 1_000_000
        by = Decision.of_caller("drop", f"table {request.table}")

        def plan(state: State, record: CommitRecord) -> tuple[str, int]:
            view = state.view
            until_us = 0 if request.purge or not grace_us else record.clock_us + grace_us
            if request.purge and _is_dropped(view, request):
                dropped = _found(view, request.table, request.table_uuid, "purge").state.table
                by.make(view, record, dropped)
                record.shelve.append(Shelving(dropped.uuid, 0))
                return dropped.uuid, 0
            table = view.meant(request.table, request.table_uuid).table
            view.refuse_change(table)
            by.make(view, record, table)
            rescaling.end_rescale(view, record, table.uuid)
            record.shelve.append(Shelving(table.uuid, until_us))
            move_pointer(view, record, (table.namespace, table.short_name), (DROPPED, table.uuid))
            return table.uuid, until_us

        view = self._engine.view
        is_dropped = request.purge and _is_dropped(view, request)
        held = None if is_dropped else view.meant(request.table, request.table_uuid).table
        with self._catalog.dropping(held) if held else nullcontext():
            done = owners.decided(self._engine, plan)
        uuid, until_us = done.result
        if not until_us:
            self._wake_purge()
        return pb.DropTableAnswer(token=done.view.token(), table_uuid=uuid, undrop_until_us=until_us)

    def undrop_table(self, request: pb.UndropTableRequest) -> pb.TableInfo:
        """Restore a dropped table. If its lake is gone, it is read from the log, like after a start."""
        limits = self._engine.limits
        asked = _found(self._engine.view, request.table, request.table_uuid, "undrop").state
        uuid, problem = asked.table.uuid, self._catalog.problem_of_dropped(asked)
        renamed = f" as {request.new_name}" if request.new_name else ""
        by = Decision.of_caller("undrop", f"table {request.table}{renamed}")
        back = replace(asked.table, name=request.new_name or asked.table.name)

        def plan(state: State, record: CommitRecord) -> Table:
            view = state.view
            held = _found(view, request.table, uuid, "undrop")
            if not held.until_us:
                raise Conflict(f"table {held.name} cannot be undropped: its files are being removed")
            tables.refuse_adopting(held.state.table)
            made = replace(held.state.table, name=request.new_name or held.name)
            if made.name in view.names:
                raise Conflict(
                    f"a new table has the name {made.name}: undrop the dropped table under another name, with"
                    f" `lakestore undrop {held.name} --as NAME`"
                )
            tables.check_free(view, made, limits)
            by.make(view, record, held.state.table)
            record.undrop.append(Undrop(made.uuid, made.name))
            move_pointer(view, record, (DROPPED, made.uuid), (made.namespace, made.short_name))
            if self._moves_letters(view, held.name, made.name):
                tables.move_letters(limits, state, record, by, (held.name, made.name), outside_letters)
            elif outside_letters:
                raise Conflict(f"a new table got the name {held.name} meanwhile: try again")
            self._note_lake(uuid, problem)
            return made

        moves = self._moves_letters(self._engine.view, asked.table.name, back.name)
        letters = self._catalog.renaming_letters(asked.table.name, back.name) if moves else nullcontext("")
        with self._catalog.undropping(back), letters as outside_letters:
            return pb.TableInfo(definition=owners.decided(self._engine, plan).result.to_json())

    @staticmethod
    def _moves_letters(view: View, name: str, new_name: str) -> bool:
        """Whether dead letters follow an undrop. They stay if a new table has the old name: they are that table's."""
        return new_name != name and name not in view.names

    def _note_lake(self, uuid: str, problem: str) -> None:
        """Note a lake that is gone or continued under another timeline, before anybody reads or tiers the table. Runs
        on the commit loop, so that two undrops cannot lose each other's note."""
        others = {each: said for each, said in self._engine.lake_ahead.items() if each != uuid}
        self._engine.lake_ahead = self._catalog.ahead = others | ({uuid: problem} if problem else {})
        if problem:
            log.error("%s", problem)

    def list_dropped_tables(self, _: pb.ListDroppedTablesRequest) -> pb.ListDroppedTablesAnswer:
        """All dropped tables in their grace, newest first."""
        every = sorted(self._engine.view.dropped.values(), key=lambda each: -each.lsn)
        now_us = self._engine.now_us()
        return pb.ListDroppedTablesAnswer(tables=[_entry(each, now_us) for each in every])


def _entry(held: DroppedTable, now_us: int) -> pb.DroppedTable:
    logs = held.state.logs
    return pb.DroppedTable(
        table=held.name,
        table_uuid=held.state.table.uuid,
        dropped_us=held.time_us,
        until_us=held.until_us,
        rows=sum(log.at_head.live_rows for log in logs),
        bytes=sum(chunk.size for log in logs for chunk in log.chunks),
        going=not held.until_us,
        left_us=max(held.until_us - now_us, 0),
    )


def _is_dropped(view: View, request: pb.TableRequest) -> bool:
    if request.table_uuid:
        return request.table_uuid in view.dropped
    return request.table not in view.names and any(each.name == request.table for each in view.dropped.values())


def _found(view: View, name: str, uuid: str, verb: str) -> DroppedTable:
    named = [each for each in view.dropped.values() if each.name == name]
    meant = [each for each in named if not uuid or each.state.table.uuid == uuid]
    if not meant:
        of = f" with the uuid {uuid}" if named else ""
        raise NotFound(f"no dropped table {shown_name(name)}{of} is kept: see `lakestore tables --dropped`")
    if len(meant) > 1:
        # A table from before a rescale is meant only if its id says so.
        former = {each.uuid for state in view.kept.values() for each in state.former}
        meant = [each for each in meant if each.state.table.uuid not in former] or meant
    if len(meant) > 1:
        said = ", ".join(f"{each.state.table.uuid} dropped at {times.text_of(each.time_us)}" for each in meant)
        raise Conflict(f"{len(meant)} dropped tables had the name {name}: say which one to {verb} with --id, of {said}")
    return meant[0]
