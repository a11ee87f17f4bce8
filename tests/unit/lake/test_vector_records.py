"""A manifest of vectors without some of them, made of its records' bytes: the others are what they were."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lakestore.iceberg import vector_records
from lakestore.iceberg.avro import Container, packed
from lakestore.iceberg.manifest_entries import Entries
from lakestore.iceberg.manifests import ADDED, DELETED, EXISTING, Entry, File, described, write_manifest
from lakestore.iceberg.position_deletes import PATH_ID
from lakestore.iceberg.values import Metrics
from tests.support.seeds import seeded

SCHEMA: dict[str, Any] = {"schema-id": 0, "type": "struct", "fields": []}
SPEC: dict[str, Any] = {"spec-id": 0, "fields": []}


@pytest.mark.parametrize("version", [2, 3])
def test_the_vectors_that_stay_are_the_same_with_bounds_of_their_path(version: int) -> None:
    chance = seeded(f"vectors {version}")
    for _ in range(20):
        entries = []
        for number in range(chance.randint(1, 30)):
            path = f"file:///lake/{'é' * chance.randrange(3)}{'x' * chance.randrange(90)}{number}.parquet"
            said: dict[str, Any] = {"metrics": Metrics()}
            if chance.random() < 0.7:
                said["referenced_data_file"] = path
            if chance.random() < 0.3:
                said["metrics"] = Metrics({PATH_ID: b"a"}, {PATH_ID: b"b"}, {1: 2})
            file = File(content=1, path=f"{number % 3}.puffin", format="PUFFIN", spec_id=0, partition={}, rows=number,
                        bytes=number * 1_000, content_offset=number, content_size=9, **said)  # fmt: skip
            status = chance.choice([ADDED, ADDED, EXISTING, DELETED])
            known = chance.choice([None, 3]) if status == ADDED else 3
            entries.append(Entry(status, None if known is None else 5, known, known, file))
        asked: dict[str, Any] = {"content": 1, "schema": SCHEMA, "spec": SPEC}
        data = write_manifest(entries, **asked, format_version=version)
        manifest = described("m.avro", len(data), entries, **asked, snapshot_id=8, sequence=9)
        before = Entries(data, manifest)
        kept = np.flatnonzero(np.array([chance.random() < 0.6 for _ in range(len(before))], np.bool_))
        made = packed(Container.opened(data, "m.avro").meta, list(vector_records.bounded(before, kept)))
        assert list(Entries(made, manifest)) == [_bounded(before[place]) for place in kept.tolist()]
        assert made == packed(Container.opened(data, "m.avro").meta, list(vector_records.bounded(before, kept)))


def _bounded(entry: Entry) -> Entry:
    file = entry.file
    if file.referenced_data_file is None or file.metrics.lower:
        return entry
    said = {PATH_ID: file.referenced_data_file.encode()}
    return replace(entry, file=replace(file, metrics=replace(file.metrics, lower=said, upper=said)))
