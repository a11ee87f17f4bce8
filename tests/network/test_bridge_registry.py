"""A real registry: schemas by number and subject, references, versions, and records that name them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakestore.errors import NotFound
from lakestore.kafka.bridge.decode.avro_records import AvroRecords
from lakestore.kafka.bridge.decode.protobuf_records import ProtobufRecords
from lakestore.kafka.bridge.decode.registry import Registry
from lakestore.kafka.bridge.spec import RegistrySpec, SchemaSpec
from tests.support.avro_cases import Json, records, written
from tests.support.registry import RegistryProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcess]:
    """One registry for all tests of the file; each has subjects of its own."""
    with RegistryProcess(Path(tmp_path_factory.mktemp("registry"))) as server:
        yield server


@pytest.fixture
def registry(server: RegistryProcess) -> Iterator[Registry]:
    """A client that knows nothing yet."""
    registry = Registry(RegistrySpec(server.url))
    yield registry
    registry.close()


def record(name: str, **fields: Json) -> Json:
    """A schema of one record."""
    return {"type": "record", "name": name, "fields": [{"name": key, **kind} for key, kind in fields.items()]}


def framed(number: int, body: bytes) -> bytes:
    """A body behind its schema's number."""
    return b"\0" + number.to_bytes(4, "big") + body


def test_records_of_two_versions_are_rows_of_the_newest_and_what_the_older_had(
    server: RegistryProcess, registry: Registry
) -> None:
    old = record("Order", id={"type": "int"}, who={"type": "string"}, gone={"type": "string"})
    new = record(
        "Order",
        id={"type": "long"},
        customer={"type": "string", "aliases": ["who"]},
        more={"type": ["null", "string"], "default": None},
    )
    first, second = server.register("orders-value", old), server.register("orders-value", new)
    bodies = [
        framed(second, written(new, {"id": 1 << 40, "customer": "a", "more": "m"})),
        framed(first, written(old, {"id": 2, "who": "b", "gone": "g"})),
        framed(second + 5000, b"\2"),
        b"{}",
        None,
    ]
    decoder = AvroRecords(registry=registry, topic="orders")
    schema = decoder.schema()
    assert schema is not None
    assert schema.names == ["id", "customer", "more"]
    found = decoder.decode(records(bodies))
    assert found.values.to_pylist() == [
        {"id": 1 << 40, "customer": "a", "more": "m", "gone": None},
        {"id": 2, "customer": "b", "more": None, "gone": "g"},
    ]
    assert [(each.record, each.code) for each in found.rejects] == [(2, "unknown-schema"), (3, "bad-magic")]
    assert found.passed["tombstone"].tolist() == [4]


def test_a_type_that_holds_nothing_of_the_other_waits(server: RegistryProcess, registry: Registry) -> None:
    old, new = record("T", n={"type": "string"}), record("T", n={"type": "long"})
    first, second = server.register("types-value", old), server.register("types-value", new)
    decoder = AvroRecords(registry=registry, topic="types")
    found = decoder.decode(records([framed(first, written(old, {"n": "x"})), framed(second, b"\2")], "types"))
    assert found.values.to_pylist() == [{"n": 1}]
    assert [(each.record, each.code, each.path) for each in found.rejects] == [(0, "waits-for-proposal", "n")]


def test_a_schema_refers_to_others(server: RegistryProcess, registry: Registry) -> None:
    server.register("place", {**record("Place", town={"type": "string"}), "namespace": "shop"})
    visit = {**record("Visit", at={"type": "shop.Place"}), "namespace": "shop"}
    number = server.register("visits-value", visit, references=[("shop.Place", "place", 1)])
    found = AvroRecords(registry=registry).decode(records([framed(number, b"\4ab")], "visits"))
    assert found.values.to_pylist() == [{"at": {"town": "ab"}}]


