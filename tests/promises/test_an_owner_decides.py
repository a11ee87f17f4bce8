"""A table with an owner changes by its owner's rules, at every door, and every decision is in the audit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.cli.main import run_command
from lakestore.errors import Conflict, Denied, Invalid, NeedsApproval, NotAuthenticated, NotFound
from lakestore.evolution import SetContract, to_json
from lakestore.kafka.bridge import spec_file
from lakestore.kafka.bridge.assembly import Assembly
from lakestore.model import dead_letter_table
from lakestore.model.contract.contract import Contract
from lakestore.model.table import define
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.rights import token_of, write_auth
from tests.support.served import Served
from tests.support.waiting import until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("amount", pa.int32()), ("note", pa.string())])
ADMIN = {"shop.*": ["admin"], "lakestore.*": ["read"]}
PRINCIPALS = {
    "root": {"*": ["admin"]},
    "ann": ADMIN,
    "dan": ADMIN,
    "eve": {"shop.*": ["read"], "lakestore.*": ["read"]},
    "mallory": ADMIN,
    "guest": {"other.*": ["admin"]},
    "nosy": {"shop.*": ["read"]},
    "mover": {"move.orders": ["admin"], "move.sales": ["admin"]},
}
POLICY = "{add: allow, widen: approve, rename: approve, drop: refuse}"


def document(owner: str = "ann", policy: str = POLICY, version: str = "1.0.0") -> str:
    return f"""
apiVersion: v3.2.0
kind: DataContract
id: orders
version: {version}
status: active
schema:
  - name: orders
    customProperties:
      - {{property: lakestore.owner, value: {{owner: {owner}, delegates: [dan], approvers: [eve]}}}}
      - {{property: lakestore.schemaChanges, value: {policy}}}
"""


class World:
    """A server with principals, and a table of ann's."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.auth = write_auth(folder / "auth.yaml", PRINCIPALS)
        self.served = Served(folder / "data", ports=True, auth=str(self.auth), **settings)

    def __enter__(self) -> World:
        self.served.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.served.__exit__(*error)

    def as_(self, who: str) -> ls.Lake:
        return ls.connect(self.served.server.about["grpc"], token=token_of(who))

    def audit(self) -> list[tuple[str, str, str]]:
        """Principal, action and outcome of every decision, oldest first."""
        rows = self.served.lake.table("lakestore.audit").scan().to_arrow().to_pylist()
        return [(row["principal"], row["action"], row["outcome"]) for row in rows]

    def columns(self) -> list[str]:
        return [column.name for column in self.served.lake.table("shop.orders").definition.columns]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path) as made:
        with made.as_("ann") as lake:
            lake.create_table("shop.orders", SCHEMA, primary_key=["id"], buckets=1)
            lake.table("shop.orders").alter(SetContract(document(), "orders", "it is mine"))
        yield made


def test_only_the_owner_or_a_delegate_changes_what_rows_mean(world: World) -> None:
    with world.as_("mallory") as lake:
        orders = lake.table("shop.orders")
        for refused in (
            lambda: orders.alter(SetContract(document("mallory"), "orders")),
            lambda: orders.alter(SetContract("", "orders")),
            lambda: orders.alter(retention="1d"),
            lambda: orders.alter(deletes="refuse"),
            lambda: orders.alter(lake={"partition_by": ["note"]}),
            lambda: orders.alter(default={"note": "x"}),
            lambda: orders.truncate(),
            lambda: orders.rename("shop.mine"),
            lambda: orders.rescale(2, wait=False),
            lambda: lake.drop_table("shop.orders"),
        ):
            with pytest.raises(Denied, match="only ann, the owner of table"):
                refused()
        assert orders.alter(lake={"freshness": "1m"}).definition.lake.freshness_seconds == 60
    assert world.audit()[0] == ("ann", "apply contract", "done")
    assert world.audit()[1:11] == [
        *[("mallory", "alter", "denied")] * 6,
        *[("mallory", action, "denied") for action in ("truncate", "rename", "rescale", "drop")],
    ]
    with world.as_("dan") as lake:
        lake.table("shop.orders").alter(retention="1d")
        lake.table("shop.orders").alter(SetContract(document(version="1.1.0"), "orders", "more"))
        found = lake.who("shop.orders")
    assert (found.owner, found.delegates, found.approvers, found.version) == ("ann", ("dan",), ("eve",), 2)
    assert found.decisions is not None
    assert len(found.decisions) == 10
    assert [found.decisions[0][name] for name in ("principal", "action", "what", "why", "version")] == [
        "dan",
        "apply contract",
        "version 2 of the contract",
        "more",
        2,
    ]


