"""The catalog's verbs: places, races, retries, metadata files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from pyarrow.fs import FileSystem

from lakestore.errors import Conflict, Corrupt, Invalid, Unavailable
from lakestore_server.catalog import locations
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.commits import TableChange
from lakestore_server.catalog.contents import Name
from lakestore_server.catalog.errors import AlreadyExists, Forbidden, NamespaceNotEmpty, NoSuchTable
from lakestore_server.catalog.metadata_store import (
    SCHEMES,
    LocalStorage,
    MetadataStore,
    ObjectStorage,
    Storage,
    storage_for,
)
from lakestore_server.state.catalog_change import CatalogChange, SetNamespace
from tests.support.catalogs import SCHEMA, World, set_ref, snapshot, world


@pytest.fixture
def lake(tmp_path: Path) -> World:
    return world(tmp_path)


def set_property(key: str, value: str) -> dict[str, object]:
    return {"action": "set-properties", "updates": {key: value}}


def test_a_free_table_lives_and_goes(lake: World) -> None:
    lake.create_free()
    lake.commit("free", snapshot(1, None, 1), set_ref("main", 1))
    lake.catalog.rename_table(Name("db", "free"), Name("db", "other"))
    assert lake.catalog.tables("db") == ["other"]
    with pytest.raises(NamespaceNotEmpty):
        lake.catalog.drop_namespace("db")
    lake.catalog.drop_table(Name("db", "other"))
    with pytest.raises(NoSuchTable):
        lake.load("other")
    lake.catalog.drop_namespace("db")


@pytest.mark.parametrize("place", [
    "file:///etc/x", "/etc", "s3://b/x", "{w}/../x", "{w}", "{w}/a/%2e%2e/%2e%2e/x", "{w}x/t", "file:{w}/../x",
])  # fmt: skip
def test_places_outside_the_warehouse_are_refused(lake: World, place: str) -> None:
    place = place.replace("{w}", lake.warehouse)
    with pytest.raises(Forbidden):
        lake.create_free(location=place)
    with pytest.raises(Forbidden):
        lake.create_free(properties={"write.data.path": place})
    lake.create_free()
    with pytest.raises(Forbidden):
        lake.commit("free", {"action": "set-location", "location": place})
    with pytest.raises(Forbidden):
        lake.catalog.register("db", "r", place.removesuffix(lake.warehouse) or "/etc/x.metadata.json")


@pytest.mark.parametrize(
    "key", ["io-impl", "py-io-impl", "s3.access-key-id", "write.location-provider.impl", "my.Token"]
)
def test_properties_that_run_code_or_hold_keys_are_refused(lake: World, key: str) -> None:
    with pytest.raises(Forbidden, match=key):
        lake.create_free(properties={key: "x"})


def test_no_table_lies_in_another_s_folder(lake: World) -> None:
    table = lake.create_own()
    folder = lake.load("own")["location"]
    for place in (folder, folder + "/data"):
        with pytest.raises(Forbidden, match="another table"):
            lake.create_free(location=place.replace("file:///", "/"))
    with pytest.raises(Forbidden, match="holds a namespace"):
        lake.create_free(location=(lake.warehouse + "/db").replace("file:///", "/"))
    with pytest.raises(Forbidden, match="holds a namespace"):
        lake.create_free(properties={"write.data.path": lake.warehouse + "/db"})
    for name, place in (("x", "/other"), ("y", "/another/db/y")):
        lake.create_free(
            name, location=lake.warehouse + place, properties={"write.data.path": lake.warehouse + "/d" + name}
        )
        with pytest.raises(Forbidden, match="another table"):
            lake.create_free(location=lake.warehouse + place + "/below")
    location = lake.ledger.pointers("db")["own"].location
    with pytest.raises(Forbidden, match="another table"):
        lake.catalog.register("db", "mine", location)
    assert table.uuid == lake.load("own")["table-uuid"]


def test_staged_creation_stores_nothing_until_its_commit(lake: World) -> None:
    staged = lake.create_free("new", **{"stage-create": True})
    assert staged.location == ""
    assert lake.catalog.tables("db") == []
    doc = staged.doc
    updates = (
        {"action": "assign-uuid", "uuid": doc["table-uuid"]},
        {"action": "add-schema", "schema": doc["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": doc["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": doc["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": doc["location"]},
        snapshot(1, None, 1),
        set_ref("main", 1),
    )
    made = lake.commit("new", *updates, requirements=[{"type": "assert-create"}])
    assert made["table-uuid"] == doc["table-uuid"]
    assert lake.commit("new", *updates, requirements=[{"type": "assert-create"}]) is lake.load("new")
    with pytest.raises(NoSuchTable):
        lake.commit("absent", *updates)
    with pytest.raises(Conflict):
        lake.commit("new", set_property("a", "b"), requirements=[{"type": "assert-create"}])


def test_register_takes_a_dropped_table_back(lake: World) -> None:
    location = lake.create_free().location
    lake.catalog.drop_table(Name("db", "free"))
    lake.catalog.register("db", "back", location)
    assert lake.load("back")["location"] in location
    with pytest.raises(AlreadyExists):
        lake.catalog.register("db", "back", location)
    Path(locations.plain(location)).with_name("bad.json").write_text("{")
    with pytest.raises(Corrupt):
        lake.catalog.register("db", "bad", location.rsplit("/", 1)[0] + "/bad.json")


def test_a_registered_table_holds_no_namespace(lake: World) -> None:
    location = lake.create_free().location
    lake.catalog.drop_table(Name("db", "free"))
    file = Path(locations.plain(location))
    found = file.with_name("found.metadata.json")
    found.write_text(file.read_text().replace(f'/db/{file.parts[-3]}"', '/db"'))
    with pytest.raises(Forbidden, match="holds a namespace"):
        lake.catalog.register("db", "all", f"file://{found}")


def test_purge_removes_the_table_s_files_and_nobody_else_s(lake: World, tmp_path: Path) -> None:
    kept, gone = lake.create_free("kept").doc["location"], lake.create_free("gone").doc["location"]
    data = Path(locations.plain(gone)) / "data" / "part.parquet"
    data.parent.mkdir(parents=True)
    data.write_bytes(b"x")
    lake.catalog.drop_table(Name("db", "gone"), purge=True)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files
    assert all(locations.inside(str(file), kept) for file in files)
    lake.create_free("shared", properties={"gc.enabled": "false"})
    with pytest.raises(Forbidden, match=r"gc\.enabled"):
        lake.catalog.drop_table(Name("db", "shared"), purge=True)
    lake.create_own()
    with pytest.raises(Forbidden, match=r"lake\.drop_table"):
        lake.catalog.drop_table(Name("db", "own"), purge=True)
    assert lake.load("own")


def test_a_missing_metadata_file_is_damage_and_no_missing_table(tmp_path: Path) -> None:
    lake = world(tmp_path)
    Path(locations.plain(lake.create_free().location)).unlink()
    cold = Catalog(lake.ledger, MetadataStore(LocalStorage(lake.warehouse)), lake.warehouse)
    with pytest.raises(Corrupt, match="is missing"):
        cold.load(Name("db", "free"))


def test_properties_beyond_the_limit_are_refused_and_fewer_may_be_kept(lake: World) -> None:
    large = {"p": "x" * locations.PROPERTIES_BYTES_MAX}
    lake.create_own()
    refused: list[Callable[[], object]] = [
        lambda: lake.catalog.create_namespace("more", large),
        lambda: lake.catalog.update_namespace("db", (), large),
        lambda: lake.create_free(properties=large),
        lambda: lake.commit("own", {"action": "set-properties", "updates": large}),
    ]
    for call in refused:
        with pytest.raises(Invalid, match="properties"):
            call()
    lake.ledger.commit(CatalogChange((SetNamespace("db", {**large, "q": "1"}),)))  # by an earlier release
    lake.catalog.update_namespace("db", ["q"], {})
    assert lake.catalog.namespace("db") == large


def test_the_same_request_again_is_answered_as_before(lake: World) -> None:
    lake.create_free()
    updates = (snapshot(1, None, 1), set_ref("main", 1))
    guard = [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}]
    first = lake.commit("free", *updates, requirements=guard)
    assert lake.commit("free", *updates, requirements=guard) is first
    change = TableChange(Name("db", "free"), (), (set_property("n", "1"),))
    lake.catalog.commit([change], key="k")
    commits = len(lake.ledger.changes)
    lake.catalog.commit([change], key="k")
    lake.catalog.drop_table(Name("db", "free"), key="d")
    lake.catalog.drop_table(Name("db", "free"), key="d")
    assert len(lake.ledger.changes) == commits + 1


def test_commits_that_do_not_meet_all_land(lake: World) -> None:
    lake.create_free()

    def work(number: int) -> None:
        for step in range(5):
            lake.commit("free", set_property(f"{number}.{step}", "x"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lake.load("free")["properties"]) == 20
    folder = Path(locations.plain(lake.load("free")["location"])) / "metadata"
    assert len(list(folder.iterdir())) == 21


def test_two_tables_change_together_or_not_at_all(lake: World) -> None:
    lake.create_free("a")
    lake.create_free("b")
    good = TableChange(Name("db", "a"), (), (set_property("n", "1"),))
    bad = TableChange(Name("db", "b"), ({"type": "assert-create"},), (set_property("n", "1"),))
    with pytest.raises(Conflict):
        lake.catalog.commit([good, bad])
    assert "n" not in lake.load("a")["properties"]
    lake.catalog.commit([good, TableChange(Name("db", "b"), (), (set_property("n", "1"),))])
    assert lake.load("a")["properties"] == lake.load("b")["properties"] == {"n": "1"}
    with pytest.raises(Invalid):
        lake.catalog.commit([good, good])


def test_files_of_refused_commits_and_files_out_of_the_log_go(lake: World) -> None:
    properties = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "2"}
    lake.create_free(properties=properties)
    for number in range(6):
        lake.commit("free", set_property("n", str(number)))
    doc = lake.load("free")
    folder = Path(locations.plain(doc["location"])) / "metadata"
    kept = {entry["metadata-file"].rsplit("/", 1)[1] for entry in doc["metadata-log"]}
    current = lake.ledger.pointers("db")["free"].location.rsplit("/", 1)[1]
    assert {path.name for path in folder.iterdir()} == kept | {current}


def test_after_an_unknown_outcome_no_file_is_removed(lake: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create_free()
    folder = Path(locations.plain(lake.load("free")["location"])) / "metadata"

    def lost(change: CatalogChange, *_: object) -> None:
        raise Unavailable("the journal did not answer", applied="unknown")

    monkeypatch.setattr(lake.ledger, "commit", lost)
    with pytest.raises(Unavailable):
        lake.commit("free", set_property("n", "1"))
    assert len(list(folder.iterdir())) == 2


class _Recorded:
    """A storage that notes the order of what is asked of it."""

    def __init__(self, inner: Storage) -> None:
        self.inner, self.calls = inner, list[str]()

    def read(self, location: str) -> bytes:
        return self.inner.read(location)

    def write_new(self, location: str, data: bytes) -> None:
        self.calls.append("write")
        self.inner.write_new(location, data)

    def remove(self, location: str) -> None:
        self.inner.remove(location)

    def names(self, folder: str) -> list[str]:
        return self.inner.names(folder)

    def remove_below(self, folder: str) -> None:
        self.inner.remove_below(folder)

    def sync(self) -> None:
        self.calls.append("sync")
        self.inner.sync()


def test_the_warehouse_is_synced_before_main_moves_only(lake: World) -> None:
    recorded = _Recorded(LocalStorage(lake.warehouse))
    lake.catalog = Catalog(lake.ledger, MetadataStore(recorded), lake.warehouse, now_ms=lambda: lake.now_ms)
    lake.create_free()
    lake.commit("free", set_property("a", "b"))
    assert recorded.calls == ["write", "write"]
    lake.commit("free", snapshot(1, None, 1), set_ref("main", 1))
    assert recorded.calls[2:] == ["write", "sync"]


def test_one_file_has_many_spellings() -> None:
    assert {locations.plain(text) for text in ("file:/a/b", "file:///a/b/", "/a//b", "file://a/b")} == {"/a/b"}
    assert locations.plain("S3://bucket//a/") == "s3://bucket/a"


def test_object_storage_creates_and_never_replaces(tmp_path: Path) -> None:
    storage = ObjectStorage("memory://")
    storage.write_new("memory:///t/metadata/0.json", b"{}")
    with pytest.raises(Exception, match=r"(?i)exist"):
        storage.write_new("memory:///t/metadata/0.json", b'{"other": 1}')
    storage.write_new("memory:///t/metadata/0.json", b"{}")  # as the store's client does after a lost answer
    assert storage.read("memory:///t/metadata/0.json") == b"{}"
    storage.remove("memory:///t/metadata/0.json")
    for place in ("t/metadata/1.json", "t/data/a/b", "t2/data/c"):
        storage.write_new(f"memory:///{place}", b"{}")
    storage.remove_below("memory:///t")
    assert storage.names("memory:///t/metadata") == storage.names("memory:///t/data/a") == []
    assert storage.names("memory:///t2/data") == ["c"]


@pytest.mark.parametrize(
    ("warehouse", "meant"),
    [("s3a://b/lake", "write s3://"), ("az://box/lake", "write abfss://"), ("ftp://b/lake", "name a folder")],
)
def test_a_warehouse_that_readers_do_not_know_is_refused(warehouse: str, meant: str) -> None:
    with pytest.raises(Invalid, match=meant):
        storage_for(warehouse)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_readers_know_each_scheme_of_a_warehouse(scheme: str) -> None:
    """By Arrow's own parser; the region is given, because Arrow asks the network for it otherwise."""
    store = "box@account.dfs.core.windows.net" if "abfs" in scheme else "box"
    filesystem, _ = FileSystem.from_uri(f"{scheme}://{store}/a{'?region=eu-west-1' if scheme == 's3' else ''}")
    assert filesystem.type_name in ("s3", "gcs", "abfs")


