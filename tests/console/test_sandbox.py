"""Two walls around the query box, each enough alone: the allow list, and the operating system's sandbox."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pytest

from lakestore.errors import Denied
from lakestore.iceberg import places
from lakestore.iceberg.manifest_lists import read_list
from lakestore.limits import Limits
from lakestore.model import file_uri
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import pipe
from lakestore.wire.pipe import Verb
from lakestore_server.host import sandbox
from lakestore_server.queries import service as queries
from lakestore_server.queries.lake_files import LakeFiles
from tests.console.scene import address, queries_of
from tests.support.log_tierer import LogTierer
from tests.support.rights import token_of, write_auth
from tests.support.served import Served

LIMITS = Limits(query_seconds=60, query_rows=100, query_processes=2, query_bytes=64 << 20)
HERE = sandbox.support()
FULL = pytest.mark.skipif(not (HERE.landlock and HERE.seccomp), reason="this kernel has no Landlock or no seccomp")
SECRETS = {"AWS_SECRET_ACCESS_KEY": "topsecret", "AZURE_STORAGE_KEY": "topsecret", "LAKESTORE_TOKEN": "topsecret"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A table with four files in the lake and rows behind them, and one that `reader` may not read."""
    folder = tmp_path_factory.mktemp("sandbox")
    auth = write_auth(folder / "auth.yaml", {"root": {"*": ["admin"]}, "reader": {"shop.orders": ["read"]}})
    with Served(folder / "data", ports=True, auth=str(auth), limits=LIMITS) as made:
        schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
        for name in ("shop.orders", "secret.pay"):
            table = made.lake.create_table(name, schema, buckets=1)
            tierer = LogTierer(made.server, made.lake.transport, token=token_of("root"))
            for number in range(4):
                table.append([{"id": number * 1_000 + row, "name": f"row {row}"} for row in range(1_000)])
                tierer.flush(name)
            table.append([{"id": 4_000, "name": "hot"}])
        yield made


def ask(served: Served, text: str, name: str = "reader") -> httpx.Response:
    with httpx.Client(base_url=address(served), headers={"Authorization": f"Bearer {token_of(name)}"}) as http:
        return http.post("/console/api/query", json={"sql": text}, timeout=90)


@pytest.fixture(autouse=True)
def own_processes(served: Served) -> Iterator[None]:
    """A test with other walls, or without the list, leaves no process to the next test."""
    queries_of(served).pool.end_idle()
    yield
    queries_of(served).pool.end_idle()


def attempts(answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["rows"])


@pytest.fixture
def no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second wall alone: no text is refused, and code of an attacker runs in the process."""
    monkeypatch.setattr(queries, "_CONFINED", "tests.support.hostile_query")
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def pointer_call() -> str:
    """A query that calls a function at an address: arrow_scan with a constant that SQL cannot write."""
    with duckdb.connect() as connection:
        (text,) = connection.execute("SELECT json_serialize_sql('SELECT * FROM arrow_scan(1, 2, 3)')").fetchall()[0]
    document = json.loads(text)
    for child in document["statements"][0]["node"]["from_table"]["function"]["children"]:
        child["value"] = {"type": {"id": "POINTER", "type_info": None}, "is_null": False, "value": 0x4141414141414141}
    return f"SELECT * FROM json_execute_serialized_sql('{json.dumps(document)}')"


@pytest.mark.parametrize("walls", [sandbox.WALLS, ()])
def test_the_list_alone_refuses_pointers(
    served: Served, walls: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "WALLS", walls)
    answer = ask(served, pointer_call())
    assert answer.status_code == 400
    assert "the function json_execute_serialized_sql is refused" in answer.json()["error"]["message"]
    leak = ask(served, "SELECT json_serialize_plan('SELECT * FROM shop.orders') FROM shop.orders")
    assert "the function json_serialize_plan is refused" in leak.json()["error"]["message"]


@pytest.mark.parametrize("walls", [sandbox.WALLS, ("landlock",), ("seccomp",), ()])
def test_rows_of_the_lake_and_hot_ones_come_through_the_pipe(
    served: Served, walls: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "WALLS", walls)
    answer = ask(served, "SELECT count(*), sum(id), count(DISTINCT name), max(id) FROM shop.orders WHERE id >= 0")
    assert answer.json()["rows"] == [["4001", str(sum(range(4_001))), "1001", "4000"]]
    assert "lake" in answer.json()["explain"]
    assert ask(served, "SELECT * FROM secret.pay").status_code in (403, 404)


def test_a_process_that_knows_the_manifests_reads_data_files_at_its_next_question(served: Served) -> None:
    """The process keeps manifests in memory and asks for data files at once. The server reads the manifests itself."""
    text = "SELECT count(DISTINCT name), sum(id) FROM shop.orders"
    answers = [ask(served, text).json()["rows"] for _ in range(3)]
    assert answers == [[["1001", str(sum(range(4_001)))]]] * 3


def test_a_query_process_has_no_derived_cache(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One viewer's process would leave what it read to the next viewer's, whose rights may be fewer."""
    monkeypatch.setattr(queries, "WALLS", ())
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert ask(served, "SELECT count(*) FROM shop.orders").json()["rows"] == [["4001"]]
    assert not (tmp_path / ".cache").exists()


