"""Every RPC and every route has one rule, the rules do what they say, and what has none is denied."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from starlette.routing import BaseRoute, Mount, Route

import lakestore as ls
from lakestore.errors import Denied
from lakestore.limits import Limits
from lakestore.v1 import flight_pb2
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore_server.access import policy
from lakestore_server.access.admission import Admission
from lakestore_server.access.finders import HttpRequestFacts, Kind
from lakestore_server.access.policy import CATALOG, ROUTES, RPCS, Listing, Own
from lakestore_server.access.principals import RIGHTS, Grant, Principal, book_of
from lakestore_server.edge.console.routes import Console
from lakestore_server.edge.http import routes
from lakestore_server.host.clock import RealClock
from lakestore_server.main import KnownTables, Server
from lakestore_server.operate.query_figures import QueryFigures
from lakestore_server.queries.rpcs import Rpcs
from lakestore_server.queries.service import QueryService
from lakestore_server.settings import Settings

UUID = "0" * 32
SPECIAL = {"open", "known", "see", "commit"}


class World:
    """One table of ours, one that is not."""

    def table_of(self, uuid: str) -> str | None:
        return "shop.orders" if uuid == UUID else None

    def uuid_of(self, table: str) -> str | None:
        return UUID if table == "shop.orders" else None

    def subscribed(self, subscription: str) -> Sequence[str]:
        return ["shop.orders"] if subscription == "daily" else []

    def kind_of(self, table: str) -> Kind:
        return "own" if table == "shop.orders" else "other" if table == "shop.foreign" else "absent"


def principal(right: str, table: str) -> Principal:
    content = {"principals": {"p": {"grants": [{"rights": [right], "tables": [table]}]}}}
    proof = book_of(content).by_certificate(["p"])
    assert proof is not None
    return proof.principal


def may(row: policy.Row | None, who: Principal, asked: Any) -> bool:
    try:
        policy.check_right(row, who, asked, World(), "call")
    except Denied as error:
        assert "\n" not in error.message
        return False
    return True


def described() -> set[str]:
    """Every method of every service that the ports of gRPC and Flight serve."""
    files = [pb.DESCRIPTOR, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR]
    flight = flight_pb2.DESCRIPTOR.services_by_name["FlightService"]
    return {f"{policy.FLIGHT}{method.name}" for method in flight.methods} | {
        f"/{service.full_name}/{method.name}"
        for file in files
        for service in file.services_by_name.values()
        for method in service.methods
    }


def served(found: list[BaseRoute], prefix: str = "") -> set[tuple[str, str]]:
    """Method and path of every route; a route for GET answers HEAD by the rule of GET."""
    named: set[tuple[str, str]] = set()
    for route in found:
        if isinstance(route, Mount):
            named |= served(list(route.routes or ()), prefix + route.path)
        else:
            assert isinstance(route, Route), route
            methods = set(route.methods or ())
            named |= {(method, prefix + route.path) for method in methods if method != "HEAD" or methods == {"HEAD"}}
    return named


def test_every_rpc_has_exactly_one_rule() -> None:
    assert described() == set(RPCS)


def test_every_route_has_exactly_one_rule(tmp_path: Path) -> None:
    server = Server(Settings(tmp_path / "data"))
    try:
        admission = Admission(server.access, KnownTables(server.engine), RealClock())
        supervisor = server.engine.supervisor
        queries = QueryService(Rpcs(server.service, admission), Limits(), QueryFigures(), supervisor)
        console = Console(queries, server.sources, admission, RealClock())
        assert served(routes(server.sources, admission, console)) == set(ROUTES)
        queries.close()
    finally:
        server.close()


def test_rules_name_rights_that_exist_and_open_ones_are_few() -> None:
    rows = {**{("rpc", path): row for path, row in RPCS.items()}, **ROUTES}
    assert {row.right for row in rows.values()} <= {*RIGHTS, *SPECIAL}
    is_open = {key for key, row in rows.items() if row.right == "open"}
    assert is_open == {
        ("rpc", f"{policy.HEALTH}Check"),
        ("rpc", f"{policy.HEALTH}List"),
        ("rpc", f"{policy.HEALTH}Watch"),
        ("GET", "/healthz"),
        ("GET", "/ready"),
        ("GET", "/"),
        ("GET", "/console/{file}"),
        ("POST", f"{policy.CONSOLE}/session"),
        ("POST", f"{CATALOG}/oauth/tokens"),
    }


def test_without_a_rule_even_who_may_everything_is_denied() -> None:
    assert not may(None, principal("admin", "*"), pb.HelloRequest())


@pytest.mark.parametrize("method", list(rpc.METHODS.values()), ids=lambda method: method.name)
def test_a_row_names_what_is_owned_and_what_is_listed(method: rpc.Method) -> None:
    """A field of these names holds something of one principal's, wherever the proto file has it."""
    row, asked, answered = RPCS[method.path], method.request.DESCRIPTOR, method.answer.DESCRIPTOR
    fields = {"producer": Own.PRODUCER, "subscription": Own.SUBSCRIPTION, "lease": Own.LEASE}
    fields |= {"registers": Own.REGISTERS, "prefix": Own.REGISTER_PREFIX}
    owned = {own for name, own in fields.items() if name in asked.fields_by_name}
    granted = {Own.GRANTED_LEASE} if "lease" in answered.fields_by_name else set()
    assert set(row.owns) == owned | granted
    lists = {
        "ListTables": Listing.TABLES,
        "Status": Listing.STATUS,
        "ListSubscriptions": Listing.SUBSCRIPTIONS,
        "ListProducers": Listing.PRODUCERS,
        "ListRegisters": Listing.REGISTERS,
        "TruncateTable": Listing.SUBSCRIPTIONS,
        "ListProposals": Listing.PROPOSALS,
        "ListDroppedTables": Listing.DROPPED,
        "ListDatabases": Listing.DATABASES,
    }
    assert row.lists == lists.get(method.name)


