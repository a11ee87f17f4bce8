"""Every block of the documents does what it says when a reader types it, in the order of its page.

Blocks that want Spark are run by `tests/test_pages_on_spark.py`; those of `ELSEWHERE` by the tests that it names.
"""

from __future__ import annotations

import datetime
import gzip
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import lakestore as ls
from lakestore.cli.main import run_command
from lakestore.connectors.bridge.config import spec_file
from lakestore.model import settings, table_file
from lakestore_server.access import principals
from lakestore_server.settings import Settings
from tests.support.documents import Block, Reader, blocks, commands
from tests.support.served import Served

ROOT = Path(__file__).resolve().parent.parent
PAGES = [page for page in (ROOT / "README.md", ROOT / "SECURITY.md", *sorted(ROOT.glob("docs/*.md"))) if blocks(page)]
ELSEWHERE: dict[str, str] = {
    "serve": "tests/unit/cli/test_commands.py",
    "tier": "tests/lake/test_tier_service.py",
    "bridge": "tests/unit/cli/test_bridge_progress.py",
    "init-bridge": "tests/unit/connectors",
    "dlq": "tests/unit/connectors",
    "backup": "tests/unit/operate/test_backup.py",
    "doctor": "tests/unit/doctor/test_bundle.py",
    **dict.fromkeys(("login", "logout", "profiles", "--profile"), "tests/unit/cli/test_profiles.py"),
}
"""Command to the tests that run it: a server, a broker or a whole machine is what it wants."""
SHOWN = ("errors.md", "architecture.md", "cli.md")
"""Pages whose plain blocks are pictures or are written from the code."""
ON_SPARK = ("spark.md", "from-delta.md")
"""Pages whose Python is Spark's."""
BROKER = {"bridge", "init-bridge", "dlq"}
NOON = int(datetime.datetime(2026, 11, 20, 9, tzinfo=datetime.UTC).timestamp() * 1e6)
ORDERS = pa.schema(
    [
        ("order_id", pa.int64()),
        ("customer", pa.string()),
        ("amount", pa.float64()),
        ("day", pa.date32()),
        ("place", pa.struct([("city", pa.string())])),
        ("tags", pa.list_(pa.string())),
        ("created_at", pa.timestamp("us", tz="UTC")),
    ]
)


def order(number: int) -> dict[str, Any]:
    day = datetime.date(2026, 11, 1 + number)
    created = datetime.datetime(2026, 11, 1 + number, tzinfo=datetime.UTC)
    rest = {"place": {"city": "Berlin"}, "tags": ["new"], "created_at": created}
    return {"order_id": number, "customer": "ann", "amount": 7.5 * number, "day": day, **rest}


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The server of a page, and the reader's folder."""
    folder = tmp_path / "reader"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with Served(tmp_path / "server", ports=True) as running:
        running.clock.us = NOON
        monkeypatch.setenv("LAKESTORE_SERVER", running.server.about["grpc"])
        yield running


def shop(lake: ls.Lake) -> dict[str, Any]:
    """The two tables that most pages speak of."""
    orders = lake.create_table("shop.orders", ORDERS, primary_key=["order_id"])
    events = lake.create_table("shop.events", pa.schema([("order_id", pa.int64()), ("step", pa.string())]))
    token = orders.upsert([order(number) for number in range(1, 4)])
    events.append([{"order_id": 1, "step": "paid"}])
    rows, keys = [order(7)], [{"order_id": 1}]
    return {
        "ls": ls,
        "pa": pa,
        "date": datetime.date,
        "lake": lake,
        "orders": orders,
        "events": events,
        "token": token,
        "rows": rows,
        "keys": keys,
    }


