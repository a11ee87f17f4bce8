"""Lakes that do not match their log: gone, or ahead of a restored log by commits that the backup lacks.

Every metadata file of our tables names its timeline. A newer file of another timeline is the lake of a lost history.
Tiering on top of the older state would mix the two histories, and files of the older state may have been expired.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from lakestore.errors import Corrupt, Invalid, NotFound, Unavailable
from lakestore_server.catalog import locations, metadata
from lakestore_server.catalog.metadata_store import MetadataStore
from lakestore_server.catalog.our_tables import TIMELINE_PROPERTY
from lakestore_server.catalog.schemas import Json
from lakestore_server.state.catalog_change import DROPPED, Pointer
from lakestore_server.state.view import TableState, View

_READERS = 8
"""Metadata files read at once."""


def find(view: View, store: MetadataStore, timeline: str) -> Mapping[str, str]:
    """Table uuid to a sentence, for each table whose lake continued under another timeline."""
    found = {}
    for state in view.tables.values():
        pointer = view.pointers.get((state.table.namespace, state.table.short_name))
        sentence = ahead(state, pointer, store, timeline) if pointer else ""
        if sentence:
            found[state.table.uuid] = sentence
    return found


def ahead(state: TableState, pointer: Pointer, store: MetadataStore, timeline: str) -> str:
    """A sentence on a table's lake that continued under another timeline; empty if it did not."""
    newer = newest(store, pointer, timeline)
    return _sentence(state, pointer, *newer) if newer else ""


def problem(state: TableState, pointer: Pointer, store: MetadataStore, timeline: str) -> str:
    """A sentence on our lake that is gone or continued under another timeline; empty if all is well."""
    why = missing(store, pointer)
    return _gone_sentence(state.table.name, why, is_ours=True) if why else ahead(state, pointer, store, timeline)


def newest(store: MetadataStore, pointer: Pointer, timeline: str) -> tuple[str, Json] | None:
    """(location, metadata) of the newest file above the pointer's that another timeline wrote and that moved main."""
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


def missing_tables(view: View, store: MetadataStore) -> dict[tuple[str, str], str]:
    """(namespace, name) of every table without readable metadata, with a sentence. A storage that does not answer
    proves nothing about a table."""
    pointers = {key: pointer for key, pointer in view.pointers.items() if key[0] != DROPPED}
    with ThreadPoolExecutor(_READERS) as pool:
        reasons = list(pool.map(lambda pointer: missing(store, pointer), pointers.values()))
    return {
        key: _gone_sentence(".".join(key), why, is_ours=pointer.uuid in view.tables)
        for (key, pointer), why in zip(pointers.items(), reasons, strict=True)
        if why
    }


def missing(store: MetadataStore, pointer: Pointer) -> str:
    """Why a pointer's metadata cannot be read; empty if all is well or the storage does not answer."""
    try:
        store.load(pointer.location)
    except (NotFound, Corrupt) as error:
        return error.message
    except (Unavailable, Invalid):  # the storage does not answer, or refuses the server's keys
        return ""
    return ""


def _gone_sentence(name: str, why: str, *, is_ours: bool) -> str:
    way = (
        "restore a backup with --without-lake, which tiers it again from the log"
        if is_ours
        else "bring its files back, or drop it"
    )
    return f"the lake of table {name} is gone: {why}; bring the warehouse back and start again, or {way}"


def _main(store: MetadataStore, location: str) -> int | None:
    """Main's snapshot; None also if a later commit removed the metadata."""
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
        "until the backup is restored with --rewind-lake, or a newer one, or every metadata file numbered above "
        f"{pointer.location.rsplit('/', 1)[-1].split('-', 1)[0]} is moved out of that folder and the server restarted"
    )
