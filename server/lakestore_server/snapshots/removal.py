"""Removes presented files, in a folder or an object store.

In an object store obstore removes them. Arrow would put an empty object for the parent folder after each removal, and
S3Proxy refuses its removal of many objects at once, which has no Content-MD5.
"""

from __future__ import annotations

from functools import lru_cache

from lakestore.iceberg.places import forget_with_stores, is_in_store, place
from lakestore_server.catalog.metadata_store import Storage, storage_for

_STORES_KEPT = 16


def remove_file(location: str) -> None:
    """Remove a file. Raises `OSError`; `FileNotFoundError` if a folder does not have it."""
    if is_in_store(location):
        _store_of(location).remove(location)
    else:
        filesystem, path = place(location)
        filesystem.delete_file(path)


def remove_folder(location: str) -> None:
    """Remove everything below a location. Raises `OSError`; `FileNotFoundError` if a local folder is not there."""
    if is_in_store(location):
        _store_of(location).remove_below(location)
    else:
        filesystem, path = place(location)
        filesystem.delete_dir(path)


def _store_of(location: str) -> Storage:
    scheme, _, rest = location.partition("://")
    return _store(f"{scheme}://{rest.partition('/')[0]}")


@lru_cache(maxsize=_STORES_KEPT)
def _store(bucket: str) -> Storage:
    return storage_for(bucket)


forget_with_stores(_store.cache_clear)