ON_ORDERS: dict[str, tuple[Any, set[str]]] = {
    "CreateTable": (pb.CreateTableRequest(definition='{"name": "shop.orders"}'), {"admin"}),
    "DropTable": (pb.TableRequest(table="shop.orders"), {"admin"}),
    "RenameTable": (pb.RenameTableRequest(table="shop.orders", new_name="shop.orders"), {"admin"}),
    "TruncateTable": (pb.TruncateTableRequest(table="shop.orders"), {"admin"}),
    "AdoptTable": (pb.AdoptTableRequest(source="shop.orders", table="shop.orders"), {"admin"}),
    "ReleaseTable": (pb.ReleaseTableRequest(table="shop.orders"), {"admin"}),
    "RescaleTable": (pb.RescaleTableRequest(table="shop.orders"), {"admin"}),
    "ReplayTable": (pb.ReplayTableRequest(table="shop.orders"), {"admin"}),
    "UndropTable": (pb.UndropTableRequest(table="shop.orders"), {"admin"}),
    "EraseRows": (pb.EraseRowsRequest(table="shop.orders"), {"admin"}),
    "ListErasures": (pb.ListErasuresRequest(table="shop.orders"), {"admin"}),
    "VerifyErased": (pb.VerifyErasedRequest(table="shop.orders"), {"admin"}),
    "DeleteWhere": (pb.DeleteWhereRequest(table="shop.orders"), {"admin"}),
    "DecideProposal": (pb.DecideProposalRequest(table="shop.orders"), set(RIGHTS)),
    "AlterTable": (pb.AlterTableRequest(table="shop.orders"), {"admin"}),
    "GetTable": (pb.TableRequest(table="shop.orders"), set(RIGHTS)),
    "Commit": (pb.CommitRequest(changes=[pb.Change(table="shop.orders")]), {"write", "admin"}),
    "UploadPart": (pb.UploadPartRequest(change=pb.Change(table="shop.orders")), {"write", "admin"}),
    "Write": (pb.CommitRequest(changes=[pb.Change(table="shop.orders")]), {"write", "admin"}),
    "Lookup": (pb.LookupRequest(table="shop.orders"), {"read", "tier", "admin"}),
    "Changes": (pb.ChangesRequest(tables=["shop.orders"]), {"read", "tier", "admin"}),
    "ChangeRanges": (pb.ChangeRangesRequest(table="shop.orders"), {"read", "tier", "admin"}),
    "Plan": (pb.PlanRequest(tables=["shop.orders"]), {"read", "tier", "admin"}),
    "Fetch": (pb.FetchRequest(table_uuid=UUID), {"read", "tier", "admin"}),
    "StoreKey": (pb.StoreKeyRequest(table_uuid=UUID), {"read", "tier", "admin"}),
    "Status": (pb.StatusRequest(tables=["shop.orders"]), set(RIGHTS)),
    "Audit": (pb.AuditRequest(table="shop.orders"), {"read", "tier", "admin"}),
}
NOT_OF_A_TABLE = {
    "Hello": set(RIGHTS),
    "Head": set(RIGHTS),
    "ListTables": set(RIGHTS),
    "ListProposals": set(RIGHTS),
    "ListDroppedTables": set(RIGHTS),
    "ListDatabases": set(RIGHTS),
    "ResetSubscription": {"read", "tier", "admin"},
    "OpenProducer": {"write", "admin"},
    "ListProducers": set(RIGHTS),
    "DropProducer": {"write", "admin"},
    "OpenRegisters": {"write", "admin"},
    "ListRegisters": set(RIGHTS),
    "DropRegisters": {"write", "admin"},
    "DropParts": {"write", "admin"},
    "Report": {"write", "admin"},
    "Ack": {"read", "tier", "admin"},
    "ListSubscriptions": set(RIGHTS),
    "DropSubscription": {"read", "tier", "admin"},
    "RenewLease": {"read", "tier", "admin"},
    "ReleaseLease": {"read", "tier", "admin"},
}
EVERYTHING = {
    "AcquireTierer": {"tier", "admin"},
    "ReleaseTierer": {"tier", "admin"},
    "Backup": {"admin"},
    "CopyCheckpoint": {"admin"},
    "HoldSnapshots": {"admin"},
    "CreateDatabase": {"admin"},
    "DropDatabase": {"admin"},
    "AcceptClock": {"admin"},
}


