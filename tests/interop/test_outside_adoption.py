"""Tables of outside catalogs that other engines made become tables of ours, whatever breaks on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError

from lakestore.errors import Conflict, Internal, Invalid, LakestoreError, NotFound, Unavailable
from lakestore.union import lake_snapshot
from lakestore.union.verify import verify
from lakestore_server.catalog.outside_tables import COMMITTED, READY
from tests.support.log_tierer import LogTierer
from tests.support.outside import Killed, Outside, RestServer, kill, lose
from tests.support.served import Served

SOURCE, NAME = "alt.bestellungen", "shop.orders"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(name="outside", params=["rest", "database"])
def each_catalog(request: pytest.FixtureRequest) -> Outside:
    found: Outside = request.getfixturevalue(request.param)
    return found


@pytest.fixture(name="served")
def one_server(tmp_path: Path, outside: Outside) -> Iterator[Served]:
    """A server, and a plain table at its outside catalog, in a folder of that catalog's own."""
    theirs = outside.catalog()
    theirs.create_namespace_if_not_exists("alt")
    table = theirs.create_table(SOURCE, SCHEMA, location=(tmp_path / "lake of ünser").as_uri())
    for begin in (0, 50):
        table.append(_rows(begin, begin + 50))
    with Served(tmp_path / "dätä", ports=True, catalog=outside.settings()) as served:
        yield served
        for name in served.engine.view.names:
            served.lake.drop_table(name, purge=True)
    for name in (SOURCE, NAME):
        if theirs.table_exists(name):
            theirs.drop_table(name)


def _rows(begin: int, end: int) -> pa.Table:
    return pa.table({"id": [*range(begin, end)], "name": [f"ñ {i}" for i in range(begin, end)]}, schema=SCHEMA)


def _adopt(served: Served, name: str = NAME, **more: Any) -> None:
    served.lake.adopt(f"prod.{SOURCE}", name, primary_key=["id"], **more)


def _check(served: Served, outside: Outside, model: dict[int, str], name: str = NAME) -> None:
    lake_snapshot.forget()
    found = served.lake.table(name).scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["name"]) for row in found) == sorted(model.items())
    assert verify(served.lake.transport, name).problems() == []
    pointer = served.engine.view.pointers["shop" if name == NAME else "alt", name.split(".")[1]]
    assert outside.catalog().load_table(name).metadata_location == pointer.location


def _model(rows: int = 100) -> dict[int, str]:
    return {i: f"ñ {i}" for i in range(rows)}


def _look(served: Served) -> None:
    served.clock.advance(60)
    served.server._outside_check.run_once()


def test_an_outside_table_is_adopted_under_a_new_name(served: Served, outside: Outside) -> None:
    theirs = outside.catalog().load_table(SOURCE)
    files, uuid = sorted(theirs.inspect.files()["file_path"].to_pylist()), theirs.metadata.table_uuid
    _adopt(served)
    theirs = outside.catalog().load_table(NAME)
    assert (sorted(theirs.inspect.files()["file_path"].to_pylist()), theirs.metadata.table_uuid) == (files, uuid)
    assert not outside.catalog().table_exists(SOURCE)
    assert theirs.scan(selected_fields=("id",)).to_arrow().num_rows == 100
    model = _model()
    _check(served, outside, model)
    table = served.lake.table(NAME)
    table.upsert([{"id": 5, "name": "five"}])
    table.delete([{"id": 6}])
    assert table.lookup([{"id": 5}, {"id": 6}])["name"].to_pylist() == ["five"]
    model[5] = "five"
    del model[6]
    _check(served, outside, model)
    _look(served)
    served.restart()
    _look(served)
    _check(served, outside, model)
    with pytest.raises(Invalid, match=r"lives in the catalog prod"):
        served.lake.release(NAME)
    with pytest.raises(Invalid, match=r"is the lake of the Lakestore table shop\.orders already"):
        served.lake.adopt(f"prod.{NAME}", "shop.more", primary_key=["id"])
    served.lake.drop_table(NAME)
    assert not outside.catalog().table_exists(NAME)
    served.lake.undrop(NAME)
    _check(served, outside, model)


