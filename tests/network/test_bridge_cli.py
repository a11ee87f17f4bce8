"""The bridge's commands against a real broker: first files, plans, checks, logins and rights, dead letters; and the
blocks of the documents that want one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    NewTopic,
    ResourceType,
)

import lakestore as ls
from jepsen.system.kafka import Topics
from lakestore.cli import bridge as bridge_command
from lakestore.cli import dlq
from lakestore.cli.main import run_command
from lakestore.errors import Denied, NotFound, Unavailable
from lakestore.kafka.bridge import spec_file
from lakestore.kafka.bridge.cluster import Cluster, Clusters
from lakestore.kafka.bridge.spec import SourceSpec
from lakestore.model import table_file
from tests.support.debezium_events import event, text
from tests.support.documents import KAFKA, ROOT, Reader, blocks, pages, parts, runner_of, words_of
from tests.support.secure_kafka import USERS, SecureKafka
from tests.support.served import Served

Said = Callable[..., tuple[str, str]]
ON_KAFKA = [part for page in pages() for part in parts(page) if runner_of(part) == KAFKA]
"""The parts of documents that want a broker."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    with SecureKafka(tmp_path_factory.mktemp("kafka")) as running:
        admin = AdminClient({"bootstrap.servers": running.address})
        topics = [NewTopic(name, 2, 1) for name in ("shop.orders", "empty")]
        for made in admin.create_topics(topics).values():
            made.result(30)
        producer = Producer({"bootstrap.servers": running.address})
        for i in range(100):
            row: dict[str, Any] = {"order_id": i, "who": f"c{i % 7}", "kind": "a", "amount": i / 2}
            if i % 10 == 3:
                del row["amount"]
            producer.produce("shop.orders", b"{" if i == 50 else json.dumps(row).encode(), str(i).encode())
        producer.flush(30)
        yield running


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ls.Lake]:
    with ls.open(tmp_path / "lake") as opened:
        yield opened


