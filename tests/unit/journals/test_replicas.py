"""Reports of servers that share a journal: the log stays where one of them needs it."""

from __future__ import annotations

import pytest

from lakestore_server.journals.replicas import (
    FORERUNNER_SECONDS,
    KEEP_SECONDS,
    REPLICAS_MAX,
    REPORT_SECONDS,
    Replicas,
    report_of,
)
from lakestore_server.journals.shared_journal import SharedJournal
from lakestore_server.state.commit_record import BEGINNING, Replica
from lakestore_server.state.judge import HEADER, Content, Judge, Kind, Standing, messages
from tests.simulation.machine import Clock
from tests.simulation.threads import installed
from tests.simulation.world import World
from tests.support.shared_log import LogEnd, SharedLog
from tests.support.world.clock import HandClock


def report(address: str, needs: int, lsn: int = 0, process: str = "") -> bytes:
    return report_of(Replica(address, lsn, needs, 0.0, process=process or address))


def listen(replicas: Replicas, clock: HandClock, seconds: int) -> None:
    """Let time pass in which messages are read."""
    for _ in range(seconds):
        clock.advance(1)
        replicas.listen()


def test_the_slowest_server_that_was_heard_holds_the_log() -> None:
    clock = HandClock()
    replicas = Replicas(clock, 100.0)
    replicas.hear(report("a:1", 50))
    listen(replicas, clock, 90)
    replicas.hear(report("b:1", 70))
    assert replicas.needed(80, "c:1") == 50
    assert replicas.needed(80, "a:1") == 70, "its own report does not hold it"
    assert replicas.needed(60, "a:1") == 60
    listen(replicas, clock, 20)
    assert replicas.needed(80, "c:1") == 70, "a was not heard for the time that the log is kept"
    replicas.hear(report("a:1", 55))
    assert replicas.needed(80, "c:1") == 55


def test_time_without_any_message_drops_nobody() -> None:
    """Nobody is heard while the log is away, nor by a server that is paused."""
    clock = HandClock()
    replicas = Replicas(clock)
    replicas.hear(report("a:1", 50))
    clock.advance(2 * KEEP_SECONDS)
    assert replicas.needed(80, "b:1") == 50
    replicas.hear(report("b:1", 70))
    assert replicas.needed(80, "b:1") == 50
    listen(replicas, clock, int(KEEP_SECONDS))
    assert replicas.needed(80, "b:1") == 80


def test_two_processes_with_one_address_hold_the_log_both() -> None:
    clock = HandClock()
    replicas = Replicas(clock)
    for _ in range(100):
        replicas.hear(report("a:1", 50, process="one"))
        listen(replicas, clock, int(REPORT_SECONDS))
        replicas.hear(report("a:1", 70, lsn=9, process="other"))
    assert replicas.needed(80, "other") == 50, "also for the one of them that leads"
    assert replicas.needed(80, "one") == 70
    assert [(each.address, each.lsn) for each in replicas.present()] == [("a:1", 9)]


def test_a_process_that_was_started_again_holds_the_log_no_more_than_a_minute() -> None:
    clock = HandClock()
    replicas = Replicas(clock)
    replicas.hear(report("a:1", 50, process="former"))
    listen(replicas, clock, int(2 * FORERUNNER_SECONDS))
    assert replicas.needed(80, "b:1") == 50, "nobody else has its address"
    replicas.hear(report("a:1", 70, process="later"))
    assert replicas.needed(80, "b:1") == 70
    assert "former" not in str(replicas)


FORMS = [
    b"",
    b"{}",
    b"[1]",
    b'["a", "x", 3]',
    b'["a", 1, null]',
    b"\xff",
    b'["a", 1, 1e300]',
    b'["a", 1, 1.5]',
    b'["a", 1e400, 1]',
    b'["a", 1, true]',
    b'["a", 1, -1]',
    b'["a", -2, 1]',
    b'["a", 1, 9223372036854775808]',
    b'["a", 1, 36893488147419103232]',
    b'["a\\ud800", 1, 1]',
    b'["a\\n", 1, 1]',
    b'["' + b"a" * 301 + b'", 1, 1]',
    b'["a", 1, 1, 7]',
]
"""A report with a number that no log has would stop servers, or let Kafka remove every message (-1)."""


@pytest.mark.parametrize("text", FORMS)
def test_bytes_that_are_no_report_are_ignored(text: bytes) -> None:
    replicas = Replicas(HandClock())
    assert replicas.hear(text) is None
    assert replicas.present() == []
    again = Replicas(HandClock())
    again.restore(str(replicas))


def test_strangers_reports_take_a_bounded_place() -> None:
    clock = HandClock()
    replicas = Replicas(clock)
    for number in range(3 * REPLICAS_MAX):
        clock.advance(1)
        replicas.hear(report(f"host{number}:1", 0))
    assert len(replicas.present()) == REPLICAS_MAX


def test_what_is_known_is_restored() -> None:
    replicas, again = Replicas(HandClock()), Replicas(HandClock())
    replicas.hear(report("a:1", 50, lsn=7))
    again.restore(str(replicas))
    assert [(each.address, each.lsn, each.needs) for each in again.present()] == [("a:1", 7, 50)]


