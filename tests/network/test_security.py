"""Both ports with tokens, rights and real certificates: who may does, who may not is told so and learns nothing."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, OAuthError, UnauthorizedError

import lakestore as ls
from lakestore.client.servers import connect as transport_to
from lakestore.errors import Denied, Fenced, Invalid, LakestoreError, NotAuthenticated, NotFound, PlanExpired
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore_server.main import Server
from lakestore_server.settings import Settings, Tls
from tests.support.certificates import Authority, Signed
from tests.support.rights import token_of, write_auth
from tests.support.waiting import until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
PRINCIPALS = {
    "root": {"*": ["admin"]},
    "etl": {"shop.*": ["read", "write"]},
    "report": {"shop.orders": ["read"]},
    "spark": {"*": ["tier"]},
    "other": {"web.*": ["read", "write"]},
    "web-admin": {"web.*": ["admin"]},
    "new": {},
    "pool": {"web.*": ["write"]},
}
WAIT_SECONDS = 60.0


@dataclass
class World:
    """A server with TLS and rights, and its authority."""

    server: Server
    auth: Path
    authority: Authority
    client: Signed

    @property
    def address(self) -> str:
        return self.server.about["grpc"]

    @property
    def url(self) -> str:
        return f"https://{self.server.about['http']}"

    def lake(self, name: str, token: str = "") -> ls.Lake:
        """Connected as a principal, with the client certificate of `etl`."""
        tls = ls.TLS(ca=self.authority.cert, cert=self.client.cert, key=self.client.key)
        return ls.connect(self.address, token=token or token_of(name), tls=tls)

    def http(self, name: str = "", **given: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token_of(name)}"} if name else {}
        context = ssl.create_default_context(cafile=str(self.authority.cert))
        return httpx.Client(base_url=self.url, headers=headers, verify=context, timeout=WAIT_SECONDS, **given)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("security")
    authority = Authority(folder)
    own = authority.sign("server")
    auth = write_auth(folder / "auth.yaml", PRINCIPALS, pool={"shared_names": True})
    tls = Tls(cert=str(own.cert), key=str(own.key), client_ca=str(authority.cert))
    server = Server(Settings(folder / "data", port=0, http_port=0, auth=str(auth), tls=tls))
    server.start()
    made = World(server, auth, authority, authority.sign("etl"))
    with made.lake("root") as lake:
        for name in ("shop.orders", "shop.items", "web.clicks"):
            lake.create_table(name, SCHEMA, primary_key=["id"], buckets=1)
            lake.table(name).upsert([{"id": 1, "v": name}])
    yield made
    server.close()


def test_each_principal_does_what_it_may_and_nothing_else(world: World) -> None:
    with world.lake("etl") as lake:
        lake.table("shop.items").upsert([{"id": 2, "v": "x"}])
        assert lake.table("shop.orders").scan().count() == 1
        for call in (
            lambda: lake.table("web.clicks"),
            lambda: lake.drop_table("shop.orders"),
            lambda: lake.create_table("shop.more", SCHEMA),
            lambda: lake.transport.acquire_tierer(pb.TiererRequest(holder="x")),
        ):
            with pytest.raises(Denied, match="etl has no right"):
                call()
    with world.lake("report") as lake:
        orders = lake.table("shop.orders")
        assert orders.lookup([{"id": 1}]).to_pylist()[0]["v"] == "shop.orders"
        with pytest.raises(Denied):
            orders.upsert([{"id": 9, "v": "x"}])
        with pytest.raises(Denied):
            list(lake.transport.changes(pb.ChangesRequest(tables=["shop.orders", "shop.items"], until="now")))
    with world.lake("new") as lake:
        assert lake.tables() == []


def test_writes_to_several_tables_need_all_rights_and_leave_nothing_behind(world: World) -> None:
    with world.lake("etl") as lake, world.lake("root") as root:
        commit = ls.Commit(root._connection)
        commit.upsert("shop.orders", [{"id": 7, "v": "x"}])
        commit.upsert("web.clicks", [{"id": 7, "v": "x"}])
        for producer in ("", "loader"):
            request = pb.CommitRequest(changes=commit._changes, producer=producer, sequence=1)
            with pytest.raises(Denied, match=r"web\.clicks"):
                lake.transport.commit(request)
            answers = list(lake.transport.write(iter([request])))
            assert [answer.error.kind for answer in answers] == ["Denied"]
    with world.lake("root") as lake:
        assert lake.table("shop.orders").scan(where="id = 7").count() == 0


def test_lists_hold_what_a_principal_may_know_of(world: World) -> None:
    seen = {}
    for name in ("root", "etl", "report", "other", "new"):
        with world.lake(name) as lake, world.http(name) as http:
            named = [table.name for table in lake.tables()]
            status = lake.transport.status(pb.StatusRequest()).status
            spaces = [space for (space,) in http.get("/iceberg/v1/namespaces").json()["namespaces"]]
            found = [http.get(f"/iceberg/v1/namespaces/{space}/tables").json()["identifiers"] for space in spaces]
            listed = [f"{each['namespace'][0]}.{each['name']}" for part in found for each in part]
            assert sorted(listed) == named
            page = http.get("/console/api/status").text
            for table in ("shop.orders", "shop.items", "web.clicks"):
                assert (table in status) == (table in page) == (table in named)
            seen[name] = named
    assert seen == {
        "root": ["shop.items", "shop.orders", "web.clicks"],
        "etl": ["shop.items", "shop.orders"],
        "report": ["shop.orders"],
        "other": ["web.clicks"],
        "new": [],
    }


def test_without_a_valid_token_there_is_nothing(world: World) -> None:
    with world.lake("root", "lakestore_nonsense") as lake:
        for call in (lake.tables, lambda: lake.table("shop.orders"), lambda: lake.transport.status(pb.StatusRequest())):
            with pytest.raises(NotAuthenticated):
                call()
        with pytest.raises(NotAuthenticated):
            list(lake.transport.changes(pb.ChangesRequest(tables=["shop.orders"], until="now")))
    with world.http() as http:
        console = "/console/api/status"
        for path in (
            console,
            "/metrics",
            "/iceberg/v1/config",
            "/iceberg/v1/namespaces",
            "/absent",
            "/iceberg/v1/absent",
        ):
            answer = http.get(path)
            assert answer.status_code == 401, path
            assert "www-authenticate" in answer.headers
        assert http.post("/iceberg/v1/namespaces", content=b"x" * 10_000_000).status_code == 401
        assert http.get("/healthz").status_code == 200
        assert http.get(console, auth=("report", token_of("report"))).status_code == 200
        assert http.post("/iceberg/v1/namespaces", auth=("root", token_of("root")), json={}).status_code == 401
    with world.http("report") as http:
        assert http.get("/metrics").status_code == 403
        assert http.get("/iceberg/v1/absent").status_code == 404
    with world.http("root") as http:
        assert http.get("/metrics").status_code == 200


def test_a_client_certificate_is_a_principal_and_a_strangers_is_not(world: World, tmp_path: Path) -> None:
    with ls.connect(world.address, tls=ls.TLS(world.authority.cert, world.client.cert, world.client.key)) as lake:
        assert [table.name for table in lake.tables()] == ["shop.items", "shop.orders"]
    unknown = world.authority.sign("unknown")
    with ls.connect(world.address, tls=ls.TLS(world.authority.cert, unknown.cert, unknown.key)) as lake:
        with pytest.raises(NotAuthenticated):
            lake.tables()
    stranger = Authority(tmp_path, "stranger")
    forged = stranger.sign("etl")
    for tls in (ls.TLS(world.authority.cert, forged.cert, forged.key), ls.TLS(world.authority.cert)):
        with ls.connect(world.address, token=token_of("root"), tls=tls) as lake:
            with pytest.raises(NotAuthenticated, match="of an authority that it trusts"):
                lake.tables()
    with ls.connect(world.address, token=token_of("root"), tls=ls.TLS(stranger.cert)) as lake:
        with pytest.raises(Invalid, match=r"is not trusted .*name its authority by tls="):
            lake.tables()
    context = ssl.create_default_context(cafile=str(world.authority.cert))
    context.load_cert_chain(world.client.cert, world.client.key)
    with httpx.Client(base_url=world.url, verify=context) as http:
        assert http.get("/iceberg/v1/namespaces").json() == {"namespaces": [["shop"]]}


def test_plain_text_to_a_tls_port_is_nothing(world: World) -> None:
    with ls.connect(world.address, token=token_of("root"), tls=False) as lake:
        with pytest.raises(Invalid, match="wants TLS: connect with tls="):
            lake.tables()
    with pytest.raises(httpx.HTTPError):
        httpx.get(world.url.replace("https", "http"))


def test_registers_belong_to_their_principal(world: World) -> None:
    with world.lake("etl") as etl, world.lake("other") as other, world.lake("root") as root:
        mine, theirs = etl.registers(["k/0", "k/1"]), other.registers(["k/0"])
        with mine.commit({"k/0": "5"}), theirs.commit({"k/0": "7"}):
            pass
        with mine.commit({"k/1": "6"}) as commit:
            commit.upsert("shop.orders", [{"id": 77, "v": "x"}])
        assert [(each.name, each.owner, each.value) for each in etl.list_registers("k/")] == [
            ("k/0", "etl", "5"),
            ("k/1", "etl", "6"),
        ]
        assert [each.name for each in root.list_registers("etl/k")] == ["etl/k/0", "etl/k/1"]
        assert [each.value for each in other.list_registers()] == ["7"]
        with pytest.raises(Denied, match=r"web\.clicks"), mine.commit({"k/0": "8"}) as commit:
            commit._changes.append(pb.Change(table="web.clicks", kind=pb.UPSERT))
        assert other.drop_registers(["k/0", "k/1"]) == 1
        assert dict(root.registers(["etl/k/0"]).progress) == {"etl/k/0": "5"}
        with pytest.raises(Fenced, match="etl/k/0"), mine.commit({"k/0": "6", "k/1": "9"}):
            pass
        assert root.drop_registers(["etl/k/0", "etl/k/1"]) == 2
    with world.lake("report") as lake, pytest.raises(Denied, match="report has no right 'write'"):
        lake.registers(["k/0"])


def test_a_list_of_registers_goes_on_behind_those_of_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestore_server.commit.register_verbs.LIST_BYTES", 1)
    with world.lake("etl") as etl, world.lake("pool") as pool, world.lake("root") as root:
        etl.registers(["k/0", "k/1", "k/2"])
        pool.registers(["a", "etl", "z/0", "z/1"])
        assert [each.name for each in pool.list_registers()] == ["a", "etl", "z/0", "z/1"]
        assert [each.name for each in pool.list_registers("etl/")] == []
        assert [each.name for each in etl.list_registers()] == ["k/0", "k/1", "k/2"]
        names = [each.name for each in root.list_registers()]
        assert names == ["a", "etl", "etl/k/0", "etl/k/1", "etl/k/2", "z/0", "z/1"]
        assert root.drop_registers(names) == len(names)
        for lake in (etl, pool, root):
            with pytest.raises(Invalid, match="'' has 0"):
                lake.registers([""])
        with pytest.raises(Invalid, match=r"1 to 1024 characters, and 'etl/xx.* has 1028"):
            etl.registers(["x" * 1024])


def test_producers_and_leases_belong_to_their_principal(world: World) -> None:
    with world.lake("etl") as etl, world.lake("other") as other, world.lake("root") as root:
        first = etl.transport.open_producer(pb.OpenProducerRequest(producer="loader", owner="other"))
        other.transport.open_producer(pb.OpenProducerRequest(producer="loader"))
        assert [(each.name, each.owner, each.epoch) for each in etl.producers()] == [("loader", "etl", first.epoch)]
        owned = [("etl/loader", "etl"), ("other/loader", "other")]
        assert [(each.name, each.owner) for each in root.producers()] == owned
        change = pb.Change(table="shop.orders", kind=pb.UPSERT)
        second = etl.transport.open_producer(pb.OpenProducerRequest(producer="loader"))
        third = root.transport.open_producer(pb.OpenProducerRequest(producer="etl/loader"))
        assert first.epoch < second.epoch < third.epoch
        with pytest.raises(LakestoreError) as refusal:
            etl.transport.commit(pb.CommitRequest(changes=[change], producer="loader", epoch=second.epoch, sequence=1))
        assert refusal.value.applied == "no"
        other.drop_producer("loader")
        assert [each.name for each in root.producers()] == ["etl/loader"]
        plan = etl.transport.plan(pb.PlanRequest(tables=["shop.orders"], lease_seconds=60))
        uuid = etl.table("shop.orders").definition.uuid
        assert list(etl.transport.fetch(pb.FetchRequest(table_uuid=uuid, end=1, lease=plan.lease)))
        for lake in (other, root):
            with pytest.raises(PlanExpired):
                lake.transport.renew_lease(pb.LeaseRequest(lease=plan.lease, seconds=60))
            calls: Any = lake.transport
            with pytest.raises(PlanExpired):  # by the wire: the transport does not wait for the answer
                calls.wire.call(rpc.METHODS["ReleaseLease"], pb.LeaseRequest(lease=plan.lease), 10.0)
        with pytest.raises(Denied):
            list(other.transport.fetch(pb.FetchRequest(table_uuid=uuid, end=1)))
        assert etl.transport.renew_lease(pb.LeaseRequest(lease=plan.lease, seconds=60)).seconds == 60


def test_a_subscription_belongs_to_its_principal(world: World) -> None:
    def names(lake: ls.Lake) -> list[str]:
        return [each.name for each in lake.subscriptions()]

    with world.lake("etl") as etl, world.lake("report") as report, world.lake("root") as root:
        batch, same_name = (
            next(lake.table("shop.orders").changes(subscription="daily", until="now")) for lake in (etl, report)
        )
        next(root.table("web.clicks").changes(subscription="plain", until="now"))
        before = {each.name: each.token for each in root.subscriptions()}
        assert list(before) == ["etl/daily", "plain", "report/daily"]
        with world.lake("other") as other:
            for lake, taken in ((report, "etl/daily"), (other, "daily"), (other, "etl/daily"), (other, "plain")):
                asked = pb.AckRequest(subscription=taken, epoch=1, token=batch.token)
                for call in (lake.transport.ack, lambda r, lake=lake: lake.drop_subscription(r.subscription)):
                    with pytest.raises(NotFound):
                        call(pb.AckRequest.FromString(asked.SerializeToString()))
            assert (names(etl), names(report), names(other)) == (["daily"], ["daily"], [])
            with pytest.raises(Denied):
                list(other.transport.changes(pb.ChangesRequest(tables=["shop.orders"], subscription="daily")))
        assert {each.name: each.token for each in root.subscriptions()} == before, "nothing of others was moved"
        batch.ack()
        after = {each.name: each.token for each in root.subscriptions()}
        assert after == {**before, "etl/daily": batch.token}
        assert before["etl/daily"] != batch.token
        same_name.ack()
        root.drop_subscription("etl/daily")
        assert (names(etl), names(report)) == ([], ["daily"])
        with pytest.raises(NotFound):
            batch.ack()


def test_a_right_taken_away_ends_a_stream_and_a_token_taken_away_ends_all(world: World) -> None:
    def is_refused(lake: ls.Lake) -> bool:
        try:
            lake.tables()
        except NotAuthenticated:
            return True
        return False

    with world.lake("report") as lake, world.lake("root") as root:
        stream = lake.transport.changes(pb.ChangesRequest(tables=["shop.orders"], start="earliest"))
        next(stream)
        try:
            write_auth(world.auth, {**PRINCIPALS, "report": {"shop.items": ["read"]}})
            until(lambda: [table.name for table in lake.tables()] == ["shop.items"], "the rights")
            root.table("shop.orders").upsert([{"id": 50, "v": "unseen"}])
            with pytest.raises(Denied):
                for _ in stream:
                    pass
            write_auth(world.auth, {name: grants for name, grants in PRINCIPALS.items() if name != "report"})
            until(lambda: is_refused(lake), "the refusal")
        finally:
            write_auth(world.auth, PRINCIPALS)
            until(lambda: not is_refused(lake), "the token")


def catalog(world: World, monkeypatch: pytest.MonkeyPatch, **properties: str) -> RestCatalog:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(world.authority.cert))
    endpoint = f"{world.url}/iceberg"
    tokens = f"{endpoint}/v1/oauth/tokens"
    return RestCatalog("lake", uri=endpoint, **{"oauth2-server-uri": tokens, **properties})


def test_pyiceberg_reads_and_is_refused_by_its_own_errors(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for properties in ({"credential": f"report:{token_of('report')}"}, {"token": token_of("report")}):
        lake = catalog(world, monkeypatch, **properties)
        assert lake.list_tables("shop") == [("shop", "orders")]
        orders = lake.load_table("shop.orders")
        with pytest.raises(ForbiddenError):
            lake.load_table("shop.items")
        with pytest.raises(ForbiddenError):
            orders.transaction().set_properties(a="b").commit_transaction()
        with pytest.raises(ForbiddenError):
            lake.drop_table("shop.orders")
    with pytest.raises((OAuthError, UnauthorizedError)):
        catalog(world, monkeypatch, credential="report:nonsense")
    with pytest.raises(UnauthorizedError):
        catalog(world, monkeypatch, token="nonsense").list_namespaces()


def test_a_refusal_tells_nothing_of_tables_that_are_not_seen(world: World) -> None:
    path = "/iceberg/v1/namespaces/shop/tables/"
    with world.http("report") as http:
        said = {http.post(path + table, json={}).text.replace(table, "") for table in ("items", "nothing")}
    assert len(said) == 1, said
    with world.lake("root") as root:
        uuid = root.table("web.clicks").definition.uuid
    with world.lake("report") as report:
        for asked in (uuid, "00000000-0000-4000-8000-000000000000"):
            with pytest.raises(Denied, match="no right 'read' on that table"):
                list(report.transport.fetch(pb.FetchRequest(table_uuid=asked, end=1)))


def written(writer: Any) -> None:
    """One row by an open stream of commits."""
    writer.upsert([{"id": 1, "v": "x"}])
    writer.flush()


def test_a_renamed_table_tells_its_new_name_to_those_who_see_it(world: World) -> None:
    """By every way: a call, a stream, a stream of commits, a lookup of a query; and `NotFound` to all."""
    with world.lake("root") as root, world.lake("etl") as etl:
        root.create_table("shop.moving", SCHEMA, primary_key=["id"], buckets=1)
        handles = {who: lake.table("shop.moving") for who, lake in (("root", root), ("etl", etl))}
        writers = {who: table.writer() for who, table in handles.items()}
        for writer in writers.values():
            written(writer)
        root.table("shop.moving").rename("web.hidden")
        for who, table in handles.items():
            answers: list[Exception] = []
            for ask in (
                lambda table=table: table.upsert([{"id": 1, "v": "x"}]),
                lambda table=table: table.lookup([{"id": 1}]),
                lambda table=table: list(table.changes(until="now")),
                lambda table=table: table.truncate(),
                lambda writer=writers[who]: written(writer),
            ):
                try:
                    ask()
                except ls.LakestoreError as error:
                    answers.append(error)
            sees = who == "root"
            assert len(answers) == 5
            assert all(isinstance(each, ls.NotFound | Denied) for each in answers)
            assert sum("web.hidden" in str(each) for each in answers) == (5 if sees else 0)
            assert sum("was renamed" in str(each) for each in answers) == (5 if sees else 4), "all it has a right to"


def test_a_dropped_table_tells_the_way_back_to_those_who_see_it(world: World) -> None:
    """One whose files are being removed is not told of, for nobody can have it back."""
    with world.lake("root") as root, world.lake("report") as report:
        root.create_table("web.gone", SCHEMA, primary_key=["id"], buckets=1)
        table = root.table("web.gone")
        root.drop_table("web.gone")
        for ask in (lambda: table.upsert([{"id": 1, "v": "x"}]), lambda: root.table("web.gone")):
            with pytest.raises(ls.NotFound, match=r"'web\.gone' was dropped: `lakestore undrop web\.gone`"):
                ask()
        with pytest.raises(ls.LakestoreError) as refused:
            report.table("web.gone")
        assert "dropped" not in str(refused.value)
        root.drop_table("web.gone", purge=True)
        with pytest.raises(ls.NotFound, match=r"there is no table 'web\.gone'"):
            root.table("web.gone")


def test_an_idempotency_key_belongs_to_its_sender(world: World) -> None:
    key, path = {"Idempotency-Key": "same"}, "/iceberg/v1/namespaces/web/properties"
    with world.http("root") as root, world.http("web-admin") as other:
        for http, who in ((root, "root"), (other, "other"), (root, "last"), (root, "root")):
            asked = {"removals": [], "updates": {"who": who}}
            assert http.post(path, json=asked, headers=key).status_code == 200
        assert root.get("/iceberg/v1/namespaces/web").json()["properties"]["who"] == "last"


def test_unknown_calls_are_answered_in_json(world: World) -> None:
    with world.http("root") as http:
        for method, path, status in (
            ("GET", "/iceberg/v1/nothing", 404),
            ("POST", "/iceberg/v1/namespaces/shop/tables/orders/plan", 404),
            ("PUT", "/iceberg/v1/namespaces", 405),
            ("GET", "/nothing", 404),
        ):
            answer = http.request(method, path)
            assert answer.status_code == answer.json()["error"]["code"] == status


def test_maintenance_needs_tier(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = catalog(world, monkeypatch, credential=f"spark:{token_of('spark')}")
    orders = lake.load_table("shop.orders")
    orders.transaction().set_properties(a="b").commit_transaction()
    assert orders.refresh().properties["a"] == "b"


def test_a_token_is_not_sent_in_the_clear_unless_asked_for() -> None:
    with pytest.raises(Invalid, match="in the clear"):
        ls.connect("example.org:7340", token="x")
    ls.connect("example.org:7340", token="x", tls=False).close()
    assert "secret" not in repr(transport_to("localhost:1").credentials)


def test_health_is_open_and_reflection_is_not(world: World) -> None:
    keys = grpc.ssl_channel_credentials(
        world.authority.cert.read_bytes(), world.client.key.read_bytes(), world.client.cert.read_bytes()
    )
    unknown = world.authority.sign("nobody")
    strange = grpc.ssl_channel_credentials(
        world.authority.cert.read_bytes(), unknown.key.read_bytes(), unknown.cert.read_bytes()
    )
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.secure_channel(world.address, strange) as channel:
        assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60).status == 1
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert next(iter(watch)).status == 1
        watch.cancel()
        with pytest.raises(grpc.RpcError) as refusal:
            list(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([asked]), timeout=60))
        assert refusal.value.code() == grpc.StatusCode.UNAUTHENTICATED
    with grpc.secure_channel(world.address, keys) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        names = next(iter(stub.ServerReflectionInfo(iter([asked]), timeout=60))).list_services_response.service
        assert "lakestore.v1.Lakestore" in {name.name for name in names}
