"""The start of a change stream: a request, checked against the tables, and the position at which it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lakestore.errors import Invalid, NotFound, PositionExpired
from lakestore.model import times
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.token import LogPosition, Place, SharedPosition, SnapshotPosition, StreamPosition, Token, place_of
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.changes.batch_cache import EncodedBatch
from lakestore_server.changes.batches import Shape
from lakestore_server.changes.filter import bind_condition
from lakestore_server.changes.sharing.positions import gone_since
from lakestore_server.changes.subscriptions import check_current
from lakestore_server.commit.engine import Engine
from lakestore_server.read.positions import check_once, check_place, lsn_at, lsn_by_time, parse_token, reached
from lakestore_server.state import swaps
from lakestore_server.state.view import TableState, View


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of one stream."""

    shape: Shape
    start: str
    """A token, a time, or `earliest`, `latest`, `snapshot`."""
    until: int | None
    """LSN after which the stream ends; None for a stream without an end."""
    reads_lake: bool
    """Whether the consumer itself reads rows that are only in the lake."""
    progress: bool
    """Whether the consumer understands messages without rows that only carry a token."""
    subscription: str = ""
    """Name of the stream's subscription; empty for none."""
    epoch: int = 0
    """Epoch of the subscription under which this consumer opened it."""
    owner: str = ""
    """The principal that opened the stream; empty on a server without principals."""

    @staticmethod
    def from_request(request: pb.ChangesRequest, engine: Engine, view: View) -> StreamOptions:
        """The options of a request; `NotFound` or `Invalid` if they do not fit the tables of the view."""
        return StreamOptions(
            _shape(view, request),
            request.start or "earliest",
            _end(engine, view, request),
            request.lake_snapshot,
            request.progress,
            request.subscription,
            owner=request.owner,
        )

    def position(self, engine: Engine, view: View) -> StreamPosition:
        return start_position(engine, view, self.start, self.shape.tables)

    def checked(self, view: View) -> View:
        """The view, if the stream may continue in it; `Fenced` once another consumer has opened the subscription."""
        if self.subscription:
            check_current(view, self.subscription, self.epoch)
        return view

    def sent(self, batch: EncodedBatch) -> EncodedBatch:
        """A message in the form for this stream's consumer."""
        return batch.of_consumer(self.epoch) if self.subscription else batch


_WORDS = ("", "earliest", "latest", "snapshot")


def first_view(start: str, engine: Engine) -> View:
    """The view in which a start is looked up. Changes from a time on must include a commit of exactly this time, so it
    waits for pending commits. A server that follows waits for a position of a server that has applied more."""
    time_us = times.micros_of(start)
    if time_us is not None:
        view = engine.view
        return engine.settled() if view.clock_us <= time_us else view
    if engine.role == "follower" and start not in _WORDS:
        return reached(engine, parse_token(start, engine).lsn)
    return engine.view


def start_position(engine: Engine, view: View, start: str, tables: tuple[str, ...]) -> StreamPosition:
    """The position that a start names for a stream of these tables. `PositionExpired` if the log starts after it,
    `NotFound` if it belongs to other tables."""
    states = [view.by_uuid(uuid) for uuid in tables]
    token = swaps.present_token(view, _token(engine, view, start, states))
    if isinstance(token, SharedPosition):
        raise Invalid("the position belongs to a shared subscription and can only acknowledge a batch")
    if token.lsn > view.lsn:
        raise Invalid("the position lies ahead of the server's history")
    if token.tables and token.tables != tables:
        raise NotFound("the position belongs to other tables: a table was dropped, or the list has changed")
    place = place_of(token)
    if place and place.table not in tables:
        raise Invalid("the position names a table outside its own list")
    if place:
        check_place(view, place, token.lsn)
    for state in states:
        check_reach(view, swaps.changes_at(view, state, token.lsn), token.lsn)
    return replace(token, tables=tables)


def snapshot_start(engine: Engine, view: View, tables: tuple[str, ...]) -> SnapshotPosition:
    """The position before the first row of a snapshot at the head."""
    return SnapshotPosition(engine.timeline, view.lsn, tables, Place(tables[0], 0, 0))


def check_reach(view: View, state: TableState, lsn: int, subscription: str = "") -> None:
    """`PositionExpired` if the table's log has lost changes after an LSN."""
    if lsn < state.log_start_lsn:
        way = "start at 'snapshot', or at 'earliest'"
        if subscription:
            way = f"restart it with `lakestore subscriptions reset {subscription} --to snapshot`, or --to earliest"
        error = PositionExpired(f"the position is LSN {lsn} of table {state.table.name}, {gone_since(state)}: {way}")
        error.earliest = view.token(state.log_start_lsn)
        raise error


def _shape(view: View, request: pb.ChangesRequest) -> Shape:
    if not request.tables:
        raise Invalid("a change stream needs a table")
    check_once(request.tables)
    uuids = request.table_uuids or [""] * len(request.tables)
    if len(uuids) != len(request.tables):
        raise Invalid(f"a change stream of {len(request.tables)} tables names {len(uuids)} uuids: name one for each")
    states = [view.meant(name, uuid) for name, uuid in zip(request.tables, uuids, strict=True)]
    for state in states:
        view.refuse_copy(state.table)
    tables = tuple(state.table.uuid for state in states)
    chosen = _chosen(view, tables, list(request.columns))
    where = tuple(bind_condition(request.where, view.tables[uuid].versions) for uuid in tables) if request.where else ()
    return Shape(tables, request.before_images, chosen, where)


def _chosen(view: View, tables: Sequence[str], columns: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    named = [name for name in columns if name not in SYSTEM_TYPES]
    chosen = (tuple(view.tables[uuid].versions.column_id(name) for name in named) for uuid in tables)
    return tuple(chosen) if columns else ()


def _end(engine: Engine, view: View, request: pb.ChangesRequest) -> int | None:
    if not request.until:
        return None
    return view.lsn if request.until == "now" else lsn_at(engine, request.until, request.tables, is_end=True)


def _begins_with_rows(state: TableState, lsn: int) -> bool:
    """Whether the first changes of a table at an LSN are all its rows: it took the place of another one there."""
    return state.swapped_lsn == lsn and (not state.table.keyed or state.former[-1].apart)


def _token(engine: Engine, view: View, start: str, states: list[TableState]) -> Token:
    tables = tuple(state.table.uuid for state in states)
    if start == "earliest":
        lsn = max(swaps.earliest(view, state) for state in states)
        if lsn and any(_begins_with_rows(state, lsn) for state in states):
            # All rows are wanted, and rows that the table had at its swap are not its changes.
            return snapshot_start(engine, view, tables)
        return LogPosition(engine.timeline, lsn, tables)
    if start == "latest":
        return LogPosition(engine.timeline, view.lsn, tables)
    if start == "snapshot":
        return snapshot_start(engine, view, tables)
    time_us = times.micros_of(start)
    if time_us is None:
        return parse_token(start, engine)
    if time_us > view.clock_us:
        return LogPosition(engine.timeline, view.lsn, tables)
    states = [swaps.state_at_time(view, state, time_us - 1) for state in states]
    return LogPosition(engine.timeline, lsn_by_time(view, states, time_us, before=True), tables)
