"""Metrics of presented cuts: what other engines are shown, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator

from lakestore_server.operate.metric_sources import Family, Moment, Sample


def _loads(moment: Moment) -> Iterator[Sample]:
    """Loads by what they got."""
    for kind, count in sorted(moment.sources.presented.figures.loads.items()):
        yield (kind,), count


FAMILIES = (
    Family(
        "lakestore_presented_cuts",
        "gauge",
        "Cuts of tables whose files stay for readers of other engines.",
        lambda m: m.sources.presented.status().cuts,
    ),
    Family(
        "lakestore_presented_tables",
        "gauge",
        "Tables that such cuts are of.",
        lambda m: m.sources.presented.status().tables,
    ),
    Family(
        "lakestore_presented_files",
        "gauge",
        "Files of presented cuts in the warehouse.",
        lambda m: m.sources.presented.status().files,
    ),
    Family(
        "lakestore_presented_bytes",
        "gauge",
        "Their bytes; `limits.present_bytes` bounds them.",
        lambda m: m.sources.presented.status().bytes,
    ),
    Family(
        "lakestore_presented_written_bytes",
        "counter",
        "Bytes written to present cuts.",
        lambda m: m.sources.presented.figures.written_bytes,
    ),
    Family(
        "lakestore_present_seconds",
        "histogram",
        "Duration of presenting one cut.",
        lambda m: m.sources.presented.figures.seconds,
    ),
    Family(
        "lakestore_presented_loads",
        "counter",
        "Loads of tables in `now` and `at:`: `new` had a cut presented or waited for one, `kept` got an answer made"
        " before, `not modified` was told that there is nothing new.",
        _loads,
        ("answer",),
    ),
    Family(
        "lakestore_lake_offsets_read",
        "counter",
        "Offset indexes of the lake's data files that were read from these; later ones are mapped or in memory.",
        lambda m: m.sources.presented.figures.offsets_read,
    ),
    Family(
        "lakestore_lake_offsets_evicted",
        "counter",
        "Offset indexes that went for lack of room; if many do, raise `limits.lake_offsets_bytes` or"
        " `limits.lake_offsets_disk_bytes`.",
        lambda m: m.sources.presented.figures.offsets_evicted,
    ),
    Family(
        "lakestore_scan_reports",
        "counter",
        "Reports that engines sent of their scans of presented tables.",
        lambda m: m.sources.presented.figures.reports,
    ),
)
"""In the order of the page."""
