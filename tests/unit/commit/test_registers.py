"""Registers: a commit moves all of its registers or is refused whole, and is known again when it comes again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.client.registers import Registers
from lakestore.client.writer import change
from lakestore.errors import Conflict, Exhausted, Fenced, Invalid, LakestoreError, LimitReached, NotFound, OtherTimeline
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.operate import metrics
from lakestore_server.operate.inspect.checkpoint import describe
from tests.support.one_try import one_try
from tests.support.served import SCHEMA, Served
from tests.support.switch import World, ends


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as served:
        served.lake.create_table("a.log", SCHEMA, buckets=1)
        served.lake.create_table("a.keyed", SCHEMA, primary_key=["v"])
        yield served


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


class Raw:
    """Registers as the protocol has them."""

    def __init__(self, served: Served, *names: str) -> None:
        self._served = served
        answer = served.lake.transport.open_registers(pb.OpenRegistersRequest(registers=names))
        self.epoch, self.timeline = answer.epoch, answer.timeline
        self.at = {name: (held.value, held.moved) for name, held in zip(names, answer.registers, strict=True)}

    def request(self, moves: dict[str, str], *values: int, epoch: int = 0) -> pb.CommitRequest:
        changes = [change("a.log", pb.APPEND, [rows(*values)])] if values else []
        moved = [
            pb.RegisterMove(register=name, epoch=epoch or self.epoch, before=before, after=moves[name], moved=lsn)
            for name, (before, lsn) in self.at.items()
            if name in moves
        ]
        return pb.CommitRequest(changes=changes, registers=moved, timeline=self.timeline)

    def send(self, request: pb.CommitRequest) -> pb.CommitAnswer:
        return self._served.lake.transport.commit(request)


def test_several_tables_and_registers_are_one_commit(served: Served) -> None:
    with served.lake.registers(["k/0", "k/1"]) as registers:
        assert dict(registers.progress) == {"k/0": "", "k/1": ""}
        before = served.engine.view.lsn
        with registers.commit({"k/0": "10"}) as commit:
            commit.append("a.log", pa.table({"v": [1, 2]}))
            commit.upsert("a.keyed", pa.table({"v": [1]}))
            commit.delete("a.keyed", pa.table({"v": [7]}))
        assert served.engine.view.lsn == before + 1
        assert dict(registers.progress) == {"k/0": "10", "k/1": ""}
        assert [(each.inserted, each.not_found) for each in commit.results] == [(2, 0), (1, 0), (0, 1)]
        assert served.lake.last_token == commit.token
        assert not commit.repeated
        with registers.commit({"k/0": "12", "k/1": "3"}) as empty:
            pass  # progress past a gap
        assert (empty.results, dict(registers.progress)) == ([], {"k/0": "12", "k/1": "3"})
    with pytest.raises(Invalid, match="are closed"), registers.commit({"k/0": "13"}):
        pass
    assert dict(served.lake.registers(["k/1", "k/2"]).progress) == {"k/1": "3", "k/2": ""}


def test_who_opens_a_register_fences_the_one_before_and_nothing_of_the_refused_commit_is_stored(served: Served) -> None:
    first, second = served.lake.registers(["k/0", "k/1"]), served.lake.registers(["k/1"])
    with (
        pytest.raises(Fenced, match=r"'k/1' was opened again with epoch"),
        first.commit({"k/0": "1", "k/1": "1"}) as commit,
    ):
        commit.append("a.log", pa.table({"v": [1]}))
    with pytest.raises(Invalid, match="open them again"), first.commit({"k/0": "1"}):
        pass
    with second.commit({"k/1": "5"}) as commit:
        commit.append("a.log", pa.table({"v": [2]}))
    assert served.values("a.log") == [2]
    assert {held.name: held.value for held in served.lake.list_registers()} == {"k/0": "", "k/1": "5"}


def test_registers_that_are_released_or_opened_later_share_commits(served: Served) -> None:
    first = served.lake.registers(["k/0", "k/1"])
    first.release(["k/1"])
    second = served.lake.registers("k/1")
    second.open(["k/2", "k/3"])
    with second.commit({"k/1": "1", "k/2": "2"}), first.commit({"k/0": "4"}):
        pass
    assert (dict(first.progress), dict(second.progress)) == ({"k/0": "4"}, {"k/1": "1", "k/2": "2", "k/3": ""})
    with pytest.raises(Invalid, match="'k/1' is not open here"), first.commit({"k/1": "2"}):
        pass
    with first.commit({"k/0": "5"}):
        pass


@pytest.mark.parametrize("between", ["nothing", "restart", "checkpoint", "altered", "dropped"])
def test_a_commit_that_comes_again_is_answered_and_not_applied(served: Served, between: str) -> None:
    raw = Raw(served, "k/0", "k/1", "k/2")
    request = raw.request({"k/0": "1", "k/1": "2", "k/2": ""}, 7)
    first = raw.send(request)
    if between == "restart":
        served.kill()
        served.start()
    elif between == "checkpoint":
        served.checkpoint()
        served.restart()
    elif between == "altered":
        served.lake.table("a.log").alter(rename={"v": "w"})
    elif between == "dropped":
        served.lake.drop_table("a.log")
    again = raw.send(request)
    assert (again.token, again.is_repeated, list(again.results)) == (first.token, True, [])
    assert not first.is_repeated
    if between != "dropped":
        assert served.lake.table("a.log").scan().count() == 1
        return
    with pytest.raises(NotFound):
        raw.send(Raw(served, "k/9").request({"k/9": "1"}, 8))


def test_a_set_that_matches_in_part_is_refused_whole(served: Served) -> None:
    raw = Raw(served, "k/0", "k/1")
    done = raw.request({"k/0": "1"}, 1)
    raw.send(done)
    for moves in ({"k/0": "1", "k/1": "1"}, {"k/0": "2"}, {"k/0": "2", "k/1": "1"}):
        with pytest.raises(Conflict, match=r"register 'k/0' is at '1', and the commit expects it at ''"):
            raw.send(raw.request(moves, 2))
    with pytest.raises(Fenced, match=r"epoch \d+ of register 'k/1' was not granted"):
        raw.send(raw.request({"k/1": "1"}, 2, epoch=raw.epoch + 1))
    served.lake.drop_registers(["k/1", "nobody's"])
    with pytest.raises(Fenced, match="'k/1' is not there"):
        raw.send(raw.request({"k/1": "1"}, 2))
    assert served.values("a.log") == [1]


def test_two_commits_that_ended_where_a_third_would_are_not_that_one(served: Served) -> None:
    """Each register stands where the third commit ends, but by commits of their own."""
    raw = Raw(served, "k/0", "k/1")
    raw.send(raw.request({"k/0": "1"}, 1))
    raw.send(raw.request({"k/1": "1"}, 2))
    with pytest.raises(Conflict):
        raw.send(raw.request({"k/0": "1", "k/1": "1"}, 3))


def test_another_commit_from_the_same_place_to_the_same_place_is_not_the_one_of_before(served: Served) -> None:
    """Two writers under one epoch, or one that lost count: neither is told that the other one's rows are its own."""
    raw = Raw(served, "k/0", "k/1")
    raw.send(raw.request({"k/0": "1", "k/1": "1"}, 1))
    for other in (raw.request({"k/0": "1", "k/1": "1"}, 2), raw.request({"k/0": "1"}, 1), raw.request({"k/1": "1"})):
        with pytest.raises(Conflict):
            raw.send(other)
    assert served.values("a.log") == [1]


