"""Truncating a table: one commit takes all rows away, of log, index and lake. Offsets go on.

The log of each bucket starts at its head. The table gets another number, under which the key index has nothing; what
it has under the old one goes at the next checkpoints. Main of the lake gets a snapshot without files, whose tier
record has the heads of that very commit. Reads that hold a cut from before go on (`read/earlier.py`); positions before
it are `PositionExpired`, also of subscriptions that had read everything: what they have made of it holds no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lakestore.errors import Conflict, LakestoreError, Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.iceberg import catalog_steps
from lakestore_server.iceberg.catalog import Catalog
from lakestore_server.iceberg.commits import Emptied
from lakestore_server.read.leases import Leases
from lakestore_server.state.catalog_change import TierRecord
from lakestore_server.state.commit_record import CommitRecord, Truncation
from lakestore_server.state.state import State
from lakestore_server.state.view import TableState, View

ATTEMPTS_MAX = 20


class Truncations:
    """Thread-safe."""

    def __init__(self, engine: Engine, catalog: Catalog, leases: Leases, wake_checkpoint: Callable[[], None]) -> None:
        self._engine, self._catalog, self._leases = engine, catalog, leases
        self._wake_checkpoint = wake_checkpoint

    def truncate(self, request: pb.TruncateTableRequest) -> pb.TruncateTableAnswer:
        """Take all rows of a table away, or say what that would do."""
        view = self._engine.view
        held = view.meant(request.table, request.table_uuid)
        self._check(held)
        if request.check_only:
            return _answer(view, held)
        for _ in range(ATTEMPTS_MAX):
            made = self._catalog.emptied_own(held.table)
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
        problem = self._engine.lake_ahead.get(held.table.uuid)
        if problem:
            raise Unavailable(f"table {held.table.name} cannot be truncated before its lake is well: {problem}")

    def _commit(self, request: pb.TruncateTableRequest, held: TableState, made: Emptied) -> tuple[TableState, View]:
        """(the table before, the view that has the truncate); `Conflict` if the lake has moved."""
        starts: list[tuple[int, ...]] = []

        def plan(state: State, record: CommitRecord) -> TableState:
            now = state.view.meant(request.table, request.table_uuid or held.table.uuid)
            known = None if made.before is None else now.tiers.get(made.before)
            heads, epoch = tuple(now.heads()), state.view.tierer_epoch
            schema_id = known.schema_id if known else 0
            tier = TierRecord(made.snapshot_id, heads, (0,) * len(heads), record.lsn, epoch, 0, schema_id)
            catalog_steps.add(state.view, record, replace(made.step, tiers=(tier,)))
            record.truncate.append(Truncation(now.table.uuid, state.next_number))
            starts.append(now.starts())
            self._leases.truncate(now, record.lsn)
            return now

        try:
            done = self._engine.operate(plan)
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
