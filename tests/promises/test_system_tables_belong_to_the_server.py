"""System tables: only the server makes, writes and changes them; a row is in the commit that it is about; everybody
with the right reads them as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Conflict, Denied, Invalid, NotFound
from lakestore.evolution import AddColumn, SetContract
from lakestore.model import table as definitions
from lakestore.model.system_tables import AUDIT, PROGRESS, SLA, system_tables
from lakestore.model.table import define
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog import catalog as catalog_verbs
from lakestore_server.catalog import contents
from lakestore_server.catalog.commits import TableChange
from lakestore_server.catalog.contents import Name
from lakestore_server.catalog.tables import check_new
from lakestore_server.commit import system_rows
from lakestore_server.operate.restore import restore
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.state import State
from tests.support.replicas import Replicas
from tests.support.served import Served

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])
DOCUMENT = """
apiVersion: v3.2.0
kind: DataContract
id: orders
version: 1.0.0
status: active
schema:
  - name: orders
    properties:
      - {name: id, logicalType: integer, primaryKey: true, required: true}
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "a folder with ü") as one:
        yield one


def apply_contract(lake: ls.Lake, name: str = "shop.orders", why: str = "we promise, naïvely") -> ls.Table:
    if name not in [table.name for table in lake.tables()]:
        lake.create_table(name, SCHEMA, primary_key=["id"], buckets=1)
    return lake.table(name).alter(SetContract(DOCUMENT, "orders", why))


def audit(lake: ls.Lake) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = lake.table(AUDIT).scan().to_arrow().sort_by([("at", "ascending")]).to_pylist()
    return rows


def test_the_first_contract_makes_the_tables_and_its_decision_is_in_its_commit(served: Served) -> None:
    served.lake.create_table("shop.orders", SCHEMA, primary_key=["id"], buckets=1)
    assert [table.name for table in served.lake.tables()] == ["shop.orders"]
    orders = apply_contract(served.lake)
    assert {AUDIT, SLA, PROGRESS} <= {table.name for table in served.lake.tables()}
    view = served.engine.view
    contract = view.named("shop.orders").versions
    assert view.named(AUDIT).logs[0].at_head.lsn == contract.lsns[-1]
    [row] = audit(served.lake)
    assert contract.current.contract is not None
    assert row["at"].timestamp() * 1e6 == contract.current.contract.at_us
    assert (row["table"], row["table_uuid"]) == ("shop.orders", orders.definition.uuid)
    assert (row["action"], row["why"], row["version"]) == ("apply contract", "we promise, naïvely", 1)
    orders.alter(SetContract("", why="too dear"))
    assert [(each["action"], each["why"]) for each in audit(served.lake)][1:] == [("end contract", "too dear")]
    served.lake.create_table("shop.free", SCHEMA, primary_key=["id"])
    assert len(audit(served.lake)) == 2


def test_a_check_or_a_refused_contract_makes_nothing(served: Served) -> None:
    served.lake.create_table("shop.orders", SCHEMA, primary_key=["id"], buckets=1)
    with pytest.raises(Invalid, match="kind"):
        served.lake.table("shop.orders").alter(SetContract(DOCUMENT.replace("DataContract", "Poem"), "orders"))
    assert served.engine.view.namespaces.keys() == {"shop"}


def _writes(lake: ls.Lake) -> list[Callable[[], Any]]:
    progress = [{"table": "a", "feed": "b"}]
    return [
        lambda: lake.table(AUDIT).append(lake.table(AUDIT).scan().to_arrow()),
        lambda: lake.table(PROGRESS).upsert(progress),
        lambda: lake.table(PROGRESS).delete(progress),
        lambda: lake.table(PROGRESS).delete(where="\"table\" = 'a'"),
    ]


def _changes(lake: ls.Lake) -> list[Callable[[], Any]]:
    t = lake.transport
    return [
        lambda: lake.table(AUDIT).alter(AddColumn("more", "string")),
        lambda: lake.table(SLA).alter(SetContract(DOCUMENT, "orders")),
        lambda: lake.table(SLA).truncate(),
        lambda: lake.table(AUDIT).rename("shop.audit"),
        lambda: lake.table("shop.orders").rename("lakestore.orders"),
        lambda: lake.drop_table(AUDIT),
        lambda: lake.drop_table(SLA, purge=True),
        lambda: t.rescale_table(pb.RescaleTableRequest(table=PROGRESS, buckets=4)),
        lambda: t.replay_table(pb.ReplayTableRequest(table=PROGRESS, into="shop.branch")),
        lambda: t.replay_table(pb.ReplayTableRequest(table="shop.orders", into="lakestore.branch")),
        lambda: t.release_table(pb.ReleaseTableRequest(table=AUDIT, new_name="shop.plain")),
        lambda: t.release_table(pb.ReleaseTableRequest(table="shop.orders", new_name="lakestore.plain")),
        lambda: lake.create_table("lakestore.mine", SCHEMA, primary_key=["id"]),
        lambda: t.create_database(pb.DatabaseRequest(database="lakestore")),
        lambda: lake.undrop("shop.gone", as_name="lakestore.gone"),
    ]


