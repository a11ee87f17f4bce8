"""Forty saved queries answer before, during and after a rename, for as long as the contract says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Invalid
from lakestore.evolution import SetContract
from tests.promises.test_an_owner_decides import document
from tests.support.engines import DuckDb
from tests.support.served import Served
from tests.support.waiting import joined

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("amount", pa.int64()), ("who", pa.string()), ("note", pa.string())]
)
DAY = 86_400
POLICY = "{rename: allow, oldNames: 30d}"
DASHBOARDS = [
    "SELECT id, amount FROM shop.orders ORDER BY id",
    "SELECT sum(amount) AS s FROM shop.orders",
    "SELECT count(*) AS n FROM shop.orders WHERE amount > 10",
    "SELECT count(*) AS n FROM shop.orders WHERE who = 'a' AND amount BETWEEN 5 AND 25",
    "SELECT who, sum(amount) AS total FROM shop.orders GROUP BY who ORDER BY who",
    "SELECT who, sum(amount) AS total FROM shop.orders GROUP BY who HAVING total > 10 ORDER BY who",
    "SELECT who, sum(amount) AS s FROM shop.orders GROUP BY 1 HAVING sum(amount) > 10 ORDER BY s DESC, who",
    "SELECT o.amount FROM shop.orders o ORDER BY o.amount",
    "SELECT orders.amount FROM shop.orders ORDER BY 1",
    "SELECT shop.orders.amount FROM shop.orders ORDER BY 1",
    "SELECT AMOUNT FROM shop.orders ORDER BY 1",
    'SELECT "amount" FROM shop.orders ORDER BY 1',
    "SELECT * FROM shop.orders WHERE amount > 10 ORDER BY id",
    "SELECT * FROM shop.orders ORDER BY amount",
    "SELECT o.* FROM shop.orders o WHERE o.amount = 10",
    "SELECT amount AS total FROM shop.orders ORDER BY total",
    "SELECT amount + 1 AS amount FROM shop.orders ORDER BY amount",
    "SELECT id AS amount, amount + 1 AS more FROM shop.orders ORDER BY more",
    "SELECT max(amount) OVER (PARTITION BY who) AS m FROM shop.orders ORDER BY m, id",
    "SELECT rank() OVER (ORDER BY amount DESC) AS r, id FROM shop.orders ORDER BY r",
    "WITH x AS (SELECT who, amount FROM shop.orders) SELECT who, max(amount) AS m FROM x GROUP BY who ORDER BY who",
    "WITH x AS (SELECT * FROM shop.orders) SELECT sum(amount) AS s FROM x",
    "SELECT (SELECT max(amount) FROM shop.orders) AS m",
    "SELECT p.who FROM shop.people p WHERE EXISTS (SELECT 1 FROM shop.orders WHERE amount > 25 AND who = p.who)",
    "SELECT p.who, o.amount FROM shop.orders o JOIN shop.people p ON p.who = o.who ORDER BY o.id",
    "SELECT p.amount, o.amount AS mine FROM shop.orders o JOIN shop.people p ON p.who = o.who ORDER BY o.id",
    "SELECT a.id FROM shop.orders a JOIN shop.orders b ON a.amount = b.amount ORDER BY 1",
    "SELECT id FROM shop.orders WHERE amount IN (SELECT amount FROM shop.orders WHERE who = 'b') ORDER BY id",
    "SELECT id FROM shop.orders WHERE amount IS NOT NULL ORDER BY id",
    "SELECT CASE WHEN amount > 10 THEN 'big' ELSE 'low' END AS b, count(*) AS n FROM shop.orders GROUP BY 1 ORDER BY 1",
    "SELECT coalesce(amount, 0) AS c FROM shop.orders ORDER BY c",
    "SELECT avg(amount) AS a, min(amount) AS b, max(amount) AS c FROM shop.orders",
    "SELECT count(DISTINCT amount) AS n FROM shop.orders",
    "SELECT amount FROM shop.orders UNION ALL SELECT id FROM shop.orders ORDER BY 1",
    "SELECT amount FROM shop.orders EXCEPT SELECT 10 ORDER BY 1",
    "SELECT DISTINCT amount FROM shop.orders ORDER BY amount",
    "SELECT id, amount FROM shop.orders ORDER BY amount DESC LIMIT 2",
    "SELECT sum(CASE WHEN who = 'a' THEN amount END) AS s FROM shop.orders",
    "SELECT who, note, amount FROM shop.orders WHERE note LIKE 'n%' ORDER BY id",
    "SELECT cast(amount AS double) / 2 AS half FROM shop.orders ORDER BY half",
]
"""Saved queries, each with the old name of the column."""


def filled(lake: ls.Lake, policy: str = POLICY) -> ls.Table:
    """The tables of the dashboards."""
    lake.create_table("shop.orders", SCHEMA, primary_key=["id"], buckets=2)
    people = pa.schema([pa.field("who", pa.string(), nullable=False), ("amount", pa.int64())])
    lake.create_table("shop.people", people, primary_key=["who"], buckets=1)
    rows = [(1, 10, "a", "n1"), (2, 20, "a", "n2"), (3, 30, "b", "x"), (4, 10, "b", None)]
    lake.table("shop.orders").upsert([dict(zip(SCHEMA.names, row, strict=True)) for row in rows])
    lake.table("shop.people").upsert([{"who": "a", "amount": 1}, {"who": "b", "amount": 2}])
    return lake.table("shop.orders").alter(SetContract(document(policy=policy), "orders"))


def answers(lake: ls.Lake) -> list[list[dict[str, Any]]]:
    return [lake.sql(query).to_pylist() for query in DASHBOARDS]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as made:
        yield made


def test_forty_saved_queries_do_not_notice_a_rename(served: Served) -> None:
    assert len(DASHBOARDS) == 40
    lake = served.lake
    orders = filled(lake)
    before, during, failures = answers(lake), list[Any](), list[Exception]()
    stop = threading.Event()

    def refresh() -> None:
        while not stop.is_set():
            try:
                during.append(answers(lake) == before)
            except Exception as error:
                failures.append(error)

    refreshing = threading.Thread(target=refresh, daemon=True)
    refreshing.start()
    try:
        orders.alter(rename={"amount": "total", "note": "remark"})
        orders.alter(rename={"total": "sum_total"})
    finally:
        stop.set()
        joined(refreshing)
    assert not failures
    assert during
    assert all(during)
    assert answers(lake) == before
    served.restart()
    assert answers(served.lake) == before


def test_stock_duckdb_reads_the_names_of_a_version_from_the_catalog(tmp_path: Path) -> None:
    with Served(tmp_path / "data", ports=True) as served:
        orders = filled(served.lake)
        duck = DuckDb(f"http://{served.server.about['http']}/iceberg")
        now, version = duck.attach("now"), orders.definition.schema_id
        duck.sql("CREATE SCHEMA shop")
        duck.sql(f'CREATE VIEW shop.orders AS SELECT id, amount, who, note FROM {now}.shop."orders${version}"')
        duck.sql(f"CREATE VIEW shop.people AS SELECT who, amount FROM {now}.shop.people")
        before = [duck.sql(query) for query in DASHBOARDS]
        orders.alter(rename={"amount": "total", "note": "remark"})
        assert [duck.sql(query) for query in DASHBOARDS] == before
        orders.upsert([{"id": 5, "total": 50, "who": "a", "remark": "n5"}])
        assert duck.sql(DASHBOARDS[0])[-1] == (5, 50)
        assert duck.sql(f"SELECT total, remark FROM {now}.shop.orders WHERE id = 5") == [(50, "n5")]
        token = served.lake.last_token
        orders.alter(SetContract(document(policy="{rename: allow}"), "orders"))
        orders.alter(add={"amount": pa.string()})
        assert duck.sql(DASHBOARDS[0])[-1] == (5, 50)
        assert duck.sql(f'SELECT amount FROM {now}.shop."orders${version}@{token}" WHERE id = 5') == [(50,)]
        duck.close()


def test_new_queries_see_the_new_names_and_a_query_with_both_has_both(served: Served) -> None:
    lake = served.lake
    filled(lake).alter(rename={"amount": "total"})
    assert lake.sql("SELECT * FROM shop.orders WHERE id = 1").table.column_names == ["id", "total", "who", "note"]
    grouped = "SELECT who, sum(total) AS amount FROM shop.orders GROUP BY who HAVING amount > 30 ORDER BY who"
    assert lake.sql(grouped).to_pylist() == [{"who": "b", "amount": 40}]
    both = lake.sql("SELECT o.total, o.amount FROM shop.orders o WHERE o.id = 3").to_pylist()
    assert both == [{"total": 30, "amount": 30}]
    with pytest.raises(Invalid, match="nothing"):
        lake.sql("SELECT amount, nothing FROM shop.orders")
    token = lake.last_token
    lake.table("shop.orders").alter(rename={"total": "amount"})
    assert [each.name for each in lake.table("shop.orders").definition.old_names] == ["total"]
    assert lake.sql("SELECT total FROM shop.orders WHERE id = 1").to_pylist() == [{"total": 10}]
    assert lake.at(token).sql("SELECT amount FROM shop.orders WHERE id = 1").to_pylist() == [{"amount": 10}]


def test_old_names_end_after_the_time_of_the_contract(served: Served) -> None:
    lake, expiry = served.lake, served.server.expiry
    filled(lake).alter(rename={"amount": "total"})
    for days, is_over in ((29, False), (2, True)):
        served.clock.advance(days * DAY)
        expiry.run_once()
        assert (lake.table("shop.orders").definition.old_names == ()) == is_over
    with pytest.raises(Invalid, match="amount"):
        lake.sql(DASHBOARDS[0])
    last = (lake.who("shop.orders").decisions or [{}])[0]
    assert (last["action"], last["what"], last["principal"]) == ("end old names", "amount", "")
    lsn = served.engine.view.lsn
    expiry.run_once()
    served.restart()
    assert served.lake.table("shop.orders").definition.old_names == ()
    assert served.engine.view.lsn == lsn


def test_a_new_column_does_not_take_a_name_that_queries_use(served: Served) -> None:
    orders = filled(served.lake).alter(rename={"amount": "total"})
    with pytest.raises(Invalid, match=r"queries use it for column 'total' until .*; a contract without oldNames"):
        orders.alter(add={"amount": pa.string()})
    with pytest.raises(Invalid, match="queries use it"):
        orders.alter(rename={"note": "amount"})
    orders.alter(SetContract(document(policy="{rename: allow}"), "orders"))
    assert served.lake.table("shop.orders").definition.old_names == ()
    orders.alter(add={"amount": pa.string()})
    assert served.lake.sql("SELECT amount FROM shop.orders WHERE id = 1").to_pylist() == [{"amount": None}]
