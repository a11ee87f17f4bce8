"""The marks of a shared subscription compared with its tables: first marks, and changes that are not yet read.

A subscription that becomes shared continues from the position of its one consumer. A subscription that is read alone
again continues from its bucket that is furthest behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lakestore.errors import Conflict, PositionExpired
from lakestore.model.token import Place
from lakestore_server.changes.sharing.members import Bucket
from lakestore_server.state import swaps
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.subscription import NO_CUT, Mark, Subscription
from lakestore_server.state.view import TableState, View

_NEWEST = 1 << 62


def shared(held: Subscription, view: View) -> Subscription:
    """The subscription with a mark for each bucket, at the position of its one consumer."""
    marks = []
    for i, uuid in enumerate(held.tables):
        state = view.by_uuid(uuid)
        if held.lsn < state.swapped_lsn:
            raise Conflict(
                f"subscription {held.name!r} stands before LSN {state.swapped_lsn}, at which table {state.table.name}"
                " was rescaled or swapped, and shared positions name buckets: let one consumer read it up to there,"
                " or begin at 'snapshot' or 'latest'"
            )
        logs = state.logs
        marks.append(tuple(_begun(held, i, bucket, log) for bucket, log in enumerate(logs)))
    return replace(held, marks=tuple(marks), refusals=())


def alone(held: Subscription, view: View) -> Subscription:
    """The subscription for one consumer, at the newest position that is acknowledged in all buckets. `Conflict` if the
    log no longer has the changes after this position."""
    lsn, place = position(held, view)
    for uuid in held.tables:
        state = view.by_uuid(uuid)
        if lsn < state.log_start_lsn:
            raise Conflict(
                f"the log of table {state.table.name} no longer has changes that one consumer of subscription "
                f"{held.name!r} would need, because its buckets are far apart: continue with shared=True"
            )
    return replace(held, lsn=lsn, place=place, marks=(), refusals=())


def position(held: Subscription, view: View) -> tuple[int, Place | None]:
    """The newest position from which one consumer misses nothing."""
    if not held.is_shared:
        return held.lsn, held.place
    for uuid, marks in zip(held.tables, held.marks, strict=True):
        for bucket, mark in enumerate(marks):
            if mark.cut != NO_CUT:
                return mark.cut, Place(uuid, bucket, mark.offset)
    states = [view.tables[uuid] for uuid in held.tables if uuid in view.tables]
    return min([view.lsn, *(_unread(held, state) for state in states)]), None


def needed(held: Subscription, state: TableState) -> int:
    """The limit of a table's log start; above all commits if everything is acknowledged. A subscription that can only
    restart holds nothing."""
    found = _unread(held, state)
    return _NEWEST if found < state.log_start_lsn else found


def _unread(held: Subscription, state: TableState) -> int:
    if not held.is_shared:
        return held.lsn
    marks = held.marks[held.tables.index(state.table.uuid)]
    return min(_needed(mark, log) for mark, log in zip(marks, state.logs, strict=True))


def expired(held: Subscription, view: View) -> TableState | None:
    """A table whose log has lost changes that a subscription has not read; None if there is none."""
    for i, uuid in enumerate(held.tables):
        state = view.tables.get(uuid)
        if state is None:
            continue
        if not held.is_shared:
            if held.lsn < swaps.earliest(view, state):
                return state
        elif any(_is_gone(mark, log) for mark, log in zip(held.marks[i], state.logs, strict=True)):
            return state
    return None


def check_kept(held: Subscription, view: View) -> None:
    """`PositionExpired` if the log has lost changes that the subscription has not read."""
    state = expired(held, view)
    if state is not None:
        error = PositionExpired(
            f"subscription {held.name!r} has not read all of table {state.table.name}, {gone_since(state)}: "
            f"restart it with `lakestore subscriptions reset {held.name} --to snapshot`, or --to earliest"
        )
        error.earliest = view.token(swaps.earliest(view, state))
        raise error


def gone_since(state: TableState) -> str:
    """A relative clause that says which changes of a table are gone."""
    if state.truncated_lsn and state.truncated_lsn == state.log_start_lsn:
        return f"which lost all rows before LSN {state.truncated_lsn} by a truncate"
    if state.erased_lsn and state.erased_lsn == state.log_start_lsn:
        return f"whose changes up to LSN {state.erased_lsn} were removed by an erase of rows"
    if state.swapped_lsn > state.log_start_lsn:
        how = "a branch took its place" if state.former[-1].apart else "it was rescaled"
        return f"which keeps changes from LSN {state.swapped_lsn} on, at which {how}"
    return f"which keeps changes from LSN {state.log_start_lsn} (offsets {list(state.starts())}) on"


def _is_gone(mark: Mark, log: BucketLog) -> bool:
    return mark.offset < log.base.end if mark.cut == NO_CUT else mark.cut < log.base.lsn


def behind(held: Subscription, view: View) -> Iterator[tuple[Bucket, int]]:
    """The number of unread changes of each bucket, without changes that are gone."""
    if not held.is_shared:
        yield from _behind_before(held, view)
    for i, uuid in enumerate(held.tables):
        for bucket, log in enumerate(view.tables[uuid].logs if uuid in view.tables else ()):
            if not held.is_shared:
                at = max(held.lsn, log.base.lsn, view.tables[uuid].swapped_lsn)
                yield (uuid, bucket), log.head - log.at_lsn(at).end
                continue
            mark = held.marks[i][bucket]
            at = mark.offset if mark.cut == NO_CUT else log.at_lsn(max(mark.cut, log.base.lsn)).end
            yield (uuid, bucket), log.head - max(at, log.base.end)


def _behind_before(held: Subscription, view: View) -> Iterator[tuple[Bucket, int]]:
    """The unread changes in tables that were replaced since."""
    for uuid in held.tables:
        for former in view.tables[uuid].former if uuid in view.tables else ():
            before = swaps.kept_table(view, former.uuid)
            if before is None or held.lsn >= former.lsn:
                continue
            for bucket, log in enumerate(before.logs):
                at = max(held.lsn, log.base.lsn, before.swapped_lsn)
                yield (former.uuid, bucket), log.at_lsn(former.lsn).end - log.at_lsn(at).end


def _begun(held: Subscription, table: int, bucket: int, log: BucketLog) -> Mark:
    if held.place is not None:
        here = table, bucket
        reads = held.tables.index(held.place.table), held.place.bucket
        if here >= reads:
            return Mark(held.place.offset if here == reads else 0, held.lsn)
    return Mark(log.at_lsn(held.lsn).end)


def _needed(mark: Mark, log: BucketLog) -> int:
    if mark.cut != NO_CUT:
        return mark.cut
    beyond = log.lsn_beyond(mark.offset)
    return _NEWEST if beyond is None else beyond - 1
