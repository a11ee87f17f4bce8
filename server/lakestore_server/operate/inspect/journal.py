"""A report on a journal file, frame by frame up to the first damage, and on the bytes after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore_server.files import journal
from lakestore_server.files.journal import RawFrame
from lakestore_server.operate.inspect.definitions import Definitions
from lakestore_server.operate.inspect.report import Report


def describe(path: Path, known: Definitions, *, rows: bool, kind: str = "journal") -> Report:
    """The frames of a journal file, or of a file that is kept for its rows."""
    data = path.read_bytes()
    report = Report(str(path), kind, {"bytes": len(data)})
    head = journal.head_of(data, path.name)
    if head:
        report.about |= {"version": head.version, "salt": f"{head.salt:016x}"}
    end = journal.FILE_HEADER_BYTES if head else 0
    try:
        for frame in journal.frames(data, path.name, last=True):
            report.parts.append(_frame(frame, end))
            known.follow(frame)
            if rows:
                _rows(frame, known, report)
            end = frame.end
    except Corrupt as error:
        report.damage.append(error.message)
    else:
        if end < len(data):
            report.about["torn tail"] = f"{len(data) - end} bytes from byte {end}: cut off by the next start"
    report.about["frames"] = len(report.parts)
    if report.parts:
        report.about["lsn"] = f"{report.parts[0]['lsn']} to {report.parts[-1]['lsn']}"
    return report


def _frame(frame: RawFrame, at: int) -> dict[str, Any]:
    parts = frame.rows()
    return {
        "at": at,
        "lsn": frame.lsn,
        "time_us": frame.time_us,
        "bytes": frame.end - at,
        "crc": "ok",
        "rows": sum(part.count for part in parts),
        "buckets": {f"{part.table}/{part.bucket}": f"{part.start}..{part.start + part.count}" for part in parts},
        "sections": frame.sections,
    }


def _rows(frame: RawFrame, known: Definitions, report: Report) -> None:
    for part in frame.rows():
        where = f"lsn {frame.lsn}, table {part.table}, bucket {part.bucket}, offsets from {part.start}"
        schema = known.stored(part.table, part.schema_id)
        if schema is None:
            report.unread.append(f"{where}: the table's definition is neither here nor in a checkpoint beside")
            continue
        try:
            report.rows.append((where, frame.batch(part, schema)))
        except pa.ArrowException as error:
            report.unread.append(f"{where}: {error}")