def test_only_the_owner_ends_rows_and_dropped_tables(world: World) -> None:
    """An erase, the end of the drop grace and an undrop under another name: none of them can be taken back."""
    with world.as_("mallory") as lake, world.as_("ann") as owner:
        orders = lake.table("shop.orders")
        with pytest.raises(Denied, match="only ann, the owner of table"):
            orders.erase(where="id = 1")
        assert orders.erasures() == []
        owner.drop_table("shop.orders")
        for refused in (
            lambda: lake.undrop("shop.orders", as_name="shop.mine"),
            lambda: lake.drop_table("shop.orders", purge=True),
        ):
            with pytest.raises(Denied, match="only ann, the owner of table"):
                refused()
        owner.undrop("shop.orders")
        assert owner.table("shop.orders").erase(where="id = 1").step == "rows"
        owner.drop_table("shop.orders", purge=True)
    decided = world.audit()[1:]
    assert decided[:5] == [
        ("mallory", "erase", "denied"),
        ("ann", "drop", "done"),
        ("mallory", "undrop", "denied"),
        ("mallory", "drop", "denied"),
        ("ann", "undrop", "done"),
    ]
    assert decided[-1] == ("ann", "drop", "done")


def test_an_administrator_of_the_server_names_another_owner_and_nothing_else(world: World) -> None:
    with world.as_("root") as lake:
        orders = lake.table("shop.orders")
        for text in ("", document("dan", POLICY.replace("refuse", "allow")), document("dan", version="1.1.0")):
            with pytest.raises(Denied, match="only ann"):
                orders.alter(SetContract(text, "orders"))
        with pytest.raises(Denied, match="only ann"):
            orders.alter(SetContract(document("root"), "orders"), retention="1d")
        orders.alter(SetContract(document("dan"), "orders", "ann has left"))
        assert lake.who("shop.orders").owner == "dan"
    assert world.audit()[-1] == ("root", "apply contract", "done")
    with world.as_("ann") as lake, pytest.raises(Denied, match="only dan"):
        lake.table("shop.orders").alter(retention="1d")


def test_changes_of_columns_obey_the_policy_whoever_asks(world: World) -> None:
    with world.as_("mallory") as lake:
        orders = lake.table("shop.orders")
        orders.alter(add={"more": pa.string()})
        with pytest.raises(Invalid, match="refuses changes of the kind 'drop'"):
            orders.alter(drop=["note"])
        with pytest.raises(NeedsApproval, match=r"waits for an approver \(ann, dan, eve\)") as caught:
            orders.alter(rename={"amount": "total"}, add={"extra": pa.string()})
        with pytest.raises(NeedsApproval) as again:
            orders.alter(rename={"amount": "total"}, add={"extra": pa.string()})
        assert again.value.proposal == caught.value.proposal
        (proposal,) = lake.proposals("shop.orders")
        assert (proposal["state"], proposal["proposed_by"]) == ("proposed", "mallory")
        with pytest.raises(Denied, match="mallory is no approver of table"):
            lake.approve(proposal["id"])
        with pytest.raises(Denied, match="mallory is no approver of table"):
            lake.reject(proposal["id"])
    assert world.columns() == ["id", "amount", "note", "more"]
    assert world.audit()[1:] == [
        ("mallory", "alter", "done"),
        ("mallory", "alter", "refused"),
        ("mallory", "propose", "done"),
        ("mallory", "approve", "denied"),
        ("mallory", "reject", "denied"),
    ]
    with world.as_("ann") as lake, pytest.raises(Invalid, match="refuses"):
        lake.table("shop.orders").alter(drop=["note"])
    with world.as_("ann") as lake:
        lake.table("shop.orders").alter(widen={"amount": "int64"}, why="more than 2 ** 31")
        with pytest.raises(Invalid, match="at most 1000 characters"):
            lake.table("shop.orders").alter(add={"x": pa.string()}, why="x" * 1001)
        last = (lake.who("shop.orders").decisions or [])[0]
        assert (last["what"], last["why"]) == ("widen column 'amount' to int64", "more than 2 ** 31")


