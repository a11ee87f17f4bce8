"""The key index of a data folder: where it stands, and its entries per table with their checks."""

from __future__ import annotations

from pathlib import Path

from lakestore.errors import Unavailable
from lakestore_server.index.pipe import Op, Walked
from lakestore_server.index.worker_client import IndexProcess
from lakestore_server.operate.inspect.report import Report

SLICE = 100_000


def describe(path: Path) -> Report:
    """Every entry is read; the folder is opened for reading only."""
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
    """Describe the first table from this number on; the number to go on from."""
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
