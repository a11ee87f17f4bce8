"""Manifests read whole, for tests that look at all of their entries."""

from __future__ import annotations

from lakestore.iceberg.manifest_entries import Entries
from lakestore.iceberg.manifest_lists import Manifest
from lakestore.iceberg.manifests import Entry


def read_manifest(data: bytes, manifest: Manifest) -> list[Entry]:
    """The living entries of a manifest with these bytes."""
    return list(Entries(data, manifest))
