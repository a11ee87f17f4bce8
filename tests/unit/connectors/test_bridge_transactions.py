"""Source transactions put together from topics: whole, in order, bounded, and never past what is held."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from lakestore.kafka.bridge.decode.debezium.debezium import DebeziumJson
from lakestore.kafka.bridge.outcome import DecodedBlock
from lakestore.kafka.bridge.transaction_blocks import (
    Place,
    Run,
    TransactionEnd,
    Transactions,
    Unit,
    register_decoded_marks,
    register_marks,
    runs,
    topics_of,
)
from tests.support.debezium_events import block, event, with_schema

MARKS = ("shop.transaction", 0)
A, B = ("shop.public.a", 0), ("shop.public.b", 0)
TOPICS = (A[0], B[0])


def assembler(**bounds: int) -> Transactions:
    """One that knows the two topics."""
    return Transactions(lambda table: topics_of(table, TOPICS), **bounds)


def run(offsets: Iterable[int], transaction: str = "", *, unread: bool = False) -> Run:
    """A run whose events are numbered by their offsets."""
    return Run(np.array(list(offsets), np.int64), transaction, unread=unread)


def plain(units: Iterable[Unit]) -> list[dict[Place, list[int]]]:
    """The offsets of units, without the topic of ends."""
    found = [{place: at.tolist() for place, at in unit.offsets.items() if place != MARKS} for unit in units]
    return [offsets for offsets in found if offsets]


def test_a_transaction_waits_for_its_end_and_for_all_of_its_events() -> None:
    whole = assembler()
    whole.begun(MARKS, 0, "1")
    whole.events(A, [run([5, 6], "1")])
    assert plain(whole.ready()) == []
    assert whole.floor(A) == 5
    assert whole.floor(MARKS) == 0
    whole.ended(MARKS, 1, TransactionEnd("1", {"public.a": 2, "public.b": 1, "public.elsewhere": 9}))
    assert plain(whole.ready()) == []
    whole.events(B, [run([3], "1"), run([4])])
    (unit,) = whole.ready()
    assert plain([unit]) == [{A: [5, 6], B: [3, 4]}]
    assert unit.transactions == ("1",)
    assert unit.offsets[MARKS].tolist() == [0, 1]
    assert whole.floor(A) is None
    assert whole.held == 0


def test_units_come_by_their_ends_and_mixed_ones_are_one() -> None:
    whole = assembler()
    whole.events(A, [run([0], "1"), run([1], "2"), run([2], "1"), run([3], "3")])
    for offset, (name, count) in enumerate([("1", 2), ("2", 1), ("3", 1)]):
        whole.begun(MARKS, 2 * offset, name)
        whole.ended(MARKS, 2 * offset + 1, TransactionEnd(name, {"public.a": count}))
    units = whole.ready()
    assert plain(units) == [{A: [0, 1, 2]}, {A: [3]}]
    assert set(units[0].transactions) == {"1", "2"}


def test_records_without_a_transaction_go_at_once_or_with_what_is_before_them() -> None:
    whole = assembler()
    whole.events(A, [run([0, 1])])
    assert plain(whole.ready()) == [{A: [0, 1]}]
    whole.events(A, [run([2], "1"), run([3])])
    assert plain(whole.ready()) == []
    whole.begun(MARKS, 0, "1")
    whole.ended(MARKS, 1, TransactionEnd("1", {"public.a": 1}))
    assert plain(whole.ready()) == [{A: [2, 3]}]


def test_a_copy_counts_once_and_a_late_one_is_let_through() -> None:
    whole = assembler()
    orders = np.array([1])
    whole.begun(MARKS, 0, "1")
    whole.events(A, [Run(np.array([0]), "1", orders), Run(np.array([1]), "1", orders)])
    whole.ended(MARKS, 1, TransactionEnd("1", {"public.a": 2}))
    assert plain(whole.ready()) == []
    whole.events(A, [Run(np.array([2]), "1", np.array([2]))])
    assert plain(whole.ready()) == [{A: [0, 1, 2]}]
    whole.events(A, [Run(np.array([3]), "1", orders)])
    whole.ended(MARKS, 2, TransactionEnd("1", {"public.a": 2}))
    assert plain(whole.ready()) == [{A: [3]}]


def test_an_unread_record_stands_for_an_event_of_its_table() -> None:
    whole = assembler()
    whole.begun(MARKS, 0, "1")
    whole.events(A, [run([0], "1"), run([1], unread=True)])
    assert plain(whole.ready()) == []
    whole.ended(MARKS, 1, TransactionEnd("1", {"public.a": 2}))
    assert plain(whole.ready()) == [{A: [0]}, {A: [1]}]
    whole.begun(MARKS, 2, "2")
    whole.begun(MARKS, 3, "3")
    whole.events(A, [run([2], "2"), run([3], "3"), run([4], unread=True)])
    whole.ended(MARKS, 4, TransactionEnd("2", {"public.a": 2}))
    assert plain(whole.ready()) == []


def test_a_transaction_without_begin_and_end_is_given_in_parts() -> None:
    whole = assembler()
    whole.events(A, [run([0, 1], "old"), run([2], "1")])
    whole.begun(MARKS, 7, "1")
    assert plain(whole.ready()) == []
    whole.ended(MARKS, 8, TransactionEnd("1", {"public.a": 1}))
    parts, rest = whole.ready()
    assert plain([parts, rest]) == [{A: [0, 1]}, {A: [2]}]
    assert "old" in parts.parts
    assert not rest.parts


def test_a_transaction_past_the_bounds_is_given_in_parts_with_a_reason() -> None:
    whole = assembler(rows_max=10)
    whole.begun(MARKS, 0, "1")
    whole.events(A, [run(range(8), "1")])
    assert plain(whole.ready()) == []
    whole.events(A, [run(range(8, 16), "1"), run([16], "2")])
    (unit,) = whole.ready()
    assert plain([unit]) == [{A: list(range(16))}]
    assert "transaction 1 " in unit.parts
    assert whole.floor(A) == 16
    whole.events(B, [run([0], "1")])
    assert plain(whole.ready()) == [{B: [0]}]


def test_a_stuck_transaction_says_what_it_waits_for() -> None:
    whole = assembler(rows_max=3)
    whole.begun(MARKS, 0, "1")
    whole.events(A, [run([0], "1")])
    whole.ended(MARKS, 1, TransactionEnd("1", {"public.a": 1, "public.b": 5}))
    whole.events(A, [run([1, 2], "2")])
    assert "5 of public.b" in "".join(unit.parts for unit in whole.ready())


def test_topics_are_found_by_debeziums_names() -> None:
    topics = ["shop.public.a", "shop.sales.dbo.a", "shop.b.a", "a"]
    assert topics_of("public.a", topics) == ["shop.public.a"]
    assert topics_of("sales.dbo.a", topics) == ["shop.sales.dbo.a"]
    assert topics_of("other.public.a", topics) == ["shop.public.a"]
    assert topics_of("public.c", topics) == []


Logs = dict[Place, list[tuple[str, str]]]
B1 = ("shop.public.b", 1)


def history(dice: random.Random) -> tuple[Logs, dict[str, dict[str, int]]]:
    """A source's transactions in commit order, as three partitions and the topic of ends have them."""
    logs: Logs = {A: [], B: [], B1: [], MARKS: []}
    counts: dict[str, dict[str, int]] = {}
    for name in map(str, range(12)):
        logs[MARKS].append(("begin", name))
        counts[name] = {"public.a": 0, "public.b": 0}
        for _ in range(dice.randrange(1, 6)):
            place = dice.choice([A, B, B1])
            logs[place].append(("event", name))
            counts[name][place[0].removeprefix("shop.")] += 1
            if dice.random() < 0.2:
                logs[place].append(("event", ""))
        logs[MARKS].append(("end", name))
    return logs, counts


