"""A report on a run of the key index: the checked entries of each table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lakestore.errors import NewerFormat
from lakestore.rows.live_sum import live_sum
from lakestore_server.host.disk import RealDisk
from lakestore_server.index.entry import DAMAGED, DamagedIndex, is_live
from lakestore_server.index.levels import values_of
from lakestore_server.index.run import Run, Section
from lakestore_server.operate.inspect.report import Report

SLICE = 100_000


def describe(path: Path) -> Report:
    """The report of a run, block by block. Runs of an unfinished merge may be there without a checkpoint."""
    report = Report(str(path), "index run", {"bytes": path.stat().st_size})
    try:
        run = Run(path, RealDisk().map(path))
        report.damage += [damage for _, damage in run.scrub() if damage]
        for prefix, section in run.sections.items():
            report.parts.append(_section(int.from_bytes(prefix, "big"), section, report))
    except (DamagedIndex, NewerFormat) as error:
        report.damage.append(f"{error.message}: it is rebuilt by the server")
    report.about["entries"] = sum(part["entries"] for part in report.parts)
    return report


def _section(table: int, section: Section, report: Report) -> dict[str, Any]:
    """The sums of a table's entries, without deleted and flagged keys."""
    entries = total = damaged = 0
    for first in range(0, section.count, SLICE):
        values = values_of(section, first, min(first + SLICE, section.count))
        offsets = values[is_live(values)]
        entries, total = entries + len(offsets), (total + live_sum(offsets)) % (1 << 64)
        damaged += int(np.count_nonzero(values == DAMAGED))
    if damaged:
        report.damage.append(f"{damaged} entries of table number {table} do not match their checks")
    return {
        "table number": table,
        "entries": entries,
        "deleted": section.count - entries - damaged,
        "sum": f"{total:016x}",
        "damaged": damaged,
    }