def test_registers_are_counted_and_stand_in_a_backup(served: Served, tmp_path: Path) -> None:
    with served.lake.registers(["k/0", "k/1"]) as registers, registers.commit({"k/0": "é"}):
        pass
    served.checkpoint()
    (path,) = (served.engine.folder / name for name in served.disk.list(served.engine.folder) if "checkpoint-" in name)
    assert describe(path).about["registers"] == 2
    status = json.loads(served.lake.transport.status(pb.StatusRequest()).status)
    assert status["registers"] == 2
    assert b"lakestore_registers 2.0" in metrics.text(served.server.sources)
    with World(tmp_path / "world") as world:
        world.served.lake.registers(["k/9"])
        backup = world.backup()
        world.served.lake.drop_registers(["k/9"])
        world.restore(backup)
        (held,) = world.served.lake.list_registers()
        assert held.name == "k/9"
        epoch = Raw(world.served, "k/9").epoch
        assert epoch > held.epoch + 1, "an epoch that the lost history may have given to another process"


def test_a_value_that_comes_back_is_another_position(served: Served) -> None:
    """A first try that was held up on its way arrives when its register stands where it began."""
    raw = Raw(served, "k/0")
    late = raw.request({"k/0": "5"}, 1)
    with served.lake.registers(["k/1"]):
        lsn = raw.send(late)
    raw.at["k/0"] = ("5", served.engine.view.lsn)
    raw.send(raw.request({"k/0": ""}))
    with pytest.raises(Conflict, match=r"register 'k/0' is at '' again, by commit \d+ and not 0"):
        raw.send(late)
    assert lsn.token
    assert served.values("a.log") == [1]