def told(whole: Transactions, place: Place, offset: int, record: tuple[str, str], counts: dict[str, int]) -> None:
    """One record for the assembler."""
    kind, name = record
    if kind == "begin":
        whole.begun(place, offset, name)
    elif kind == "end":
        whole.ended(place, offset, TransactionEnd(name, counts))
    else:
        whole.events(place, [run([offset], name)])


@pytest.mark.parametrize("seed", range(25))
def test_any_pace_and_any_crash_give_every_record_once_and_transactions_whole(seed: int) -> None:
    dice = random.Random(seed)
    logs, counts = history(dice)
    done = dict.fromkeys(logs, 0)
    whole, at = assembler(), dict.fromkeys(logs, 0)
    for _ in range(2_000):
        if dice.random() < 0.02:
            whole, at = assembler(), dict(done)
        place = dice.choice(list(logs))
        end = min(at[place] + dice.randrange(1, 4), len(logs[place]))
        for offset in range(at[place], end):
            record = logs[place][offset]
            told(whole, place, offset, record, counts.get(record[1], {}))
        at[place] = end
        for unit in whole.ready():
            assert not unit.parts
            for where, offsets in unit.offsets.items():
                assert offsets.tolist() == list(range(done[where], done[where] + len(offsets)))
                done[where] += len(offsets)
            for name in unit.transactions:
                assert {where for where, log in logs.items() if ("event", name) in log} <= set(unit.offsets)
        assert all(whole.floor(where) in (None, done[where]) for where in logs)
        if all(done[where] == len(log) for where, log in logs.items()):
            return
    raise AssertionError("some records were never given")