def test_the_matrix_of_rpcs_and_rights_is_complete() -> None:
    ours = {path for path in RPCS if path.startswith(f"/{rpc.SERVICE}/")}
    assert ours == {rpc.METHODS[name].path for name in (*ON_ORDERS, *NOT_OF_A_TABLE, *EVERYTHING)}


@pytest.mark.parametrize(("name", "right"), list(itertools.product(ON_ORDERS, RIGHTS)))
def test_an_rpc_on_a_table_takes_the_right_on_that_table(name: str, right: str) -> None:
    request, allowed = ON_ORDERS[name]
    row = RPCS[rpc.METHODS[name].path]
    for pattern in ("shop.orders", "shop.*", "*"):
        assert may(row, principal(right, pattern), request) == (right in allowed), pattern
    for pattern in ("shop.items", "sho", "other.*"):
        assert not may(row, principal(right, pattern), request), pattern
    assert not may(row, Principal("nobody"), request)


@pytest.mark.parametrize("name", [*NOT_OF_A_TABLE, *EVERYTHING])
def test_other_rpcs_take_the_right_somewhere_or_on_everything(name: str) -> None:
    row, request = RPCS[rpc.METHODS[name].path], rpc.METHODS[name].request()
    for right in RIGHTS:
        assert may(row, principal(right, "*"), request) == (right in {**NOT_OF_A_TABLE, **EVERYTHING}[name])
        assert may(row, principal(right, "a.b"), request) == (right in NOT_OF_A_TABLE.get(name, ()))


