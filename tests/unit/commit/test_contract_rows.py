"""Rules of a contract at the commit: refused, dead letters in the same commit, counted; retries and waits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.writer import change_to
from lakestore.errors import Conflict, Invalid, NotFound, RuleRows, Violated
from lakestore.evolution import SetContract
from lakestore.kafka.bridge.dead_letters import count_by_code
from lakestore.model.contract.contract import Contract
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit import request as requests
from lakestore_server.commit.contract_rows import rules_of
from tests.support.contract_texts import column, document, no_rows
from tests.support.served import Served

ORDERS, DLQ = "shop.orders", "shop.orders__dlq"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("who", pa.string(), nullable=False),
        ("amount", pa.decimal128(12, 2)),
        ("status", pa.string()),
    ]
)
COLUMNS = (
    column("id", primaryKey=True, required=True),
    column("who", required=True),
    column("amount", logicalTypeOptions={"minimum": 0}),
    column("status", "count", enum=[{"value": "new"}, {"value": "paid"}]),
)
DEAD = document(COLUMNS, "dead_letter")
REFUSE = document(COLUMNS, "refuse")


def orders(lake: ls.Lake, text: str = DEAD, **options: Any) -> ls.Table:
    table = lake.create_table(ORDERS, SCHEMA, **{"primary_key": ["id"], "buckets": 3, **options})
    return table.alter(SetContract(text, "orders", "test"))


def rows(table: ls.Table, name: str = "id") -> list[Any]:
    return sorted(row[name] for row in table.scan().to_arrow().to_pylist())


def letters(lake: ls.Lake) -> list[dict[str, Any]]:
    found = lake.table(DLQ).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["kafka_source"], row["kafka_offset"]))


def order(id_: int | None, who: str | None = "ann", amount: Any = 1, status: str | None = "new") -> dict[str, Any]:
    return {"id": id_, "who": who, "amount": None if amount is None else Decimal(amount), "status": status}


def sent(table: ls.Table, data: Sequence[dict[str, Any]], kind: pb.ChangeKind.ValueType = pb.UPSERT) -> pb.Change:
    return change_to(table.definition, kind, [pa.RecordBatch.from_pylist(list(data), table.definition.nullable_schema)])


MIXED = [
    order(1),
    order(None),
    order(3, None),
    order(4, "bob", -1, "odd"),
    order(5, "bob", None, None),
    order(6, status="odd"),
]


def test_bad_rows_are_dead_letters_of_the_same_commit(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = orders(served.lake)
        before = served.engine.view.lsn
        token = table.upsert(MIXED)
        assert served.engine.view.lsn == before + 1
        assert (token.result.inserted, token.result.dead_letters) == (3, 3)
        assert rows(table) == [1, 5, 6]
        found = letters(served.lake)
        assert [(row["kafka_offset"], row["code"], row["path"], row["stage"], row["partition"]) for row in found] == [
            (1, "id.required", "id", "contract", 0),
            (2, "who.required", "who", "contract", 0),
            (3, "amount.minimum", "amount", "contract", 0),
        ]
        assert {row["kafka_source"].split("/")[0] for row in found} == {"commit"}
        assert json.loads(found[2]["value"]) == {"id": 4, "who": "bob", "amount": "-1.00", "status": "odd"}
        assert found[2]["value_bytes"] == len(found[2]["value"])
        assert "minimum 0 of column 'amount'" in found[2]["sentence"]
        served.checkpoint()
        served.restart()
        assert (rows(served.lake.table(ORDERS)), len(letters(served.lake))) == ([1, 5, 6], 3)


def test_a_refused_row_refuses_the_whole_commit_and_names_column_row_and_rule(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = orders(served.lake, REFUSE)
        with pytest.raises(Violated) as refused:
            table.upsert(MIXED)
        error = refused.value
        assert isinstance(error, Invalid)
        assert error.message.startswith(
            "table shop.orders: row 1 breaks the rule 'id.required' (required of column 'id') of the contract: id is"
            " null, one of 3 rows that break rules"
        )
        assert [(each.rule, each.rows, each.change) for each in error.changes] == [
            ("id.required", (1,), 0),
            ("who.required", (2,), 0),
            ("amount.minimum", (3,), 0),
        ]
        changes = [sent(table, [order(1)]), sent(table, [order(2), order(3, amount=-1)])]
        with pytest.raises(Violated) as refused:
            served.server.service.verbs["Commit"](pb.CommitRequest(changes=changes))
        assert refused.value.changes == (
            RuleRows(1, ORDERS, (1,), "amount.minimum", refused.value.changes[0].sentence),
        )
        assert rows(table) == []
        with pytest.raises(ls.NotFound):
            served.lake.table(DLQ)


def test_numbers_of_rows_are_as_sent_whatever_their_buckets(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = orders(served.lake, buckets=7)
        table.upsert([order(number, amount=-1 if number % 9 == 4 else 1) for number in range(200)])
        found = [row["kafka_offset"] for row in letters(served.lake)]
        assert found == [number for number in range(200) if number % 9 == 4]
        assert all(json.loads(row["value"])["id"] == row["kafka_offset"] for row in letters(served.lake))


def test_a_retry_makes_no_second_letter_and_gets_the_first_answer(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = orders(served.lake)
        verbs = served.server.service.verbs
        epoch = verbs["OpenProducer"](pb.OpenProducerRequest(producer="p/ü")).epoch
        request = pb.CommitRequest(producer="p/ü", epoch=epoch, sequence=1, changes=[sent(table, MIXED)])
        first = verbs["Commit"](request)
        table.alter(SetContract(document(COLUMNS, "refuse"), "orders", "stricter"))
        served.checkpoint()
        served.restart()
        again = served.server.service.verbs["Commit"](request)
        assert again.token == first.token
        assert again.results[0].dead_letters == 3
        assert [row["kafka_source"] for row in letters(served.lake)] == [f"commit/p/ü/{epoch}/1/0"] * 3
        assert rows(served.lake.table(ORDERS)) == [1, 5, 6]


def test_a_request_that_waited_is_checked_by_the_new_contract(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = served.lake.create_table(ORDERS, SCHEMA, primary_key=["id"], buckets=3)

        def waiting(data: Sequence[dict[str, Any]]) -> requests.Request:
            versions = served.engine.view.named(ORDERS).versions
            changes = (requests.change_of(versions, sent(table, data), "", served.engine.limits),)
            return requests.Request(changes, producer="p", epoch=1, sequence=1)

        free = waiting([order(number, amount=-(number % 2)) for number in range(8)])
        table.alter(SetContract(DEAD, "orders", "first"))
        ready = requests.renewed(free, served.engine.view)
        assert [each.is_letters for each in ready.changes] == [False, True]
        assert sorted(ready.changes[0].batch.column("id").to_pylist()) == [0, 2, 4, 6]
        assert ready.changes[0].outcome.dead_letters == 4
        stricter = document((*COLUMNS[:2], column("amount", logicalTypeOptions={"minimum": 5})), "dead_letter")
        held = waiting([order(number, amount=number) for number in range(-2, 8)])
        tables = requests.RuleTables(lambda _: served.engine.view.named(DLQ).table, lambda: table.definition)
        held.changes = requests.with_letters(held.changes, held.source, "", tables, None)
        table.alter(SetContract(stricter, "orders", "more"))
        ready = requests.renewed(held, served.engine.view)
        assert sorted(ready.changes[0].batch.column("id").to_pylist()) == [5, 6, 7]
        numbers = [n for change in ready.changes[1:] for n in change.batch.column("kafka_offset").to_pylist()]
        assert sorted(numbers) == list(range(7)), "each letter has the number of its row, and none has that of another"
        low = waiting([order(1, amount=5)])
        table.alter(SetContract(document(COLUMNS, "refuse", [no_rows("amount < 6")]), "orders", "refuse"))
        with pytest.raises(Violated):
            requests.renewed(low, served.engine.view)


def test_a_contract_that_never_became_durable_leaves_no_rules_behind(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = served.lake.create_table(ORDERS, SCHEMA, primary_key=["id"]).alter(SetContract(REFUSE, "orders"))
        lost = document([column("who", logicalTypeOptions={"pattern": "^z"})])
        made = replace(table.definition, contract=Contract(lost, "orders").bind(table.definition))
        assert rules_of(made).rules != rules_of(table.definition).rules
        rules_of(made)
        assert table.upsert([order(1)]).result.inserted == 1


def test_a_letter_finds_its_table_and_another_kind_of_table_refuses_the_contract(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = orders(served.lake)
        served.lake.drop_table(DLQ)
        table.upsert([order(1), order(None)])
        assert len(letters(served.lake)) == 1
        served.lake.create_table("shop.other__dlq", SCHEMA)
        other = served.lake.create_table("shop.other", SCHEMA, primary_key=["id"])
        with pytest.raises(Invalid, match="another kind of table"):
            other.alter(SetContract(DEAD, "orders"))
        other.alter(SetContract(REFUSE, "orders"))


def test_letters_move_with_a_table_that_is_renamed(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = orders(served.lake)
        table.upsert([order(1), order(None)])
        served.lake.create_table("sales.taken__dlq", SCHEMA)
        with pytest.raises(Conflict, match=r"shop\.orders__dlq has the dead letters of shop\.orders and moves with it"):
            table.rename("sales.taken")
        assert {ORDERS, DLQ} <= {each.name for each in served.lake.tables()}
        table = table.rename("new.orders")
        table.upsert([order(None)])
        assert [each.letters for each in count_by_code(served.lake, "new.orders")] == [2]
        with pytest.raises(NotFound, match="has no dead letters"):
            count_by_code(served.lake, ORDERS)
        other = orders(served.lake)
        assert letters(served.lake) == []
        other.upsert([order(None)])
        assert (len(letters(served.lake)), served.lake.table("new.orders__dlq").scan().count()) == (1, 2)
    with Served(tmp_path) as served:
        assert served.lake.table("new.orders__dlq").scan().count() == 2


def test_letters_follow_an_undrop_under_another_name(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        lake = served.lake
        orders(lake).upsert([order(1), order(None)])
        lake.drop_table(ORDERS)
        lake.create_table("shop.taken__dlq", SCHEMA)
        with pytest.raises(Conflict, match=r"shop\.orders__dlq has the dead letters of shop\.orders and moves with it"):
            lake.undrop(ORDERS, as_name="shop.taken")
        lake.undrop(ORDERS, as_name="new.orders").upsert([order(None)])
        assert DLQ not in {each.name for each in lake.tables()}
        assert lake.table("new.orders__dlq").scan().count() == 2
        lake.drop_table("new.orders")
        lake.create_table("new.orders", SCHEMA, primary_key=["id"])
        lake.undrop("new.orders", as_name="shop.before")
        assert "shop.before__dlq" not in {each.name for each in lake.tables()}, "letters of the new table"
        assert lake.table("new.orders__dlq").scan().count() == 2


def test_a_table_that_only_has_the_name_of_letters_stays_at_a_rename(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = served.lake.create_table(ORDERS, SCHEMA, primary_key=["id"])
        served.lake.create_table(DLQ, SCHEMA)
        table.rename("shop.moved")
        assert {each.name for each in served.lake.tables()} == {"shop.moved", DLQ}


def test_a_contract_with_a_rule_that_no_write_can_check_is_refused_whole(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = served.lake.create_table(ORDERS, SCHEMA, primary_key=["id"])
        for columns, said in (
            ([column("who", logicalTypeOptions={"minimum": 1})], "cannot be checked at a write"),
            ([column("who", "count", required=True)], "only counts nulls, and column 'who' of the table is required"),
        ):
            with pytest.raises(Invalid, match=said):
                table.alter(SetContract(document(columns), "orders"))
        assert served.lake.table(ORDERS).definition.contract is None
        named = document([column("who", logicalTypeOptions={"pattern": "^a"})])
        table = table.alter(SetContract(named, "orders")).alter(ls.evolution.RenameColumn("who", "whom"))
        with pytest.raises(Violated, match="whom = 'bob'"):
            table.upsert([{"id": 1, "whom": "bob"}])


def test_a_column_that_only_a_condition_names_keeps_its_name(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        undescribed = document([column("id", primaryKey=True)], "refuse", [no_rows("status = 'odd'")])
        table = orders(served.lake, undescribed)
        rename, add = ls.evolution.RenameColumn("status", "state"), ls.evolution.AddColumn("status", pa.string())
        for steps in ([rename], [ls.evolution.DropColumn("status")], [rename, add]):
            with pytest.raises(Invalid, match="names column 'status', which the contract does not describe"):
                table.alter(*steps)
        table.alter(ls.evolution.RenameColumn("amount", "price")).upsert([{"id": 1, "who": "ann", "status": "new"}])
        described = document([column("id", primaryKey=True), column("status")], "refuse", [no_rows("status = 'odd'")])
        table = table.alter(SetContract(described, "orders")).alter(rename, add)
        with pytest.raises(Violated, match="state = 'odd'"):
            table.upsert([{"id": 2, "who": "ann", "state": "odd", "status": "new"}])
        table.upsert([{"id": 2, "who": "ann", "state": "new", "status": "odd"}])


def test_a_dead_letter_repeats_no_value(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        columns = (column("id", primaryKey=True), column("who", unique=True), COLUMNS[2])
        table = orders(served.lake, document(columns, "dead_letter"))
        table.upsert([order(1, "ann"), order(1, "bob", -1), order(2, "ann"), order(3, "eve", -1), order(4, "eve")])
        assert rows(table) == [1, 4]
        assert [(row["kafka_offset"], row["code"]) for row in letters(served.lake)] == [
            (1, "amount.minimum"),
            (2, "who.unique"),
            (3, "amount.minimum"),
        ]


def test_log_tables_have_rules_and_repeated_values_are_those_of_a_batch(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        columns = (column("id", unique=True), column("who", required=True))
        table = orders(served.lake, document(columns, "dead_letter"), primary_key=[])
        token = table.append([order(1), order(2, None), order(1, "bob")])
        assert (token.result.inserted, token.result.dead_letters) == (1, 2)
        assert [row["code"] for row in letters(served.lake)] == ["who.required", "id.unique"]
        assert json.loads(letters(served.lake)[0]["value"])["who"] is None
        table.append([order(1)])
        assert rows(table) == [1, 1], "an earlier batch is not looked at"


def test_writes_of_many_threads_are_counted_each_by_itself(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = orders(served.lake, document((column("who", required=True),), "dead_letter"), primary_key=[])

        def write(number: int) -> tuple[int, int]:
            result = table.append([order(number), *[order(number, None)] * (number % 3)]).result
            return result.inserted, result.dead_letters

        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(write, range(200))) == [(1, number % 3) for number in range(200)]


def test_columns_that_a_partial_row_does_not_bring_are_not_null(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        schema = pa.schema([field.with_nullable(field.name != "id") for field in SCHEMA])
        text = document((column("id", primaryKey=True), column("who", required=True), *COLUMNS[2:]), "dead_letter")
        table = served.lake.create_table(ORDERS, schema, primary_key=["id"], merge="partial")
        table = table.alter(SetContract(text, "orders"))
        table.upsert([order(1)])
        token = table.upsert(
            [{"id": 1, "amount": Decimal(2)}, {"id": 1, "who": None}, {"id": 2, "amount": Decimal(-2)}]
        )
        assert token.result.dead_letters == 2
        assert table.lookup([{"id": 1}]).to_pylist() == [order(1, amount=2)]
        assert [json.loads(row["value"]) for row in letters(served.lake)] == [
            {"id": 1, "who": None},
            {"id": 2, "amount": "-2.00"},
        ] or {row["code"] for row in letters(served.lake)} == {"who.required", "amount.minimum"}


def test_kept_columns_are_not_checked_and_their_letters_say_so(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = orders(served.lake)
        table.upsert([order(1), order(2)])
        keep = {"who": [True, False], "status": [True, True]}
        token = table.upsert([order(1, None, -1, None), order(2, None, 5, None)], keep=keep)
        assert token.result.dead_letters == 2
        found = letters(served.lake)
        assert [row["code"] for row in found] == ["amount.minimum", "who.required"]
        told = [[(h["name"], h["value"]) for h in row["headers"]] for row in found]
        assert told[0] == [
            ("lakestore-change", b"upsert"),
            ("lakestore-keep", b"who"),
            ("lakestore-keep", b"status"),
        ]
        token = table.upsert([order(1, None, 7, None)], keep=["who", "status"])
        assert table.lookup([{"id": 1}]).to_pylist() == [order(1, amount=7)]


def test_an_insert_with_its_rows_and_a_sender_with_its_own_letters_are_refused(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = orders(served.lake)
        commit = served.server.service.verbs["Commit"]
        for change in (
            sent(table, [order(1), order(2, amount=-1)], pb.INSERT),
            sent(table, [order(1), order(2, amount=-1)]),
        ):
            change.want_rows, change.refuse_dead_letters = change.kind == pb.INSERT, change.kind == pb.UPSERT
            with pytest.raises(Violated) as refused:
                commit(pb.CommitRequest(changes=[change]))
            assert refused.value.changes[0].rows == (1,)
        assert rows(table) == []


def test_deletes_obey_no_rules_but_their_key(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = orders(served.lake)
        table.upsert([order(1)])
        assert table.delete([{"id": 1}]).result.deleted == 1
        with pytest.raises(Invalid, match="'id' is null in row 0"):
            table.delete([{"id": None}])


def test_rows_that_broke_rules_are_counted_by_rule_and_what_became_of_them(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = orders(served.lake)
        table.upsert(MIXED)
        table.upsert([order(7, status="odd")])
        table = table.alter(SetContract(REFUSE, "orders"))
        with pytest.raises(Violated):
            table.upsert(MIXED)
        [status] = [each for each in served.lake.status()["tables"] if each["name"] == ORDERS]
        assert {(each["rule"], each["action"]): each["rows"] for each in status["contract"]["violations"]} == {
            ("amount.minimum", "dead_letter"): 1,
            ("amount.minimum", "refuse"): 1,
            ("id.required", "dead_letter"): 1,
            ("id.required", "refuse"): 1,
            ("status.enum", "count"): 2,
            ("who.required", "dead_letter"): 1,
            ("who.required", "refuse"): 1,
        }


def test_parts_of_a_large_commit_obey_too(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = orders(served.lake)
        verbs = served.server.service.verbs
        upload, commit = verbs["UploadPart"], verbs["Commit"]
        change = sent(table, MIXED)
        part = upload(pb.UploadPartRequest(change=change)).part
        assert letters(served.lake) == [], "nobody sees an uploaded row"
        named = pb.Change(table=ORDERS, kind=pb.UPSERT, part=part, crc32c=change.crc32c, refuse_dead_letters=True)
        with pytest.raises(Violated):
            commit(pb.CommitRequest(changes=[named]))
        named.refuse_dead_letters = False
        answer = commit(pb.CommitRequest(changes=[named]))
        assert (answer.results[0].inserted, answer.results[0].dead_letters) == (3, 3)
        table.alter(SetContract(REFUSE, "orders"))
        with pytest.raises(Violated):
            upload(pb.UploadPartRequest(change=sent(served.lake.table(ORDERS), MIXED)))
