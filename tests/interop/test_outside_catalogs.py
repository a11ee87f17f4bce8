"""Tables in an outside catalog: the lake there is the model after every round, whatever breaks between the commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchTableError,
    RESTError,
    ServiceUnavailableError,
)
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.table.snapshots import Operation, Summary

from lakestore.errors import Conflict, Invalid, LakestoreError, Unavailable
from lakestore.model import dead_letter_table
from lakestore.union.verify import verify
from lakestore_server.catalog.contents import Name
from lakestore_server.catalog.our_tables import TIMELINE_PROPERTY
from lakestore_server.catalog.outside_tables import COMMITTED, READY
from tests.support.glue import GlueServer
from tests.support.log_tierer import LogTierer
from tests.support.outside import Killed, Outside, RestServer, kill, lose
from tests.support.served import Served

LOG = pa.schema([("v", pa.int64())])


@pytest.fixture(name="glue", scope="module")
def one_glue_server() -> Iterator[GlueServer]:
    with GlueServer() as server:
        yield server


@pytest.fixture(name="outside", params=["rest", "database", pytest.param("glue", marks=pytest.mark.long)])
def each_catalog(request: pytest.FixtureRequest) -> Outside:
    found: Outside = request.getfixturevalue(request.param)
    return found


@pytest.fixture(name="served")
def one_server(tmp_path: Path, outside: Outside) -> Iterator[Served]:
    with Served(tmp_path / "dätä set", ports=True, catalog=outside.settings()) as served:
        yield served
        for name in served.engine.view.names:
            served.lake.drop_table(name)


def rows_there(outside: Outside, name: str) -> list[int]:
    """The rows that another engine reads through the outside catalog."""
    return sorted(outside.catalog().load_table(name).scan(selected_fields=("v",)).to_arrow()["v"].to_pylist())


def flush(served: Served, name: str) -> None:
    """One round of a new tierer."""
    served.clock.advance(60)  # the pause after a call without an answer
    LogTierer(served.server, served.lake.transport).flush(name)


def tiered(served: Served, name: str) -> None:
    """A round, again if main moved since its plan or an answer was lost."""
    for _ in range(5):
        try:
            with suppress(CommitFailedException, CommitStateUnknownException):
                flush(served, name)
                return
        except ForbiddenError as error:
            assert "plan again" in str(error)
    raise AssertionError("no round succeeded")


def problem(served: Served, name: str) -> str:
    """Why the table is not tiered, as status says."""
    (table,) = [each for each in served.lake.status()["tables"] if each["name"] == name]
    return str(table["tier_problem"])


def look(served: Served) -> None:
    """The duty, now."""
    served.clock.advance(60)
    served.server._outside_check.run_once()


def local(location: str) -> Path:
    """The path of a location. Iceberg's REST server writes `file:/` with one slash."""
    return Path("/" + location.removeprefix("file:").lstrip("/"))


def check(served: Served, outside: Outside, name: str, model: list[int]) -> None:
    """The lake through the outside catalog, the union read and the log are the model."""
    assert rows_there(outside, name) == sorted(model)
    assert sorted(served.lake.table(name).scan().to_arrow()["v"].to_pylist()) == sorted(model)
    assert verify(served.lake.transport, name).same
    pointer = served.engine.view.pointers["shop", name.partition(".")[2]]
    assert outside.catalog().load_table(name).metadata_location == pointer.location


def test_rounds_land_in_the_outside_catalog(served: Served, outside: Outside) -> None:
    served.lake.create_table("shop.log", LOG, buckets=2)
    for start in (0, 10, 20):
        served.append("shop.log", *range(start, start + 10))
        tiered(served, "shop.log")
        check(served, outside, "shop.log", [*range(start + 10)])
    state = served.state("shop.log")
    theirs = outside.catalog().load_table("shop.log")
    assert str(theirs.metadata.table_uuid) == state.table.uuid
    assert state.table.lake.catalog == "prod"
    assert max(state.tiers.values(), key=lambda tier: tier.lsn).tier_point == tuple(state.heads())


