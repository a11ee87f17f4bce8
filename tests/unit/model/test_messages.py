"""What a newcomer's mistakes are answered with: the thing that is wrong, where it is, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.cli.main import COMMANDS, run_command
from lakestore.client.credentials import Credentials, Pem
from lakestore.client.retry import within
from lakestore.client.servers import connect
from lakestore.errors import Invalid, Unavailable
from lakestore.model import table_file, types
from lakestore.model.retention import parse_retention
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture(name="lake")
def _lake(tmp_path: Path) -> Iterator[ls.Lake]:
    with ls.open(tmp_path / "data") as lake:
        lake.create_table("d.t", SCHEMA, primary_key=["id"])
        yield lake


@pytest.mark.parametrize(
    ("said", "meant"),
    [("long", "int64"), ("int", "int32"), ("array<int>", "list"), ("list<double>", "float64"), ("STRING", "string")],
)
def test_a_type_as_other_systems_call_it_is_told_ours(said: str, meant: str) -> None:
    with pytest.raises(Invalid, match=f"did you mean {meant}\\?"):
        types.arrow_type(said)


def test_a_type_that_nobody_has_is_told_all_of_ours() -> None:
    with pytest.raises(Invalid, match=r"known are bool, .*decimal\(p,s\)"):
        types.arrow_type("blob")


@pytest.mark.parametrize("address", ["localhost", "7340", "http://localhost:7340", ":7340"])
def test_an_address_without_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(Invalid, match="not host:port"):
        connect(address)


@pytest.mark.parametrize("address", ["h:1", "127.0.0.1:1", "[::1]:1", "unix:/tmp/x"])
def test_an_address_with_host_and_port_is_taken(address: str) -> None:
    connect(address).close()


def test_a_port_that_nobody_listens_at_is_named() -> None:
    with within(2), pytest.raises(Unavailable, match=r"nothing listens at 127\.0\.0\.1:1: start the server there"):
        connect("127.0.0.1:1").list_tables(pb.ListTablesRequest())


def test_a_machine_that_nobody_knows_is_named() -> None:
    with within(2), pytest.raises(Unavailable, match="an unknown host"):
        connect("nowhere.invalid:7340").list_tables(pb.ListTablesRequest())


@pytest.mark.parametrize("tls", [False, True])
def test_the_http_port_is_told_apart_from_a_silent_server_at_once(tls: bool, tmp_path: Path) -> None:
    with Served(tmp_path, ports=True) as served:
        port = served.server.about["http"].rpartition(":")[2]
        shown = Credentials(pem=Pem() if tls else None)
        with pytest.raises(Invalid, match=r"speaks HTTP: name the gRPC port, by default 7340"):
            connect(f"localhost:{port}", shown).list_tables(pb.ListTablesRequest())


def test_tls_to_a_port_in_the_clear_is_told_at_once(tmp_path: Path) -> None:
    with Served(tmp_path, ports=True) as served:
        with pytest.raises(Invalid, match="speaks without TLS: connect without tls="):
            connect(served.server.about["grpc"], Credentials(pem=Pem())).list_tables(pb.ListTablesRequest())


def test_a_data_folder_that_is_a_file_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "data"):
        with pytest.raises(Invalid, match="is, or lies in, a file: name a folder"):
            ls.open(path)


def test_counting_looks_at_the_columns_too(lake: ls.Lake) -> None:
    with pytest.raises(Invalid, match="no column 'w'"):
        lake.table("d.t").scan(columns=["w"]).count()


def test_rows_and_keys_are_dicts(lake: ls.Lake) -> None:
    for row in (3, 0, None):
        with pytest.raises(Invalid, match=f"a row is a dict of column name to value, unlike {row}"):
            lake.table("d.t").lookup([row])


def test_a_retention_is_shown_as_it_is_written() -> None:
    for text in ("90s", "30m", "36h", "7d"):
        assert str(parse_retention(text)) == text
    assert str(parse_retention({"age": "7d", "bytes": "10GB"})) == "7d or 10GB"


def test_yaml_that_is_none_is_told_by_line() -> None:
    with pytest.raises(Invalid, match=r"^t\.yaml is not YAML: line 2, column 1: [^<]*'<stream end>'$"):
        table_file.parse("tables: [\n", "t.yaml")


def test_every_command_is_listed_by_a_whole_sentence() -> None:
    listed = {name: line for name, (_, line) in COMMANDS.items()}
    assert not {name: text for name, text in listed.items() if not text.endswith(".") or text.endswith("..")}


def test_inspect_reads_a_backup_against_its_manifest(
    lake: ls.Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.table("d.t").upsert([{"id": 1, "v": "a"}])
    folder = tmp_path / "copy"
    lake.transport.backup(pb.BackupRequest(folder=str(folder)))
    assert run_command(["inspect", str(folder)]) == 0
    assert f"manifest {folder}/MANIFEST: whole" in capsys.readouterr().out
    segment = next(folder.rglob("*.seg"))
    raw = bytearray(segment.read_bytes())
    raw[-1] ^= 1
    segment.write_bytes(raw)
    assert run_command(["inspect", str(folder / "MANIFEST")]) == 1
    assert f"{segment.name} of the backup is missing or differs" in capsys.readouterr().err