def test_nobody_else_writes_or_changes_them(served: Served) -> None:
    apply_contract(served.lake)
    served.lake.create_table("shop.gone", SCHEMA, primary_key=["id"])
    served.lake.drop_table("shop.gone")
    before = served.engine.view
    for act in [*_writes(served.lake), *_changes(served.lake)]:
        with pytest.raises(Denied, match="system table"):
            act()
    after = served.engine.view
    assert (after.names, after.tables.keys(), after.namespaces) == (
        before.names,
        before.tables.keys(),
        before.namespaces,
    )
    assert after.named(AUDIT).heads() == before.named(AUDIT).heads()


def test_the_catalog_makes_nothing_in_their_database(served: Served) -> None:
    apply_contract(served.lake)
    catalog = served.server.catalog
    schema = {"type": "struct", "schema-id": 0, "fields": []}
    for act in (
        lambda: catalog.create_table("lakestore", {"name": "mine", "schema": schema}),
        lambda: catalog.register("lakestore", "mine", f"{catalog.warehouse}/x.metadata.json", overwrite=True),
        lambda: catalog.views.create("lakestore", {"name": "mine"}),
        lambda: catalog.create_namespace("lakestore", {}),
        lambda: catalog.update_namespace("lakestore", [], {"a": "b"}),
    ):
        with pytest.raises(Denied, match="system tables"):
            act()
    with pytest.raises(Conflict, match="not empty"):
        catalog.drop_namespace("lakestore")


def test_a_table_of_another_engine_is_not_adopted_into_their_database(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "n", "type": "long", "required": False}]}
    catalog = served.server.catalog
    with monkeypatch.context() as before:
        for module in (catalog_verbs, contents):
            before.setattr(module, "refuse_system_database", lambda _: None)
        catalog.create_namespace("lakestore", {})
        catalog.create_table("lakestore", {"name": "mine", "schema": schema})
    request = pb.AdoptTableRequest(source="lakestore.mine", table="lakestore.mine", buckets=1)
    with pytest.raises(Denied, match="system tables"):
        served.lake.transport.adopt_table(request)


def test_an_engine_changes_nothing_of_them(served: Served) -> None:
    """Their metadata in the catalog is the server's and the tierer's alone. Tables of users take such commits."""
    apply_contract(served.lake)
    catalog, update = served.server.catalog, {"action": "set-properties", "updates": {"comment": "mine"}}
    catalog.commit([TableChange(Name("shop", "orders"), (), (update,))])
    before = served.engine.view.pointers
    with pytest.raises(Denied, match="system table"):
        catalog.commit([TableChange(Name("lakestore", "audit"), (), (update,))])
    assert served.engine.view.pointers == before


def test_no_name_of_users_looks_like_theirs(served: Served) -> None:
    """Names of DuckDB and Spark have no case. A proposal about a system table is not stored either."""
    apply_contract(served.lake)
    lake = served.lake
    proposal = pb.AlterTableRequest(table=AUDIT, alteration="[]", proposal=pb.Proposal(only=True))
    for act in (
        lambda: lake.create_table("LakeStore.audit", SCHEMA, primary_key=["id"]),
        lambda: served.server.catalog.create_namespace("LAKESTORE", {}),
        lambda: lake.transport.create_database(pb.DatabaseRequest(database="Lakestore")),
        lambda: lake.transport.alter_table(proposal),
    ):
        with pytest.raises(Denied, match="system table"):
            act()
    assert lake.proposals() == []


