"""A report on a file of segments: range, batches, commits and blocks of each segment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore_server.files import shared_file
from lakestore_server.files.segment import Segment, SegmentBytes
from lakestore_server.files.shared_file import SharedFile
from lakestore_server.host.disk import RealDisk
from lakestore_server.operate.inspect.definitions import Definitions
from lakestore_server.operate.inspect.report import Report


def describe(path: Path, known: Definitions, *, rows: bool) -> Iterator[Report]:
    """The report on a segment file; for a shared file also on each of its segments."""
    with path.open("rb") as file:
        head = file.read(64)
    if not shared_file.is_shared(head):
        yield _segment(path, path.parent.name, known, None, rows=rows)
        return
    report = Report(str(path), "shared segment file", {"bytes": path.stat().st_size})
    yield report
    try:
        held = SharedFile(RealDisk(), path)
    except Corrupt as error:
        report.damage.append(error.message)
        return
    report.about["segments"] = len(held.entries)
    for at, entry in held.entries.items():
        where = {"table": known.name(entry.table) or "unknown", "bucket": entry.bucket}
        report.parts.append({**where, "offsets": f"{entry.start}..{entry.end}", "at": at, "bytes": entry.size})
        yield _segment(path, entry.table, known, held.part(at, entry.size), rows=rows)


def _segment(path: Path, uuid: str, known: Definitions, part: SegmentBytes | None, *, rows: bool) -> Report:
    """The report on a segment; damaged blocks are named and the others are read."""
    place = str(path) if part is None else f"{path} at {part.at}"
    size = path.stat().st_size if part is None else part.data.size
    report = Report(place, "segment", {"bytes": size, "table": known.name(uuid) or "unknown"})
    schema = None

    def stored(schema_id: int) -> pa.Schema:
        nonlocal schema
        schema = known.stored(uuid, schema_id)
        return schema if schema is not None else pa.schema([])

    try:
        segment = Segment(RealDisk(), path, stored, keyed=False, part=part)
        keyed = bool(schema is not None and schema.names[:1] == ["__change"])
        segment = Segment(RealDisk(), path, stored, keyed=keyed, part=part) if keyed else segment
    except Corrupt as error:
        report.damage.append(error.message)
        return report
    index = segment.index
    report.about |= {
        "offsets": f"{segment.start}..{segment.end}",
        "schema version": segment.schema_id,
        **({"rows left": segment.rows} if segment.is_sparse else {}),
        **({"bytes in kept journals": dict(segment.bytes_in)} if segment.files else {}),
        "commits": len(index.lsn),
        "lsn": f"{index.lsn[0]} to {index.lsn[-1]}",
        "live rows at its end": int(index.live_rows[-1]),
        "live sum at its end": f"{int(index.live_sum[-1]):016x}",
    }
    checked = list(segment.scrub())
    report.about["blocks"] = len(checked)
    report.damage += [damage for _, damage in checked if damage]
    report.parts = [{"batch": i, "offsets": f"{p.start}..{p.end}"} for i, p in enumerate(segment.batches())]
    if rows and schema is None:
        report.unread.append("the table's definition is not in a checkpoint of this data folder")
    elif rows:
        _rows(segment, report)
    return report


def _rows(segment: Segment, report: Report) -> None:
    for i, piece in enumerate(segment.batches()):
        try:
            report.rows.append((f"batch {i}, offsets from {piece.start}", piece.load()))
        except (Corrupt, pa.ArrowException) as error:
            report.unread.append(f"batch {i}: {error}")
