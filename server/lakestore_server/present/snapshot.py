"""The manifests and the manifest list of a presented cut.

Hot files and deletes have the base's next sequence number, written out, so that a delete of a hot file applies and the
base's own deletes do not. A step's manifest is shared by cuts upon the same base; the base's manifests stay as they
are, but for those with vectors that are merged into ours: a data file has one vector.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lakestore.lake import places, vector_records
from lakestore.lake.avro import Container, packed
from lakestore.lake.manifest_entries import Entries
from lakestore.lake.manifest_lists import DELETES, Manifest, write_list
from lakestore.lake.manifests import ADDED, DATA, Entry, File, described, write_manifest
from lakestore_server.present.base_files import BaseFiles
from lakestore_server.present.deletes import Ledger, vector_key
from lakestore_server.present.messages import Json, Present, Presented
from lakestore_server.present.steps import Ints


class Snapshot:
    """One cut's snapshot, written once."""

    def __init__(self, request: Present, specs: Mapping[int, Json], name: Callable[[str], str]) -> None:
        """`name` gives the URI of a new file with that ending."""
        self._request, self._specs, self._name = request, specs, name
        self._sequence = request.base.sequence + 1

    def written(self, base: BaseFiles, ledger: Ledger, took: Mapping[str, float]) -> tuple[Presented, dict[str, int]]:
        """The answer, and every file that it is made of beside the base's data, with its bytes."""
        request = self._request
        hot = [file for window in ledger.windows for file in window.step.files]
        deletes = [delete for hidden in ledger.hidden.values() for delete in hidden.deletes]
        replaced = {hidden.file.path: hidden.replaced for hidden in ledger.hidden.values() if hidden.replaced}
        first = next_row = request.base.next_row_id
        data = []
        for manifest in self._of_files(hot, DATA):
            if request.format >= 3:
                manifest = replace(manifest, first_row_id=next_row)
                next_row += manifest.added_rows or 0
            data.append(manifest)
        manifests = [*data, *self._of_files(deletes, DELETES), *self._base(base, replaced)]
        listed = write_list(
            manifests,
            format_version=request.format,
            snapshot_id=request.cut_id,
            parent_id=request.base.snapshot_id or None,
            sequence=self._sequence,
            first_row_id=first if request.format >= 3 else None,
        )
        location = self._name("snapshot.avro")
        places.write(location, listed)
        sizes = {file.path: file.bytes for file in (*hot, *deletes)} | {each.path: each.length for each in manifests}
        sizes[location] = len(listed)
        of_base = {each.path for each in base.manifests}
        answer = Presented(
            manifest_list=location,
            rows=sum(file.rows for file in hot),
            data_files=len(hot),
            delete_files=len(deletes),
            deleted_rows=ledger.rows,
            file_bytes=sum(size for path, size in sizes.items() if path not in of_base),
            first_row_id=first,
            next_row_id=next_row,
            flat=any(file.spec_id == request.flat_spec_id for file in hot),
            took=took,
        )
        return answer, sizes

    def _of_files(self, files: Sequence[File], content: int) -> list[Manifest]:
        """New manifests of files, one for each partition spec."""
        by_spec: dict[int, list[Entry]] = defaultdict(list)
        for file in files:
            by_spec[file.spec_id].append(Entry(ADDED, self._request.cut_id, self._sequence, self._sequence, file))
        return [self._manifest(entries, content, spec_id) for spec_id, entries in sorted(by_spec.items())]

    def _manifest(self, entries: Sequence[Entry], content: int, spec_id: int) -> Manifest:
        schema, spec = self._request.schema, self._specs[spec_id]
        data = write_manifest(entries, content=content, schema=schema, spec=spec, format_version=self._request.format)
        location = self._name("manifest.avro")
        places.write(location, data)
        return described(
            location,
            len(data),
            entries,
            content=content,
            schema=schema,
            spec=spec,
            snapshot_id=self._request.cut_id,
            sequence=self._sequence,
        )

    def _base(self, base: BaseFiles, replaced: Mapping[str, Sequence[str]]) -> list[Manifest]:
        """The base's manifests, those with replaced vectors written anew without them."""
        gone: dict[str, tuple[Entries, Ints]] = {}
        for deletes in base.deletes if replaced else ():
            places_ = _places_of(deletes, replaced)
            if places_:
                kept = np.setdiff1d(np.arange(len(deletes)), np.fromiter(places_, np.int64), assume_unique=True)
                gone[deletes.manifest.path] = deletes, kept
        found = []
        for manifest in base.manifests:
            left = gone.get(manifest.path)
            if left is None:
                found.append(manifest)
            elif len(left[1]):
                found.append(self._without(manifest, *left))
        return found

    def _without(self, manifest: Manifest, deletes: Entries, kept: Ints) -> Manifest:
        """A manifest of the base with these entries alone, as their bytes: they inherit what they did before.

        Vectors get path bounds, which Java leaves out: the Puffin file of one may hold replaced ones as well, and a
        reader that takes it for another data file's (polars) would find two vectors there.
        """
        meta = Container.opened(places.read(manifest.path), manifest.path).meta
        data = packed(meta, list(vector_records.bounded(deletes, kept)))
        location = self._name("manifest.avro")
        places.write(location, data)
        added, rows = deletes.added[kept], deletes.rows[kept]
        return replace(
            manifest,
            path=location,
            length=len(data),
            added_files=int(np.count_nonzero(added)),
            existing_files=int(np.count_nonzero(~added)),
            deleted_files=0,
            added_rows=int(rows[added].sum()),
            existing_rows=int(rows[~added].sum()),
            deleted_rows=0,
        )


def _places_of(deletes: Entries, replaced: Mapping[str, Sequence[str]]) -> set[int]:
    """The places in a manifest of the replaced vectors, which are given by data file."""
    hashes, named = deletes.named
    near = named[np.isin(hashes[named], [hash(path.encode()) for path in replaced])].tolist()
    keys = {key for each in replaced.values() for key in each}
    return {place for place in near if vector_key(deletes[place].file) in keys}
