"""Schema drift: what a table follows, what waits for somebody, and that nothing is lost while it waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.cli import proposals as commands
from lakestore.cli.main import run_command
from lakestore.errors import Conflict, Invalid, NotFound
from lakestore.evolution import AddColumn, MakeOptional, RenameColumn, SetContract, Step, WidenColumn
from lakestore.kafka.bridge import dead_letters
from lakestore.kafka.bridge.assembly import Assembly
from lakestore.kafka.bridge.commit import Committer
from lakestore.kafka.bridge.dead_letters import Selection
from lakestore.kafka.bridge.decode.avro_records import AvroRecords
from lakestore.kafka.bridge.decode.json_records import JsonDecoder
from lakestore.kafka.bridge.decode.registry import Registry
from lakestore.kafka.bridge.drift.differences import differences
from lakestore.kafka.bridge.drift.watching import REFRESH_SECONDS, Watch
from lakestore.kafka.bridge.outcome import MappedBlock, Stage
from lakestore.kafka.bridge.pipeline import Pipeline
from lakestore.kafka.bridge.replay import Replay
from lakestore.kafka.bridge.spec import BridgeSpec, ColumnSpec, RegistrySpec, SourceSpec, TableSpec, TopicSpec
from lakestore.model import dead_letter_table
from lakestore.model.types import arrow_type
from tests.promises.test_an_owner_decides import document
from tests.support.avro_cases import Json, records, written
from tests.support.registry import FaultyRegistry
from tests.unit.connectors.test_replay import Now, nothing


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ls.Lake]:
    """A lake in this process."""
    with ls.open(tmp_path) as lake:
        yield lake


@pytest.fixture
def registry() -> Iterator[FaultyRegistry]:
    """A registry that answers as it is told."""
    with FaultyRegistry() as server:
        yield server


def orders(lake: ls.Lake) -> ls.Table:
    """A keyed table, as a bridge without declared columns makes one."""
    return lake.create_table(
        "shop.orders",
        pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int32(), nullable=False),
                   ("who", pa.string())]),
        primary_key=["id"],
    )  # fmt: skip


def test_fields_inside_columns_are_followed_by_path(lake: ls.Lake) -> None:
    columns = {
        "id": pa.int64(),
        "place": arrow_type("struct<street: string not null, zip: int32, gone: string not null>"),
        "items": arrow_type("list<struct<sku: string>>"),
        "prices": arrow_type("map<string, int32>"),
    }
    table = lake.create_table("shop.orders", columns, primary_key=["id"]).definition

    def found(**changed: str) -> tuple[list[Step], list[str]]:
        told = {name: changed.get(name, column.type) for name, column in zip(columns, table.columns, strict=True)}
        schema = pa.schema([pa.field(name, arrow_type(kind), nullable=name != "id") for name, kind in told.items()])
        both = differences(table, schema, TableSpec("shop.orders"))
        return [step for change in both.follow for step in change.steps], [change.waits for change in both.propose]

    place = "struct<zip: int64, street: string, city: struct<name: string>>"
    assert found(place=place, items="list<struct<sku: string, amount: float32>>", prices="map<string, int64>") == (
        [
            WidenColumn("place.zip", "int64"),
            MakeOptional("place.street"),
            AddColumn("place.city", "struct<name: string>"),
            MakeOptional("place.gone"),
            AddColumn("items.element.amount", "float32"),
            WidenColumn("prices.value", "int64"),
        ],
        [],
    )
    assert found() == ([], [])
    assert found(place="struct<street: int32 not null, gone: string not null>", prices="map<int32, int32>") == (
        [],
        ["place", "prices"],
    )


def test_every_kind_of_difference(lake: ls.Lake) -> None:
    table = orders(lake).definition
    schema = pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("n", pa.int64()),
            pa.field("customer", pa.string(), metadata={"aliases": '["who"]'}),
            pa.field("more", pa.list_(pa.string())),
            pa.field("nothing", pa.null()),
        ]
    )
    found = differences(table, schema, TableSpec("shop.orders"))
    assert [step for change in found.follow for step in change.steps] == [
        WidenColumn("n", "int64"),
        MakeOptional("n"),
        AddColumn("more", "list<string>"),
    ]
    assert [(change.steps, change.waits) for change in found.propose] == [
        ((), "id"),
        ((RenameColumn("who", "customer"),), ""),
    ]
    assert found.renamed == {"customer": "who"}
    assert len(differences(table, schema, TableSpec("shop.orders", drift="propose")).propose) == 5
    declared = TableSpec("shop.orders", columns=(ColumnSpec("id", "int64"),))
    assert not differences(table, schema, declared).follow
    assert not differences(table, schema, TableSpec("shop.orders", drift="ignore")).propose
    gone = differences(table, pa.schema([("id", pa.int64())]), TableSpec("shop.orders")).propose
    assert [(change.steps, change.waits) for change in gone] == [((MakeOptional("n"),), "n")]
    changed = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("who", pa.bool_())])
    retyped = differences(table, changed, TableSpec("shop.orders"))
    assert retyped.propose[0].steps == (RenameColumn("who", "who_1"), AddColumn("who", "bool"))


class Shop:
    """A topic of Avro records, its registry and its table."""

    def __init__(self, lake: ls.Lake, server: FaultyRegistry) -> None:
        self.lake, self.server = lake, server
        self.clock = [100.0]
        spec = TopicSpec("", "orders", target=TableSpec("shop.orders", ("id",)), format="avro")
        there = [each for each in lake.tables() if each.name == "shop.orders"]
        self.tables = {"shop.orders": (there[0] if there else orders(lake)).definition}
        watch = Watch(lake, "shop", spec, self.tables, lambda: self.clock[0])
        decoder = AvroRecords(registry=Registry(RegistrySpec(server.url, {"max.retries": "0"})))
        self.pipeline = Pipeline(topic=spec, tables=self.tables, decoder=decoder, drift=watch)

    def sent(self, number: int, fields: dict[str, Json], *values: Any) -> MappedBlock:
        """Records of a schema through the pipeline."""
        told = [{"name": name, **(kind if isinstance(kind, dict) and "aliases" in kind else {"type": kind})}
                for name, kind in fields.items()]  # fmt: skip
        schema = {"type": "record", "name": "O", "fields": told}
        self.server.answers[f"/schemas/ids/{number}"] = (200, json.dumps({"schema": json.dumps(schema)}).encode())
        bodies = [b"\0" + number.to_bytes(4, "big") + written(schema, value) for value in values]
        return self.pipeline.process(records(list(bodies)))


def rows(mapped: MappedBlock) -> list[dict[str, Any]]:
    """The rows of the one table."""
    return [row for table in mapped.tables for row in table.batch.to_pylist()]


def test_new_fields_and_wider_types_are_followed_in_the_block_that_has_them(
    lake: ls.Lake, registry: FaultyRegistry
) -> None:
    shop = Shop(lake, registry)
    shop.sent(1, {"id": "long", "n": "int", "who": ["null", "string"]}, {"id": 1, "n": 1, "who": "a"})
    mapped = shop.sent(2, {"id": "long", "n": "long", "who": ["null", "string"], "more": ["null", "double"]},
                       {"id": 2, "n": 1 << 40, "who": "b", "more": 0.5})  # fmt: skip
    assert rows(mapped) == [{"id": 2, "n": 1 << 40, "who": "b", "more": 0.5}]
    assert [(column.name, column.type) for column in lake.table("shop.orders").definition.columns] == [
        ("id", "int64"),
        ("n", "int64"),
        ("who", "string"),
        ("more", "float64"),
    ]
    assert lake.proposals() == []


def test_a_renamed_field_goes_into_the_old_column_until_somebody_decides(
    lake: ls.Lake, registry: FaultyRegistry
) -> None:
    shop = Shop(lake, registry)
    alias = {"type": ["null", "string"], "aliases": ["who"]}
    fields: dict[str, Json] = {"id": "long", "n": "int", "customer": alias}
    assert rows(shop.sent(1, fields, {"id": 1, "n": 1, "customer": "a"})) == [{"id": 1, "n": 1, "who": "a"}]
    (proposal,) = lake.proposals()
    assert (proposal["state"], proposal["table"], proposal["topic"]) == ("proposed", "shop.orders", "orders")
    decided = lake.approve(proposal["id"])
    assert decided["state"] == "approved"
    assert lake.approve(proposal["id"]) == decided
    with pytest.raises(Conflict, match="is approved"):
        lake.reject(proposal["id"])
    shop.clock[0] += REFRESH_SECONDS
    found = shop.sent(1, fields, {"id": 2, "n": 1, "customer": "b"})
    assert rows(found) == [{"id": 2, "n": 1, "customer": "b"}]
    assert [each["state"] for each in lake.proposals()] == ["approved"]


def test_a_type_that_holds_nothing_of_the_old_one_waits_in_the_dead_letters(
    lake: ls.Lake, registry: FaultyRegistry
) -> None:
    shop = Shop(lake, registry)
    fields: dict[str, Json] = {"id": "long", "n": "string", "who": ["null", "string"]}
    mapped = shop.sent(1, fields, {"id": 1, "n": "many", "who": None}, {"id": 2, "n": "7", "who": None})
    (proposal,) = lake.proposals()
    (reject,) = mapped.rejects["shop.orders"]
    assert (reject.record, reject.stage, reject.code) == (0, Stage.SCHEMA, "waits-for-proposal")
    assert proposal["id"] in reject.sentence
    rejected = lake.reject(proposal["id"])
    assert rejected["state"] == "rejected"
    assert len(shop.sent(1, fields, {"id": 1, "n": "many", "who": None}).rejects["shop.orders"]) == 1
    lake.approve(proposal["id"])
    shop.clock[0] += REFRESH_SECONDS
    mapped = shop.sent(1, fields, {"id": 1, "n": "many", "who": None})
    assert rows(mapped) == [{"id": 1, "n_1": None, "who": None, "n": "many"}]


@pytest.mark.parametrize("first", [0, 1])
def test_a_column_that_changes_twice_leaves_no_proposal_that_nobody_can_approve(
    lake: ls.Lake, registry: FaultyRegistry, first: int
) -> None:
    shop = Shop(lake, registry)
    who: Json = ["null", "string"]
    versions: list[tuple[dict[str, Json], Any]] = [
        ({"id": "long", "n": {"type": "map", "values": "long"}, "who": who}, {"a": 1}),
        ({"id": "long", "n": {"type": "array", "items": "long"}, "who": who}, [1, 2]),
    ]
    for number, (fields, value) in enumerate(versions):
        shop.sent(number, fields, {"id": number, "n": value, "who": None})
    found = lake.proposals()
    assert [each["state"] for each in found] == ["proposed", "proposed"]
    lake.approve(found[first]["id"])
    states = {each["id"]: each["state"] for each in lake.proposals()}
    assert states == {found[first]["id"]: "approved", found[1 - first]["id"]: "superseded"}
    with pytest.raises(Conflict, match=r"earlier state of table shop\.orders and is superseded"):
        lake.approve(found[1 - first]["id"])
    shop.clock[0] += REFRESH_SECONDS
    fields, value = versions[1 - first]
    shop.sent(2, fields, {"id": 7, "n": value, "who": None})
    (again,) = [each for each in lake.proposals() if each["state"] == "proposed"]
    lake.approve(again["id"])
    shop.clock[0] += REFRESH_SECONDS
    assert rows(shop.sent(2, fields, {"id": 7, "n": value, "who": None}))[0]["n"] in (value, [("a", 1)])


def test_a_proposal_that_its_table_takes_no_more_is_superseded(lake: ls.Lake, registry: FaultyRegistry) -> None:
    shop = Shop(lake, registry)
    fields: dict[str, Json] = {"id": "long", "n": "string", "who": ["null", "string"]}
    shop.sent(1, fields, {"id": 1, "n": "many", "who": None})
    (proposal,) = lake.proposals()
    lake.table("shop.orders").alter(RenameColumn("n", "n_1"))
    with pytest.raises(Conflict, match="is superseded"):
        lake.approve(proposal["id"])
    assert [each["state"] for each in lake.proposals()] == ["superseded"]
    lake.table("shop.orders").alter(RenameColumn("n_1", "n"))
    Shop(lake, registry).sent(1, fields, {"id": 1, "n": "many", "who": None})
    assert [each["state"] for each in lake.proposals()] == ["proposed"]


def test_a_required_field_that_is_gone_waits(lake: ls.Lake, registry: FaultyRegistry) -> None:
    shop = Shop(lake, registry)
    mapped = shop.sent(1, {"id": "long", "who": ["null", "string"]}, {"id": 1, "who": "a"})
    assert [(each.stage, each.code) for each in mapped.rejects["shop.orders"]] == [(Stage.SCHEMA, "waits-for-proposal")]
    (proposal,) = lake.proposals("shop.orders")
    lake.approve(proposal["id"])
    shop.clock[0] += REFRESH_SECONDS
    mapped = shop.sent(1, {"id": "long", "who": ["null", "string"]}, {"id": 1, "who": "a"})
    assert rows(mapped) == [{"id": 1, "n": None, "who": "a"}]


def test_an_approval_that_ended_half_way_is_finished(lake: ls.Lake, registry: FaultyRegistry) -> None:
    shop = Shop(lake, registry)
    shop.sent(1, {"id": "long", "who": ["null", "string"]}, {"id": 1, "who": "a"})
    (proposal,) = lake.proposals("shop.orders")
    lake.table("shop.orders").alter(MakeOptional("n"))
    assert lake.approve(proposal["id"])["state"] == "approved"
    with pytest.raises(NotFound, match="no proposal"):
        lake.approve("nothing")


def test_a_table_that_somebody_else_altered_is_seen(lake: ls.Lake, registry: FaultyRegistry) -> None:
    shop = Shop(lake, registry)
    fields: dict[str, Json] = {"id": "long", "n": "int", "who": ["null", "string"], "more": "int"}
    lake.table("shop.orders").alter(AddColumn("more", "int64"))
    assert rows(shop.sent(1, fields, {"id": 1, "n": 1, "who": None, "more": 5}))[0]["more"] == 5


def test_new_fields_of_json_become_columns_with_the_values_of_the_block_that_shows_them(lake: ls.Lake) -> None:
    spec = TopicSpec("", "orders", target=TableSpec("shop.orders", ("id",)))
    tables = {"shop.orders": orders(lake).definition}
    pipeline = Pipeline(topic=spec, tables=tables, decoder=JsonDecoder(), drift=Watch(lake, "shop", spec, tables))
    mapped = pipeline.process(
        records([b'{"id": 1, "n": 2, "color": "red", "size": 4, "a b": 1}', b'{"id": 2, "n": 3}'])
    )
    assert [(row["id"], row["color"], row["size"]) for row in rows(mapped)] == [(1, "red", 4), (2, None, None)]
    assert not mapped.rejects


def test_new_fields_of_json_wait_where_the_policy_is_to_propose(lake: ls.Lake) -> None:
    spec = TopicSpec("", "orders", target=TableSpec("shop.orders", ("id",), drift="propose"))
    tables = {"shop.orders": orders(lake).definition}
    pipeline = Pipeline(topic=spec, tables=tables, decoder=JsonDecoder(), drift=Watch(lake, "shop", spec, tables))
    before = lake.table("shop.orders").definition
    mapped = pipeline.process(records([b'{"id": 1, "n": 2, "color": "red"}', b'{"id": 2, "n": 3}']))
    assert [row["id"] for row in rows(mapped)] == [1, 2]
    assert lake.table("shop.orders").definition == before
    (proposal,) = lake.proposals()
    assert (proposal["state"], proposal["change"]) == ("proposed", "field 'color' is new, of type string")
    lake.approve(proposal["id"])
    assert lake.table("shop.orders").definition.column("color").type == "string"


def test_a_key_that_changes_its_type_has_no_steps(lake: ls.Lake, registry: FaultyRegistry) -> None:
    shop = Shop(lake, registry)
    shop.sent(1, {"id": "string", "n": "int", "who": ["null", "string"]}, {"id": "x", "n": 1, "who": None})
    (proposal,) = lake.proposals()
    with pytest.raises(Invalid, match="no steps"):
        lake.approve(proposal["id"])


def test_the_commands_list_and_decide(
    lake: ls.Lake, registry: FaultyRegistry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(lake, registry)
    alias = {"type": ["null", "string"], "aliases": ["who"]}
    shop.sent(1, {"id": "long", "n": "int", "customer": alias}, {"id": 1, "n": 1, "customer": "a"})
    monkeypatch.setattr(commands, "open_lake", lambda server: nullcontext(lake))
    assert run_command(["proposals", "list", "--json"]) == 0
    (proposal,) = json.loads(capsys.readouterr().out)
    assert (proposal["table"], proposal["state"]) == ("shop.orders", "proposed")
    assert run_command(["proposals", "reject", proposal["id"]]) == 0
    assert run_command(["proposals", "approve", proposal["id"]]) == 0
    assert "dlq replay shop.orders" in capsys.readouterr().out
    assert lake.table("shop.orders").definition.column("customer").type == "string"
    assert run_command(["proposals", "approve", "nothing"]) == 1
    assert "no proposal 'nothing'" in capsys.readouterr().err
    assert run_command(["bridge"]) == 2


def test_records_of_a_change_that_the_contract_leaves_to_an_approver_are_replayed_once(
    lake: ls.Lake, registry: FaultyRegistry
) -> None:
    policy = "{add: approve, widen: approve, rename: approve}"
    orders(lake).alter(SetContract(document(policy=policy), "orders"))
    topic = TopicSpec("", "orders", target=TableSpec("shop.orders", ("id",)), format="avro")
    source = SourceSpec("", "", "shop", RegistrySpec(registry.url, {"max.retries": "0"}))
    assembly = Assembly(BridgeSpec("shop", {"": source}, (topic,)), lake)
    fields = {"id": "long", "n": "long", "who": ["null", "string"], "more": "int"}
    schema = {"type": "record", "name": "O", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}
    registry.answers["/schemas/ids/1"] = (200, json.dumps({"schema": json.dumps(schema)}).encode())
    values = [{"id": 1, "n": 7, "who": "a", "more": 3}, {"id": 2, "n": 1 << 40, "who": "b", "more": 4}]
    sent = records([b"\0\0\0\0\1" + written(schema, value) for value in values])
    mapped = assembly.pipeline(topic, "orders").process(sent)
    assert rows(mapped) == [{"id": 1, "n": 7, "who": "a"}]
    (reject,) = mapped.rejects["shop.orders"]
    waiting = {row["change"]: row["id"] for row in lake.proposals("shop.orders")}
    assert list(waiting) == [
        "field 'n' is int64 now, and its column int32: the column is made wider",
        "field 'more' is new, of type int32",
    ]
    assert (reject.code, waiting["field 'n' is int64 now, and its column int32: the column is made wider"]) == (
        "waits-for-proposal",
        reject.sentence.rsplit(" ", 1)[1],
    )
    lake.create(dead_letter_table.definition("shop.orders"))
    lake.table("shop.orders__dlq").upsert(dead_letters.rows_of(sent, [reject], "shop", 1 << 20))
    spec, waits = assembly.spec, Selection(codes=("waits-for-proposal",))

    def replayed() -> tuple[int, int]:
        now = Now(nothing, [""])
        found = Replay(lake, spec, "shop.orders", Assembly(spec, lake).pipeline, now, overwrite=True).run(waits)
        return found.applied, found.failed

    assert replayed() == (0, 1)
    for id in waiting.values():
        lake.approve(id)
    assert [replayed(), replayed()] == [(1, 0), (0, 0)]
    assert lake.table("shop.orders").scan().to_arrow().to_pylist() == [{**values[1]}]
    assert lake.table("shop.orders__dlq").scan().count() == 0


def test_a_restart_makes_no_column_of_a_renamed_field(lake: ls.Lake, registry: FaultyRegistry) -> None:
    orders(lake)
    target = TableSpec("shop.orders", ("id",), options={"merge": "upsert"})
    topic = TopicSpec("", "orders", target=target, format="avro")
    source = SourceSpec("", "", "shop", RegistrySpec(registry.url, {"max.retries": "0"}))
    spec = BridgeSpec("shop", {"": source}, (topic,))
    kinds: dict[str, Json] = {"id": "long", "n": "long", "customer": ["null", "string"], "more": "int"}
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    fields[2]["aliases"] = ["who"]
    schema = {"type": "record", "name": "O", "fields": fields}
    registry.answers["/schemas/ids/1"] = (200, json.dumps({"schema": json.dumps(schema)}).encode())
    body = b"\0\0\0\0\1" + written(schema, {"id": 1, "n": 1 << 40, "customer": "a", "more": 3})
    for _ in range(2):
        mapped = Assembly(spec, lake).pipeline(topic, "orders").process(records([body, b"\0\0\0\0\1\2"]))
        assert rows(mapped) == [{"id": 1, "n": 1 << 40, "who": "a", "more": 3}]
        assert [each.code for each in mapped.rejects["shop.orders"]] == ["short-payload"]
    assert len(lake.proposals()) == 1


def test_rows_under_way_while_their_table_is_altered_are_mapped_again(lake: ls.Lake, registry: FaultyRegistry) -> None:
    shop = Shop(lake, registry)
    mapped = shop.sent(1, {"id": "long", "n": "int", "who": ["null", "string"]}, {"id": 1, "n": 1, "who": "a"})
    committer = Committer.__new__(Committer)
    committer._lake = lake
    committer._check_columns(mapped.tables[0])
    lake.table("shop.orders").alter(RenameColumn("who", "customer"))
    with pytest.raises(Conflict, match="mapped again"):
        committer._check_columns(mapped.tables[0])
