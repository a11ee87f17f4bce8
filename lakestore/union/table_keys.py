"""The keys of a store with which a union read opens the files of its tables."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol
from weakref import WeakKeyDictionary, ref

from lakestore.errors import Stopped, UnknownCall
from lakestore.iceberg import store_keys
from lakestore.iceberg.store_keys import AskKey, KeySource, ReaderKey, ReadFolders
from lakestore.union.plan import TableScan
from lakestore.v1 import lakestore_pb2 as pb


class KeyServer(Protocol):
    """The call that gives a key."""

    def store_key(self, request: pb.StoreKeyRequest, /) -> pb.StoreKeyAnswer: ...


_lock = threading.Lock()
_sources: WeakKeyDictionary[KeyServer, dict[tuple[str, str], KeySource]] = WeakKeyDictionary()
"""The sources of each connection, by table and folder. Reads of one connection share their keys."""


def read_folders(server: KeyServer, scans: Iterable[TableScan]) -> ReadFolders:
    """The folders of tables that a reader opens. Nothing is asked before the first file."""
    if store_keys.has_own():
        return ReadFolders(())
    found = [(scan.table.uuid, scan.metadata_location) for scan in scans if scan.in_lake]
    # metadata of our tables is in `metadata` of the table's folder
    places = [(uuid, place.rsplit("/", 2)[0]) for uuid, place in found if place.startswith("s3://")]
    with _lock:
        known = _sources.setdefault(server, {}) if places else {}
        return ReadFolders(
            [known.setdefault((uuid, folder), KeySource(folder, _ask(server, uuid))) for uuid, folder in places]
        )


def _ask(server: KeyServer, uuid: str) -> AskKey:
    connection = ref(server)

    def ask() -> tuple[ReaderKey, float] | None:
        now = connection()
        if now is None:
            raise Stopped("the connection that gave the key of the store is closed")
        try:
            answer = now.store_key(pb.StoreKeyRequest(table_uuid=uuid))
        except UnknownCall:  # an older server: the process reads by what it finds on its machine
            return None
        if not answer.id:
            return None
        key = ReaderKey(answer.id, answer.secret, answer.session, answer.endpoint, answer.region, answer.virtual_host)
        return key, float(answer.seconds)

    return ask