def test_an_approval_is_one_commit_and_a_second_one_changes_nothing(world: World) -> None:
    with world.as_("mallory") as lake, pytest.raises(NeedsApproval) as caught:
        lake.table("shop.orders").alter(rename={"amount": "total"})
    with world.as_("eve") as lake:
        approved = lake.approve(caught.value.proposal, why="fine")
        assert (approved["state"], approved["decided_by"], approved["why"]) == ("approved", "eve", "fine")
        before, decisions = lake.table("shop.orders").definition, world.audit()
        assert lake.approve(caught.value.proposal) == approved  # as after a lost answer
        assert (lake.table("shop.orders").definition, world.audit()) == (before, decisions)
        with pytest.raises(Conflict, match="is approved"):
            lake.reject(caught.value.proposal)
    assert world.columns() == ["id", "total", "note"]
    world.served.restart()
    with world.as_("eve") as lake:
        (kept,) = lake.proposals()
        assert kept == approved
        with pytest.raises(NotFound, match="no proposal 'nothing'"):
            lake.approve("nothing")
    with world.as_("guest") as lake:
        assert lake.proposals() == []
        with pytest.raises(NotFound):
            lake.approve(caught.value.proposal)


def test_a_rejected_proposal_is_not_made_again_and_can_be_approved_later(world: World) -> None:
    with world.as_("mallory") as lake, pytest.raises(NeedsApproval) as caught:
        lake.table("shop.orders").alter(rename={"amount": "total"})
    with world.as_("eve") as lake:
        lake.reject(caught.value.proposal)
    with world.as_("mallory") as lake, pytest.raises(NeedsApproval, match="was rejected by eve"):
        lake.table("shop.orders").alter(rename={"amount": "total"})
    with world.as_("dan") as lake:
        lake.approve(caught.value.proposal)
    assert world.columns() == ["id", "total", "note"]


def test_what_happened_while_a_proposal_waited_decides_whether_it_still_applies(world: World) -> None:
    with world.as_("mallory") as lake:
        orders = lake.table("shop.orders")
        proposals = []
        changes: tuple[dict[str, Any], ...] = (
            {"rename": {"amount": "total"}},
            {"widen": {"amount": "int64"}},
            {"rename": {"note": "text"}},
        )
        for change in changes:
            with pytest.raises(NeedsApproval) as caught:
                orders.alter(**change)
            proposals.append(caught.value.proposal)
    with world.as_("ann") as lake:
        lake.table("shop.orders").alter(rename={"note": "remark"})
        with pytest.raises(Conflict, match="is superseded"):
            lake.approve(proposals[2])
        lake.approve(proposals[0])
        assert {row["id"]: row["state"] for row in lake.proposals()} == dict(
            zip(proposals, ["approved", "superseded", "superseded"], strict=True)
        )
        lake.table("shop.orders").rename("shop.sales")
    with world.as_("mallory") as lake, pytest.raises(NeedsApproval) as caught:
        lake.table("shop.sales").alter(widen={"total": "int64"})
    with world.as_("ann") as lake:
        text = document(policy=POLICY.replace("widen: approve", "widen: refuse"))
        lake.table("shop.sales").alter(SetContract(text, "orders"))
    with world.as_("eve") as lake, pytest.raises(Invalid, match="refuses changes of the kind 'widen'"):
        lake.approve(caught.value.proposal)


def test_dead_letters_move_by_the_right_on_their_table_and_by_their_own_owner(world: World) -> None:
    with world.as_("root") as root, world.as_("mover") as lake:
        root.create_table("move.orders", SCHEMA, primary_key=["id"])
        root.create(dead_letter_table.definition("move.orders"))
        root.table("move.orders__dlq").alter(SetContract(document("mover"), "orders"))
        with pytest.raises(Denied):
            lake.table("move.orders__dlq")
        lake.table("move.orders").rename("move.sales")
        assert {"move.sales", "move.sales__dlq"} <= {each.name for each in root.tables()}
        assert world.audit()[-1] == ("mover", "rename", "done")
        with pytest.raises(Denied):
            lake.table("move.sales__dlq")
    with world.as_("root") as root, pytest.raises(Denied, match=r"the owner of table move\.sales__dlq"):
        root.table("move.sales").rename("move.orders")
    assert world.audit()[-1] == ("root", "rename", "denied")


