"""Bad input is refused whole, with one sentence that says where and why; nothing is stored, the server lives on."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Conflict, Invalid, LakestoreError, NotFound
from lakestore.rows import ipc
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.process import ServerProcess, refused
from tests.support.seeds import seeded

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("small", pa.int8()),
        pa.field("price", pa.decimal128(6, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)
GOOD = {"id": 1, "name": "one", "small": 1}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("bad") / "data")
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def lake(process: ServerProcess) -> Iterator[ls.Lake]:
    with ls.connect(process.address) as connected:
        connected.create_table("t.keyed", SCHEMA, primary_key=["id"], buckets=2)
        connected.create_table("t.log", pa.schema([("a", pa.int64())]))
        connected.table("t.keyed").upsert([GOOD])
        yield connected


@pytest.fixture(autouse=True)
def nothing_is_stored(lake: ls.Lake, process: ServerProcess) -> Iterator[None]:
    """Whatever a test sends: the server lives and has exactly the rows from before."""
    yield
    assert process.alive
    assert [row["id"] for row in lake.table("t.keyed").scan().to_arrow().to_pylist()] == [1]
    assert lake.table("t.log").scan().count() == 0
    heads = [bucket.head for bucket in lake.transport.audit(pb.AuditRequest(table="t.keyed")).buckets]
    assert sum(heads) == 1, "offsets were taken"


def sent(lake: ls.Lake, change: pb.Change) -> LakestoreError:
    """The error that a commit of one change ends in."""
    request = pb.CommitRequest(changes=[change], producer="bad", sequence=1)
    with pytest.raises(LakestoreError) as refusal:
        lake.transport.commit(request)
    assert refusal.value.applied == "no"
    assert "\n" not in refusal.value.message
    return refusal.value


def raw(data: bytes, *, table: str = "t.keyed", kind: pb.ChangeKind.ValueType = pb.UPSERT) -> pb.Change:
    """A change of arbitrary bytes with a right checksum."""
    return pb.Change(table=table, kind=kind, rows=data, crc32c=ipc.crc32c(data))


def arrow(table: pa.Table) -> bytes:
    """A table as the wire has it."""
    return ipc.encode(table.schema, table.to_batches())


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"id": [2]}, ["name", "missing"]),
        ({"id": [2], "name": ["x"], "extra": [1]}, ["extra", "no column"]),
        ({"id": [2, None], "name": ["x", "y"]}, ["'id'", "null", "row 1"]),
        ({"id": [2, 3, 4], "name": ["x", "y", None]}, ["'name'", "null", "row 2"]),
        ({"id": ["2"], "name": ["x"]}, ["'id'", "int64", "string"]),
        ({"id": [2], "name": [7]}, ["'name'", "string", "int64"]),
        ({"id": [2, 3], "name": ["x", "y"], "small": [1, 300]}, ["'small'", "row 1", "300"]),
        ({"id": [2.5], "name": ["x"]}, ["'id'", "double"]),
        ({"name": ["x"]}, ["'id'", "missing"]),
    ],
)
def test_wrong_rows_name_column_row_and_rule(lake: ls.Lake, columns: dict[str, list[Any]], says: list[str]) -> None:
    error = sent(lake, raw(arrow(pa.table(columns))))
    assert type(error) is Invalid
    for word in says:
        assert word in error.message, error.message


def test_values_that_would_lose_digits_are_refused(lake: ls.Lake) -> None:
    nanoseconds = pa.array([1], pa.timestamp("ns", tz="UTC"))
    error = sent(lake, raw(arrow(pa.table({"id": [2], "name": ["x"], "at": nanoseconds}))))
    assert type(error) is Invalid
    assert "'at'" in error.message
    fine = pa.array([Decimal("1.2345")])
    error = sent(lake, raw(arrow(pa.table({"id": [2], "name": ["x"], "price": fine}))))
    assert type(error) is Invalid
    assert "'price'" in error.message


def test_good_rows_beside_bad_ones_are_not_stored(lake: ls.Lake) -> None:
    def both() -> None:
        with lake.commit() as commit:
            commit.append("t.log", [{"a": 1}])
            commit.upsert("t.keyed", pa.table({"id": [5]}))

    with pytest.raises(Invalid, match="name"):
        both()


def test_unknown_table_and_wrong_kind(lake: ls.Lake) -> None:
    data = arrow(pa.table({"id": [2], "name": ["x"]}))
    assert type(sent(lake, raw(data, table="t.absent"))) is NotFound
    assert type(sent(lake, raw(data, kind=pb.APPEND))) is Invalid
    assert type(sent(lake, raw(data, kind=pb.CHANGE_KIND_UNSPECIFIED))) is Invalid
    assert type(sent(lake, raw(arrow(pa.table({"a": [1]})), table="t.log"))) is Invalid
    for call in (lambda: lake.table("t.absent"), lambda: lake.drop_table("t.absent")):
        with pytest.raises(NotFound, match=r"t\.absent"):
            call()


def test_definitions_that_cannot_be_kept(lake: ls.Lake) -> None:
    plain = pa.schema([("a", pa.int64()), ("f", pa.float64())])
    definitions: list[tuple[str, pa.Schema, dict[str, Any], str]] = [
        ("nodot", plain, {}, "nodot"),
        ("t.x", pa.schema([("__a", pa.int64())]), {}, "__a"),
        ("t.x", plain, {"primary_key": ["absent"]}, "absent"),
        ("t.x", plain, {"primary_key": ["f"]}, "float"),
        ("t.x", plain, {"primary_key": ["a"], "buckets": 0}, "buckets"),
        ("t.x", plain, {"lake": {"freshnes": "1s"}}, "freshnes"),
        ("t.x", pa.schema([("a", pa.list_(pa.uint64()))]), {}, "uint64"),
    ]
    for name, schema, options, rule in definitions:
        with pytest.raises(Invalid, match=rule):
            lake.create_table(name, schema, **options)
    with pytest.raises(Conflict, match="exists already"):
        lake.create_table("t.log", plain)
    for definition in ("", "{}", "[]", "nonsense", '{"name": 3}'):
        with pytest.raises(Invalid):
            lake.transport.create_table(pb.CreateTableRequest(definition=definition))


def test_damaged_arrow_is_refused_or_harmless(lake: ls.Lake) -> None:
    """Random damage under a right checksum: `Invalid`, or rows that another rule refuses."""
    data = arrow(pa.table({"id": [None] * 500, "name": [f"n{i}" for i in range(500)]}))
    chance = seeded(7)
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 8)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        assert type(sent(lake, raw(bytes(damaged)))) is Invalid
    for part in (b"", b"\0", data[:40], data[: len(data) // 2], chance.randbytes(1000)):
        assert type(sent(lake, raw(part))) is Invalid


def test_a_wrong_checksum_is_refused(lake: ls.Lake) -> None:
    data = arrow(pa.table({"id": [2], "name": ["x"]}))
    error = sent(lake, pb.Change(table="t.keyed", kind=pb.UPSERT, rows=data, crc32c=ipc.crc32c(data) ^ 1))
    assert "checksum" in error.message


def test_an_arrow_bomb_is_refused_in_little_memory(lake: ls.Lake, process: ServerProcess) -> None:
    """Some KB of zstd that unfold to more than 1 GB."""
    zeros = pa.array(["\0" * 200_000_000])
    columns = {"id": pa.array([None], pa.int64()), **{f"c{i}": zeros for i in range(6)}}
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, pa.table(columns).schema, options=options) as writer:
        writer.write_table(pa.table(columns))
    data = bytes(sink.getvalue())
    assert len(data) < 1_000_000
    before = peak_megabytes(process)
    assert type(sent(lake, raw(data))) is Invalid
    assert peak_megabytes(process) - before < 600


def peak_megabytes(process: ServerProcess) -> int:
    """The most memory that the server ever held."""
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        pytest.skip("peak memory is read from /proc")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def test_garbage_tokens_and_names_in_reads(lake: ls.Lake) -> None:
    table = lake.table("t.keyed")
    for start in ("", "yesterday", "AAAA", "é"):
        with pytest.raises(LakestoreError):
            list(table.changes(start, until="now"))
    with pytest.raises(LakestoreError):
        table.scan(at="nonsense").to_arrow()
    with pytest.raises(Invalid, match="absent"):
        table.scan(columns=["absent"]).to_arrow()
    with pytest.raises(LakestoreError):
        table.scan(where="absent > 1").to_arrow()
    with pytest.raises(Invalid, match="primary key"):
        lake.table("t.log").lookup([{"a": 1}])
    with pytest.raises(Invalid, match="id"):
        table.lookup(pa.table({"name": ["x"]}))


def test_garbage_to_both_ports(process: ServerProcess) -> None:
    chance = seeded(3)
    for port in (process.port, process.http_port):
        for head in (
            b"",
            b"GET / HTTP/1.1\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"POST /iceberg/v1/namespaces HTTP/1.1\r\n",
        ):
            with socket.create_connection((process.host, port), timeout=60) as client:
                client.sendall(head + chance.randbytes(2000))
    for body in (b"", b"{", b"[]", b'{"namespace": 7}', chance.randbytes(100)):
        connection = http.client.HTTPConnection(process.host, process.http_port, timeout=60)
        connection.request("POST", "/iceberg/v1/namespaces", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        assert 400 <= answer.status < 500, (answer.status, said)
        assert b"Traceback" not in said
        connection.close()


def test_a_message_beyond_the_limit_is_refused(lake: ls.Lake) -> None:
    error = sent(lake, raw(bytes(65 << 20)))
    assert error.kind in ("Exhausted", "Invalid")


def test_a_second_server_on_the_same_folder_is_refused(process: ServerProcess) -> None:
    said = refused(process.data)
    assert "in use by another server" in said
    assert "Traceback" not in said
