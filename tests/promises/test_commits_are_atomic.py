"""R21: money only moves, in commits over several buckets, and no reader ever sees part of one; the server is killed.

Transfers are sums of amounts in an `aggregate` table, so that one of which a part is lost shows for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa

import lakestore as ls
from jepsen.system.server import free_port
from lakestore.errors import LakestoreError, Unavailable
from lakestore.union.verify import verify
from tests.support.folding import Fold
from tests.support.process import ServerProcess
from tests.support.seeds import seeded
from tests.support.waiting import until

NAME = "bank.accounts"
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
ACCOUNTS, MONEY = 24, 100
TOTAL = ACCOUNTS * MONEY
AUDITS = 6
"""Of each kind at least, between any two kills."""


class Bank:
    """Transfers in one thread and an auditor of each kind in another, over connections that break."""

    def __init__(self, address: str) -> None:
        self._stop = threading.Event()
        self.transfers = 0
        self.audits = {"lookup": 0, "scan": 0, "changes": 0}
        self.wrong: list[str] = []
        self._fold, self._chance = Fold(images=False), seeded()
        self._token: str | None = None
        jobs = (self._transfer, self._look_up, self._scan, self._follow)
        self._threads = [threading.Thread(target=self._run, args=(address, job), daemon=True) for job in jobs]
        for thread in self._threads:
            thread.start()

    def _run(self, address: str, job: Callable[[ls.Table], None]) -> None:
        with ls.connect(address) as lake:
            while not self._stop.is_set():
                try:
                    job(lake.table(NAME))
                except Unavailable:
                    self._stop.wait(0.05)
                except (LakestoreError, AssertionError) as error:
                    self.wrong.append(f"{job.__name__}: {error!r}")
                    return

    def _transfer(self, table: ls.Table) -> None:
        amount, some = self._chance.randint(1, 50), self._chance.sample(range(ACCOUNTS), 3)
        moves = zip(some, (amount, amount, -2 * amount), strict=True)
        table.upsert([{"id": i, "n": n} for i, n in moves])
        self.transfers += 1

    def _look_up(self, table: ls.Table) -> None:
        self._audit("lookup", table.lookup([{"id": i} for i in range(ACCOUNTS)]))

    def _scan(self, table: ls.Table) -> None:
        self._audit("scan", table.scan().to_arrow())

    def _audit(self, kind: str, rows: pa.Table) -> None:
        assert (rows.num_rows, sum(rows["n"].to_pylist())) == (ACCOUNTS, TOTAL), kind
        self.audits[kind] += 1

    def _follow(self, table: ls.Table) -> None:
        """The changelog, whole commit by whole commit, through every kill."""
        for batch in table.changes(self._token or "earliest", until="now"):
            self._fold.add([batch])
            self._token = batch.token
            if batch.whole:
                self._audit("changes", pa.Table.from_pylist(list(self._fold.rows.values())))

    def has(self, audits: int) -> bool:
        """So many of each kind, or one that failed."""
        return bool(self.wrong) or min(self.audits.values()) >= audits

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


def test_no_audit_ever_sees_part_of_a_transfer(tmp_path: Path) -> None:
    port = free_port()
    server = ServerProcess(tmp_path, port=port)
    with ls.connect(server.address) as lake:
        table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=3, merge=ls.aggregate({"n": "sum"}))
        table.upsert([{"id": i, "n": MONEY} for i in range(ACCOUNTS)])
        bank = Bank(server.address)
        for round_ in range(3):
            wanted = min(bank.audits.values()) + AUDITS
            until(partial(bank.has, wanted), "audits of every kind")
            if round_ < 2:
                server.kill()
                server = ServerProcess(tmp_path, port=port)
        bank.stop()
        assert bank.wrong == []
        assert bank.transfers > AUDITS
        assert verify(lake.transport, NAME).problems() == []
    server.stop()
