"""SQL views of the catalog: a SQL text by dialect, which the reading engine runs with its reader's rights.

- The journal holds a view's whole metadata. So replication, backup and restore have views without the warehouse.
- Each version of the metadata is also a file below the view's location, for engines that come when the server is gone.
  The server never reads these files.
- A view and a table cannot have one name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import orjson

from lakestore.errors import Conflict, Invalid, LakestoreError
from lakestore_server.catalog import locations, view_metadata
from lakestore_server.catalog.contents import Contents, Name
from lakestore_server.catalog.errors import AlreadyExists, NoSuchView
from lakestore_server.catalog.ledger import Ledger
from lakestore_server.catalog.metadata_store import MetadataStore
from lakestore_server.catalog.schemas import Json
from lakestore_server.state.catalog_change import CatalogChange, CatalogStep, DropView, SetView, SqlView

VIEW_BYTES_MAX = 256 << 10
"""The most bytes of one view's metadata."""
_ATTEMPTS_MAX = 20


def moved(view: SqlView, old: str, new: str, uuid: str) -> SqlView:
    """The view with its places in another warehouse; `uuid` is for the new file's name."""
    doc: Json = orjson.loads(view.document)

    def there(place: str) -> str:
        return new.rstrip("/") + locations.plain(place)[len(locations.plain(old)) :]

    properties = {key: there(value) if locations.is_path(key) else value for key, value in doc["properties"].items()}
    doc = {**doc, "location": there(doc["location"]), "properties": properties}
    folder, number = locations.numbered(view.location)
    location = f"{there(folder)}/{number or 0:05d}-{uuid}.metadata.json"
    return SqlView(location, view.uuid, orjson.dumps(doc).decode())


class SqlViews:
    """The verbs of views. They block and are thread-safe."""

    def __init__(
        self,
        ledger: Ledger,
        store: MetadataStore,
        contents: Contents,
        warehouse: str,
        *,
        now_ms: Callable[[], int],
        new_uuid: Callable[[], str],
    ) -> None:
        self._ledger, self._store, self._contents, self._warehouse = ledger, store, contents, warehouse
        self._now_ms, self._new_uuid = now_ms, new_uuid

    def names(self, namespace: str) -> list[str]:
        """The views of a namespace, sorted."""
        self._contents.namespace(namespace)
        return sorted(self._ledger.views(namespace))

    def load(self, name: Name) -> SqlView:
        """A view, or `NoSuchView`."""
        found = self._ledger.views(name.namespace).get(name.table)
        if found is None:
            raise NoSuchView(f"View does not exist: {name}")
        return found

    def create(self, namespace: str, request: Json, key: str = "") -> SqlView:
        """Create a view."""
        name = Name(namespace, locations.check_name(request.get("name")))
        if self._seen(key):
            return self.load(name)
        self._contents.namespace(namespace)
        self._check_absent(name)
        uuid = self._new_uuid()
        doc = view_metadata.created(
            uuid=uuid,
            location=str(request.get("location") or f"{self._warehouse}/{namespace}/{name.table}-{uuid[:8]}"),
            schema=request.get("schema") or {},
            version=request.get("view-version") or {},
            properties=request.get("properties") or {},
        )
        try:
            return self._written(name, None, doc, key)
        except Conflict as error:
            raise AlreadyExists(f"View already exists: {name}") from error

    def replace(self, name: Name, requirements: Sequence[Json], updates: Sequence[Json], key: str = "") -> SqlView:
        """Apply updates to a view."""
        if self._seen(key):
            return self.load(name)
        for _ in range(_ATTEMPTS_MAX):
            base = self.load(name)
            doc = orjson.loads(base.document)
            view_metadata.check_requirements(requirements, doc)
            made = view_metadata.updated(doc, updates, now_ms=self._now_ms())
            if made is doc:
                return base
            try:
                return self._written(name, base, made, key)
            except Conflict:
                continue
        raise Conflict(f"view {name} changes faster than this commit can follow: try again")

    def drop(self, name: Name, key: str = "") -> None:
        """Drop a view; no table changes."""
        if self._seen(key):
            return
        found = self.load(name)
        self._journal(DropView(name.namespace, name.table), key=key)
        self._store.discard(found.location)

    def rename(self, source: Name, target: Name, key: str = "") -> None:
        """Give a view another name; its metadata stays as it is."""
        if self._seen(key):
            return
        locations.check_name(target.table)
        found = self.load(source)
        self._contents.namespace(target.namespace)
        if source == target:
            return
        for kind, taken in (("View", self._ledger.views), ("Table", self._ledger.pointers)):
            if target.table in taken(target.namespace):
                raise AlreadyExists(f"Cannot rename {source} to {target}. {kind} already exists")
        self._check_absent(target)
        gone = DropView(source.namespace, source.table)
        held = SetView(source.namespace, source.table, found.location, found)
        self._journal(held, gone, SetView(target.namespace, target.table, None, found), key=key)

    def _check_absent(self, name: Name) -> None:
        if name.table in self._ledger.views(name.namespace):
            raise AlreadyExists(f"View already exists: {name}")
        try:
            self._contents.check_absent(name)
        except AlreadyExists as error:
            raise AlreadyExists(f"Table with same name already exists: {name}") from error

    def _written(self, name: Name, base: SqlView | None, doc: Json, key: str) -> SqlView:
        folder = self._folder(doc)
        number = (locations.numbered(base.location)[1] or 0) + 1 if base else 0
        data = orjson.dumps(doc)
        if len(data) > VIEW_BYTES_MAX:
            raise Invalid(
                f"the metadata of view {name} takes {len(data):,} bytes, more than {VIEW_BYTES_MAX:,}: shorten its SQL,"
                " or keep fewer versions with version.history.num-entries"
            )
        location = f"{folder}/{number:05d}-{self._new_uuid()}.metadata.json"
        made = SqlView(location, doc["view-uuid"], data.decode())
        self._store.put(location, data)
        try:
            self._journal(SetView(name.namespace, name.table, base.location if base else None, made), key=key)
        except LakestoreError as error:
            # After an unknown outcome the file stays: the journal may name it after the next start.
            if error.applied == "no":
                self._store.discard(location)
            raise
        if base is not None:
            self._store.discard(base.location)
        return made

    def _folder(self, doc: Json) -> str:
        """The folder of the metadata files; `Forbidden` if it may not be the view's."""
        self._contents.check_view_places(doc)
        return str(doc["properties"].get(view_metadata.METADATA_PATH) or f"{doc['location'].rstrip('/')}/metadata")

    def _journal(self, *steps: CatalogStep, key: str) -> None:
        self._ledger.commit(CatalogChange(steps, idempotency_key=key))

    def _seen(self, key: str) -> bool:
        return bool(key) and self._ledger.seen(key)
