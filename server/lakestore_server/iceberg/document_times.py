"""Times of a metadata document that Iceberg's Java library accepts. Pure.

Java refuses a document whose snapshot log, metadata log or `last-updated-ms` goes back by more than a minute, and a
document that it refuses cannot be loaded, so no client can mend it. Three rules:

- `last-updated-ms` and the entries of both logs never go back;
- they are stamps of the catalog's clock: a snapshot keeps the time that its client gave it, but a client whose clock
  is ahead does not move the document's times ahead of the catalog;
- a document whose times are ahead of the catalog's clock, because that clock was set back, is lowered to that clock:
  a client with a right clock would otherwise be refused by its own Java until the time has come.
"""

from __future__ import annotations

from itertools import accumulate

from lakestore_server.iceberg.schemas import Json

SKEW_MS = 60_000
"""Java allows times to go back this far."""
_LOGS = ("snapshot-log", "metadata-log")
_STAMP = "timestamp-ms"


def raised(doc: Json) -> Json:
    """The document with each time that goes back raised to the time before it; the same object if none does."""
    return _mended(doc, None)


def lowered(doc: Json, now_ms: int) -> Json:
    """The document with no time after now; the same object if it has none."""
    return doc if doc["last-updated-ms"] <= now_ms else _mended(doc, now_ms)


def _mended(doc: Json, latest: int | None) -> Json:
    times = {key: [int(entry[_STAMP]) for entry in doc[key]] for key in _LOGS}
    sorted_times = {key: list(accumulate(stamps, max)) for key, stamps in times.items()}
    last = max(doc["last-updated-ms"], *(stamps[-1] for stamps in sorted_times.values() if stamps), 0)
    if latest is not None:
        sorted_times = {key: [min(stamp, latest) for stamp in stamps] for key, stamps in sorted_times.items()}
        last = min(last, latest)
    if sorted_times == times and last == doc["last-updated-ms"]:
        return doc
    logs = {
        key: [{**entry, _STAMP: stamp} for entry, stamp in zip(doc[key], stamps, strict=True)]
        for key, stamps in sorted_times.items()
    }
    return {**doc, **logs, "last-updated-ms": last}
