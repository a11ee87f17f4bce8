"""Administration of whole tables: alter, rename, rescale, replay, truncate, delete by a condition, drop and undrop."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from lakestore.client.commit import CommitToken, WriteResult
from lakestore.client.connection import Connection
from lakestore.errors import Conflict, Invalid, LakestoreError
from lakestore.evolution import (
    OPTIONS,
    AddColumn,
    DropColumn,
    MakeOptional,
    MoveColumn,
    SetDefault,
    SetOptions,
    Step,
    WidenColumn,
    renames,
)
from lakestore.model import times
from lakestore.model.names import rows_text
from lakestore.model.table import Table
from lakestore.model.types import type_name, user_type
from lakestore.rows import literals
from lakestore.v1 import lakestore_pb2 as pb


def steps_of(
    *,
    drop: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    add: Mapping[str, pa.DataType | pa.Field | str] | None = None,
    widen: Mapping[str, pa.DataType | str] | None = None,
    optional: Sequence[str] = (),
    default: Mapping[str, Any] | None = None,
    new_rows_only: bool = False,
    order: Sequence[str] = (),
    lake: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[Step]:
    """The steps in the order of the arguments. All but the first two use names as they are after a rename.

    `options` are `evolution.OPTIONS`; another merge engine is refused.
    """
    for name, value in {"drop": drop, "optional": optional, "order": order}.items():
        if isinstance(value, str):
            raise Invalid(f"{name}= takes a list of column names, not the text {value!r}")
    defaults = dict(default or {})
    steps: list[Step] = [DropColumn(name) for name in drop]
    steps += renames(rename or {})
    for name, kind in (add or {}).items():
        steps.append(_added(name, kind, defaults.pop(name, None), new_rows_only))
    steps += [WidenColumn(name, type_name(user_type(kind, name), name)) for name, kind in (widen or {}).items()]
    steps += [MakeOptional(name) for name in optional]
    steps += [SetDefault(name, value) for name, value in defaults.items()]
    steps += [MoveColumn(name, first=not i, after=order[i - 1] if i else "") for i, name in enumerate(order)]
    for name in options:
        if name not in OPTIONS and name != "merge":
            raise Invalid(f"alter takes no {name!r}; options of a table are {', '.join(OPTIONS)}")
    if drop and "ttl" in options:
        steps.insert(0, SetOptions(ttl=None))  # the column of the old TTL may be dropped
    if lake or options:
        steps.append(SetOptions(dict(lake or {}), **options))
    return steps


def _added(name: str, kind: pa.DataType | pa.Field | str, default: Any, new_rows_only: bool) -> AddColumn:
    if isinstance(kind, pa.Field):
        return AddColumn(name, type_name(kind.type, name), not kind.nullable, default, new_rows_only)
    return AddColumn(name, type_name(user_type(kind, name), name), default=default, new_rows_only=new_rows_only)


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A dropped table that is still kept."""

    name: str
    uuid: str
    dropped: datetime
    until: datetime | None
    """The time until which `undrop` works; None: its files are being removed."""
    left: timedelta
    """Time until then, by the server's clock."""
    rows: int
    bytes: int
    """Bytes of the server's files, without those in the lake."""

    @staticmethod
    def of(entry: pb.DroppedTable) -> DroppedTable:
        until = None if entry.going else times.moment_of(entry.until_us)
        dropped = times.moment_of(entry.dropped_us)
        left = timedelta(microseconds=entry.left_us)
        return DroppedTable(entry.table, entry.table_uuid, dropped, until, left, entry.rows, entry.bytes)


@dataclass(frozen=True, slots=True)
class Truncated:
    """The cost of a truncate."""

    token: str
    """Token of the commit; empty for a dry run."""
    rows: int
    subscriptions: tuple[str, ...]
    """Subscriptions of the table. Their readers get an error and start again after a reset."""


@dataclass(frozen=True, slots=True)
class DeleteProgress:
    """The progress of a delete by a condition."""

    matched: int
    """Matching live rows so far."""
    deleted: int
    looked_at: int
    offsets: int
    """Offsets to examine."""


OnProgress = Callable[[DeleteProgress], None]


def rename_table(connection: Connection, definition: Table, name: str) -> Table:
    """Rename the table and return its definition."""
    request = pb.RenameTableRequest(table=definition.name, new_name=name, table_uuid=definition.uuid)
    made = Table.from_json(connection.transport.rename_table(request).definition)
    connection.forget_definitions([definition.name, name])
    return made


def begin_rescale(connection: Connection, definition: Table, buckets: int) -> str:
    """Begin a rescale; returns the name of the copy."""
    request = pb.RescaleTableRequest(table=definition.name, table_uuid=definition.uuid, buckets=buckets)
    return connection.transport.rescale_table(request).copy


def stop_rescale(connection: Connection, definition: Table) -> None:
    """Stop a rescale and remove its copy."""
    request = pb.RescaleTableRequest(table=definition.name, table_uuid=definition.uuid, abort=True)
    connection.transport.rescale_table(request)


@dataclass(frozen=True, slots=True)
class RescaleProgress:
    """The progress of a rescale."""

    copy: str
    """The name of the copy."""
    buckets: int
    """The new number of buckets."""
    done: int
    """Offsets of the table that the copy has."""
    offsets: int
    """Offsets of the table; it grows with every write."""
    waits: str
    """The reason why it has not swapped: `rows`, `lake` (the next round of the tierer), `subscription`, `user` (a
    branch that is filled), or an error."""
    kind: str
    """Empty for a rescale, `branch` for a branch that follows the table, `at` for a branch of one position."""