def test_a_server_that_asks_for_owners_makes_no_table_without_one(tmp_path: Path) -> None:
    with World(tmp_path, owner_required=True) as world, world.as_("ann") as lake:
        table = define("shop.orders", SCHEMA, primary_key=["id"], buckets=1)
        with pytest.raises(Invalid, match=r"shop\.orders has no owner, and this server asks for one"):
            lake.create(table)
        lake.create(replace(table, contract=Contract(document(), "orders")))
        assert lake.who("shop.orders").owner == "ann"
        with pytest.raises(Invalid, match="has no owner"):
            lake.table("shop.orders").alter(SetContract("", "orders"))
        with pytest.raises(Invalid, match="has no owner"):
            lake.create(replace(table, name="shop.orders__dlq"))
        lake.create(dead_letter_table.definition("shop.orders"))


def test_a_bridge_writes_to_the_table_of_a_contract_where_owners_are_required(tmp_path: Path) -> None:
    columns = "columns: [{name: id, type: int64}, {name: note, type: string}]"
    text = f"topics: [{{topic: t, table: shop.orders, primary_key: [id], {columns}}}]"
    spec = spec_file.parse(f"name: b\nsource: {{bootstrap: 'h:1'}}\n{text}", "bridge.yaml")
    with World(tmp_path, owner_required=True) as world, world.as_("ann") as lake:
        with pytest.raises(Invalid, match="first apply a contract with the property"):
            Assembly(spec, lake).pipeline(spec.topics[0], "t")
        lake.create(replace(define("shop.orders", SCHEMA, primary_key=["id"]), contract=Contract(document(), "orders")))
        assembly = Assembly(spec, lake)
        assembly.pipeline(spec.topics[0], "t")
        assert assembly.tables["shop.orders"].contract is not None


def test_no_proposal_leaves_a_table_without_its_owner(tmp_path: Path) -> None:
    """A server that asks for owners checks a contract that is only proposed, because an approval changes the table."""
    with World(tmp_path, owner_required=True) as world, world.as_("ann") as lake:
        table = define("shop.orders", SCHEMA, primary_key=["id"], buckets=1)
        lake.create(replace(table, contract=Contract(document(), "orders")))
        definition = lake.table("shop.orders").definition
        proposal = pb.AlterTableRequest(
            table=definition.name,
            schema_id=definition.schema_id,
            alteration=to_json([SetContract("", "orders")]),
            proposal=pb.Proposal(only=True),
        )
        with pytest.raises(Invalid, match="has no owner"):
            lake.transport.alter_table(proposal)
        assert lake.proposals() == []


