"""Jepsen's bank through the Postgres port: a transaction reads one cut, whatever is written meanwhile and breaks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

import lakestore as ls
from jepsen.operation import Invocation
from jepsen.trial import Trial
from jepsen.workloads.bank import DOOR_WAYS, BankClient, BankOfSql
from lakestore_server.edge.postgres.executor import Executor
from lakestore_server.main import Server
from lakestore_server.settings import Postgres, Settings
from tests.jepsen.hand_made import Written, names
from tests.support.seeds import seed


@dataclass
class Here:
    """A target: a server of this process, by its ports."""

    server: Server
    catalog = kafka = sql = ""

    def __post_init__(self) -> None:
        self.sql = self.server.about["postgres"]

    def connect(self, process: int) -> ls.Lake:
        """A connection of its own."""
        return ls.connect(self.server.about["grpc"])


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    """A server with a Postgres port."""
    server = Server(Settings(tmp_path / "data", port=0, http_port=0, postgres=Postgres(port=0)))
    server.start()
    yield Here(server)
    server.close()


def audited(here: Here, way: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The anomalies of an audit between whose statements transfers are made."""
    bank, written = BankOfSql(random.Random(5)), Written()
    with here.connect(-1) as lake:
        bank.setup(lake)
    auditor, payer = bank.client(here, 0), bank.client(here, 1)
    transfers = (each for each in bank.operations(1, random.Random(seed(36))) if each.f in ("move", "add"))
    execute = psycopg.Connection.execute

    def with_a_transfer(connection: Any, *given: Any, **options: Any) -> Any:
        transfer = next(transfers)
        written.begin(1, transfer.f, transfer.value)
        written.end(1, transfer.f, payer.invoke(transfer))
        return execute(connection, *given, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", with_a_transfer)
    for _ in range(4):
        audit = Invocation("door", {"way": way})
        written.begin(0, audit.f, audit.value)
        written.end(0, audit.f, auditor.invoke(audit))
    for client in (auditor, payer):
        assert isinstance(client, BankClient)
        client.close()
    return names(bank, written)


@pytest.mark.parametrize("way", DOOR_WAYS)
def test_transfers_between_the_statements_of_a_transaction_are_not_seen(
    here: Here, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert audited(here, way, monkeypatch) == set()


@pytest.mark.parametrize("way", ["lookups", "transaction"])
def test_a_transaction_of_several_cuts_is_found(here: Here, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten = property(lambda _: "", lambda _, __: None)
    monkeypatch.setattr(Executor, "_cut", forgotten, raising=False)
    assert audited(here, way, monkeypatch) & {"half-commit", "wrong-sum", "wrong-balance"}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("nemeses", [("kill", "pause"), ("kill", "clock"), ("network", "kill")], ids="-".join)
def test_the_bank_under_faults_for_a_minute(tmp_path: Path, nemeses: tuple[str, ...]) -> None:
    verdict = Trial(str(seed()), ("bank_sql",), nemeses, seconds=60.0).perform(tmp_path)
    assert not verdict.anomalies, verdict.line
