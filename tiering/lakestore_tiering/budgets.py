"""The budget of each table's upkeep, and the pause between its rounds.

1. Compactions of a table take at most `upkeep_percent` of the time: a long one is followed by a rest.
2. If more files wait for compaction than `upkeep_files`, rounds come less often, so that they make fewer files.
3. Both are said in `status`, with the numbers that caused them.

Example: a compaction of 30 s at 25 percent is followed by 90 s of rest. With 25,000 files that wait and 10,000 allowed,
rounds come every 40 s instead of every 10 s.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace

from lakestore.model.table import Table
from lakestore_tiering.compact import CompactionResult
from lakestore_tiering.debts import COMPACTION, Debt, TableDebts

SLOWED_MAX = 8
"""The most by which the pause between rounds grows."""
_log = logging.getLogger("lakestore.tiering")


class Budgets:
    """The budgets of all tables. The rounds of one table come one after the other."""

    def __init__(self, debts: TableDebts, clock: Callable[[], float]) -> None:
        self._debts, self._clock = debts, clock
        self.rests: dict[str, float] = {}
        """Table uuid to the clock seconds before which no compaction begins."""
        self._results: dict[str, str] = {}
        self._factors: dict[str, int] = {}

    def may_start(self, table: Table) -> bool:
        """False during a rest."""
        return self._rest(table) <= 0

    def spent(self, table: Table, seconds: float) -> None:
        """A compaction took so long: rest until its share of the time is over."""
        self.rests[table.uuid] = self._clock() + seconds * (100 / table.lake.upkeep_percent - 1)

    def landed(self, table: Table, result: CompactionResult | None) -> None:
        """Keep what a compaction did, for the note of what it left."""
        made = f"made {result.files_after:,} files of {result.files_before:,}" if result else "found nothing to do"
        self._results[table.uuid] = f"the last rewrite {made}"

    def note(self, table: Table, *, is_running: bool) -> None:
        """Say in the debt of compaction what happens next, and what the last run did."""
        debt = self._debts.of(table.uuid).get(COMPACTION)
        if debt is None:
            return
        rest = self._rest(table)
        waits = f"the next rewrite begins in {math.ceil(rest)} s, upkeep_percent is {table.lake.upkeep_percent}"
        next_step = "a rewrite is running" if is_running else waits if rest > 0 and debt.count else ""
        notes = [next_step, self._results.get(table.uuid, ""), debt.note]
        self._debts.put(table.uuid, replace(debt, note="; ".join(filter(None, notes))))

    def pause(self, table: Table) -> float:
        """Seconds until the table's next round."""
        debt = self._debts.of(table.uuid).get(COMPACTION, Debt(COMPACTION, 0))
        factor = slowed_by(debt.count, table.lake.upkeep_files)
        seconds = float(table.lake.freshness_seconds * factor)
        why = (
            f"Rounds of {table.name} come every {seconds:.0f} s instead of {table.lake.freshness}: {debt.count:,} files"
            f" wait for compaction, more than upkeep_files ({table.lake.upkeep_files:,})"
        )
        self._debts.slow(table.uuid, why if factor > 1 else "")
        if factor != self._factors.get(table.uuid, 1):
            _log.warning("%s", why if factor > 1 else f"rounds of {table.name} keep their freshness again")
        self._factors[table.uuid] = factor
        return seconds

    def _rest(self, table: Table) -> float:
        return self.rests.get(table.uuid, 0.0) - self._clock()


def slowed_by(waiting: int, most: int) -> int:
    """The factor by which rounds are slowed down: a power of two, 1 up to `most`."""
    return min(SLOWED_MAX, 1 << (max(-(-waiting // most), 1) - 1).bit_length())