@pytest.mark.parametrize("checkpointed", [False, True])
def test_rows_survive_a_kill(served: Served, *, checkpointed: bool) -> None:
    apply_contract(served.lake)
    rows = [{"table": "shop.orders", "feed": feed} for feed in ("a", "b")]
    system_rows.upsert_rows(served.engine, PROGRESS, rows)
    if checkpointed:
        served.checkpoint()
    apply_contract(served.lake, "shop.other")
    system_rows.upsert_rows(served.engine, PROGRESS, [rows[0] | {"held_back_by": "bucket 3"}])
    before = audit(served.lake), served.lake.table(PROGRESS).scan().to_arrow().sort_by("feed").to_pylist()
    served.kill()
    served.start()
    served.until_indexed()
    assert (audit(served.lake), served.lake.table(PROGRESS).scan().to_arrow().sort_by("feed").to_pylist()) == before
    assert [row["held_back_by"] for row in before[1]] == ["bucket 3", None]
    assert served.lake.table(PROGRESS).lookup([{"table": "shop.orders", "feed": "a"}]).num_rows == 1


def test_rows_of_one_commit_follow_one_another_and_an_equal_row_is_no_change(served: Served) -> None:
    apply_contract(served.lake)

    def plan(state: State, record: CommitRecord) -> None:
        table = state.view.named("shop.orders").table
        for what in ("first", "second"):
            system_rows.add_decision(state.view, record, table, principal="ann", action="note", what=what)

    served.engine.operate(plan)
    assert [row["what"] for row in audit(served.lake)][1:] == ["first", "second"]
    assert served.engine.view.named(AUDIT).heads() == [3]
    system_rows.append_rows(served.engine, SLA, [])
    row = {"table": "shop.orders", "feed": "a"}
    for _ in range(2):
        system_rows.upsert_rows(served.engine, PROGRESS, [row])
    assert served.engine.view.named(PROGRESS).heads() == [1]


def test_a_database_of_users_from_before_stays_theirs(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        before.setattr(definitions, "refuse_system_database", lambda _: None)
        for name in ("lakestore.notes", "lakestore.sla"):
            served.lake.create_table(name, SCHEMA, primary_key=["id"], buckets=1)
    served.lake.table("lakestore.sla").upsert([{"id": 1, "note": "mine"}])
    with pytest.raises(Conflict, match=r"lakestore\.sla is a table or view of users"):
        apply_contract(served.lake)
    assert AUDIT not in served.engine.view.names
    served.lake.table("lakestore.sla").rename("shop.sla")
    apply_contract(served.lake)
    served.lake.table("lakestore.notes").upsert([{"id": 1, "note": "still mine"}])
    served.lake.table("lakestore.notes").alter(AddColumn("more", "string"))
    served.lake.drop_table("lakestore.notes")
    with pytest.raises(NotFound):
        served.lake.table("lakestore.notes")
    assert len(audit(served.lake)) == 1


def test_sql_reads_them_with_other_tables_at_one_cut(served: Served) -> None:
    orders = apply_contract(served.lake)
    early = orders.upsert([{"id": 1, "note": "a"}])
    apply_contract(served.lake, "shop.other")
    query = "SELECT a.action, count(*) n FROM lakestore.audit a JOIN shop.orders o ON true GROUP BY 1"
    assert served.lake.sql(query).to_arrow().to_pylist() == [{"action": "apply contract", "n": 2}]
    assert served.lake.at(early).sql(query).to_arrow().to_pylist() == [{"action": "apply contract", "n": 1}]
    assert served.lake.sql("SELECT count(*) n FROM lakestore.sla, lakestore.progress").to_arrow().to_pylist() == [
        {"n": 0}
    ]
    [batch] = served.lake.table(AUDIT).changes(start="earliest", until="now")
    assert batch.table.num_rows == 2


def test_replicas_have_them_and_the_next_leader_goes_on(tmp_path: Path) -> None:
    with Replicas(tmp_path, count=2) as replicas, ls.connect(replicas.addresses) as lake:
        apply_contract(lake)
        before = audit(lake)
        replicas.depose()
        apply_contract(lake, "shop.other")
        assert audit(lake)[:1] == before
        assert [row["table"] for row in audit(lake)] == ["shop.orders", "shop.other"]


def test_a_restored_server_goes_on_with_them(served: Served, tmp_path: Path) -> None:
    apply_contract(served.lake)
    served.lake.transport.backup(pb.BackupRequest(folder=str(tmp_path / "backup")))
    restore(tmp_path / "backup", tmp_path / "restored")
    with ls.open(tmp_path / "restored") as again:
        apply_contract(again, "shop.other")
        assert [row["table"] for row in audit(again)] == ["shop.orders", "shop.other"]
        with pytest.raises(Denied):
            again.drop_table(AUDIT)


def test_the_definitions_are_tables_that_every_engine_opens() -> None:
    for table in system_tables():
        check_new(table)
    assert not define("lakestore.audit", SCHEMA).is_system
