"""Tables across swaps: the table that had a name at an LSN, for readers of positions from before a rescale.

- Up to the commit of the swap, rows and changes of a table are the rows and changes of the table that it replaced.
- From that commit on they are the table's own. Its commits before the swap filled the copy and are nobody's changes.
- If the table in its place is the branch of a replay, their rows may differ: reads go on, change streams do not.
- A replaced table can be read for its drop grace. Later its positions are `PositionExpired`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lakestore.errors import PositionExpired
from lakestore.model.token import SnapshotPosition, Token
from lakestore_server.state.view import TableState, View


def kept_table(view: View, uuid: str) -> TableState | None:
    """A table with kept rows, also a dropped one."""
    state = view.tables.get(uuid)
    if state is None and uuid in view.dropped:
        state = view.dropped[uuid].state
    return state


def state_at(view: View, state: TableState, lsn: int | None) -> TableState:
    """The table that had the rows of `state` at an LSN: itself, or the one that it replaced later; None is the head.
    `PositionExpired` if the replaced table is removed."""
    if lsn is None or lsn >= state.swapped_lsn:
        return state
    former = next(each for each in state.former if lsn < each.lsn)
    before = kept_table(view, former.uuid)
    if before is None:
        error = PositionExpired(
            f"table {state.table.name} was rescaled at LSN {former.lsn}, the table from before it is removed, and LSN"
            f" {lsn} was asked for: read a later position"
        )
        error.earliest = view.token(earliest(view, state))
        raise error
    return before


def changes_at(view: View, state: TableState, lsn: int) -> TableState:
    """The table of `state_at`, for a reader of changes: `PositionExpired` also if a branch took the table's place after
    this LSN, because no changes lead from the rows of before to the branch's rows."""
    apart = [each for each in state.former if each.apart and lsn < each.lsn]
    if apart:
        error = PositionExpired(
            f"at LSN {apart[-1].lsn} a branch took the place of table {state.table.name}, and its rows are no changes"
            f" after LSN {lsn}: start at 'snapshot'; a subscription is restarted with `lakestore subscriptions reset`"
        )
        error.earliest = view.token(earliest(view, state))
        raise error
    return state_at(view, state, lsn)


def state_at_time(view: View, state: TableState, time_us: int) -> TableState:
    """The table that had the rows of `state` at a time; the oldest kept one for times before it."""
    for former in reversed(state.former):
        before = kept_table(view, former.uuid)
        if time_us >= former.time_us or before is None:
            return state
        state = before
    return state


def earliest(view: View, state: TableState) -> int:
    """The LSN from which the changes of a table can be read."""
    lsn = max(state.log_start_lsn, state.swapped_lsn)
    while state.former and lsn == state.swapped_lsn:
        before = kept_table(view, state.former[-1].uuid)
        if before is None or state.former[-1].apart:
            break
        state, lsn = before, max(before.log_start_lsn, before.swapped_lsn)
    return lsn


@dataclass(frozen=True, slots=True)
class TablesAt:
    """The tables of a reader at a position."""

    view: View
    """The view with these tables, also dropped ones."""
    tables: tuple[str, ...]
    """Their uuids, in the reader's order. Offsets belong to these uuids."""
    until: int
    """The last LSN up to which the reader's tables are these."""

    @staticmethod
    def of(view: View, tables: Sequence[str], lsn: int) -> TablesAt:
        """The tables at an LSN of a reader that knows them by these uuids, from before or after a swap."""
        until, seen = view.lsn, list[TableState]()
        for uuid in tables:
            state = view.present(uuid)
            seen.append(changes_at(view, state, lsn))
            if lsn < state.swapped_lsn:
                until = min(until, next(each.lsn for each in state.former if lsn < each.lsn))
        uuids = tuple(state.table.uuid for state in seen)
        if any(uuid not in view.tables for uuid in uuids):
            view = replace(view, tables={**view.tables, **dict(zip(uuids, seen, strict=True))})
        return TablesAt(view, uuids, until)


def present_tables(view: View, tables: Sequence[str]) -> tuple[str, ...]:
    """The uuids of the tables that have the places of these now; unknown uuids stay."""
    if all(uuid in view.tables for uuid in tables):
        return tuple(tables)
    replaced = {each.uuid: uuid for uuid, state in view.tables.items() for each in state.former}
    return tuple(uuid if uuid in view.tables else replaced.get(uuid, uuid) for uuid in tables)


def present_token(view: View, token: Token) -> Token:
    """A token with the uuids of the tables that have the places of its tables now."""
    tables = present_tables(view, token.tables)
    if tables == token.tables:
        return token
    if isinstance(token, SnapshotPosition):
        [table] = present_tables(view, [token.place.table])
        return replace(token, tables=tables, place=replace(token.place, table=table))
    return replace(token, tables=tables)