POINTS = ("before-files", "after-files", "before-commit", "answer-lost", "not-journaled", "not-answered")
"""The five points of X1; a commit whose answer is lost is one between server and outside catalog, or between tierer and
server."""


def broken_round(served: Served, outside: Outside, name: str, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that breaks at this point, and a server that is killed and starts again."""
    catalogs = served.server.catalog.outside.catalogs
    with monkeypatch.context() as patched:
        if point == "after-files":
            patched.setattr(RestCatalog, "commit_table", lambda *_: kill())
        elif point in ("before-commit", "not-journaled"):
            moment = READY if point == "before-commit" else COMMITTED
            patched.setattr(catalogs, "reach", lambda at: kill() if at == moment else None)
        elif point == "answer-lost" and isinstance(outside, RestServer):
            outside.proxy.lose_commits = 1
        elif point == "answer-lost":
            patched.setattr(catalogs.named("prod"), "commit", lose(catalogs.named("prod").commit))
        elif point == "not-answered":
            patched.setattr(RestCatalog, "commit_table", lose(RestCatalog.commit_table))
        if point != "before-files":
            with pytest.raises((Killed, Unavailable, RESTError)):
                flush(served, name)
    served.kill()
    served.start()


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_or_a_lost_answer_loses_and_doubles_nothing(
    served: Served, outside: Outside, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.lake.create_table("shop.log", LOG, buckets=2)
    served.append("shop.log", *range(10))
    tiered(served, "shop.log")
    served.append("shop.log", *range(10, 20))
    broken_round(served, outside, "shop.log", point, monkeypatch)
    committed = point in ("answer-lost", "not-journaled", "not-answered")
    assert rows_there(outside, "shop.log") == [*range(20 if committed else 10)]
    look(served)
    check_prefix = rows_there(outside, "shop.log")
    assert sorted(served.lake.table("shop.log").scan().to_arrow()["v"].to_pylist()) == [*range(20)], check_prefix
    served.append("shop.log", *range(20, 30))
    tiered(served, "shop.log")
    check(served, outside, "shop.log", [*range(30)])


def test_a_foreign_append_is_named_and_not_adopted(served: Served, outside: Outside) -> None:
    table = served.lake.create_table("shop.log", LOG)
    served.append("shop.log", *range(10))
    tiered(served, "shop.log")
    before = served.engine.view.pointers["shop", "log"]
    theirs = outside.catalog().load_table("shop.log")
    good = theirs.current_snapshot()
    assert good is not None
    theirs.append(theirs.scan().to_arrow().slice(0, 1))
    look(served)
    assert "rows of shop.log are written through Lakestore" in problem(served, "shop.log")
    served.append("shop.log", 10)
    with pytest.raises(ForbiddenError, match="written through Lakestore"):
        flush(served, "shop.log")
    assert served.engine.view.pointers["shop", "log"] == before
    assert sorted(table.scan().to_arrow()["v"].to_pylist()) == [*range(11)], "reads go on"
    theirs.manage_snapshots().set_current_snapshot(snapshot_id=good.snapshot_id).commit()
    look(served)
    assert problem(served, "shop.log") == ""
    tiered(served, "shop.log")
    check(served, outside, "shop.log", [*range(11)])


def test_a_foreign_append_between_verdict_and_commit_wins(
    served: Served, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.lake.create_table("shop.log", LOG)
    served.append("shop.log", *range(5))
    tiered(served, "shop.log")
    served.append("shop.log", 5)
    theirs = outside.catalog().load_table("shop.log")
    good = theirs.current_snapshot()
    assert good is not None
    moments = iter([READY])

    def interfere(moment: str) -> None:
        if moment == next(moments, None):
            theirs.append(theirs.scan().to_arrow().slice(0, 1))

    monkeypatch.setattr(served.server.catalog.outside.catalogs, "reach", interfere)
    with pytest.raises(ForbiddenError, match="written through Lakestore"):
        flush(served, "shop.log")
    assert rows_there(outside, "shop.log") == [0, 0, 1, 2, 3, 4], "our round is not upon theirs"
    theirs.refresh().manage_snapshots().set_current_snapshot(snapshot_id=good.snapshot_id).commit()
    tiered(served, "shop.log")
    check(served, outside, "shop.log", [*range(6)])


def test_what_the_gate_refuses_a_client_is_no_problem_of_the_table(served: Served, outside: Outside) -> None:
    served.lake.create_table("shop.log", LOG)
    served.append("shop.log", 1)
    tiered(served, "shop.log")
    ours = RestCatalog("lake", uri=f"http://{served.server.about['http']}/iceberg").load_table("shop.log")
    with pytest.raises(ForbiddenError, match="written through Lakestore"):
        ours.append(ours.scan().to_arrow())
    assert problem(served, "shop.log") == ""
    check(served, outside, "shop.log", [1])


def test_a_purge_removes_the_files_unless_the_catalog_has_the_table_again(served: Served, outside: Outside) -> None:
    served.server.dropped._wake_checkpoint = lambda: None
    for name in ("shop.gone", "shop.back"):
        served.lake.create_table(name, LOG)
        served.append(name, 1)
        tiered(served, name)
    places = {name: served.engine.view.pointers["shop", name] for name in ("gone", "back")}
    for name in ("shop.gone", "shop.back"):
        served.lake.drop_table(name)
    outside.catalog().register_table("shop.back", places["back"].location)
    for name in ("shop.gone", "shop.back"):
        served.lake.drop_table(name, purge=True)
    served.server.dropped.run_once()
    assert not local(places["gone"].location).exists()
    assert rows_there(outside, "shop.back") == [1]
    outside.catalog().drop_table("shop.back")


def test_foreign_properties_branches_and_expiry_are_adopted(served: Served, outside: Outside) -> None:
    served.lake.create_table("shop.log", LOG)
    for number in range(3):
        served.append("shop.log", number)
        tiered(served, "shop.log")
    oldest = min(served.state("shop.log").tiers)
    theirs = outside.catalog().load_table("shop.log")
    theirs.transaction().set_properties(
        {"team": "red", "write.parquet.compression-codec": "snappy"}
    ).commit_transaction()
    first = theirs.metadata.snapshots[0].snapshot_id
    theirs.manage_snapshots().create_tag(first, "audit").commit()
    look(served)
    assert "audit" in served.server.catalog.load(Name("shop", "log")).doc["refs"]
    theirs.refresh().manage_snapshots().remove_tag("audit").commit()
    theirs.maintenance.expire_snapshots().by_id(first).commit()
    look(served)
    assert problem(served, "shop.log") == ""
    assert first not in served.state("shop.log").tiers or first != oldest
    served.append("shop.log", 3)
    tiered(served, "shop.log")
    check(served, outside, "shop.log", [0, 1, 2, 3])


KEPT = ("total-", "lakestore.live-sum")
"""Properties of a summary that a rewrite repeats. The tierer of these tests reads the live sum there."""


def rewrite(theirs: Table) -> int:
    """A rewrite of no file by another engine: PyIceberg has none, so its snapshot is made by hand."""
    main = theirs.refresh().current_snapshot()
    assert main is not None
    assert main.summary is not None
    number = main.snapshot_id + 1
    made = main.model_copy(
        update={
            "snapshot_id": number,
            "parent_snapshot_id": main.snapshot_id,
            "sequence_number": max(each.sequence_number or 0 for each in theirs.metadata.snapshots) + 1,
            "timestamp_ms": main.timestamp_ms + 1,
            "summary": Summary(
                Operation.REPLACE,
                **{key: value for key, value in main.summary.additional_properties.items() if key.startswith(KEPT)},
            ),
        }
    )
    commit_there(
        theirs,
        {"action": "add-snapshot", "snapshot": made.model_dump(by_alias=True)},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number},
    )
    return number


def commit_there(theirs: Table, *updates: dict[str, Any]) -> None:
    """A commit of another engine at the outside catalog."""
    name = {"namespace": ["shop"], "name": "log"}
    request = CommitTableRequest.model_validate({"identifier": name, "requirements": [], "updates": updates})
    theirs.catalog.commit_table(theirs.refresh(), request.requirements, request.updates)


def test_rewrites_whose_snapshots_have_expired_are_adopted_by_the_metadata_in_between(
    served: Served, outside: Outside
) -> None:
    served.lake.create_table("shop.log", LOG)
    served.append("shop.log", *range(5))
    tiered(served, "shop.log")
    theirs = outside.catalog().load_table("shop.log")
    first = rewrite(theirs)
    look(served)
    assert max(served.state("shop.log").tiers) == first, "adopted"
    second, third = rewrite(theirs), rewrite(theirs)
    for number in (first, second):
        commit_there(theirs, {"action": "remove-snapshots", "snapshot-ids": [number]})
    look(served)
    assert problem(served, "shop.log") == ""
    tiers = served.state("shop.log").tiers
    assert third in tiers
    assert not {first, second} & tiers.keys()
    served.append("shop.log", 5)
    tiered(served, "shop.log")
    check(served, outside, "shop.log", [*range(6)])


def test_a_foreign_append_after_a_rewrite_is_not_adopted(served: Served, outside: Outside) -> None:
    table = served.lake.create_table("shop.log", LOG)
    served.append("shop.log", *range(5))
    tiered(served, "shop.log")
    before = served.engine.view.pointers["shop", "log"]
    theirs = outside.catalog().load_table("shop.log")
    good = rewrite(theirs)
    theirs.refresh().append(theirs.scan().to_arrow().slice(0, 1))
    look(served)
    assert "written through Lakestore" in problem(served, "shop.log")
    assert served.engine.view.pointers["shop", "log"] == before
    assert sorted(table.scan().to_arrow()["v"].to_pylist()) == [*range(5)]
    theirs.refresh().manage_snapshots().set_current_snapshot(snapshot_id=good).commit()
    look(served)
    check(served, outside, "shop.log", [*range(5)])


def test_a_deposed_tierer_is_fenced_before_anything_is_sent(served: Served, outside: Outside) -> None:
    served.lake.create_table("shop.log", LOG)
    served.append("shop.log", *range(5))
    old = LogTierer(served.server, served.lake.transport)
    served.clock.advance(3600)
    flush(served, "shop.log")
    served.append("shop.log", 5)
    location = outside.catalog().load_table("shop.log").metadata_location
    with pytest.raises(ForbiddenError, match="was replaced by epoch"):
        old.flush("shop.log")
    assert outside.catalog().load_table("shop.log").metadata_location == location
    tiered(served, "shop.log")
    check(served, outside, "shop.log", [*range(6)])


def test_a_commit_that_was_on_its_way_when_its_tierer_was_deposed_is_adopted(
    served: Served, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.lake.create_table("shop.log", LOG)
    served.append("shop.log", *range(5))
    old = LogTierer(served.server, served.lake.transport)

    def depose(moment: str) -> None:
        if moment == READY:
            served.clock.advance(3600)
            LogTierer(served.server, served.lake.transport)

    monkeypatch.setattr(served.server.catalog.outside.catalogs, "reach", depose)
    old.flush("shop.log")
    monkeypatch.undo()
    (tier,) = served.state("shop.log").tiers.values()
    assert tier.epoch == served.engine.view.tierer_epoch, "adopted under the new epoch"
    served.append("shop.log", 5)
    tiered(served, "shop.log")
    check(served, outside, "shop.log", [*range(6)])


def test_a_catalog_that_is_away_stops_tiering_only(rest: RestServer, tmp_path: Path) -> None:
    with Served(tmp_path / "data", ports=True, catalog=rest.settings()) as served:
        table = served.lake.create_table("shop.log", LOG)
        served.append("shop.log", *range(5))
        tiered(served, "shop.log")
        rest.proxy.is_away = True
        try:
            served.restart()  # a start does not need it
            table = served.lake.table("shop.log")
            served.append("shop.log", 5)
            look(served)
            assert "catalog prod does not answer" in problem(served, "shop.log")
            with pytest.raises(ServiceUnavailableError, match="does not answer"):
                flush(served, "shop.log")
            assert sorted(table.scan().to_arrow()["v"].to_pylist()) == [*range(6)]
            with pytest.raises(Unavailable, match="catalog prod does not answer"), served.lake.within(2.0):
                served.lake.create_table("shop.other", LOG)
            served.clock.advance(0.5)
            with pytest.raises(Unavailable, match="asked again in"), served.lake.within(2.0):
                served.lake.create_table("shop.other", LOG)
        finally:
            rest.proxy.is_away = False
        look(served)
        assert problem(served, "shop.log") == ""
        tiered(served, "shop.log")
        check(served, rest, "shop.log", [*range(6)])
        served.lake.drop_table("shop.log")


def test_create_rename_drop_and_undrop_are_done_there_too(served: Served, outside: Outside) -> None:
    served.lake.create_table("shop.log", LOG)
    served.append("shop.log", 1, 2)
    tiered(served, "shop.log")
    served.lake.table("shop.log").rename("other.table")
    assert rows_there(outside, "other.table") == [1, 2]
    with pytest.raises(NoSuchTableError):
        outside.catalog().load_table("shop.log")
    served.lake.drop_table("other.table")
    with pytest.raises(NoSuchTableError):
        outside.catalog().load_table("other.table")
    served.lake.undrop("other.table", as_name="shop.log")
    check(served, outside, "shop.log", [1, 2])
    served.append("shop.log", 3)
    tiered(served, "shop.log")
    check(served, outside, "shop.log", [1, 2, 3])
    with pytest.raises(Invalid, match="cannot be truncated"):
        served.lake.table("shop.log").truncate()


def test_letters_move_there_too_and_their_creation_during_a_rename_refuses_it(
    served: Served, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.lake.create_table("shop.log", LOG)
    catalog = served.server.catalog
    renaming = catalog.renaming_letters

    @contextmanager
    def late(name: str, new_name: str) -> Iterator[str]:
        with renaming(name, new_name) as letters:
            served.lake.create(dead_letter_table.definition(name))
            yield letters

    monkeypatch.setattr(catalog, "renaming_letters", late)
    with pytest.raises(Conflict, match="were created, dropped or renamed meanwhile"):
        served.lake.table("shop.log").rename("shop.moved")
    monkeypatch.undo()
    assert (rows_there(outside, "shop.log"), outside.catalog().table_exists("shop.log__dlq")) == ([], True)
    served.lake.table("shop.log").rename("shop.moved")
    served.lake.drop_table("shop.moved")
    served.lake.undrop("shop.moved", as_name="shop.back")
    assert [outside.catalog().table_exists(f"shop.{each}__dlq") for each in ("log", "moved", "back")] == [
        False,
        False,
        True,
    ]


def test_a_refused_verb_leaves_nothing_there(served: Served, outside: Outside) -> None:
    served.lake.create_table("shop.log", LOG)
    with pytest.raises(Conflict):
        served.lake.create_table("shop.log", LOG)
    served.lake.create_table("shop.own", LOG, lake={"catalog": "own"})
    with pytest.raises(NoSuchTableError):
        outside.catalog().load_table("shop.own")
    with pytest.raises(Conflict):
        served.lake.table("shop.log").rename("shop.own")
    assert rows_there(outside, "shop.log") == []
    with pytest.raises(NoSuchTableError):
        outside.catalog().load_table("shop.own")
    with pytest.raises(Invalid, match="has no catalog 'elsewhere'; its settings name own, prod"):
        served.lake.create_table("shop.more", LOG, lake={"catalog": "elsewhere"})


def test_a_creation_that_was_killed_leaves_an_entry_that_the_next_one_replaces(
    served: Served, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.server.catalog.outside.catalogs, "reach", lambda _: kill())
    with pytest.raises(LakestoreError):
        served.lake.create_table("shop.log", LOG)
    monkeypatch.undo()
    left = outside.catalog().load_table("shop.log").metadata.table_uuid
    served.kill()
    served.start()
    served.lake.create_table("shop.log", LOG)
    assert outside.catalog().load_table("shop.log").metadata.table_uuid != left
    served.append("shop.log", 1)
    tiered(served, "shop.log")
    check(served, outside, "shop.log", [1])


def test_a_foreign_table_of_the_name_is_neither_replaced_nor_dropped(served: Served, outside: Outside) -> None:
    theirs = outside.catalog()
    theirs.create_namespace_if_not_exists("shop")
    place = f"{served.server.settings.warehouse_uri}/theirs"
    made = theirs.create_table("shop.theirs", LOG, location=place)
    with pytest.raises(Conflict, match=r"has a table shop\.theirs already"):
        served.lake.create_table("shop.theirs", LOG)
    assert theirs.load_table("shop.theirs").metadata.table_uuid == made.metadata.table_uuid
    theirs.drop_table("shop.theirs")


def test_another_table_of_the_name_is_named_and_left_alone(served: Served, outside: Outside) -> None:
    served.lake.create_table("shop.log", LOG)
    served.append("shop.log", 1)
    tiered(served, "shop.log")
    location = served.engine.view.pointers["shop", "log"].location
    theirs = outside.catalog()
    theirs.drop_table("shop.log")
    other = theirs.create_table("shop.log", LOG, location=f"{served.server.settings.warehouse_uri}/other")
    look(served)
    assert f"another table of the name shop.log (uuid {other.metadata.table_uuid})" in problem(served, "shop.log")
    assert served.engine.view.pointers["shop", "log"].location == location
    theirs.drop_table("shop.log")
    theirs.register_table("shop.log", location)
    look(served)
    check(served, outside, "shop.log", [1])


def test_metadata_outside_of_the_tables_folder_is_named_and_not_adopted(
    served: Served, outside: Outside, tmp_path: Path
) -> None:
    served.lake.create_table("shop.log", LOG)
    served.append("shop.log", 1)
    tiered(served, "shop.log")
    location = served.engine.view.pointers["shop", "log"].location
    elsewhere = tmp_path / "elsewhere" / f"00009-{Path(location).name.partition('-')[2]}"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(local(location).read_bytes())
    outside.catalog().drop_table("shop.log")
    outside.catalog().register_table("shop.log", f"file://{elsewhere}")
    look(served)
    assert "lies outside of its folder" in problem(served, "shop.log")
    assert served.engine.view.pointers["shop", "log"].location == location
    outside.catalog().drop_table("shop.log")
    outside.catalog().register_table("shop.log", location)
    look(served)
    check(served, outside, "shop.log", [1])


def test_a_lake_that_went_on_under_another_history_is_named_and_not_adopted(served: Served, outside: Outside) -> None:
    served.lake.create_table("shop.log", LOG)
    served.append("shop.log", 1)
    tiered(served, "shop.log")
    theirs = outside.catalog().load_table("shop.log")
    ours = theirs.properties[TIMELINE_PROPERTY]
    for timeline, words in (("another", "another history of this server"), (ours, "")):
        theirs.transaction().set_properties({TIMELINE_PROPERTY: timeline}).commit_transaction()
        look(served)
        said = problem(served, "shop.log")
        assert words in said if words else said == ""
    check(served, outside, "shop.log", [1])


def test_a_table_that_is_gone_there_is_named_and_can_be_registered_again(served: Served, outside: Outside) -> None:
    table = served.lake.create_table("shop.log", LOG)
    served.append("shop.log", 1)
    tiered(served, "shop.log")
    location = served.engine.view.pointers["shop", "log"].location
    outside.catalog().drop_table("shop.log")
    look(served)
    assert f"register {location} there again" in problem(served, "shop.log")
    assert table.scan().count() == 1
    outside.catalog().register_table("shop.log", location)
    look(served)
    assert problem(served, "shop.log") == ""
    check(served, outside, "shop.log", [1])