def test_a_log_table_is_adopted_under_its_name_and_tiered(served: Served, outside: Outside) -> None:
    served.lake.adopt(f"prod.{SOURCE}", SOURCE)
    _check(served, outside, _model(), SOURCE)
    served.lake.table(SOURCE).append(_rows(100, 110))
    LogTierer(served.server, served.lake.transport).flush(SOURCE)
    _check(served, outside, _model(110), SOURCE)
    assert outside.catalog().load_table(SOURCE).scan(selected_fields=("id",)).to_arrow().num_rows == 110


def test_a_drop_leaves_the_table_that_took_the_first_name_and_its_folder(served: Served, outside: Outside) -> None:
    """The catalog gives the folder of `alt.twice` to the next table of that name."""
    theirs, name = outside.catalog(), "alt.twice"
    place = f"{served.server.about['warehouse']}/alt/twice"
    theirs.create_table(name, SCHEMA, location=place).append(_rows(0, 10))
    served.lake.adopt(f"prod.{name}", "shop.first", primary_key=["id"])
    theirs.create_table(name, SCHEMA, location=place).append(_rows(50, 60))
    served.lake.drop_table("shop.first", purge=True)
    served.server.dropped.run_once()
    assert not served.engine.view.dropped
    assert theirs.load_table(name).scan().to_arrow().num_rows == 10
    theirs.drop_table(name)


POINTS = (READY, COMMITTED, "renamed", "answer-lost")