def test_a_register_outlives_two_months_of_rest_and_a_drop_begins_it_anew_with_a_higher_epoch(served: Served) -> None:
    with served.lake.registers(["k/0"]) as registers, registers.commit({"k/0": "9"}):
        pass
    served.clock.advance(62 * 86_400)
    served.run()
    (held,) = served.lake.list_registers("k/")
    assert (held.value, held.owner) == ("9", "")
    assert served.lake.drop_registers(["k/0", "k/1"]) == 1
    assert served.lake.drop_registers("k/0") == 0
    assert served.lake.drop_registers([]) == 0
    assert dict(served.lake.registers(["k/0"]).progress) == {"k/0": ""}
    assert served.lake.list_registers()[0].epoch > held.epoch


def test_malformed_requests_are_refused_by_a_sentence(served: Served) -> None:
    raw = Raw(served, "k/0", "k/1")
    twice, static, named, timeless = (raw.request({"k/0": "1"}, 1) for _ in range(4))
    twice.registers.append(twice.registers[0])
    static.registers[0].after = ""
    named.producer = "p"
    timeless.timeline = ""
    elsewhere = raw.request({"k/0": "1"}, 1)
    elsewhere.timeline = "another"
    cases: list[tuple[pb.CommitRequest, type[LakestoreError], str]] = [
        (twice, Invalid, "'k/0' is named twice"),
        (static, Invalid, "'k/0' and all others of the commit stay"),
        (named, Invalid, "and not both"),
        (timeless, Invalid, "names the timeline"),
        (elsewhere, OtherTimeline, "another timeline"),
        (pb.CommitRequest(), Invalid, "1 to 1000 changes"),
    ]
    for request, kind, says in cases:
        with pytest.raises(kind, match=says):
            raw.send(request)
    for names in ([""], ["k", "k"], []):
        with pytest.raises(Invalid, match="register"):
            served.lake.transport.open_registers(pb.OpenRegistersRequest(registers=names))
    assert served.values("a.log") == []


def test_limits_of_registers(tmp_path: Path) -> None:
    with Served(tmp_path / "a", limits=Limits(registers=3, register_name_chars=4, register_bytes=2)) as served:
        registers = served.lake.registers(["k/0", "k/1"])
        registers.open(["k/1", "k/2"])
        for names, says in ((["k/3"], "more than 3 registers"), (["k/1", "k/9"], "more than 3 registers")):
            with pytest.raises(LimitReached, match=says):
                one_try(served.lake).open_registers(pb.OpenRegistersRequest(registers=names))
        with pytest.raises(Invalid, match="1 to 4 characters, and 'k/100' has 5"):
            served.lake.registers(["k/100"])
        with pytest.raises(Invalid, match="more than 3"):
            served.lake.registers(list("abcd"))
        with pytest.raises(Invalid, match="longer than 2 bytes"), registers.commit({"k/0": "é1"}):
            pass
        with registers.commit({"k/0": "é"}):
            pass
        served.lake.drop_registers(["k/0"])
        assert dict(served.lake.registers(["k/3"]).progress) == {"k/3": ""}


def test_registers_whose_values_no_message_could_hold_are_not_opened_and_fence_nobody(tmp_path: Path) -> None:
    limits = Limits(message_bytes=1 << 20, register_bytes=64 << 10)
    with Served(tmp_path / "a", limits=limits) as served:
        names = [f"k/{number}" for number in range(20)]
        registers = served.lake.registers(names)
        for some in (names[:10], names[10:]):
            with registers.commit(dict.fromkeys(some, "x" * (60 << 10))):
                pass
        with pytest.raises(Invalid, match=r"these 20 registers take 1,\d+,\d+ bytes.* open fewer in one call"):
            served.lake.registers(names)
        with registers.commit(dict.fromkeys(names, "")):
            pass
        assert dict(served.lake.registers(names).progress) == dict.fromkeys(names, "")