def test_each_of_several_tables_is_asked_for() -> None:
    who = Principal("p", (Grant(frozenset({"read", "write"}), ("shop.orders",)),))
    changes = [pb.Change(table="shop.orders"), pb.Change(table="shop.items")]
    assert not may(RPCS[rpc.METHODS["Commit"].path], who, pb.CommitRequest(changes=changes))
    for name, request in (("Plan", pb.PlanRequest), ("Changes", pb.ChangesRequest), ("Status", pb.StatusRequest)):
        assert not may(RPCS[rpc.METHODS[name].path], who, request(tables=["shop.orders", "shop.items"])), name
        assert may(RPCS[rpc.METHODS[name].path], who, request(tables=["shop.orders"])), name


def test_a_rename_and_an_undrop_take_the_right_on_both_names() -> None:
    who = principal("admin", "shop.*")
    for name, kind in (("RenameTable", pb.RenameTableRequest), ("UndropTable", pb.UndropTableRequest)):
        row = RPCS[rpc.METHODS[name].path]
        assert may(row, who, kind(table="shop.orders", new_name="shop.old")), name
        assert not may(row, who, kind(table="shop.orders", new_name="web.orders")), name
        assert not may(row, who, kind(table="web.orders", new_name="shop.orders")), name


def test_a_branch_takes_the_right_on_both_names() -> None:
    who, row = principal("admin", "shop.*"), RPCS[rpc.METHODS["ReplayTable"].path]
    assert may(row, who, pb.ReplayTableRequest(table="shop.orders", into="shop.fixed"))
    for table, into in (("shop.orders", "web.fixed"), ("web.orders", "shop.fixed")):
        assert not may(row, who, pb.ReplayTableRequest(table=table, into=into))


def test_an_adoption_and_a_release_take_the_right_on_both_names() -> None:
    who = principal("admin", "shop.*")
    adopt, release = (RPCS[rpc.METHODS[name].path] for name in ("AdoptTable", "ReleaseTable"))
    for source, table in (("shop.old", "web.orders"), ("web.old", "shop.orders")):
        assert not may(adopt, who, pb.AdoptTableRequest(source=source, table=table))
        assert not may(release, who, pb.ReleaseTableRequest(table=source, new_name=table))
    assert may(adopt, who, pb.AdoptTableRequest(source="shop.old", table="shop.orders"))


def test_a_delete_by_a_condition_takes_the_right_to_read_what_it_asks() -> None:
    row, request = RPCS[rpc.METHODS["DeleteWhere"].path], pb.DeleteWhereRequest(table="shop.orders")
    both = Principal("p", (Grant(frozenset({"read", "write"}), ("shop.orders",)),))
    assert may(row, both, request)
    for right in ("read", "write", "tier"):
        assert not may(row, principal(right, "shop.orders"), request), right


def test_a_database_takes_the_right_on_all_of_its_tables() -> None:
    for name in ("CreateDatabase", "DropDatabase"):
        row = RPCS[rpc.METHODS[name].path]
        assert may(row, principal("admin", "shop.*"), pb.DatabaseRequest(database="shop")), name
        for pattern in ("shop.orders", "web.*", "sho"):
            assert not may(row, principal("admin", pattern), pb.DatabaseRequest(database="shop")), name


def test_a_feed_of_a_table_takes_the_right_to_write_that_table() -> None:
    row, who = RPCS[rpc.METHODS["OpenRegisters"].path], principal("write", "shop.orders")
    for name in ("complete/shop.orders/etl", "p/complete/shop.orders/etl", "orders/0"):
        assert may(row, who, pb.OpenRegistersRequest(registers=["orders/1", name])), name
    for name in ("complete/shop.items/etl", "q/complete/shop.items/etl"):
        assert not may(row, who, pb.OpenRegistersRequest(registers=["complete/shop.orders/etl", name])), name