def test_protobuf_with_an_import_and_a_message_that_is_not_the_first(
    server: RegistryProcess, registry: Registry
) -> None:
    server.register("place.proto", 'syntax = "proto3"; message Place { string town = 1; }', "PROTOBUF")
    text = """syntax = "proto3"; import "place.proto";
    message First { int32 x = 1; } message Visit { message Inner { Place at = 1; int64 n = 2; } Inner inner = 1; }"""
    number = server.register("pvisits-value", text, "PROTOBUF", [("place.proto", "place.proto", 1)])
    inner = b"\x0a\x04\x0a\x02ab\x10\x07"
    block = records([framed(number, b"\4\2\0" + inner), framed(number, b"\2\x12x")], "pvisits")
    found = ProtobufRecords(registry=registry).decode(block)
    assert found.values.to_pylist() == [{"at": {"town": "ab"}, "n": 7}]
    assert [each.code for each in found.rejects] == ["bad-message-index"]


def test_a_renamed_field_of_protobuf_goes_on_under_its_new_name(server: RegistryProcess, registry: Registry) -> None:
    old = 'syntax = "proto3"; message P { int32 n = 1; string gone = 2; }'
    new = 'syntax = "proto3"; message P { int64 number = 1; string more = 3; }'
    first, second = server.register("renamed-value", old, "PROTOBUF"), server.register("renamed-value", new, "PROTOBUF")
    bodies = [framed(first, b"\0\x08\1\x12\1g"), framed(second, b"\0\x08\2\x1a\1m")]
    found = ProtobufRecords(registry=registry).decode(records(bodies, "renamed"))
    assert found.values.to_pylist() == [
        {"number": 1, "more": "", "gone": "g"},
        {"number": 2, "more": "m", "gone": None},
    ]


def test_a_schema_of_another_kind_is_a_reject(server: RegistryProcess, registry: Registry) -> None:
    number = server.register("kind-value", 'syntax = "proto3"; message P { int32 n = 1; }', "PROTOBUF")
    found = AvroRecords(registry=registry).decode(records([framed(number, b"\0\x08\1")], "kind"))
    assert [each.code for each in found.rejects] == ["wrong-schema-type"]


def test_records_without_framing_have_the_newest_schema_of_their_subject(
    server: RegistryProcess, registry: Registry
) -> None:
    server.register("plain-value", record("P", n={"type": "long"}))
    server.register("com.shop.P", record("P", m={"type": "long"}))
    assert AvroRecords(wire="plain", registry=registry).decode(records([b"\4"], "plain")).values.to_pylist() == [
        {"n": 2}
    ]
    named = AvroRecords(wire="plain", registry=registry, declared=SchemaSpec(subject="com.shop.P", version=1))
    assert named.decode(records([b"\4"], "plain")).values.to_pylist() == [{"m": 2}]


def test_a_deleted_version_is_still_known_by_its_number(server: RegistryProcess, registry: Registry) -> None:
    number = server.register("deleted-value", record("D", n={"type": "long"}))
    server.register("deleted-value", record("D", n={"type": "long"}, m={"type": ["null", "long"], "default": None}))
    server.call("DELETE", "/subjects/deleted-value/versions/1")
    assert registry.by_id(number).kind == "AVRO"
    with pytest.raises(NotFound, match="no version 1 of deleted-value"):
        registry.version("deleted-value", 1)
    assert registry.newest("nothing-value") is None


def test_a_field_of_protobuf_knows_the_names_that_its_number_had(server: RegistryProcess, registry: Registry) -> None:
    server.register("former-value", 'syntax = "proto3"; message P { int32 n = 1; string same = 2; }', "PROTOBUF")
    new = 'syntax = "proto3"; message P { int32 number = 1; string same = 2; }'
    number = server.register("former-value", new, "PROTOBUF")
    decoder = ProtobufRecords(registry=registry)
    decoder.decode(records([framed(number, b"\0\x08\1")], "former"))
    schema = decoder.schema()
    assert schema is not None
    assert [(each.metadata or {}).get(b"aliases") for each in schema] == [b'["n"]', None]
