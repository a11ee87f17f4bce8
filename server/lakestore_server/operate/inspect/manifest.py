"""A report on a backup's manifest: the backup's origin, and a check of every file that it names."""

from __future__ import annotations

from pathlib import Path

from lakestore.errors import Corrupt
from lakestore.model.times import text_of
from lakestore.rows.ipc import crc32c
from lakestore_server.files.backup_manifest import BackupFile, BackupManifest
from lakestore_server.operate.inspect.report import Report

_READ_BYTES = 16 << 20


def describe(path: Path) -> Report:
    """The report; each file is read and compared with its checksum."""
    raw = path.read_bytes()
    report = Report(str(path), "manifest", {"bytes": len(raw)})
    try:
        manifest = BackupManifest.decode(raw, path.name)
    except Corrupt as error:
        report.damage.append(error.message)
        return report
    report.about |= {
        "release": manifest.release,
        "as of": text_of(manifest.time_us),
        "lsn": manifest.lsn,
        "timeline": manifest.timeline,
        "lake": manifest.lake.value,
        "warehouse": manifest.warehouse,
        "files": len(manifest.files),
        "their bytes": sum(entry.size for entry in manifest.files),
    }
    for entry in manifest.files:
        whole = _is_whole(path.parent / entry.path, entry)
        report.parts.append(
            {
                "file": entry.path.removeprefix("segments/")[-40:],
                "bytes": entry.size,
                "crc": "ok" if whole else "DAMAGED",
            }
        )
        if not whole:
            report.damage.append(f"file {entry.path} of the backup is missing or differs from what was copied")
    return report


def _is_whole(file: Path, entry: BackupFile) -> bool:
    if not file.is_file() or file.stat().st_size != entry.size:
        return False
    crc = 0
    with file.open("rb") as opened:
        while piece := opened.read(_READ_BYTES):
            crc = crc32c(piece, crc)
    return crc == entry.crc32c
