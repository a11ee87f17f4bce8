"""A table that cannot be tiered keeps no other one; only `Fenced`, and a server that stays away, end the service."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError

import lakestore as ls
from lakestore.cli import tables
from lakestore.client.retry import has_deadline
from lakestore.errors import Stopped
from lakestore.model.freshness_price import ROUNDS_KEPT
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.operate.metrics import text as metrics_text
from lakestore_tiering import iceberg_java, service
from lakestore_tiering.compact import Fork
from lakestore_tiering.progress import SPARK
from lakestore_tiering.round import ROUNDS_AT_ONCE, Round
from lakestore_tiering.schedule import Pace
from lakestore_tiering.service import RETRY_SECONDS, RETRY_SECONDS_MAX, SERVER_SECONDS_MAX
from tests.support.served import Served
from tests.support.waiting import until

SCHEMA = pa.schema([("id", pa.int64())])
BAD, GOOD = "shop.bad", "shop.good"


class Rounds:
    """The steps of a round, put in the place of those that need Spark."""

    def __init__(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.served = served
        self.errors: dict[str, Callable[[], Exception]] = {}
        self.done: Counter[str] = Counter()
        self.now = 0.0
        self.spark_has_ended = False
        monkeypatch.setattr(service, "flush", self.flush)
        monkeypatch.setattr("lakestore_tiering.compact.fork", lambda *_, **__: None)
        monkeypatch.setattr("lakestore_tiering.round.Round.sweep_once", lambda *_: None)
        monkeypatch.setattr("lakestore_tiering.orphans.remove", lambda *_: 0)
        monkeypatch.setattr("lakestore_tiering.iceberg_java.has_ended", lambda _: self.spark_has_ended)
        lake: Any = SimpleNamespace(transport=served.lake.transport, address="here")
        spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="yarn"))
        self.tierer = service.Tierer(lake, spark, clock=lambda: self.now)
        self.tierer.acquire()
        for name in (BAD, GOOD):
            served.lake.create_table(name, SCHEMA, lake={"freshness": "1s"})

    def flush(self, _: object, name: str) -> None:
        """A round of one table."""
        self.done[name] += 1
        if name in self.errors:
            raise self.errors[name]()

    def run(self, seconds: float) -> None:
        """The service for so long."""
        end = self.now + seconds
        while self.now < end:
            self.pass_once(threading.Event())
            self.now += 1.0

    def pass_once(self, stop: threading.Event) -> None:
        """Begin the rounds that are due and wait for all of them."""
        self.tierer._begin_due(stop)
        wait(self.tierer._begun)
        self.tierer._settle_ended(stop)

    def status(self) -> dict[str, Any]:
        """The server's words on the bad table."""
        self.tierer._held.confirm()
        found = json.loads(self.served.lake.transport.status(pb.StatusRequest(tables=[BAD])).status)
        part: dict[str, Any] = found["tables"][0]
        return part


@pytest.fixture
def rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with Served(tmp_path) as served:
        made = Rounds(served, monkeypatch)
        yield made
        made.tierer.close()


@pytest.mark.parametrize("error", [ls.Corrupt("a file"), ls.PlanExpired("a lease"), RuntimeError("whatever")])
def test_one_bad_table_keeps_no_other(rounds: Rounds, error: Exception) -> None:
    rounds.errors[BAD] = lambda: error
    rounds.run(60.0)
    assert rounds.done[GOOD] == 60
    assert rounds.done[BAD] == 5, "at 0, 2, 6, 14 and 30 s"
    told = rounds.status()
    assert told["tier_failures"] == 5
    assert str(error) in told["tier_problem"]
    assert f'lakestore_table_tier_failures{{table="{BAD}"}} 5' in metrics_text(rounds.served.server.sources).decode()
    rounds.errors.clear()
    rounds.run(70.0)
    assert (rounds.status()["tier_problem"], rounds.status()["tier_failures"]) == ("", 0)
    assert rounds.done[BAD] > 20


def test_tries_become_rare_but_go_on(rounds: Rounds) -> None:
    rounds.errors[BAD] = lambda: ls.Unavailable("not now")
    rounds.run(4_000.0)
    assert 10 < rounds.done[BAD] < 12 + 4_000.0 / RETRY_SECONDS_MAX + RETRY_SECONDS