def rescale_progress(connection: Connection, definition: Table) -> RescaleProgress | None:
    """The progress of the running rescale; None if there is none."""
    status = json.loads(connection.transport.status(pb.StatusRequest(tables=[definition.name])).status)
    found = status["tables"][0].get("rescale")
    return RescaleProgress(**{each.name: found[each.name] for each in fields(RescaleProgress)}) if found else None


OnRescale = Callable[[RescaleProgress], None]
RESCALE_POLL_SECONDS = 0.2


def await_rescale(connection: Connection, definition: Table, buckets: int, on_progress: OnRescale | None) -> Table:
    """Wait until a rescale has swapped; returns the new definition. `Conflict` if it was stopped."""
    while True:
        running = rescale_progress(connection, definition)
        if running is None:
            break
        if on_progress is not None:
            on_progress(running)
        time.sleep(RESCALE_POLL_SECONDS)
    connection.forget_definitions([definition.name])
    request = pb.TableRequest(table=definition.name)
    made = Table.from_json(connection.transport.get_table(request).definition)
    if made.buckets != buckets:
        raise Conflict(
            f"the rescale of table {definition.name} was stopped, by an abort or because the table was truncated:"
            f" it has {made.buckets} buckets"
        )
    return made


def begin_replay(connection: Connection, definition: Table, into: str, at: str, buckets: int) -> None:
    """Begin a branch of a table."""
    request = pb.ReplayTableRequest(
        table=definition.name, table_uuid=definition.uuid, into=into, at=at, buckets=buckets
    )
    connection.transport.replay_table(request)


def await_branch(connection: Connection, definition: Table, branch: str, on_progress: OnRescale | None) -> None:
    """Wait until a branch is filled. `Conflict` if it was removed."""
    while True:
        running = rescale_progress(connection, definition)
        if running is None or running.copy != branch:
            raise Conflict(f"branch {branch} of table {definition.name} was removed, or swapped, before it was filled")
        if on_progress is not None:
            on_progress(running)
        if running.waits == "user":
            return
        time.sleep(RESCALE_POLL_SECONDS)


def swap_replay(connection: Connection, definition: Table, reviewed: str) -> str:
    """Put the branch into the place of its table; returns the position of the swap."""
    step = pb.ReplayTableRequest.SWAP
    request = pb.ReplayTableRequest(table=definition.name, table_uuid=definition.uuid, step=step, reviewed=reviewed)
    answer = connection.transport.replay_table(request)
    connection.forget_definitions([definition.name, answer.branch])
    return connection.remember(answer.token)


def drop_replay(connection: Connection, definition: Table) -> None:
    """Remove the branch of a table."""
    step = pb.ReplayTableRequest.DROP
    request = pb.ReplayTableRequest(table=definition.name, table_uuid=definition.uuid, step=step)
    answer = connection.transport.replay_table(request)
    connection.forget_definitions([answer.branch])


def truncate_table(connection: Connection, definition: Table, *, check_only: bool) -> Truncated:
    """Truncate the table and return the cost. With `check_only` nothing is removed."""
    request = pb.TruncateTableRequest(table=definition.name, table_uuid=definition.uuid, check_only=check_only)
    answer = connection.transport.truncate_table(request)
    token = answer.token if check_only else connection.remember(answer.token)
    if not check_only:
        connection.forget_definitions([definition.name])
    return Truncated(token, answer.rows, tuple(answer.subscriptions))


def delete_where(
    connection: Connection, definition: Table, where: str, *, dry_run: bool, on_progress: OnProgress | None
) -> CommitToken:
    """Delete the rows that match a condition at one cut. Returns the position after the last commit."""
    matched = gone = looked_at = 0
    last = ""
    asked = literals.fixed(where)
    request = pb.DeleteWhereRequest(table=definition.name, table_uuid=definition.uuid, where=asked, dry_run=dry_run)
    while True:
        try:
            answer = connection.transport.delete_where(request)
        except LakestoreError as error:
            if gone:
                _tell_deleted(error, gone)
            raise
        matched, gone, looked_at = matched + answer.matched, gone + answer.deleted, looked_at + answer.looked_at
        last = connection.remember(answer.last) if answer.last else last
        if on_progress is not None:
            on_progress(DeleteProgress(matched, gone, looked_at, answer.offsets))
        if not answer.next:
            break
        request.token, request.next = answer.token, answer.next
    result = WriteResult(definition.name, deleted=matched if dry_run else gone, schema_id=definition.schema_id)
    return CommitToken(last or answer.token, result)


def _tell_deleted(error: LakestoreError, rows: int) -> None:
    least = "at least " if error.applied == "unknown" else ""
    error.message += f"; before that {least}{rows_text(rows)} {'was' if rows == 1 else 'were'} deleted"
    error.args, error.applied = (error.message,), "unknown"


def undrop_table(connection: Connection, name: str, uuid: str, new_name: str) -> Table:
    """Restore a dropped table."""
    request = pb.UndropTableRequest(table=name, table_uuid=uuid, new_name=new_name)
    return Table.from_json(connection.transport.undrop_table(request).definition)


def dropped_tables(connection: Connection) -> list[DroppedTable]:
    """The dropped tables that are still kept, newest first."""
    answer = connection.transport.list_dropped_tables(pb.ListDroppedTablesRequest())
    return [DroppedTable.of(entry) for entry in answer.tables]