@pytest.fixture
def said(lake: ls.Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """Runs a command; what it says on stdout and stderr."""
    monkeypatch.setattr(bridge_command, "open_lake", lambda server: lake)
    monkeypatch.setattr(lake, "close", lambda: None)

    def run(*words: str, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        assert run_command(words) == code, capsys.readouterr()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return out, err

    return run


def test_a_first_file_is_checked_and_planned(kafka: SecureKafka, lake: ls.Lake, said: Said, tmp_path: Path) -> None:
    path = tmp_path / "bridge.yaml"
    said("init-bridge", "shop.orders", "--bootstrap", kafka.address, "-o", str(path))
    text = path.read_text()
    assert "# primary_key: [order_id]" in text
    spec = spec_file.parse(text, "bridge.yaml")
    [table] = spec.topics[0].tables
    assert table.table == "shop.orders"
    types = {column.name: column.type for column in table.columns}
    assert types == {"order_id": "int64", "who": "string", "kind": "string", "amount": "float64"}
    assert "is there already" in said("init-bridge", "x", "-o", str(path), code=1)[1]

    path.write_text(text.replace("# primary_key: [order_id]", "primary_key: [kind]"))
    out, err = said("bridge", "-f", str(path), "--check")
    assert "nothing stops the bridge" in err
    assert "98 % of sampled keys" not in out
    assert "99 % of sampled keys (kind) repeat" in out
    assert "10 of 99 sampled records lack amount" in out
    assert "1 of 100 sampled records would go to shop.orders__dlq: bad-json, as at partition" in out
    assert "ok     table shop.orders: will be made" in out
    out, _ = said("bridge", "-f", str(path), "--plan")
    [planned] = table_file.parse(out, "tables.yaml")
    assert planned.definition().primary_key == ("kind",)
    assert str(planned.definition().merge) == "versioned(kafka_offset, within kafka_source)"
    assert lake.tables() == [], "neither a check nor a plan writes"

    path.write_text(path.read_text().replace("on_error: dlq", "on_error: fail"))
    out, err = said("bridge", "-f", str(path), "--check", "--json", code=1)
    assert [each["level"] for each in json.loads(out)].count("stops") == 1


def test_columns_of_a_plan_are_those_of_samples(kafka: SecureKafka, lake: ls.Lake, said: Said, tmp_path: Path) -> None:
    path = tmp_path / "bridge.yaml"
    path.write_text(
        f"name: b\nsource: {{bootstrap: '{kafka.address}'}}\ntopics:\n"
        "  - {topic: shop.orders, table: 'd.{topic}', coordinates: true}\n"
        "  - {pattern: 'em.*', table: 'd.{topic}'}\n"
    )
    out, _ = said("bridge", "-f", str(path), "--plan")
    assert out.startswith("# topic empty is empty: ")
    [planned] = table_file.parse(out, "tables.yaml")
    assert [column.name for column in planned.columns][-2:] == ["kafka_offset", "kafka_timestamp"]
    lake.create(planned.definition())
    assert "# d.shop_orders: nothing to do" in said("bridge", "-f", str(path), "--plan")[0]
    assert "the columns are not known" in said("bridge", "-f", str(path), "--check")[0]
    path.write_text(path.read_text().replace("shop.orders,", "shop.orders, primary_key: [order_id],"))
    assert "has the key ()" in said("bridge", "-f", str(path), "--check", code=1)[0]


def test_a_topic_that_is_not_there_is_told_with_those_that_are(kafka: SecureKafka, said: Said) -> None:
    _, err = said("init-bridge", "shop.order", "--bootstrap", kafka.address, code=1)
    assert "there is no topic 'shop.order'" in err
    assert "there are empty, shop.orders" in err


def _source(kafka: SecureKafka, user: str = "reader", **said: str) -> SourceSpec:
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": USERS.get(user, ""),
        "ssl.ca.location": str(kafka.authority.cert),
    }
    return SourceSpec("", kafka.secure_address, "group-of-reader", None, options | said)


def test_logins_and_rights_are_told_apart(kafka: SecureKafka) -> None:
    kafka.allow("reader", ResourceType.TOPIC, "shop.orders", AclOperation.READ)
    kafka.allow("reader", ResourceType.TOPIC, "empty", AclOperation.DESCRIBE)
    kafka.allow("reader", ResourceType.GROUP, "group-of-reader", AclOperation.READ)
    with Cluster(_source(kafka)) as cluster:
        facts = cluster.describe("shop.orders")
        assert (facts.partitions, facts.may_read) == (2, True)
        assert len(cluster.sample(facts, 1_000)) == 100
        cluster.check_group()
        facts = cluster.describe("empty")
        assert not facts.may_read
    with Cluster(_source(kafka, "nobody")) as cluster:
        with pytest.raises((Denied, NotFound)):
            cluster.describe("shop.orders")
        with pytest.raises(Denied, match="ask its administrator"):
            cluster.check_group()


def test_a_bridge_logs_in_by_its_file_and_shows_no_password(
    kafka: SecureKafka, lake: ls.Lake, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.allow("reader", ResourceType.TOPIC, "shop.orders", AclOperation.READ)
    kafka.allow("reader", ResourceType.GROUP, "secure", AclOperation.READ)
    monkeypatch.setenv("READER_PASSWORD", USERS["reader"])
    path = tmp_path / "bridge.yaml"
    path.write_text(
        f"name: secure\nsource:\n  bootstrap: '{kafka.secure_address}'\n  tls: {{ca: {kafka.authority.cert}}}\n"
        "  sasl: {mechanism: PLAIN, username: reader, password: '${READER_PASSWORD}'}\n"
        "topics:\n  - {topic: shop.orders, table: d.raw, format: raw, columns: [{name: value, type: binary}]}\n"
    )
    out, _ = said("bridge", "-f", str(path), "--check")
    assert "100 records sampled" in out
    _, err = said("bridge", "-f", str(path), "--once")
    assert "bridge secure: 100 records" in err
    assert lake.table("d.raw").scan().count() == 100
    monkeypatch.setenv("READER_PASSWORD", "not-the-one")
    monkeypatch.setattr("lakestore.kafka.bridge.cluster.CALL_SECONDS", 20.0)
    out, err = said("bridge", "-f", str(path), "--check", code=1)
    assert "check mechanism, username and password of sasl" in out
    assert "not-the-one" not in out + err


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"sasl.password": "wrong"}, Denied, "check mechanism, username and password of sasl"),
        ({"ssl.ca.location": ""}, Unavailable, "do not agree about TLS"),
        ({"security.protocol": "SASL_PLAINTEXT"}, Unavailable, "does a broker run there"),
    ],
)
def test_a_connection_that_fails_tells_why(
    kafka: SecureKafka, options: dict[str, str], kind: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakestore.kafka.bridge.cluster.CALL_SECONDS", 20.0)
    with Cluster(_source(kafka, **options)) as cluster, pytest.raises(kind, match=says):
        cluster.topics()


def test_tls_to_a_plain_port_and_no_broker_are_told(kafka: SecureKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestore.kafka.bridge.cluster.CALL_SECONDS", 20.0)
    with (
        Cluster(SourceSpec("", kafka.address, "g", None, {"security.protocol": "SSL"})) as cluster,
        pytest.raises(Unavailable, match=r"SSL handshake failed|in state SSL_HANDSHAKE"),
    ):
        cluster.topics()
    with (
        Cluster(SourceSpec("", "127.0.0.1:1", "g")) as cluster,
        pytest.raises(Unavailable, match="does a broker run there"),
    ):
        cluster.topics()


def test_a_bridge_runs_once_and_its_dead_letters_are_replayed(
    kafka: SecureKafka, lake: ls.Lake, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq, "open_lake", lambda server: lake)
    path = tmp_path / "bridge.yaml"
    text = (
        f"name: shop\nsource: {{bootstrap: '{kafka.address}'}}\ntopics:\n"
        "  - topic: shop.orders\n    table: shop.orders\n    primary_key: [order_id]\n    columns:\n"
        "      - {name: order_id, type: int64}\n      - {name: amount, type: float64, required: true}\n"
    )
    path.write_text(text)
    _, err = said("bridge", "-f", str(path), "--once")
    assert "bridge shop: 100 records, 11 rejected" in err
    assert lake.table("shop.orders").scan().count() == 89
    counts = json.loads(said("dlq", "list", "--json")[0])
    assert [(each["code"], each["letters"]) for each in counts] == [("missing-value", 10), ("bad-json", 1)]
    path.write_text(text.replace("required: true", "required: true, default: 0.0"))
    out, err = said("dlq", "replay", "-f", str(path), "shop.orders", code=1)
    assert out.startswith("10 applied, 0 superseded, 0 left out, 1 failed\n  bad-json: "), err
    assert lake.table("shop.orders").scan().count() == 99
    said("dlq", "drop", "shop.orders", "--all")
    _, err = said("bridge", "-f", str(path), "--once")
    assert "bridge shop: 0 records" in err


def test_values_that_were_cut_are_fetched_again_while_the_topic_is_the_same(kafka: SecureKafka) -> None:
    spec = spec_file.parse(
        f"name: b\nsource: {{bootstrap: '{kafka.address}'}}\ntopics: [{{topic: shop.orders, table: d.t}}]", "f"
    )
    with Cluster(spec.sources[""]) as cluster:
        facts = cluster.describe("shop.orders")
        records = cluster.sample(facts, 10)
    place = int(records.partition[0]), int(records.offset[0])
    with Clusters(spec.sources) as clusters:
        wanted = {place[0]: [place[1], 10**9]}
        found = clusters.whole(spec.topics[0], "shop.orders", facts.id, wanted)
        assert found == {place: records.values[0].as_py()}
        assert clusters.whole(spec.topics[0], "shop.orders", "another", wanted) == {}
        assert clusters.whole(spec.topics[0], "no.such.topic", facts.id, wanted) == {}


DRIFTING = """name: drifting
source: {bootstrap: "localhost:9092"}
topics: [{topic: drifting, table: shop.drifting, format: json, drift: propose}]
"""


@pytest.fixture
def on_kafka(
    kafka: SecureKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Reader]:
    """A reader of a page, with a server, the topics that pages speak of, and the files of the checkout's examples."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", "examples")
    monkeypatch.setenv("SHOP_KAFKA", kafka.address)
    with Served(tmp_path / "server", ports=True) as served:
        about = served.server.about
        monkeypatch.setenv("LAKESTORE_SERVER", about["grpc"])
        if request.param != "docs/bridge.md":  # where a bridge makes the table
            schema = pa.schema([("order_id", pa.int64()), ("amount", pa.float64())])
            orders = served.lake.create_table("shop.orders", schema, primary_key=["order_id"])
            orders.upsert([{"order_id": number, "amount": number / 2} for number in range(20)])
        yield Reader(about["grpc"], about["http"], {}, kafka.address)


@pytest.fixture(scope="module")
def topics(kafka: SecureKafka) -> None:
    """The topics that pages name, filled."""
    named = Topics(kafka.address)
    at = {"meta": {"ts": "2026-11-20T10:00:00Z"}}
    orders = [{"order_id": number, "amount": number / 2, **at} for number in range(20)]
    payments = [{"payment_id": number, "order_id": 1, "status": "paid", "amount": "1.50"} for number in range(5)]
    changing = [{"id": 1, "n": 1}]
    for topic, records in (("orders", orders), ("shop.payments", payments), ("drifting", changing)):
        named.make(topic, 1)
        values = [json.dumps(record).encode() for record in records]
        named.send(topic, [(None, value) for value in [*values, *([] if topic == "drifting" else [b"{"])]])
    named.make("shop.app.customers", 1)
    named.send("shop.app.customers", [(b'{"id": 1}', text(event("c", None, {"id": 1, "name": "Ada"})))])


@pytest.mark.parametrize("on_kafka", [*dict.fromkeys(part.page for part in ON_KAFKA)], indirect=True)
def test_the_blocks_of_a_page_that_want_a_broker_run(
    topics: None, kafka: SecureKafka, on_kafka: Reader, request: pytest.FixtureRequest
) -> None:
    page = request.node.callspec.params["on_kafka"]
    for part in (each for each in ON_KAFKA if each.page == page):
        words = words_of(part)
        if words[:2] == ["proposals", "list"]:
            _a_proposal(on_kafka, kafka)
        if words[0] == "dlq" and "list" in words and page == "docs/bridge.md":
            on_kafka.command(["bridge", "-f", "bridge.yaml", "--once"])
        if "--topic" in words:  # the topic is that of other pages' servers, too
            words += ["--name", page.replace("/", ".")]
        on_kafka.command(words, codes=(0, 1) if words[:2] == ["dlq", "replay"] else (0,))  # what is no JSON stays
    assert on_kafka.ran


def _a_proposal(reader: Reader, kafka: SecureKafka) -> None:
    """Bring a field that is new, and write the file that the page shows."""
    Path("drifting.yaml").write_text(reader.here(DRIFTING))
    reader.command(["bridge", "-f", "drifting.yaml", "--once"])
    Topics(kafka.address).send("drifting", [(None, b'{"id": 1, "n": 1, "m": 2}')])
    reader.command(["bridge", "-f", "drifting.yaml", "--once"])
    found = [block.text for block in blocks(ROOT / "docs/bridge.md") if block.language == "yaml"]
    Path("bridge.yaml").write_text(reader.here(found[0]))
    reader.said = ""
    reader.command(["bridge", "-f", "bridge.yaml", "--once"])
    reader.command(["proposals", "list", "--json"])
    reader.places["3f1c2b9a7d60"] = json.loads(reader.said[reader.said.index("[") :])[0]["id"]