def test_moves_are_counted_against_the_memory_of_decoding(tmp_path: Path) -> None:
    with Served(tmp_path / "a", limits=Limits(in_flight_bytes=1 << 20, queue_wait_ms=0)) as served:
        raw = Raw(served, "k/0")
        raw.at["k/0"] = ("x" * (300 << 10), 0)
        with served.verbs("Write")._decoding.taken(1 << 19):
            with pytest.raises(Exhausted, match="decodes as many rows as its memory allows"):
                one_try(served.lake).commit(raw.request({"k/0": "1"}))
            raw.at["k/0"] = ("", 0)
            raw.send(raw.request({"k/0": "1"}))


def test_a_list_goes_on_over_several_answers(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestore_server.commit.register_verbs.LIST_BYTES", 20)
    served.lake.registers(["b/1", "b/3", "a/1", "b/2", "c/1"])
    assert [held.name for held in served.lake.list_registers("b/")] == ["b/1", "b/2", "b/3"]
    assert len(served.lake.list_registers()) == 5


# The client.


def lost_once(world: World, lake: Any, happens: Any = lambda: None) -> None:
    lake.transport.wire.lost["Commit"] = happens


def test_a_lost_answer_is_asked_for_again_and_the_commit_happens_once(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.served.lake.create_table("a.log", SCHEMA, buckets=1)
        lake = world.client()
        registers: Registers = lake.registers(["k/0"])
        for number, happens in enumerate((lambda: None, world.restart), 1):
            lost_once(world, lake, happens)
            with registers.commit({"k/0": str(number)}) as commit:
                commit.append("a.log", pa.table({"v": [number]}))
            assert (commit.repeated, commit.results) == (True, [])
            assert registers.progress["k/0"] == str(number)
        assert world.served.values("a.log") == [1, 2]


def test_an_outcome_that_stays_unknown_ends_the_registers_and_opening_them_tells_it(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.served.lake.create_table("a.log", SCHEMA, buckets=1)
        lake = world.client()
        registers = lake.registers(["k/0"])
        lost_once(world, lake, lambda: world.served.lake.registers(["k/0"]))
        with pytest.raises(Fenced) as told, registers.commit({"k/0": "1"}) as commit:
            commit.append("a.log", pa.table({"v": [1]}))
        assert told.value.applied == "unknown"
        with pytest.raises(Invalid, match="whose outcome is unknown"):
            registers.open(["k/1"])
        assert dict(lake.registers(["k/0"]).progress) == {"k/0": "1"}


def test_registers_end_with_their_history(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.served.lake.create_table("a.log", SCHEMA, buckets=1)
        lake = world.client()
        registers, other = lake.registers(["k/0"]), lake.registers(["k/1"])
        with registers.commit({"k/0": "1"}):
            pass
        backup = world.backup()
        with registers.commit({"k/0": "2"}):
            pass
        world.restore(backup)
        for error in (ends(lambda: other.open(["k/2"])), ends(lambda: _moved(registers, "3"))):
            assert isinstance(error, OtherTimeline)
            assert error.applied == "no"
        for ended in (registers, other):
            with pytest.raises(Invalid, match="a restore has ended"):
                _moved(ended, "4")
        assert dict(lake.registers(["k/0"]).progress) == {"k/0": "1"}


def _moved(registers: Registers, value: str) -> None:
    with registers.commit({"k/0": value}):
        pass


def test_one_commit_after_the_other_and_an_error_discards_one(served: Served) -> None:
    registers = served.lake.registers(["k/0"])
    with registers.commit({"k/0": "1"}) as commit:
        commit.append("a.log", pa.table({"v": [1]}))
        with pytest.raises(Invalid, match="is under way"), registers.commit({"k/0": "2"}):
            pass
        with pytest.raises(Invalid, match="is under way"):
            registers.open(["k/0", "k/1"])
        registers.open(["k/2"])
    with suppress(ZeroDivisionError), registers.commit({"k/0": "2"}) as commit:
        commit.append("a.log", pa.table({"v": [2]}))
        raise ZeroDivisionError
    cases: list[tuple[Any, str]] = [(3, "is text, not int"), (None, "not NoneType"), ("\ud800", "surrogate")]
    for value, says in cases:
        with pytest.raises(Invalid, match=says), registers.commit({"k/0": value}):
            pass
        with pytest.raises(Invalid, match=says):
            registers.open([value])
    with pytest.raises(Invalid, match="no register of the commit moves"), registers.commit({"k/0": "1"}):
        pass
    with pytest.raises(NotFound), registers.commit({"k/0": "2"}) as commit:
        commit.append("a.nothing", pa.table({"v": [2]}))
    _moved(registers, "2")
    assert served.values("a.log") == [1]