def of_tables(lake: ls.Lake) -> dict[str, Any]:
    """The names that docs/tables.md uses beside those of its blocks."""
    key = [("customer", pa.string()), ("order_id", pa.int64())]
    orders = lake.create_table(
        "shop.orders", pa.schema([*key, ("amount", pa.float64())]), primary_key=["customer", "order_id"],
        bucket_key=["customer"],
    )  # fmt: skip
    photos = lake.create_table(
        "shop.photos", pa.schema([("id", pa.int64()), ("photo", pa.binary())]), primary_key=["id"]
    )
    lake.create_table("shop.imports", pa.schema([("file", pa.string())]))
    token = orders.upsert([{"customer": "ann", "order_id": 7, "amount": 1.0}])
    photos.upsert([{"id": number, "photo": b"x"} for number in range(3)])
    rows = [{"id": number, "photo": b""} for number in range(3)]
    read = [{"customer": "bob", "order_id": 1, "amount": 2.0}]
    columns = ("id", pa.int64()), ("city", pa.string()), ("phone", pa.string())
    totals = pa.schema(
        [("customer", pa.int64()), ("spent", pa.int64()), ("orders", pa.int64()), ("visitors", pa.binary()),
         ("unique", pa.int64())]
    )  # fmt: skip
    return {
        "ls": ls, "pa": pa, "lake": lake, "orders": orders, "photos": photos, "token": token, "rows": rows,
        "profile": pa.schema(columns), "total": totals, "files": ["1.csv", "2.csv"], "read": lambda _: read,
        "mine": [0, 1], "seek": lambda _: None, "polled": lambda: [(read, {"orders/0": "1500"})],
    }  # fmt: skip


def of_readme(lake: ls.Lake) -> dict[str, Any]:
    """The tables of examples/shop, and a file for one of them."""
    shutil.copy(ROOT / "examples" / "shop" / "tables.yaml", "tables.yaml")
    assert run_command(["apply", "-f", "tables.yaml"]) == 0
    schema = lake.table("shop.orders").schema
    rows = pa.table({field.name: pa.array([2] if field.name == "order_id" else [None], field.type) for field in schema})
    pq.write_table(rows, "orders.parquet")
    return {}


def of_loading(lake: ls.Lake) -> dict[str, Any]:
    """The files that docs/loading.md speaks of and does not show."""
    head = "id,name,born,height\n"
    Path("more.csv").write_text(f"{head}4,joe,NULL,1.9\n")
    Path("changes.jsonl").write_text('{"op": "D", "id": 4}\n')
    Path("tall.jsonl.gz").write_bytes(gzip.compress(b'{"id": 5, "name": "max", "height": 2.0}\n'))
    Path("guests.csv").write_text(f"{head}6,may,1999-01-01,tall\n7,kim,1999-01-02,1.5\n")
    return {}


WORLDS: dict[str, Callable[[ls.Lake], dict[str, Any]]] = {
    "tables.md": of_tables,
    "quickstart.md": lambda lake: {"ls": ls},
    "README.md": of_readme,
    "loading.md": of_loading,
}
"""Page to what is there before its first block; `shop` for the others."""


def run_yaml(block: Block, reader: Reader) -> None:
    """Have the part that such a file is for read it."""
    data = yaml.safe_load(block.text)
    if "tables" in data:
        for table in table_file.parse(block.text, "tables.yaml"):
            table.definition()
    elif "topics" in data:
        Path("bridge.yaml").write_text(block.text)
        assert spec_file.read(Path("bridge.yaml")).name
    elif "principals" in data:
        principals.book_of(data)
    elif "prod" in str(data) or "profiles" in data:
        assert "profiles" in data
    else:
        settings.read(Settings, file="server.yaml", text=block.text, environment={}, flags={}).settings()
    reader.ran.append("yaml")


def run(block: Block, page: str, reader: Reader) -> None:
    """One block."""
    if block.file:
        Path(block.file).write_text(reader.here(block.text))
    if block.language == "python":
        if page not in ON_SPARK and "lakestore.spark" not in block.text:
            reader.python(block.text)
    elif block.language == "yaml":
        run_yaml(block, reader)
    elif block.language in ("", "sh") and page not in SHOWN:
        typed = list(commands(block.text))
        for words in typed if BROKER.isdisjoint(words[0] for words in typed) else ():
            if words[0] not in ELSEWHERE and "kafka" not in words:
                reader.command(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_in_their_order(page: Path, served: Served) -> None:
    lake = ls.connect(served.server.about["grpc"])
    with lake:
        names = WORLDS.get(page.name, shop)(lake)
        served.clock.advance(7_200)
        reader = Reader(served.server.about["grpc"], served.server.about["http"], names)
        for block in blocks(page):
            run(block, page.name, reader)


def test_the_tests_that_run_other_commands_are_there() -> None:
    for place in ELSEWHERE.values():
        assert (ROOT / place).exists(), place