def test_bad_names_and_schemas_are_refused(lake: World) -> None:
    for name in ("", "a/b", "..", ".x", "a%2fb", "x" * 300, 7):
        with pytest.raises(Invalid):
            lake.catalog.create_table("db", {"name": name, "schema": SCHEMA})
    with pytest.raises(Invalid, match="format version 4"):
        lake.create_free(properties={"format-version": "4"})
    with pytest.raises(Invalid, match="varchar"):
        lake.create_free(
            schema={"type": "struct", "fields": [{"id": 1, "name": "x", "type": "varchar", "required": False}]}
        )


def test_tables_of_format_version_1_are_made_read_and_raised(lake: World) -> None:
    made = lake.create_free("one", properties={"format-version": "1"}).doc
    assert made["format-version"] == 1
    assert made["schema"] == made["schemas"][0], "readers of version 1 need the single schema"
    assert made["partition-spec"] == []
    added = snapshot(1, None, 0)
    del added["snapshot"]["sequence-number"]
    doc = lake.commit("one", added, set_ref("main", 1))
    assert (doc["last-sequence-number"], doc["current-snapshot-id"]) == (0, 1)
    raised = lake.commit("one", {"action": "upgrade-format-version", "format-version": 2})
    assert not {"schema", "partition-spec"} & raised.keys()
    lake.commit("one", snapshot(2, 1, 1), set_ref("main", 2))


def test_old_metadata_with_one_schema_is_registered(lake: World) -> None:
    stored = lake.create_free("one", properties={"format-version": "1"})
    lake.catalog.drop_table(Name("db", "one"))
    old = {key: value for key, value in stored.doc.items() if key not in ("schemas", "partition-specs", "sort-orders")}
    old["partition-spec"] = [{"source-id": 1, "transform": "identity", "name": "id"}]
    file = Path(locations.plain(stored.location)).with_name("old.metadata.json")
    file.write_bytes(orjson.dumps(old))
    doc = lake.catalog.register("db", "old", f"file://{file}").doc
    assert [field["name"] for field in doc["schemas"][doc["current-schema-id"]]["fields"]] == ["id", "v"]
    assert doc["partition-specs"][0]["fields"][0]["field-id"] == 1000 == doc["last-partition-id"]