def test_blocks_of_events_and_of_ends_make_units() -> None:
    whole = assembler()
    ends = [
        ("1", b"\0\0\0\0\7" + b'{"status": "BEGIN", "id": "1", "event_count": null, "data_collections": null}'),
        ("1", with_schema({"type": "struct"}, {"status": "END", "id": "1", "event_count": 3, "data_collections": [
            {"data_collection": "public.orders", "event_count": 3},
        ]})),
        ("2", {"what": 1}),
        ("3", b"broken"),
    ]  # fmt: skip
    assert register_marks(whole, replace(block(ends), topic=MARKS[0])) == [2, 3]
    orders = [{"id": "1", "total_order": at, "data_collection_order": at} for at in range(1, 4)]
    pairs = [
        ({"id": 1}, event("c", None, {"id": 1}, transaction=orders[0])),
        ({"id": 1}, event("d", {"id": 1}, transaction=orders[1])),
        ({"id": 1}, None),
        ({"id": 1}, b"broken"),
        ({"id": 2}, event("r", None, {"id": 2})),
    ]
    records = block(pairs)
    whole = Transactions(lambda table: topics_of(table, [records.topic]))
    register_marks(whole, replace(block(ends), topic=MARKS[0]))
    for place, made in runs(records, DebeziumJson().decode(records, None)).items():
        whole.events(place, made)
    assert {place: at for unit in plain(whole.ready()) for place, at in unit.items()}[records.topic, 0] == [3, 4]
    assert whole.held == 0


def test_ends_that_a_decoder_has_read_are_told() -> None:
    part = {"data_collection": "public.a", "event_count": 2}
    values = [
        {"status": "BEGIN", "id": "1", "data_collections": None},
        {"status": "END", "id": "1", "data_collections": [part]},
    ]
    whole, records = assembler(), replace(block([("1", {}), ("1", b"broken"), ("1", {})]), topic=MARKS[0])
    register_decoded_marks(whole, records, DecodedBlock(pa.array(values), np.array([0, 2])))
    assert list(whole.open) == ["1"]
    whole.events(A, [run([5, 6], "1")])
    (unit,) = whole.ready()
    assert unit.offsets[MARKS].tolist() == [0, 1, 2]
    assert not whole.open


@pytest.mark.parametrize(
    ("name", "is_one"), [("755:{}", True), ("3e11fa47-71ca-11e1-9e33-c80aa9429562:{}", False)], ids=["postgres", "gtid"]
)
def test_ids_of_postgres_have_another_lsn_in_each_event(name: str, *, is_one: bool) -> None:
    """As Debezium 3.6 writes them; other sources' ids with a colon stay as they are."""
    end = [{"data_collection": "public.orders", "event_count": 2}]
    marks = [
        (None, {"status": "BEGIN", "id": name.format(100)}),
        (None, {"status": "END", "id": name.format(109), "event_count": 2, "data_collections": end}),
    ]
    orders = [{"id": name.format(100 + at), "total_order": at, "data_collection_order": at} for at in (1, 2)]
    records = block([({"id": 1}, event("c", None, {"id": 1}, transaction=order)) for order in orders])
    whole = Transactions(lambda table: topics_of(table, [records.topic]))
    register_marks(whole, replace(block(marks), topic=MARKS[0]))
    for place, made in runs(records, DebeziumJson().decode(records, None)).items():
        whole.events(place, made)
    assert [unit.transactions for unit in whole.ready() if (records.topic, 0) in unit.offsets] == [("755",)] * is_one


def test_a_table_is_found_in_the_topic_whose_name_has_underscores_for_it() -> None:
    assert topics_of("app.MiXed Case", ["shop.app.MiXed_Case", "shop.app.other"]) == ["shop.app.MiXed_Case"]