def test_a_report_never_counts() -> None:
    heard = list[bytes]()
    judge = Judge(reported=heard.append)
    (claim,), after = messages(Standing(), Content(Kind.CLAIM, meta=report("a:1", 0)), 5, 1_000)
    judge.take(0, claim)
    (said,), _ = messages(after, Content(Kind.REPORT, meta=b"[]"), 5, 1_000)
    assert judge.take(1, said) is None, "also of the writer that leads, with the next number"
    assert (judge.standing.number, judge.standing.position, judge.void) == (1, 2, 1)
    assert judge.reports == 1
    assert heard == [said[HEADER.size :]]


def led(world: World) -> tuple[SharedLog, SharedJournal, SharedJournal]:
    """A log with one record, a follower that has read nothing of it, and its leader."""
    log = SharedLog(world, "replicas")
    follower, leader = (SharedJournal(LogEnd(log), Clock(world), 0.5) for _ in range(2))
    assert list(follower.read(0)) == []
    follower.beat("follower:1")
    world.sleep(0.1)
    assert list(leader.read(0)) == []
    assert list(leader.lead("leader:1")) == []
    leader.append(1, [b"one"])
    leader.settle(0)
    return log, follower, leader


def test_a_leader_trims_no_message_that_a_stopped_server_needs() -> None:
    """Also a leader that learned of it in an earlier life, by a part of the log that is gone."""
    world = World("replicas")

    def story() -> None:
        log, follower, leader = led(world)
        place = leader.roll(2)
        leader.trim(place)
        assert log.first == 0, "the follower stopped before it read anything"
        leader.close()
        again = SharedJournal(LogEnd(log), Clock(world), 0.5)
        assert list(again.read(1, place)) == []
        assert list(again.lead("leader:1")) == []
        place = again.roll(2)
        again.trim(place)
        assert log.first == 0
        reads = list(follower.follow(0.1))
        while len(reads) < 1:
            reads += follower.follow(0.1)
        follower.trim(follower.roll(2))
        follower.beat("follower:1")
        for _ in range(int(FORERUNNER_SECONDS) + 1):  # the leader's own earlier life holds the log so long
            world.sleep(1.0)
            again.beat("leader:1")
        again.append(2, [b"two"])
        again.settle(1)
        again.trim(again.roll(3))
        assert log.first > 0, "the follower has a checkpoint"
        for journal in (follower, again):
            journal.close()

    with installed(world):
        world.run(story)


def test_a_leader_that_was_paused_for_hours_trims_no_message_that_others_need() -> None:
    """It has not heard them meanwhile, but they are there."""
    world = World("pause")

    def story() -> None:
        log, follower, leader = led(world)
        world.sleep(2 * KEEP_SECONDS)
        place = leader.roll(2)
        leader.trim(place)
        assert log.first == 0
        for journal in (follower, leader):
            journal.close()

    with installed(world):
        world.run(story)


def test_a_leader_keeps_what_a_server_with_its_own_address_needs(caplog: pytest.LogCaptureFixture) -> None:
    """Two machines that both say 127.0.0.1, or the name of a load balancer."""
    world = World("double")

    def story() -> None:
        log = SharedLog(world, "double")
        follower, leader = (SharedJournal(LogEnd(log), Clock(world), 0.5) for _ in range(2))
        assert list(follower.read(0)) == []
        assert list(leader.read(0)) == []
        assert list(leader.lead("same:1")) == []
        assert not caplog.records
        follower.beat("same:1")
        world.sleep(0.1)
        leader.append(1, [b"one"])
        leader.settle(0)
        leader.trim(leader.roll(2))
        assert log.first == 0
        for journal in (follower, leader):
            journal.close()

    with installed(world):
        world.run(story)
    assert [each.getMessage().split(":")[0] for each in caplog.records] == [
        "another server says that it is reached at same"
    ]


def test_reports_of_others_are_no_sign_of_the_leader() -> None:
    """Else a leader that is gone would lead for ever, if the lease is longer than the time between two reports."""
    world = World("silence")

    def story() -> None:
        log = SharedLog(world, "silence")
        leader, follower, other = (SharedJournal(LogEnd(log), Clock(world), 60.0) for _ in range(3))
        for journal in (leader, follower, other):
            assert list(journal.read(0)) == []
        assert list(leader.lead("leader:1")) == []
        while not follower.leader.address:
            assert list(follower.follow(0.1)) == []
        leader.close()
        heard = follower.leader.heard
        for _ in range(5):
            world.sleep(11.0)
            other.beat("other:1")
            world.sleep(0.1)
            assert list(follower.follow(0.1)) == []
        assert [each.address for each in follower.replicas] == ["leader:1", "other:1"]
        assert follower.leader.heard == heard
        for journal in (follower, other):
            journal.close()

    with installed(world):
        world.run(story)


def test_a_place_of_a_first_checkpoint_knows_nobody() -> None:
    world = World("place")

    def story() -> None:
        journal = SharedJournal(LogEnd(SharedLog(world, "place")), Clock(world), 0.5)
        assert list(journal.read(0, BEGINNING)) == []
        assert journal.replicas == []
        journal.close()

    with installed(world):
        world.run(story)