@FULL
@pytest.mark.usefixtures("no_list")
def test_code_in_the_process_reads_no_file(served: Served, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("topsecret")
    found = attempts(ask(served, f"!files {tmp_path}"))
    assert len(found) == 10
    assert set(found.values()) == {"PermissionError"}, found
    assert [each.name for each in tmp_path.iterdir()] == ["secret.txt"]


@FULL
@pytest.mark.usefixtures("no_list")
def test_code_in_the_process_reaches_no_other_process_and_no_host(served: Served) -> None:
    port = address(served).rstrip("/").rpartition(":")[2]
    found = attempts(ask(served, f"!calls {port}"))
    assert len(found) == 7
    assert set(found.values()) == {"PermissionError"}, found


@pytest.mark.usefixtures("no_list")
def test_the_process_has_no_key(served: Served) -> None:
    names = attempts(ask(served, "!environment"))
    assert "PATH" in names
    assert not names.keys() & SECRETS.keys()


@FULL
@pytest.mark.usefixtures("no_list")
@pytest.mark.parametrize(("text", "signal"), [("!exec", "SIGSYS"), ("!ptrace", "SIGSYS"), ("pointer", "SIGSEGV")])
def test_a_process_that_dies_by_a_signal_is_told_logged_and_counted(
    served: Served, text: str, signal: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = served.server.sources.queries.deaths.get(signal, 0)
    with caplog.at_level(logging.WARNING, "lakestore.queries"):
        answer = ask(served, pointer_call() if text == "pointer" else text)
    assert answer.status_code == 503
    assert f"ended by {signal}" in answer.json()["error"]["message"]
    assert [signal in record.getMessage() and "reader" in record.getMessage() for record in caplog.records] == [True]
    assert served.server.sources.queries.deaths[signal] == before + 1
    assert ask(served, "SELECT 7 AS x").json()["rows"] == [["7"]]
    with httpx.Client(base_url=address(served), headers={"Authorization": f"Bearer {token_of('root')}"}) as http:
        assert f'lakestore_query_process_deaths_total{{signal="{signal}"}}' in http.get("/metrics").text


def test_a_file_is_opened_for_the_query_whose_plan_leads_to_it(served: Served) -> None:
    plans = {
        name: served.lake.transport.plan(pb.PlanRequest(tables=[name], lease_seconds=60))
        for name in ("shop.orders", "secret.pay")
    }
    location = plans["shop.orders"].tables[0].metadata_location
    other = plans["secret.pay"].tables[0].metadata_location
    files = LakeFiles()
    with pytest.raises(Denied):
        files.answer(Verb.SIZE, location.encode())
    files.add_plan(plans["shop.orders"])
    (size,) = pipe.FILE_SIZE.unpack(files.answer(Verb.SIZE, location.encode()) or b"")
    part = files.answer(Verb.READ, pipe.FILE_PART.pack(1, 10) + location.encode()) or b""
    assert size > 100
    assert len(part) == 10
    for name in (other, "/etc/passwd", "file:///etc/passwd", location + "/../x", location[:-1], ""):
        with pytest.raises(Denied):
            files.answer(Verb.SIZE, name.encode())
    while unread := [name for name, reader in files._readers.items() if reader is not None]:
        for name in unread:
            files.answer(Verb.SIZE, name.encode())
    kinds = [name.rpartition(".")[2] for name in files._readers]
    assert kinds.count("parquet") == 4
    assert not any("pay" in name for name in files._readers)
    files.close()


@pytest.mark.parametrize("to", ["/etc/passwd", "{own}/../../secret/x", "{own}_more/x", "file://{own}/a/../x", "{own}"])
def test_a_manifest_list_outside_the_tables_folder_is_not_opened(served: Served, tmp_path: Path, to: str) -> None:
    """A principal with `tier` on one table may name any file of the machine as a file of this table."""
    plan = served.lake.transport.plan(pb.PlanRequest(tables=["shop.orders"], lease_seconds=60))
    document = json.loads(places.read(plan.tables[0].metadata_location))
    for snapshot in document["snapshots"]:
        snapshot["manifest-list"] = to.format(own=file_uri.to_path(document["location"]))
    location = str(tmp_path / "copy.metadata.json")
    Path(location).write_text(json.dumps(document))
    plan.tables[0].metadata_location = location
    files = LakeFiles()
    files.add_plan(plan)
    for _ in range(2):
        with pytest.raises(Denied, match="outside the table's folder"):
            files.answer(Verb.SIZE, location.encode())
    assert list(files._readers) == [location]
    files.close()


def test_manifests_and_data_files_outside_the_tables_folder_are_not_opened(served: Served) -> None:
    plan = served.lake.transport.plan(pb.PlanRequest(tables=["shop.orders"], lease_seconds=60))
    files, place = LakeFiles(), plan.tables[0].metadata_location
    document = json.loads(places.read(place))
    listed = document["snapshots"][-1]["manifest-list"]
    manifest = read_list(places.read(listed), listed)[0]
    readers: dict[str, Any] = {
        listed: partial(files._list, listed=listed),
        manifest.path: partial(files._manifest, manifest=manifest),
    }
    for name, read in readers.items():
        with pytest.raises(Denied, match="outside the table's folder"):
            read("/elsewhere", data=places.read(name))
        read(document["location"], data=places.read(name))
    assert any(name.endswith(".parquet") for name in files._readers)
    files.close()


REACHES = """
import fcntl, json, os, sys
from lakestore_server.host import sandbox
from lakestore_server.queries import service as queries
from lakestore_server.queries.lake_files import LakeFiles
sandbox.confine_calls()
other, (there, here), done = int(sys.argv[1]), os.pipe(), []
for name, attempt in {
    "signal": lambda: fcntl.fcntl(there, fcntl.F_SETOWN, other),
    "number of the signal": lambda: fcntl.fcntl(there, fcntl.F_SETSIG, 9),
    "sending it": lambda: fcntl.fcntl(there, fcntl.F_SETFL, os.O_ASYNC),
    "processors": lambda: os.sched_setaffinity(other, {0}),
    "its own descriptor": lambda: fcntl.fcntl(there, fcntl.F_DUPFD_CLOEXEC, 5),
    "its own processors": lambda: os.sched_setaffinity(0, {0}),
}.items():
    try:
        attempt()
        done.append(name)
    except OSError:
        pass
os.write(here, b"x")
print(json.dumps(done))
"""


@FULL
def test_seccomp_alone_keeps_signals_and_processors_of_other_processes() -> None:
    """A pipe with an owner and a signal's number sends SIGKILL to any process of the same user."""
    with subprocess.Popen(["sleep", "60"]) as other:
        command = [sys.executable, "-c", REACHES, str(other.pid)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert other.poll() is None
        other.kill()
    assert json.loads(ran.stdout) == ["its own descriptor", "its own processors"]


@FULL
def test_each_half_of_the_sandbox_holds_alone(tmp_path: Path) -> None:
    """Landlock keeps files and TCP ports; seccomp keeps programs, processes, sockets and writes."""
    (tmp_path / "secret.txt").write_text("x")

    def tried(half: str) -> dict[str, Any]:
        code = (
            "import os, sys, json, socket, subprocess\n"
            "from lakestore_server.host import sandbox\n"
            f"{half}\n"
            "def tried(attempt):\n"
            "    try:\n        attempt()\n        return True\n    except OSError:\n        return False\n"
            "print(json.dumps({\n"
            f"    'read': tried(lambda: open({str(tmp_path / 'secret.txt')!r})),\n"
            f"    'write': tried(lambda: open({str(tmp_path / 'new.txt')!r}, 'w')),\n"
            "    'fork': tried(lambda: os.fork() or os._exit(0)),\n"
            "    'socket': tried(socket.socket)}))"
        )
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        found: dict[str, Any] = json.loads(ran.stdout)
        return found

    files = "sandbox.confine_files(sandbox.code_paths(['lakestore_server']))"
    assert tried(files) == {"read": False, "write": False, "fork": True, "socket": True}
    assert tried("sandbox.confine_calls()") == {"read": True, "write": False, "fork": False, "socket": False}
    assert tried(f"{files}; sandbox.confine_calls()") == dict.fromkeys(("read", "write", "fork", "socket"), False)


def test_a_machine_without_a_part_says_so() -> None:
    assert sandbox.Support(7, seccomp=True).missing == ()
    assert str(sandbox.Support(7, seccomp=True)) == "Landlock (ABI 7) and seccomp"
    assert [text.partition(":")[0] for text in sandbox.Support(0, seccomp=False).missing] == ["Landlock", "seccomp"]
    assert str(sandbox.Support(0, seccomp=False)) == "none"


def test_the_filter_is_made_for_both_machines() -> None:
    for machine in ("x86_64", "aarch64"):
        program = list(sandbox._program(machine, 4_711))
        assert all(len(instruction) == 8 for instruction in program)
        assert len(program) < 4_096