def test_a_contract_is_read_at_every_cut(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    with world.as_("ann") as lake:
        token = lake.last_token or lake.snapshot().token
        orders = lake.table("shop.orders")
        orders.alter(SetContract(document(version="2.0.0"), "orders", "quarterly"))
        assert orders.contract is not None
        assert (orders.contract.version, orders.contract.by, orders.contract.why) == (2, "ann", "quarterly")
        first = lake.at(token).definition("shop.orders").contract
        assert first is not None
        assert (first.version, first.why, first.document) == (1, "it is mine", document())
    about = world.served.server.about["grpc"]
    told = ["describe", "shop.orders", "--server", about]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKESTORE_TOKEN", token_of("ann"))
        assert run_command([*told, "--at", token]) == 0
        assert "version 1 by ann" in capsys.readouterr().out
        assert run_command(told) == 0
        assert "version 2 by ann" in capsys.readouterr().out
        assert run_command(["who", "shop.orders", "--server", about]) == 0
        assert "owner: ann\ndelegates: dan\napprovers: eve\ncontract: version 2\n" in capsys.readouterr().out
        patch.setenv("LAKESTORE_TOKEN", token_of("nosy"))
        assert run_command(["who", "shop.orders", "--server", about]) == 0
        assert "decisions: they need the right 'read' on lakestore.audit" in capsys.readouterr().out


def test_other_doors_and_another_server_process_ask_the_same_rules(world: World) -> None:
    with world.as_("mallory") as lake, pytest.raises(NeedsApproval) as caught:
        lake.table("shop.orders").alter(rename={"amount": "total"})
    base = f"http://{world.served.server.about['http']}/iceberg/v1"
    mine = {"Authorization": f"Bearer {token_of('mallory')}"}
    names = [{"namespace": ["shop"], "name": name} for name in ("orders", "mine")]
    moved = httpx.post(
        f"{base}/tables/rename", json=dict(zip(("source", "destination"), names, strict=True)), headers=mine
    )
    assert (moved.status_code, "only ann" in moved.text) == (403, True)
    assert world.audit()[-1] == ("mallory", "rename", "denied")
    world.served.checkpoint()
    world.served.restart()
    write_auth(world.auth, {name: grants for name, grants in PRINCIPALS.items() if name != "ann"})
    world.served.server.access.refresh()
    with pytest.raises(NotAuthenticated):
        world.as_("ann").table("shop.orders")
    with world.as_("dan") as lake:  # the owner has left, the delegate has not
        lake.approve(caught.value.proposal)
        lake.table("shop.orders").alter(retention="1d")
        lake.drop_table("shop.orders")
        assert lake.proposals() == []
        lake.undrop("shop.orders")
        assert [row["state"] for row in lake.proposals()] == ["approved"]


def test_many_principals_ask_at_once_for_one_change(world: World) -> None:
    lakes = [world.as_(who) for who in ("mallory", "mallory", "dan", "eve", "root")]

    def ask(lake: ls.Lake) -> None:
        with suppress(Denied, Conflict, Invalid):
            lake.table("shop.orders").alter(rename={"amount": "total"})
        for row in lake.proposals():
            with suppress(Denied):
                lake.approve(row["id"])

    with ThreadPoolExecutor(len(lakes)) as threads:
        list(threads.map(ask, lakes))
    for lake in lakes:
        lake.close()
    assert world.columns() == ["id", "total", "note"]
    done = [row for row in world.audit() if row[1] == "alter" and row[2] == "done"]
    assert len(done) <= 1


def test_two_approvals_of_one_proposal_in_flight_are_one(world: World) -> None:
    with world.as_("mallory") as lake, pytest.raises(NeedsApproval) as caught:
        lake.table("shop.orders").alter(rename={"amount": "total"})
    loop, goes_on, entered = world.served.engine.loop, threading.Event(), threading.Event()

    def pause() -> None:
        entered.set()
        goes_on.wait(60)

    with ThreadPoolExecutor(3) as threads, world.as_("dan") as dan, world.as_("eve") as eve:
        threads.submit(loop.run, pause)
        entered.wait()
        answers = [threads.submit(lake.approve, caught.value.proposal) for lake in (dan, eve)]
        until(lambda: len(loop.queue) > 0, "an approval waits for the loop")
        time.sleep(0.3)  # the second approval comes as far as it can
        goes_on.set()
        assert [answer.result()["state"] for answer in answers] == ["approved", "approved"]
        assert [row["state"] for row in eve.proposals()] == ["approved"]
    assert world.columns() == ["id", "total", "note"]
    assert sum(row[1] == "approve" for row in world.audit()) == 1


def test_without_principals_an_owner_is_a_name_and_anybody_approves(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        served.lake.create_table("shop.orders", SCHEMA, primary_key=["id"], buckets=1)
        orders = served.lake.table("shop.orders").alter(SetContract(document(), "orders"))
        orders.alter(retention="1d")
        with pytest.raises(NeedsApproval) as caught:
            orders.alter(rename={"amount": "total"})
        with pytest.raises(Invalid, match="refuses"):
            orders.alter(drop=["note"])
        served.lake.approve(caught.value.proposal)
        assert served.lake.table("shop.orders").definition.column("total").type == "int32"
        assert served.lake.who("shop.orders").owner == "ann"
