"""The warehouse: whether its store takes, keeps and refuses objects as the catalog needs it to."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

from lakestore_server.doctor.finding import Finding
from lakestore_server.iceberg.metadata_store import Storage, local_folder, storage_for

_NEW = "take a store that honours `If-None-Match: *`: metadata is written by puts that never replace"


def takes(warehouse: str, storage: Storage | None = None) -> Iterator[Finding]:
    """A probe object is put, put once more with other bytes, read, listed and removed."""
    folder = local_folder(warehouse)
    if folder is not None and not folder.exists():
        yield Finding("warehouse", "ok", f"{warehouse}, which the first start makes")
        return
    store = storage_for(warehouse) if storage is None else storage
    place = f"{warehouse.rstrip('/')}/__doctor-{uuid.uuid4().hex}"
    probe = f"{place}/probe"
    store.write_new(probe, b"first")
    try:
        with contextlib.suppress(FileExistsError):
            store.write_new(probe, b"second")
        replaced = store.read(probe) != b"first"
        if replaced:
            yield Finding("warehouse", "failed", f"{warehouse} replaces an object that is there", _NEW)
        elif "probe" not in store.names(place):
            yield Finding("warehouse", "failed", f"{warehouse} does not list what was put", "take another store")
        else:
            yield Finding("warehouse", "ok", f"{warehouse} puts once, reads, lists and removes")
    finally:
        store.remove(probe)
        store.remove_below(place)
