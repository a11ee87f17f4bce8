"""A checkpoint file: the tables it holds, their segments, and everything small in figures."""

from __future__ import annotations

from pathlib import Path

from lakestore.errors import Corrupt
from lakestore_server.files import checkpoint
from lakestore_server.operate.inspect.report import Found


def describe(path: Path) -> Found:
    """What a checkpoint says; its segment files are looked for beside it."""
    raw = path.read_bytes()
    found = Found(str(path), "checkpoint", {"bytes": len(raw)})
    try:
        data = checkpoint.decode(raw, path.name)
    except Corrupt as error:
        found.damage.append(error.message)
        return found
    found.about |= {
        "timeline": data["timeline"],
        "lsn": data["lsn"],
        "time_us": data["time_us"],
        "tables": len(data["tables"]),
        "producers": len(data["producers"]),
        "namespaces": len(data["namespaces"]),
        "pointers": len(data["pointers"]),
    }
    for entry in data["tables"]:
        table = entry["table"]
        segments = [segment for bucket in entry["buckets"] for segment in bucket]
        found.parts.append(
            {
                "table": table["name"],
                "uuid": table["uuid"],
                "created_lsn": entry["created_lsn"],
                "segments": len(segments),
                "bytes": sum(size for _, size in segments),
                "tier_records": len(entry["tiers"]),
            }
        )
        found.damage += _missing(path.parent, table["uuid"], segments)
    return found


def _missing(folder: Path, uuid: str, segments: list[list[object]]) -> list[str]:
    beside = folder / "segments"
    if not beside.is_dir():
        return []
    return [
        f"segment file {name} of table {uuid} is missing: restore it from a copy or a backup"
        for name, _ in segments
        if not (beside / uuid / str(name)).is_file()
    ]
