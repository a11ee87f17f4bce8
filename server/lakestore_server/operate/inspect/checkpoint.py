"""A report on a checkpoint file: its tables, their segments, and sums of everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lakestore.errors import Corrupt
from lakestore_server.files import checkpoint
from lakestore_server.files.data_folder import EXTENTS, SEGMENTS, SHARED
from lakestore_server.files.extent import missing
from lakestore_server.files.segment_files import SegmentFile
from lakestore_server.operate.inspect.report import Report


def describe(path: Path) -> Report:
    """The report; segment files are looked up next to the checkpoint."""
    raw = path.read_bytes()
    report = Report(str(path), "checkpoint", {"bytes": len(raw)})
    try:
        held = checkpoint.decode(raw, path.name)
    except Corrupt as error:
        report.damage.append(error.message)
        return report
    report.about |= {
        "timeline": held.timeline,
        "lsn": held.lsn,
        "time_us": held.time_us,
        "tables": len(held.tables),
        "producers": len(held.producers.known),
        "registers": len(held.registers),
        "namespaces": len(held.namespaces),
        "pointers": len(held.pointers),
        "views": len(held.sql_views),
    }
    for entry in held.tables:
        segments = [file for files in entry.buckets for file in files]
        report.parts.append(
            {
                "table": entry.table.name,
                "uuid": entry.table.uuid,
                "created_lsn": entry.created_lsn,
                "segments": len(segments),
                "bytes": sum(file.size for file in segments),
                "tier_records": len(entry.tiers),
            }
        )
        report.damage += _missing(path.parent, entry.table.uuid, segments)
    if held.extents:
        report.about["kept journals"] = dict(held.extents)
        report.damage += _missing_extents(path.parent, held.extents)
    return report


def _missing_extents(folder: Path, extents: Mapping[str, int]) -> list[str]:
    beside = folder / SEGMENTS
    names = extents if beside.is_dir() else {}
    return [missing(name).message for name in names if not (beside / EXTENTS / name).is_file()]


def _missing(folder: Path, uuid: str, segments: Sequence[SegmentFile]) -> list[str]:
    beside = folder / SEGMENTS
    if not beside.is_dir():
        return []
    return [
        f"segment file {file.name} of table {uuid} is missing: restore it from a copy or a backup"
        for file in segments
        if not (beside / (SHARED if file.is_shared else uuid) / file.name).is_file()
    ]
