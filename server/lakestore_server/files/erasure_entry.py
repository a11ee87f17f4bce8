"""The stored form of an erasure, in a record of the journal and in a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lakestore_server.host import versions
from lakestore_server.state.erasure import ErasedTable, Erasure, ErasureStep


def erasure_list(held: Erasure) -> list[Any]:
    """The stored form."""
    tables = [[t.uuid, list(t.floors), t.lsn, list(t.gone), t.keys, t.rows, t.dead_lsn] for t in held.tables]
    about = [held.where, held.where_hash, held.by, held.why, held.at_us, held.until_us]
    return [held.id, held.name, tables, *about, held.step, held.done_us, held.letters_left, list(held.backups)]


def erasure_of(data: Sequence[Any]) -> Erasure:
    """Decodes `erasure_list`."""
    about = versions.checked_entry(data, 13, "an erasure")
    number, name, tables, where, where_hash, by, why, at_us, until_us, step, done_us, letters, backups = about
    if step not in set(ErasureStep):
        raise versions.newer(f"an erasure at the step {step!r}")
    parts = tuple(
        ErasedTable(uuid, tuple(floors), lsn, tuple(gone), *about)
        for uuid, floors, lsn, gone, *about in versions.checked_entries(tables, 7, "a table of an erasure")
    )
    times = at_us, until_us, ErasureStep(step), done_us
    return Erasure(number, name, parts, where, where_hash, by, why, *times, letters, tuple(backups))
