"""SQL views of the catalog: kept by the journal, beside tables, within limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Conflict, Invalid, LimitReached
from lakestore.model.file_uri import to_path
from lakestore_server.catalog import views
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.contents import Name
from lakestore_server.catalog.errors import AlreadyExists, BadView, Forbidden, NamespaceNotEmpty, NoSuchView
from lakestore_server.state import catalog_change
from tests.support.catalogs import SCHEMA, World, world
from tests.support.rights import token_of, write_auth
from tests.support.served import Served
from tests.support.sql_views import replacement, version, view_request

V = Name("db", "v")


@pytest.fixture
def lake(tmp_path: Path) -> World:
    return world(tmp_path)


def document(catalog: Catalog, name: Name = V) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(catalog.views.load(name).document)
    return made


def file_of(location: str) -> Path:
    path = to_path(location)
    assert path is not None
    return Path(path)


def test_views_outlive_the_server_with_and_without_a_checkpoint(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        served.server.catalog.create_namespace("db", {})
        served.server.catalog.views.create("db", view_request("v", spark="SELECT 'ä'", trino="SELECT 2"))
        served.server.catalog.views.create("db", view_request("gone", spark="SELECT 1"))
        served.restart()
        served.server.catalog.views.replace(V, (), replacement(2, spark="SELECT 3", trino="SELECT 4"))
        served.server.catalog.views.drop(Name("db", "gone"))
        served.checkpoint()
        served.server.catalog.views.rename(V, Name("db", "w"))
        wanted = document(served.server.catalog, Name("db", "w"))
        assert [each["version-id"] for each in wanted["version-log"]] == [1, 2]
        for _ in range(2):
            served.restart()
            served.checkpoint()
            assert served.server.catalog.views.names("db") == ["w"]
            assert document(served.server.catalog, Name("db", "w")) == wanted


def test_the_file_of_a_view_has_its_metadata_and_goes_with_it(lake: World) -> None:
    made = lake.catalog.views.create("db", view_request("v", spark="SELECT 1"))
    assert file_of(made.location).read_text() == made.document
    replaced = lake.catalog.views.replace(V, (), replacement(2, spark="SELECT 2"))
    assert not file_of(made.location).exists()
    assert file_of(replaced.location).read_text() == replaced.document
    lake.catalog.views.drop(V)
    assert not file_of(replaced.location).exists()


def test_a_view_and_a_table_have_one_space_of_names(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    with Served(tmp_path / "data") as served:
        catalog, lake = served.server.catalog, served.lake
        lake.create_table("db.own", schema, buckets=1)
        catalog.views.create("db", view_request("v", spark="SELECT 1"))
        for work in (
            lambda: lake.create_table("db.v", schema, buckets=1),
            lambda: lake.table("db.own").rename("db.v"),
            lambda: catalog.create_table("db", {"name": "v", "schema": SCHEMA}),
            lambda: catalog.views.create("db", view_request("own", spark="SELECT 1")),
            lambda: catalog.views.rename(V, Name("db", "own")),
            lambda: catalog.rename_table(Name("db", "own"), V),
        ):
            with pytest.raises(Conflict, match=r"exists|there is a view db\.v"):
                work()
        with pytest.raises(NamespaceNotEmpty):
            catalog.drop_namespace("db")
        lake.drop_table("db.own", purge=True)
        with pytest.raises(Invalid, match="it has the view v; drop its views first"):
            lake.drop_database("db")
        catalog.views.drop(V)
        lake.create_table("db.v", schema, buckets=1)


def test_a_dropped_table_does_not_come_back_over_a_view(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        served.lake.create_table("db.t", pa.schema([("id", pa.int64())]), buckets=1)
        served.lake.drop_table("db.t")
        served.server.catalog.views.create("db", view_request("t", spark="SELECT 1"))
        with pytest.raises(ls.Conflict, match=r"there is a view db\.t"):
            served.lake.undrop("db.t")


def test_a_replacement_follows_iceberg_s_rules(lake: World) -> None:
    made = lake.catalog.views.create("db", view_request("v", spark="SELECT 1", trino="SELECT 1"))
    with pytest.raises(BadView, match="loss of view dialects"):
        lake.catalog.views.replace(V, (), replacement(2, spark="SELECT 2"))
    with pytest.raises(Conflict, match="UUID does not match"):
        lake.catalog.views.replace(V, [{"type": "assert-view-uuid", "uuid": "x"}], replacement(2, spark="SELECT 2"))
    with pytest.raises(Invalid, match="assert-create"):
        lake.catalog.views.replace(V, [{"type": "assert-create"}], ())
    allowed = {"action": "set-properties", "updates": {"replace.drop-dialect.allowed": "true"}}
    lake.catalog.views.replace(V, [{"type": "assert-view-uuid", "uuid": made.uuid}], [allowed])
    lake.catalog.views.replace(V, (), replacement(2, spark="SELECT 2"))
    back = {"action": "set-current-view-version", "view-version-id": 1}
    lake.catalog.views.replace(V, (), [back])
    assert [each["version-id"] for each in document(lake.catalog)["version-log"]] == [1, 2, 1]
    for number in range(3, 20):
        lake.catalog.views.replace(V, (), replacement(number, spark=f"SELECT {number}"))
    doc = document(lake.catalog)
    assert [each["version-id"] for each in doc["versions"]] == list(range(10, 20))
    assert [each["version-id"] for each in doc["version-log"]] == list(range(10, 20))
    assert lake.catalog.views.replace(V, (), replacement(30, spark="SELECT 12")).uuid == made.uuid
    assert document(lake.catalog)["current-version-id"] == 12


def test_a_lost_race_is_tried_again(lake: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.catalog.views.create("db", view_request("v", spark="SELECT 1"))
    commit, races = lake.ledger.commit, [replacement(2, spark="SELECT 2")]

    def raced(change: Any) -> None:
        if races:
            lake.catalog.views.replace(V, (), races.pop())
        commit(change)

    monkeypatch.setattr(lake.ledger, "commit", raced)
    lake.catalog.views.replace(V, (), replacement(2, spark="SELECT 3"))
    assert [each["version-id"] for each in document(lake.catalog)["version-log"]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"representations": []}, "no representation"),
        ({"representations": [{"type": "udf", "sql": "x", "dialect": "spark"}]}, "a representation of a view is"),
        ({"representations": [{"type": "sql", "sql": 7, "dialect": "spark"}]}, "a representation of a view is"),
        ({"default-namespace": "db"}, "not a list of texts"),
        ({"summary": {"a": 1}}, "not a text"),
        ({"timestamp-ms": "now"}, "not a whole number"),
        ({"default-catalog": 1}, "not a text"),
    ],
)
def test_a_malformed_view_is_refused(lake: World, change: dict[str, Any], said: str) -> None:
    request = view_request("v", spark="SELECT 1")
    request["view-version"] |= change
    with pytest.raises(Invalid, match=said):
        lake.catalog.views.create("db", request)
    with pytest.raises(NoSuchView):
        lake.catalog.views.load(V)


def test_a_view_has_no_place_of_others_and_no_large_text(lake: World, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = lake.create_free().doc["location"]
    for place in (folder, "s3://elsewhere/x", lake.warehouse + "/db", lake.warehouse + "/.lakestore/x"):
        with pytest.raises(Forbidden):
            lake.catalog.views.create("db", {**view_request("v", spark="SELECT 1"), "location": place})
    large = "x" * views.VIEW_BYTES_MAX
    with pytest.raises(Invalid, match="shorten its SQL"):
        lake.catalog.views.create("db", view_request("v", spark=large))
    lake.catalog.views.create("db", view_request("v", spark="SELECT 1"))
    monkeypatch.setattr(catalog_change, "VIEWS_TOTAL_CHARS_MAX", 1_000)
    with pytest.raises(LimitReached, match="1,000 characters"):
        lake.catalog.views.create("db", view_request("w", spark="SELECT 1" + " " * 500))
    lake.catalog.views.drop(V)
    lake.catalog.views.create("db", view_request("w", spark="SELECT 1"))


def test_a_repeated_request_with_its_key_is_done_once(lake: World) -> None:
    first = lake.catalog.views.create("db", view_request("v", spark="SELECT 1"), "k1")
    assert lake.catalog.views.create("db", view_request("v", spark="SELECT 1"), "k1") == first
    lake.catalog.views.drop(V, "k2")
    lake.catalog.views.create("db", view_request("v", spark="SELECT 1"))
    lake.catalog.views.drop(V, "k2")
    assert lake.catalog.views.names("db") == ["v"]
    with pytest.raises(AlreadyExists):
        lake.catalog.views.create("db", view_request("v", spark="SELECT 1"))


def test_rights_on_views_are_the_rights_on_names(tmp_path: Path) -> None:
    grants = {"ann": {"db.*": ["read", "write", "admin"]}, "eve": {"db.open": ["read"]}, "bob": {"db.*": ["write"]}}
    auth = write_auth(tmp_path / "auth.yaml", grants)
    with Served(tmp_path / "data", ports=True, auth=str(auth)) as served:
        url = f"http://{served.server.about['http']}/iceberg/v1"
        ann, eve, bob = (
            httpx.Client(base_url=url, headers={"authorization": f"Bearer {token_of(name)}"}) for name in grants
        )
        place = "/namespaces/db/views"
        assert ann.post("/namespaces", json={"namespace": ["db"]}).status_code == 200
        for name in ("open", "hidden"):
            assert ann.post(place, json=view_request(name, spark="SELECT 1")).status_code == 200
        assert eve.get(place).json() == {"identifiers": [{"namespace": ["db"], "name": "open"}]}
        assert [eve.get(f"{place}/{name}").status_code for name in ("open", "hidden")] == [200, 403]
        rename = {name: {"namespace": ["db"], "name": name} for name in ("open", "other")}
        body = {"source": rename["open"], "destination": rename["other"]}
        for other in (eve, bob):
            refused = [
                other.post(place, json=view_request("new", spark="SELECT 1")),
                other.post(f"{place}/open", json={"updates": replacement(2, spark="SELECT 2")}),
                other.delete(f"{place}/open"),
                other.post("/views/rename", json=body),
            ]
            assert [each.status_code for each in refused] == [403] * 4
        assert ann.post("/views/rename", json=body).status_code == 204
        assert ann.post(f"{place}/other", json={"updates": replacement(2, spark="SELECT 2")}).status_code == 200
        presented = ann.get("/now/namespaces/db/views/other")
        assert presented.json()["metadata"]["current-version-id"] == 2
        assert ann.delete("/now/namespaces/db/views/other").status_code == 403
        assert ann.delete(f"{place}/other").status_code == 204


def test_a_version_equal_but_for_its_time_is_the_same(lake: World) -> None:
    lake.catalog.views.create("db", view_request("v", spark="SELECT 1"))
    same = {"action": "add-view-version", "view-version": version(7, 0, spark="SELECT 1")}
    before = lake.catalog.views.load(V)
    assert lake.catalog.views.replace(V, (), [same]) == before


def test_names_and_texts_may_have_any_letters(tmp_path: Path) -> None:
    with Served(tmp_path / "données 1%" / "data", ports=True) as served:
        url = f"http://{served.server.about['http']}/iceberg/v1/namespaces"
        assert httpx.post(url, json={"namespace": ["é d"]}).status_code == 200
        request = view_request("ä 🎉", spark="SELECT 'ß' AS \"x\u0301\"")
        assert httpx.post(f"{url}/é d/views", json=request).status_code == 200
        served.restart()
        loaded = served.server.catalog.views.load(Name("é d", "ä 🎉"))
        assert (
            json.loads(loaded.document)["versions"][0]["representations"] == request["view-version"]["representations"]
        )
        assert file_of(loaded.location).read_text() == loaded.document
