"""A report on the key index of a data folder: LMDB's position, the runs, and the checked entries of each table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lakestore.errors import NewerFormat, Unavailable
from lakestore.rows.live_sum import live_sum
from lakestore_server.host.disk import RealDisk
from lakestore_server.index.entry import DAMAGED, is_live
from lakestore_server.index.levels import values_of
from lakestore_server.index.pipe import Op, Walked
from lakestore_server.index.run import SUFFIX, Run, Section
from lakestore_server.index.worker_client import DamagedIndex, IndexProcess
from lakestore_server.operate.inspect.report import Report

SLICE = 100_000


def describe(path: Path) -> Iterator[Report]:
    """The reports of LMDB and of each run. Reads every entry; opens the folder read-only."""
    yield _lmdb(path)
    for run in sorted(path.glob(f"*{SUFFIX}"), reverse=True):
        yield describe_run(run)


def describe_run(path: Path) -> Report:
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


def _lmdb(path: Path) -> Report:
    report = Report(str(path), "index", {"bytes": (path / "data.mdb").stat().st_size})
    process = IndexProcess(path, read_only=True)
    try:
        report.about["lsn"] = process.ask(Op.LSN)[0]
        number: int | None = 0
        while number is not None:
            number = _table_from(process, number, report)
    except Unavailable as error:
        report.damage.append(f"the index in {path} cannot be read ({error.message}): it is rebuilt by the server")
    finally:
        process.close()
    report.about["entries"] = sum(part["entries"] for part in report.parts)
    return report


def _table_from(process: IndexProcess, number: int, report: Report) -> int | None:
    """Describe the first table with this number or a higher one; returns the next number."""
    _, at = process.ask(Op.NEXT, [number.to_bytes(4, "big")])
    if not at:
        return None
    table = int.from_bytes(at, "big")
    entries = total = damaged = 0
    start = b""
    while True:
        _, data = process.ask(Op.WALK, [at, start] if start else [at], number=SLICE)
        walked = Walked.decode(data)
        entries, total = entries + walked.live, (total + walked.total) % (1 << 64)
        damaged, start = damaged + walked.damaged, walked.following
        if not start:
            break
    report.parts.append({"table number": table, "entries": entries, "sum": f"{total:016x}", "damaged": damaged})
    if damaged:
        report.damage.append(
            f"{damaged} entries of table number {table} do not match their checks: rebuilt by the server"
        )
    return table + 1 if table + 1 < 1 << 32 else None
