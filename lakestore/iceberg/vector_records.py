"""Adds path bounds to the records of vectors without decoding the records.

Some writers leave the bounds out. A reader that does not know that a vector covers one data file sees it by equal
bounds of the path.
"""

from __future__ import annotations

from collections.abc import Iterator

from lakestore.iceberg.avro import Places
from lakestore.iceberg.avro_values import write_long
from lakestore.iceberg.manifest_entries import LOWER, UPPER, Entries
from lakestore.iceberg.position_deletes import PATH_ID


def bounded(deletes: Entries, places: Places) -> Iterator[bytes]:
    """The records of delete files. A record with a reference and no bounds gets the referenced path as bounds.

    The records stay unchanged if the schema of the manifest has no field for bounds.
    """
    low, high = (deletes.spans(field, places) for field in (LOWER, UPPER))
    if low is None or high is None:
        yield from deletes.records(places)
        return
    ends = zip(*(each.tolist() for each in (*low, *high)), strict=True)
    paths = deletes.references(places)
    for record, path, (begin, end, has_low, start, behind, has_high) in zip(
        deletes.records(places), paths, ends, strict=True
    ):
        if path is None or has_low or has_high:
            yield record
        else:
            yield _bound(path).join((record[:begin], record[end:start], record[behind:]))


def _bound(path: bytes) -> bytes:
    """A map with one item, the bound of the path column, as the second type of a union."""
    out = bytearray()
    for number in (1, 1, PATH_ID, len(path)):
        write_long(out, number)
    return bytes(out + path + b"\0")
