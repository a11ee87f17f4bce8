"""Lakes that are ahead of their log: after a restore the warehouse may hold commits that the backup lacks.

Every metadata file of our tables names the timeline it was written in. A newer file of another timeline than the
server's is the lake of a history that is gone: to tier on top of the older state would mix the two, and the files
that the older state names may have been expired since.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakestore.errors import NotFound
from lakestore_server.iceberg import locations, metadata
from lakestore_server.iceberg.metadata_store import MetadataStore
from lakestore_server.iceberg.our_tables import TIMELINE_PROPERTY
from lakestore_server.iceberg.schemas import Json
from lakestore_server.state.catalog_change import Pointer
from lakestore_server.state.view import TableState, View


def find(view: View, store: MetadataStore, timeline: str) -> Mapping[str, str]:
    """Table uuid to a sentence, for each table whose lake went on without this server."""
    found = {}
    for state in view.tables.values():
        pointer = view.pointers.get((state.table.namespace, state.table.short_name))
        newest = _newer(store, pointer, timeline) if pointer else None
        if pointer and newest:
            found[state.table.uuid] = _sentence(state, pointer, *newest)
    return found


def _newer(store: MetadataStore, pointer: Pointer, timeline: str) -> tuple[str, Json] | None:
    """(location, metadata) of the newest file above the pointer's that another history wrote and that moved main."""
    folder, name = pointer.location.rsplit("/", 1)
    known = _main(store, pointer.location)
    newer = [each for each in store.names(folder) if _number(each) > _number(name)]
    for each in sorted(newer, key=_number, reverse=True):
        location = f"{folder}/{each}"
        doc = store.load(location).doc
        other = doc["properties"].get(TIMELINE_PROPERTY) != timeline
        if other and metadata.main_of(doc) != known:
            return location, doc
    return None


def _main(store: MetadataStore, location: str) -> int | None:
    """Main's snapshot; None also when a later commit removed the metadata itself."""
    try:
        return metadata.main_of(store.load(location).doc)
    except NotFound:
        return None


def _number(name: str) -> int:
    found = locations.metadata_number(name)
    return -1 if found is None else found


def _sentence(state: TableState, pointer: Pointer, location: str, doc: Json) -> str:
    main = metadata.main_of(doc)
    summary: Json = next((s.get("summary", {}) for s in doc["snapshots"] if s["snapshot-id"] == main), {})
    point = summary.get("lakestore.tier-point", "unknown")
    return (
        f"the lake of table {state.table.name} is ahead of this server, which was restored from a backup: "
        f"{location.rsplit('/', 1)[-1]} has tier point {point}, the log ends at {state.heads()}; nothing is tiered "
        "until a newer backup is restored, or every metadata file numbered above "
        f"{pointer.location.rsplit('/', 1)[-1].split('-', 1)[0]} is moved out of that folder and the server restarted"
    )
