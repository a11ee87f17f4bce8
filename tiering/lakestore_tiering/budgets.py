"""The budget of each table's upkeep, and the pause between its rounds.

1. Compactions of a table take at most `upkeep_percent` of the time: a long one is followed by a rest.
2. If more files wait for compaction than `upkeep_files`, rounds come less often, so that they make fewer files.
3. `lakestore.budget` of a contract takes the place of both options, and bounds the share of deleted rows too.
4. All is said in `status`, with the numbers that caused it.

Example: a compaction of 30 s at 25 percent is followed by 90 s of rest. With 25,000 files that wait and 10,000 allowed,
rounds come every 40 s instead of every 10 s.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from lakestore.model.contract.promises import Budget, upkeep_budget
from lakestore.model.table import Table
from lakestore_tiering.compact import CompactionResult
from lakestore_tiering.debts import COMPACTION, Debt, TableDebts

SLOWED_MAX = 8
"""The most by which the pause between rounds grows."""
SPENT_SECONDS = 3600.0
"""The tierer tells the share of this time that compactions took."""
_log = logging.getLogger("lakestore.tiering")


class Budgets:
    """The budgets of all tables. The rounds of one table come one after the other."""

    def __init__(self, debts: TableDebts, clock: Callable[[], float]) -> None:
        self._debts, self._clock = debts, clock
        self.rests: dict[str, float] = {}
        """Table uuid to the clock seconds before which no compaction begins."""
        self.compactions: dict[str, deque[tuple[float, float]]] = {}
        """Table uuid to (clock seconds of the end, seconds) of each compaction of the last hour."""
        self._results: dict[str, str] = {}
        self._factors: dict[str, int] = {}

    def may_start(self, table: Table) -> bool:
        """False during a rest."""
        return self._rest(table) <= 0

    def spent(self, table: Table, seconds: float) -> None:
        """A compaction took so long: rest until its share of the time is over."""
        percent = upkeep_budget(table).percent or 100
        self.rests[table.uuid] = self._clock() + seconds * (100 / percent - 1)
        self.compactions.setdefault(table.uuid, deque()).append((self._clock(), seconds))

    def landed(self, table: Table, result: CompactionResult | None) -> None:
        """Keep what a compaction did, for the note of what it left."""
        made = f"made {result.files_after:,} files of {result.files_before:,}" if result else "found nothing to do"
        self._results[table.uuid] = f"the last rewrite {made}"

    def note(self, table: Table, *, is_running: bool) -> None:
        """Say in the debt of compaction what happens next, and what the last run did; tell what compactions took."""
        self._debts.spend(table.uuid, self._spent_percent(table))
        debt = self._debts.of(table.uuid).get(COMPACTION)
        if debt is None:
            return
        rest = self._rest(table)
        waits = f"the next rewrite begins in {math.ceil(rest)} s, upkeep_percent is {upkeep_budget(table).percent}"
        next_step = "a rewrite is running" if is_running else waits if rest > 0 and debt.count else ""
        notes = [next_step, self._results.get(table.uuid, ""), debt.note]
        self._debts.put(table.uuid, replace(debt, note="; ".join(filter(None, notes))))

    def pause(self, table: Table) -> float:
        """Seconds until the table's next round."""
        reasons = self._reasons(table, upkeep_budget(table))
        factor = max((factor for factor, _ in reasons), default=1)
        seconds = float(table.lake.freshness_seconds * factor)
        said = "; ".join(reason for _, reason in reasons)
        why = f"Rounds of {table.name} come every {seconds:.0f} s instead of {table.lake.freshness}: {said}"
        self._debts.slow(table.uuid, why if factor > 1 else "")
        if factor != self._factors.get(table.uuid, 1):
            _log.warning("%s", why if factor > 1 else f"rounds of {table.name} keep their freshness again")
        self._factors[table.uuid] = factor
        return seconds

    def _reasons(self, table: Table, budget: Budget) -> list[tuple[int, str]]:
        """The factor and the sentence of each bound that is exceeded."""
        found = []
        waiting, most = self._debts.of(table.uuid).get(COMPACTION, Debt(COMPACTION, 0)).count, budget.files or 1
        if (factor := slowed_by(waiting, most)) > 1:
            is_ours = table.contract is not None and table.contract.budget.files is not None
            bound = "the contract allows" if is_ours else "upkeep_files"
            found.append((factor, f"{waiting:,} files wait for compaction, more than {bound} ({most:,})"))
        deleted, share = self._debts.deleted_share(table.uuid), budget.delete_ratio
        if share is not None and deleted > share:
            factor = slowed_by(math.ceil(deleted * 1_000), math.ceil(share * 1_000))
            sentence = (
                f"{deleted:.1%} of the rows in data files are deleted, more than the contract allows ({share:.1%})"
            )
            found.append((max(factor, 2), sentence))
        return found

    def _spent_percent(self, table: Table) -> float:
        """Percent of the last hour that compactions of a table took."""
        spans, since = self.compactions.get(table.uuid, deque()), self._clock() - SPENT_SECONDS
        while spans and spans[0][0] < since:
            spans.popleft()
        return min(100 * sum(seconds for _, seconds in spans) / SPENT_SECONDS, 100.0)

    def _rest(self, table: Table) -> float:
        return self.rests.get(table.uuid, 0.0) - self._clock()


def slowed_by(waiting: int, most: int) -> int:
    """The factor by which rounds are slowed down: a power of two, 1 up to `most`."""
    return min(SLOWED_MAX, 1 << (max(-(-waiting // most), 1) - 1).bit_length())