def _broken(served: Served, outside: Outside, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An adoption that breaks at this point, and a server that is killed and starts again."""
    catalogs = served.server.catalog.outside.catalogs
    with monkeypatch.context() as patched:
        if point in (READY, COMMITTED):
            patched.setattr(catalogs, "reach", lambda at: kill() if at == point else None)
        elif point == "renamed":
            patched.setattr(catalogs.named("prod"), "rename", _then_killed(catalogs.named("prod").rename))
        elif isinstance(outside, RestServer):
            outside.proxy.lose_commits = 1
        else:
            patched.setattr(catalogs.named("prod"), "commit", lose(catalogs.named("prod").commit))
        with pytest.raises((Internal, Unavailable)):
            _adopt(served)
    served.kill()
    served.start()
    served.clock.advance(60)


def _then_killed(call: Callable[..., Any]) -> Callable[..., Any]:
    def killed(*given: Any) -> Any:
        call(*given)
        raise Killed

    return killed


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_adoption_goes_on(
    served: Served, outside: Outside, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _broken(served, outside, point, monkeypatch)
    with pytest.raises(NotFound):
        served.lake.table(NAME)
    rows: list[int] = []
    _adopt(served, tell=lambda stage, done, _: rows.append(done) if stage == "rows" else None)
    assert rows == [], "all rows were there"
    _check(served, outside, _model())
    assert not outside.catalog().table_exists(SOURCE)


@pytest.mark.parametrize("point", [COMMITTED, "renamed"])
def test_a_table_that_changed_after_its_mark_begins_again(
    served: Served, outside: Outside, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _broken(served, outside, point, monkeypatch)
    name = NAME if point == "renamed" else SOURCE
    theirs = outside.catalog().load_table(name)
    theirs.delete("id >= 50")
    if point == "renamed":
        with pytest.raises(NotFound, match=r"was renamed by an adoption that did not end: adopt table prod\.shop\.ord"):
            _adopt(served)
    served.lake.adopt(f"prod.{name}", NAME, primary_key=["id"])
    _check(served, outside, _model(50))


def test_files_with_columns_of_a_given_up_adoption_are_refused_until_they_are_rewritten(
    served: Served, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    _broken(served, outside, COMMITTED, monkeypatch)
    theirs = outside.catalog().load_table(SOURCE)
    plain = pa.schema([SCHEMA.field(0).with_nullable(False), SCHEMA.field(1)])
    theirs.append(_rows(100, 120).cast(plain))
    with pytest.raises(Invalid, match=r"drop the table's columns __bucket, __offset, __timestamp, if it has them"):
        _adopt(served)
    with theirs.update_schema() as update:
        for name in ("__bucket", "__offset", "__timestamp"):
            update.delete_column(name)
    theirs.overwrite(_rows(0, 120).cast(plain))
    _adopt(served)
    _check(served, outside, _model(120))


@pytest.mark.parametrize("change", ["append", "column"])
def test_a_change_while_rows_are_read_is_refused(served: Served, outside: Outside, change: str) -> None:
    theirs = outside.catalog().load_table(SOURCE)

    def meanwhile(stage: str, done: int, total: int) -> None:
        if (stage, done) != ("numbers", total):
            return
        if change == "append":
            theirs.append(_rows(100, 101))
        else:
            with theirs.update_schema() as update:
                update.add_column("more", theirs.schema().find_field("name").field_type)

    with pytest.raises(Conflict, match="was changed while it was adopted"):
        _adopt(served, tell=meanwhile)
    _adopt(served)
    assert served.lake.table(NAME).scan().count() == (101 if change == "append" else 100)


def test_a_change_between_check_and_mark_is_refused_by_the_catalog(
    served: Served, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = outside.catalog().load_table(SOURCE)
    monkeypatch.setattr(
        served.server.catalog.outside.catalogs,
        "reach",
        lambda moment: theirs.append(_rows(100, 101)) if moment == READY else None,
    )
    with pytest.raises(Conflict, match="has another state"):
        _adopt(served)
    assert "lakestore.table-uuid" not in theirs.refresh().properties
    assert theirs.scan().to_arrow().num_rows == 101
    monkeypatch.undo()
    _adopt(served)
    _check(served, outside, _model(101))


def test_a_given_up_adoption_leaves_a_table_that_can_be_adopted(
    served: Served, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    _broken(served, outside, COMMITTED, monkeypatch)
    with served.server.dropped._running:  # nothing is removed meanwhile
        served.lake.drop_table(f"{NAME}__adopting", purge=True)
        with served.lake.within(1.0), pytest.raises(Unavailable, match="files are being removed"):
            served.lake.adopt(f"prod.{SOURCE}", "shop.other")
    served.lake.adopt(f"prod.{SOURCE}", "shop.other")
    assert served.lake.table("shop.other").scan().count() == 100
    assert outside.catalog().load_table("shop.other").scan(selected_fields=("id",)).to_arrow().num_rows == 100


def test_an_empty_table_of_a_given_up_adoption_is_not_replaced(
    served: Served, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has our timeline, no snapshot and a uuid that the server does not know, like the rest of a killed creation."""
    theirs = outside.catalog()
    folder = f"{theirs.load_table(SOURCE).location()} zwei"
    theirs.drop_table(SOURCE)
    uuid = theirs.create_table(SOURCE, SCHEMA, location=folder).metadata.table_uuid
    _broken(served, outside, COMMITTED, monkeypatch)
    served.lake.drop_table(f"{NAME}__adopting", purge=True)
    with pytest.raises(LakestoreError, match=r"has a table alt\.bestellungen already"):
        served.lake.create_table(SOURCE, SCHEMA, lake={"catalog": "prod"})
    assert theirs.load_table(SOURCE).metadata.table_uuid == uuid
    served.lake.adopt(f"prod.{SOURCE}", SOURCE, primary_key=["id"])
    served.lake.table(SOURCE).upsert(_rows(0, 3))
    _check(served, outside, _model(3), SOURCE)


def test_what_cannot_be_adopted_is_refused(served: Served, outside: Outside) -> None:
    theirs = outside.catalog()
    with pytest.raises(LakestoreError, match=r"catalog prod has no table alt\.gone"):
        served.lake.adopt("prod.alt.gone", NAME)
    with pytest.raises(Invalid, match="this server has no catalog 'test'"):
        served.lake.adopt(f"test.{SOURCE}", NAME)
    theirs.create_namespace_if_not_exists("shop")
    other = theirs.create_table(NAME, SCHEMA, location=f"{theirs.load_table(SOURCE).location()} zwei")
    with pytest.raises(LakestoreError, match=r"catalog prod has a table shop\.orders already: choose another name"):
        _adopt(served)
    assert "lakestore.table-uuid" not in theirs.load_table(SOURCE).properties
    with other.transaction() as update:
        update.set_properties({"lakestore.table-uuid": "x", "lakestore.timeline": "y"})
    with pytest.raises(Invalid, match="is the lake of a table of another Lakestore server"):
        served.lake.adopt(f"prod.{NAME}", NAME)
    with pytest.raises(NoSuchTableError):
        theirs.load_table("shop.absent")
