"""A segment file: its range, batches, commits and blocks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from lakestore.errors import Corrupt
from lakestore_server.files.segment import Segment
from lakestore_server.host.disk import RealDisk
from lakestore_server.operate.inspect.definitions import Definitions
from lakestore_server.operate.inspect.report import Report


def describe(path: Path, known: Definitions, *, rows: bool) -> Report:
    """The report on a segment; damaged blocks are named, the others are read."""
    report = Report(
        str(path), "segment", {"bytes": path.stat().st_size, "table": known.name(path.parent.name) or "unknown"}
    )
    schema = None

    def stored(schema_id: int) -> pa.Schema:
        nonlocal schema
        schema = known.stored(path.parent.name, schema_id)
        return schema if schema is not None else pa.schema([])

    try:
        segment = Segment(RealDisk(), path, stored, keyed=False)
        keyed = bool(schema is not None and schema.names[:1] == ["__change"])
        segment = Segment(RealDisk(), path, stored, keyed=keyed) if keyed else segment
    except Corrupt as error:
        report.damage.append(error.message)
        return report
    index = segment.index
    report.about |= {
        "offsets": f"{segment.start}..{segment.end}",
        "schema version": segment.schema_id,
        **({"rows left": segment.rows} if segment.is_sparse else {}),
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
