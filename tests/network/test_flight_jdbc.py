"""Arrow's own JDBC driver reads the catalog and the rows of the Flight SQL port."""

from __future__ import annotations

import base64
import datetime as dt
import subprocess
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from jepsen.system.jvm import SHORT_LIVED
from lakestore.java import java
from lakestore.v1 import flight_pb2
from lakestore_demo.ivy import fetch
from lakestore_server.edge.flight import sql_info
from lakestore_server.settings import Flight
from tests.support.java_source import compiled
from tests.support.rights import token_of, write_auth
from tests.support.served import Served

VERSION = "18.3.0"
SOURCE = Path(__file__).parent.parent / "support" / "FlightJdbc.java"
NEEDED = ("--add-opens=java.base/java.nio=org.apache.arrow.memory.core,ALL-UNNAMED", "-Duser.timezone=UTC")
"""Options that Arrow's manual asks for."""
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("share", pa.float64()),
        ("is_open", pa.bool_()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us")),
        ("instant", pa.timestamp("us", tz="UTC")),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
    ]
)
ROWS = [
    {
        "id": 1,
        "name": "Ähre 🌾",
        "amount": Decimal("12.30"),
        "share": 0.5,
        "is_open": True,
        "day": dt.date(2026, 11, 28),
        "moment": dt.datetime(2026, 11, 28, 15, 1, 2, 345000),
        "instant": dt.datetime(2026, 11, 28, 15, 1, 2, tzinfo=dt.UTC),
        "raw": b"\x00\x01",
        "tags": ["a", "b"],
    },
    {"id": 2, "name": "zwei"},
]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Sequence[str]]:
    """What the driver prints, by the first word of a line."""
    folder = tmp_path_factory.mktemp("jdbc")
    auth = write_auth(folder / "auth.yaml", {"ann": {"shop.*": ["read"]}})
    jars = fetch("flight-sql-jdbc", VERSION, (f"org.apache.arrow:flight-sql-jdbc-driver:{VERSION}",), transitive=False)
    with Served(folder / "data", ports=True, auth=str(auth), flight=Flight(0)) as served:
        served.lake.create_table("shop.every", schema=SCHEMA, primary_key=["id"]).upsert(ROWS)
        served.lake.create_table("secret.plans", schema=SCHEMA, primary_key=["id"])
        command = [java(), *SHORT_LIVED, *NEEDED, "-cp", compiled(SOURCE, jars), "FlightJdbc"]
        keys = [served.server.about["flight"], "ann", token_of("ann")]
        done = subprocess.run([*command, *keys], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        word, _, rest = line.partition("|")
        found.setdefault(word, []).append(rest)
    return found


def test_jdbc_shows_the_catalog(lines: Mapping[str, Sequence[str]]) -> None:
    assert lines["product"] == ["Lakestore|true"]
    assert lines["catalogs"] == ["lake"]
    assert lines["schemas"] == ["shop|lake"]
    assert lines["tables"] == ["lake|shop|every|TABLE"]
    assert lines["tabletypes"] == ["SYSTEM TABLE", "TABLE"]
    assert lines["keys"] == ["id|1|every_pkey"]
    columns = {line.split("|")[0]: line.split("|")[1:] for line in lines["columns"]}
    assert list(columns) == SCHEMA.names
    assert columns["id"] == ["-5", "BIGINT", "19", "0", "NO"]
    assert columns["amount"] == ["3", "DECIMAL(12,2)", "12", "2", "YES"]
    assert columns["instant"][:2] == ["2014", "TIMESTAMP WITH TIME ZONE"]
    assert columns["tags"][:2] == ["2003", "VARCHAR[]"]
    assert "imported" not in lines
    assert "exported" not in lines


def test_jdbc_reads_rows_of_every_type(lines: Mapping[str, Sequence[str]]) -> None:
    day, moment, instant = "2026-11-28", "2026-11-28 15:01:02.345", "2026-11-28 15:01:02.0"
    assert lines["rows"] == [
        f'1|Ähre 🌾|12.30|0.5|true|{day}|{moment}|{instant}|\x00\x01|["a","b"]',
        "2|zwei|" + "|".join(["null"] * 8),
    ]
    assert lines["count"] == ["2"]
    assert lines["many"] == ["44999850000"]
    assert lines["streamed"] == ["300000"]


def test_jdbc_prepares_statements(lines: Mapping[str, Sequence[str]]) -> None:
    assert lines["prepared"] == ["1|Ähre 🌾", "2|zwei", "2|zwei"]


def test_jdbc_is_told_what_it_may_not(lines: Mapping[str, Sequence[str]]) -> None:
    assert "rows are written by" in lines["update"][0]
    assert "ann has no right 'read' on secret.plans" in lines["rights"][0]


def test_our_messages_have_the_fields_of_arrows_own(lines: Mapping[str, Sequence[str]]) -> None:
    files = [descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text)) for text in lines["proto"]]
    theirs = {message.name: message for file in files for message in file.message_type}
    ours = descriptor_pb2.FileDescriptorProto()
    flight_pb2.DESCRIPTOR.CopyToProto(ours)
    compared = [message.name for message in ours.message_type if message.name in theirs]
    assert len(compared) >= len(ours.message_type) - 1  # Empty
    for message in ours.message_type:
        if message.name in theirs:
            assert shape(message) <= shape(theirs[message.name]), message.name
    numbers = {value.name: value.number for file in files for enum in file.enum_type for value in enum.value}
    for enum in ours.enum_type:
        assert all(numbers[value.name] == value.number for value in enum.value), enum.name
    service = next(service for file in files for service in file.service if service.name == "FlightService")
    verbs = {method.name: (method.client_streaming, method.server_streaming) for method in service.method}
    for method in ours.service[0].method:
        assert verbs[method.name] == (method.client_streaming, method.server_streaming), method.name
    named = {
        value.number for file in files for enum in file.enum_type if enum.name == "SqlInfo" for value in enum.value
    }
    assert set(sql_info.INFO) - named <= {10, 11}  # bulk ingestion came after this release of the driver


def shape(message: descriptor_pb2.DescriptorProto) -> set[tuple[str, int, int, int, str]]:
    """Name, number, label, type and name of the type of each field, of messages and enums inside too."""
    own = {(each.name, each.number, each.label, each.type, each.type_name.rpartition(".")[2]) for each in message.field}
    inside = {(f"{part.name}.{field[0]}", *field[1:]) for part in message.nested_type for field in shape(part)}
    values = {(value.name, value.number, 0, 0, enum.name) for enum in message.enum_type for value in enum.value}
    return own | inside | values