def test_a_table_that_is_gone_or_cannot_be_read_takes_a_right_on_everything() -> None:
    fetch, create = RPCS[rpc.METHODS["Fetch"].path], RPCS[rpc.METHODS["CreateTable"].path]
    assert not may(fetch, principal("read", "shop.*"), pb.FetchRequest(table_uuid="gone"))
    assert may(fetch, principal("read", "*"), pb.FetchRequest(table_uuid="gone"))
    for definition in ("", "[]", "{}", "{", "[" * 100_000):
        request = pb.CreateTableRequest(definition=definition)
        assert not may(create, principal("admin", "shop.*"), request)


def commit_of(*names: tuple[str, str]) -> dict[str, Any]:
    return {"table-changes": [{"identifier": {"namespace": [ns], "name": name}} for ns, name in names]}


def route(method: str, path: str, who: Principal, named: dict[str, str], body: Any = None) -> bool:
    return may(ROUTES[method, CATALOG + path], who, HttpRequestFacts(named, body or {}))


def test_catalog_commits_take_tier_for_our_tables_write_for_others_and_admin_for_new_ones() -> None:
    needed = {"orders": {"tier", "admin"}, "foreign": {"write", "admin"}, "new": {"admin"}}
    for (table, allowed), right in itertools.product(needed.items(), RIGHTS):
        who, path = principal(right, "shop.*"), {"namespace": "shop", "table": table}
        assert route("POST", "/namespaces/{namespace}/tables/{table}", who, path) == (right in allowed)
        assert route("POST", "/transactions/commit", who, {}, commit_of(("shop", table))) == (right in allowed)
    both = commit_of(("shop", "orders"), ("web", "x"))
    assert not route("POST", "/transactions/commit", principal("admin", "shop.*"), {}, both)


def test_a_version_of_our_table_is_that_table() -> None:
    """A tierer stages as `orders$3` and needs no more than for `orders`; others' tables have the names they have."""
    table, tierer = "/namespaces/{namespace}/tables/{table}", principal("tier", "shop.orders")
    path = {"namespace": "shop", "table": "orders$3"}
    assert route("GET", table, principal("read", "shop.orders"), path)
    assert route("POST", table, tierer, path)
    assert route("POST", "/transactions/commit", tierer, {}, commit_of(("shop", "orders$3")))
    for name in ("foreign$3", "orders$x", "new$3"):
        assert not route("POST", table, principal("tier", "shop.*"), {"namespace": "shop", "table": name})
        assert not route("POST", "/transactions/commit", principal("write", "shop.*"), {}, commit_of(("shop", name)))


def test_malformed_bodies_take_a_right_on_everything() -> None:
    admin = principal("admin", "shop.*")
    changes: list[Any] = [None, [], [1], [{}], {}]
    for said in changes:
        assert not route("POST", "/transactions/commit", admin, {}, {"table-changes": said})
    sources: list[Any] = [None, 1, {"namespace": ["shop"], "name": "a"}]
    for source in sources:
        assert not route("POST", "/tables/rename", admin, {}, {"source": source})
    for levels in (None, "shop", [], ["shop", "a"], [1]):
        assert not route("POST", "/namespaces", admin, {}, {"namespace": levels})
    assert route("POST", "/namespaces", admin, {}, {"namespace": ["shop"]})
    assert not route("POST", "/namespaces", admin, {}, {"namespace": ["shops"]})


def test_a_dot_inside_a_namespace_is_not_the_one_that_parts_it_from_the_table() -> None:
    """`shop` / `a.b` and `shop.a` / `b` are two tables, and a pattern for the namespace `shop` covers the first."""
    path = "/namespaces/{namespace}/tables/{table}"
    reader = principal("read", "shop.*")
    assert route("GET", path, reader, {"namespace": "shop", "table": "a.b"})
    assert not route("GET", path, reader, {"namespace": "shop.a", "table": "b"})
    assert route("GET", path, principal("read", "*"), {"namespace": "shop.a", "table": "b"})


def test_in_process_nobody_is_asked(tmp_path: Path) -> None:
    with ls.open(tmp_path / "data") as lake:
        assert lake.tables() == []