def test_once_does_the_others_and_says_both(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestore_tiering.orphans.expire", lambda *_: 0)
    rounds.errors[BAD] = lambda: ls.Corrupt("a file")
    with pytest.raises(ls.Corrupt, match="a file"):
        rounds.tierer.run_once(compaction=False)
    assert rounds.done[GOOD] == 1


@pytest.mark.parametrize("once", [True, False])
def test_rounds_of_several_tables_run_side_by_side(rounds: Rounds, monkeypatch: pytest.MonkeyPatch, once: bool) -> None:
    """Each round waits for the other one's."""
    monkeypatch.setattr("lakestore_tiering.orphans.expire", lambda *_: 0)
    both = threading.Barrier(2)

    def flush(*_: object) -> None:
        both.wait(120.0)

    monkeypatch.setattr(service, "flush", flush)
    if once:
        assert [outcome.table for outcome in rounds.tierer.run_once(compaction=False)] == [BAD, GOOD]
    else:
        rounds.run(1.0)
        assert not rounds.tierer._troubles.problems()


def test_tables_that_wait_for_spark_block_no_other(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    """More tables than places, and than rounds that begin at once, wait for Spark: the good one goes on meanwhile."""
    monkeypatch.setattr(service, "ROUNDS_BEGUN", ROUNDS_AT_ONCE)
    slow = [f"shop.slow{i}" for i in range(2 * ROUNDS_AT_ONCE + 2)]
    for name in slow:
        rounds.served.lake.create_table(name, SCHEMA, lake={"freshness": "1s"})
    begun: Counter[str] = Counter()

    def flush(tools: Round, name: str) -> None:
        begun[name] += 1
        if name in slow:
            with tools.sparks_turn():
                rounds.done[name] += 1
        else:
            rounds.done[name] += 1

    monkeypatch.setattr(service, "flush", flush)
    with rounds.tierer.tools.spark_turn:
        for number in range(1, 6):
            until(lambda: _begin(rounds) and all(begun[name] == 1 for name in slow), "the rounds of the slow tables")
            until(partial(_begin, rounds, number), "the good table's round")
            until(lambda: sum(not round_.done() for round_ in rounds.tierer._begun) == len(slow), "the good tables")
            assert rounds.done[GOOD] == number
            rounds.now += 1.0
        assert [rounds.done[name] for name in slow] == [0] * len(slow)
    wait(rounds.tierer._begun)
    rounds.tierer._settle_ended(threading.Event())
    assert [rounds.done[name] for name in slow] == [1] * len(slow)


def _begin(rounds: Rounds, number: int = 0) -> bool:
    """Let the service go on. True if the good table has had so many rounds."""
    rounds.tierer._settle_ended(threading.Event())
    rounds.tierer._begin_due(threading.Event())
    return rounds.done[GOOD] >= number


def test_a_table_pays_for_its_own_rewrite_only(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rewrite of the good table waits for the one of the bad table, which takes 100 s."""
    begun, go_on = threading.Event(), threading.Event()

    def rewrite(_: object, fork: Fork) -> None:
        if fork.branch == BAD:
            begun.set()
            go_on.wait(120.0)

    def fork(_: object, name: str, **__: object) -> Fork:
        scan: Any = SimpleNamespace(table=SimpleNamespace(uuid=name), lake_table=None)
        return Fork(scan, name, 1, (0,), "lease", 1, 0.0, whole=False)

    for name, value in (("fork", fork), ("rewrite", rewrite), ("land", lambda *_: None)):
        monkeypatch.setattr(f"lakestore_tiering.compact.{name}", value)
    for name in (BAD, GOOD):
        rounds.served.lake.table(name).alter(lake={"upkeep_percent": 50})
    bad, good = rounds.tierer._tables()
    for table in (bad, good):
        rounds.tierer._compact_beside(table)
    assert begun.wait(120.0)
    rounds.now += 100.0
    go_on.set()
    wait([running.rewritten for running in rounds.tierer._compacting.values()])
    rounds.now += 50.0
    for table in (bad, good):
        rounds.tierer._compact_beside(table)
    assert rounds.tierer._budgets.may_start(good)
    assert not rounds.tierer._budgets.may_start(bad), "it rests for 100 s from its end"
    rounds.now += 50.0
    assert rounds.tierer._budgets.may_start(bad)


def test_a_table_is_late_when_its_oldest_hot_change_is_older_than_promised() -> None:
    part = {"name": BAD, "freshness": "10s", "freshness_seconds": 10, "hot_since_us": 5_000_000}
    assert tables.late_line(part, 15_000_000) == ""
    assert tables.late_line({**part, "hot_since_us": 0}, 10**15) == "", "the lake has everything"
    assert tables.late_line(part, 39_000_000) == (
        f"Table {BAD} is late: the oldest change that the lake lacks is 34 s old, and its freshness is 10s"
    )


def test_a_round_begins_so_early_that_it_ends_within_the_freshness() -> None:
    pace = Pace()
    assert pace.until_next("u", 10.0) == 10.0
    pace.took_seconds("u", 2.0)
    pace.took_seconds("u", 1.0)
    assert pace.until_next("u", 10.0) == 8.0
    pace.took_seconds("u", 9.0)
    assert pace.until_next("u", 10.0) == 2.5, "an idle table is not asked about again and again"
    for _ in range(ROUNDS_KEPT):
        pace.took_seconds("u", 1.0)
    assert pace.until_next("u", 10.0) == 9.0, "a long round is forgotten"


@pytest.mark.parametrize("once", [True, False])
def test_a_long_round_is_told_with_its_progress(rounds: Rounds, monkeypatch: pytest.MonkeyPatch, once: bool) -> None:
    monkeypatch.setattr("lakestore_tiering.orphans.expire", lambda *_: 0)
    monkeypatch.setattr(service, "tasks_of", lambda *_: (3, 12))
    uuid, begun, may_end = rounds.served.lake.table(BAD).definition.uuid, threading.Event(), threading.Event()

    def flush(tools: Round, name: str) -> None:
        if name == BAD:
            tools.progress.step(uuid, SPARK, 3_000)
            begun.set()
            may_end.wait(120.0)

    def pass_on() -> None:
        if not once:
            rounds.tierer._settle_ended(threading.Event())

    monkeypatch.setattr(service, "flush", flush)
    running = threading.Thread(target=rounds.tierer.run_once, kwargs={"compaction": False})
    if once:
        running.start()
    else:
        rounds.tierer._begin_due(threading.Event())
    assert begun.wait(120.0)
    pass_on()
    rounds.now += 1.0
    pass_on()
    assert "round" not in rounds.status(), "a short round is not worth a call"
    rounds.now += 2.0
    pass_on()
    until(lambda: "round" in rounds.status(), "the report of the round")
    found = rounds.status()["round"]
    told = {"step": "writes rows by Spark", "changes": 3_000, "tasks": 12, "tasks_done": 3}
    assert {name: found[name] for name in told} == told
    assert found["seconds"] >= 3.0
    said = metrics_text(rounds.served.server.sources).decode()
    assert f'lakestore_table_round_tasks_done{{table="{BAD}"}} 3' in said
    assert f'lakestore_table_freshness_seconds{{table="{BAD}"}} 1' in said
    line = tables.running_line({"name": BAD, "round": {**found, "seconds": 72.0}})
    assert line == f"A round of {BAD} with 3,000 changes runs for 72 s: it writes rows by Spark (3 of 12 tasks)"
    may_end.set()
    wait(rounds.tierer._begun)
    rounds.now += 2.0
    pass_on()
    until(lambda: "round" not in rounds.status(), "the end of the round")
    if once:
        running.join()


@pytest.mark.parametrize("once", [True, False])
def test_rounds_have_the_callers_deadline(rounds: Rounds, monkeypatch: pytest.MonkeyPatch, once: bool) -> None:
    monkeypatch.setattr("lakestore_tiering.orphans.expire", lambda *_: 0)
    seen: list[bool] = []
    monkeypatch.setattr(service, "flush", lambda *_: seen.append(has_deadline()))
    with rounds.served.lake.within(60.0):
        if once:
            rounds.tierer.run_once(compaction=False)
        else:
            rounds.run(1.0)
    assert seen == [True, True]


def test_a_round_that_has_not_begun_ends_no_trouble(rounds: Rounds) -> None:
    rounds.errors[BAD] = lambda: ls.Corrupt("a file")
    rounds.run(1.0)
    stop = threading.Event()
    stop.set()
    rounds.now += RETRY_SECONDS_MAX
    rounds.pass_once(stop)
    assert [told.failures for told in rounds.tierer._troubles.problems()] == [1]
    assert rounds.done == {BAD: 1, GOOD: 1}


def test_a_round_that_waits_for_spark_begins_nothing_after_the_word_to_stop(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, begun, forked = threading.Event(), [], []

    def flush(tools: Round, name: str) -> None:
        stop.set()
        with tools.sparks_turn():
            begun.append(name)

    monkeypatch.setattr(service, "flush", flush)
    monkeypatch.setattr("lakestore_tiering.compact.fork", lambda *_: forked.append("fork"))
    rounds.tierer.run_forever(stop)
    assert not begun
    assert not rounds.tierer._troubles.problems()
    monkeypatch.setattr(service, "flush", lambda *_: None)
    rounds.tierer._round(rounds.tierer._tables()[0])
    assert not forked, "a compaction could take hours"
    monkeypatch.setattr("lakestore_tiering.orphans.expire", lambda *_: 0)
    monkeypatch.setattr(service, "flush", flush)
    rounds.tierer.run_once(compaction=False)
    assert begun == [BAD, GOOD], "a round that is asked for by name is done"


def test_a_compaction_that_waits_is_given_up_at_the_end(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, ended = threading.Event(), threading.Event()
    rewritten: list[str] = []
    dropped: list[str] = []

    def rewrite(_: object, fork: Fork) -> None:
        under_way.set()
        ended.wait(120.0)
        rewritten.append(fork.branch)

    def abandon(_: object, fork: Fork) -> None:
        dropped.append(fork.branch)

    at_once = rounds.tierer._background.shutdown

    def shutdown(*, wait: bool, cancel_futures: bool = False) -> None:
        at_once(wait=False, cancel_futures=cancel_futures)
        ended.set()
        at_once(wait=wait)

    scan: Any = SimpleNamespace(table=SimpleNamespace(uuid="u"), lake_table=None)
    monkeypatch.setattr(
        "lakestore_tiering.compact.fork", lambda _, name, **__: Fork(scan, name, 1, (0,), "lease", 1, 0.0, whole=False)
    )
    monkeypatch.setattr("lakestore_tiering.compact.rewrite", rewrite)
    monkeypatch.setattr("lakestore_tiering.compact.abandon", abandon)
    for table in rounds.tierer._tables():
        rounds.tierer._round(table)
    assert under_way.wait(120.0)
    monkeypatch.setattr(rounds.tierer._background, "shutdown", shutdown)
    rounds.tierer.close()
    assert rewritten == [BAD]
    assert dropped == [BAD, GOOD]


def test_a_dropped_table_is_no_trouble(rounds: Rounds) -> None:
    def dropped() -> Exception:
        rounds.served.lake.drop_table(BAD)
        return ls.NotFound("there is no table")

    rounds.errors[BAD] = dropped
    rounds.run(5.0)
    assert rounds.done == {BAD: 1, GOOD: 5}
    assert not rounds.tierer._troubles.problems()


def test_a_renamed_table_is_no_trouble(rounds: Rounds) -> None:
    """As at the end of a rescale: the copy has the table's name, and the round of the old name fails somehow."""

    def renamed() -> Exception:
        rounds.served.lake.table(BAD).rename("shop.new")
        return ls.Unavailable("Table UUID does not match", applied="unknown")

    rounds.errors[BAD] = renamed
    rounds.run(3.0)
    assert rounds.done == {BAD: 1, "shop.new": 2, GOOD: 3}
    assert not rounds.tierer._troubles.problems()


def test_the_compaction_of_a_dropped_table_gives_its_lease_back(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> Any:
        raise ls.NotFound("there is no table")

    released: list[str] = []
    monkeypatch.setattr("lakestore_tiering.round.Round.lake", gone)
    monkeypatch.setattr(rounds.tierer.tools.leases, "release", released.append)
    scan: Any = SimpleNamespace(table=SimpleNamespace(uuid="dropped"), lake_table=None)
    rewritten: Future[None] = Future()
    fork = Fork(scan, "branch", 1, (0,), "lease", 1, 0.0, whole=False)
    rounds.tierer._compacting["dropped"] = service._Rewrite(fork, rewritten)
    rounds.tierer.tools.forks["dropped"] = "branch"
    rounds.run(1.0)
    assert released == [], "it is still being rewritten"
    rewritten.set_result(None)
    rounds.run(1.0)
    assert released == ["lease"]
    assert not rounds.tierer._compacting
    assert not rounds.tierer.tools.forks


@pytest.mark.parametrize("error", [ls.Fenced("another one"), Stopped("the end")])
def test_the_service_ends_when_it_must(rounds: Rounds, error: Exception) -> None:
    rounds.errors[BAD] = lambda: error
    with pytest.raises(type(error)):
        rounds.tierer.run_forever(threading.Event())


def test_renewals_that_end_by_a_defect_end_the_service(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise TypeError("no such field")

    with monkeypatch.context() as patched:
        patched.setattr(rounds.tierer._held, "_request", broken)
        rounds.tierer._held.report([pb.TierProblem(table_uuid="bad")])  # a renewal at once
        until(lambda: rounds.tierer._held._defect is not None, "the defect")
    said = r"cannot renew its epoch any more \(TypeError: no such field\): start a new one"
    with pytest.raises(ls.Fenced, match=said):
        rounds.tierer.run_forever(threading.Event())
    with pytest.raises(ls.Fenced, match=said):
        rounds.tierer.tools.epoch()


@pytest.mark.parametrize("error", [ls.Unavailable("connection refused"), ls.NotAuthenticated("no such token")])
def test_a_server_that_stays_away_ends_the_service_by_name(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, error: ls.LakestoreError
) -> None:
    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            rounds.now += timeout or 0.0
            return False

    def away() -> Any:
        raise error

    monkeypatch.setattr(rounds.tierer, "_tables", away)
    with pytest.raises(type(error), match=rf"here has not answered the tierer for .* s: {error.message}"):
        rounds.tierer.run_forever(Stop())
    assert SERVER_SECONDS_MAX <= rounds.now < SERVER_SECONDS_MAX + 20.0


def test_a_spark_that_has_ended_ends_the_service_and_lets_the_next_tierer_in_at_once(rounds: Rounds) -> None:
    rounds.errors[BAD] = lambda: ConnectionRefusedError("the gateway of the JVM")
    rounds.run(5.0)
    rounds.spark_has_ended = True
    with pytest.raises(Stopped, match="Spark has ended"):
        rounds.run(RETRY_SECONDS_MAX)
    rounds.tierer.close()
    lake: Any = SimpleNamespace(transport=rounds.served.lake.transport, address="here")
    following = service.Tierer(lake, SimpleNamespace(sparkContext=SimpleNamespace(master="yarn")))  # type: ignore[arg-type]
    following.acquire(wait_seconds=0.0)
    following.close()


@pytest.mark.parametrize("said", [True, Py4JNetworkError("gone"), ConnectionRefusedError(111), None])
def test_a_session_has_ended_when_its_jvm_is_gone_or_its_context_stopped(said: object) -> None:
    def is_stopped() -> object:
        if isinstance(said, Exception):
            raise said
        return said

    java = None if said is None else SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=is_stopped))
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java))
    assert iceberg_java.has_ended(spark)
    iceberg_java.end(spark)


def test_a_session_that_lives_is_stopped_at_the_end() -> None:
    stopped: list[bool] = []
    java = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java), stop=lambda: stopped.append(True))
    assert not iceberg_java.has_ended(spark)
    iceberg_java.end(spark)
    assert stopped == [True]


def test_the_service_ends_when_another_server_leads(rounds: Rounds) -> None:
    """The catalog of its session is at the earlier leader, so the program makes a session and a tierer again."""
    transport: Any = rounds.served.lake.transport
    moved = [rounds.tierer.has_moved]

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if len(moved) > 1:
                self.set()
            transport.wire.address = "b:7340"
            moved.append(rounds.tierer.has_moved)
            return False

    rounds.tierer.run_forever(Stop())
    assert moved == [False, True], "no further round began"
