"""The change stream: whole commits in LSN order, after a snapshot if one was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from lakestore.errors import Invalid, NotFound
from lakestore.rows import encode
from lakestore.schema import SYSTEM_TYPES, Table
from lakestore.server.engine import Engine
from lakestore.server.positions import parse_token
from lakestore.server.reads import bounded, dead_of, live, project, read, with_before_images
from lakestore.server.state import TableState, View
from lakestore.token import Place, Token
from lakestore.v1 import lakestore_pb2 as pb

WAIT_SECONDS = 1.0
_STREAM_COLUMNS = tuple(SYSTEM_TYPES)


@dataclass(frozen=True, slots=True)
class _Stream:
    tables: tuple[str, ...]
    before_images: bool
    columns: Mapping[str, tuple[int, ...]]
    """Table uuid to the ids of the columns to show; all columns of a version where none are named."""
    until: int | None


def changes(engine: Engine, request: pb.ChangesRequest, active: Callable[[], bool]) -> Iterator[pb.ChangeBatch]:
    """The stream of a request; ends at `until`, or when nobody listens any more."""
    view = engine.view
    if not request.tables:
        raise Invalid("a change stream needs a table")
    tables = tuple(view.named(name).table.uuid for name in request.tables)
    named = [name for name in request.columns if name not in _STREAM_COLUMNS]
    columns = {uuid: tuple(view.tables[uuid].table.column(name).id for name in named) for uuid in tables}
    until = None
    if request.until:
        until = view.lsn if request.until == "now" else parse_token(request.until, engine).lsn
    stream = _Stream(tables, request.before_images, columns if request.columns else {}, until)
    position = _start(engine, view, request.start or "earliest", tables)
    if position.place:
        yield from _snapshot(engine, stream, position)
        position = replace(position, place=None)
    yield from _follow(engine, stream, position, active)


def _start(engine: Engine, view: View, start: str, tables: tuple[str, ...]) -> Token:
    if start == "earliest":
        return Token(engine.timeline, 0, tables)
    if start == "latest":
        return Token(engine.timeline, view.lsn, tables)
    if start == "snapshot":
        return Token(engine.timeline, view.lsn, tables, Place(tables[0], 0, 0))
    token = parse_token(start, engine)
    if token.lsn > view.lsn:
        raise Invalid("the position lies ahead of the server's history")
    if token.tables and token.tables != tables:
        raise NotFound("the position belongs to other tables: one was dropped, or the list has changed")
    return replace(token, tables=tables)


def _snapshot(engine: Engine, stream: _Stream, position: Token) -> Iterator[pb.ChangeBatch]:
    """The live rows at the cut, as inserts."""
    place = position.place
    view = engine.view
    first = stream.tables.index(place.table) if place else 0
    for uuid in stream.tables[first:]:
        state = view.by_uuid(uuid)
        table = state.versions.at(position.lsn)
        here = place if place and place.table == uuid else Place(uuid, 0, 0)
        for bucket in range(here.bucket, state.table.buckets):
            log = state.logs[bucket]
            head = log.at_lsn(position.lsn).end
            dead = dead_of(log, 0, head)
            for rows in live(log, here.offset if bucket == here.bucket else 0, head, dead):
                inserts = replace(rows, change=np.zeros(len(rows.offsets), dtype=np.int8))
                at = 0
                shape = state.versions.projection(rows.schema_id, table)
                shown = project(shape, inserts, _columns(table, stream), bucket)
                for batch in bounded(shown, engine.limits.read_batch_bytes):
                    at += batch.num_rows
                    after = Place(uuid, bucket, int(rows.offsets[at - 1]) + 1)
                    yield _message(table, batch, replace(position, place=after), snapshot=True)


def _follow(engine: Engine, stream: _Stream, position: Token, active: Callable[[], bool]) -> Iterator[pb.ChangeBatch]:
    lsn = position.lsn
    while stream.until is None or lsn < stream.until:
        view = engine.wait_beyond(lsn, WAIT_SECONDS)
        if not active():
            return
        limit = view.lsn if stream.until is None else min(view.lsn, stream.until)
        while lsn < limit:
            upto = _upto(view, stream.tables, lsn, limit, engine.limits.changes_batch_rows)
            yield from _between(engine, view, stream, lsn, replace(position, lsn=upto))
            lsn = upto


def _upto(view: View, tables: Sequence[str], lsn: int, limit: int, rows: int) -> int:
    """How far one batch reaches: whole commits of one schema version, about a batch of rows from each bucket."""
    upto = limit
    for uuid in tables:
        upto = view.by_uuid(uuid).versions.until(lsn, upto)
        for log in view.by_uuid(uuid).logs:
            start = log.at_lsn(lsn).end
            reach = start + rows
            if log.head > reach:
                upto = min(upto, log.lsn_reaching(start, reach))
    return upto


def _between(engine: Engine, view: View, stream: _Stream, lsn: int, after: Token) -> Iterator[pb.ChangeBatch]:
    """Per table the commits in (lsn, after], in batches that fit into a message; the last one carries the token."""
    batches = []
    for uuid in stream.tables:
        state = view.by_uuid(uuid)
        table = state.versions.at(lsn + 1)
        batch = _table_batch(state, table, stream, lsn, after.lsn)
        if batch is not None:
            batches += [(table, piece) for piece in bounded(batch, engine.limits.read_batch_bytes)]
    for i, (table, batch) in enumerate(batches):
        token = after if i == len(batches) - 1 else replace(after, lsn=lsn)
        yield _message(table, batch, token, snapshot=False)


def _table_batch(state: TableState, table: Table, stream: _Stream, lsn: int, upto: int) -> pa.RecordBatch | None:
    parts: list[pa.RecordBatch] = []
    lsns: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    for bucket, log in enumerate(state.logs):
        start, end = log.at_lsn(lsn).end, log.at_lsn(upto).end
        if start == end:
            continue
        commits = log.commits(start, end)
        for rows in read(log, start, end):
            shown = with_before_images(log, rows, state.versions) if stream.before_images and log.keyed else rows
            shape = state.versions.projection(rows.schema_id, table)
            parts.append(project(shape, shown, _columns(table, stream), bucket))
            lsns.append(commits.lsn[np.searchsorted(commits.end, shown.offsets, side="right")])
    if not parts:
        return None
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate(lsns), kind="stable")
    return pa.concat_batches(parts).take(pa.array(order))


def _columns(table: Table, stream: _Stream) -> list[str]:
    """What a batch of that version shows: chosen columns go by id, and are left out where there are none."""
    names = {column.id: column.name for column in table.columns}
    chosen = stream.columns.get(table.uuid, names)
    return [*_STREAM_COLUMNS, *[names[number] for number in chosen if number in names]]


def _message(table: Table, batch: pa.RecordBatch, token: Token, *, snapshot: bool) -> pb.ChangeBatch:
    data = encode(batch.schema, [batch])
    return pb.ChangeBatch(table=table.name, rows=data, token=str(token), snapshot=snapshot, schema_id=table.schema_id)
