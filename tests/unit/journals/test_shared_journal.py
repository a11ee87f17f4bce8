"""One server's journal on a shared log, step by step: what it returns, what it refuses, and what it sends."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest

from lakestore.errors import Corrupt, Invalid
from lakestore_server.journals.shared_journal import ANSWER_SECONDS, SharedJournal
from lakestore_server.state.commit_record import BEGINNING, Deposed, Entry, Place, Unknown
from lakestore_server.state.judge import NOBODY, Content, ForeignLog, Kind, Standing, messages
from tests.simulation.machine import Clock
from tests.simulation.threads import installed
from tests.simulation.world import World
from tests.support.journal_servers import applied_of, record_of, truth
from tests.support.shared_log import Fate, Faults, LogEnd, SharedLog

LEASE_SECONDS = 1.0
PART_BYTES = 200
LOST = Fate(is_stored=False, answer=None)
Story = Callable[[World, SharedLog], None]


@pytest.fixture
def tell() -> Callable[[Story], SharedLog]:
    """Runs a story as the one task of a world, on a log without faults."""

    def told(story: Story) -> SharedLog:
        world = World("story", preempt=0.0)
        log = SharedLog(world, "story")
        with installed(world):
            world.run(lambda: story(world, log))
        return log

    return told


def following(log: SharedLog, place: Place = BEGINNING, lsn: int = 0) -> tuple[SharedJournal, list[Entry]]:
    """A journal that has read everything, and what it read."""
    journal = SharedJournal(LogEnd(log, PART_BYTES), Clock(log.world), LEASE_SECONDS)
    return journal, list(journal.read(lsn, place))


def leading(log: SharedLog, place: Place = BEGINNING, lsn: int = 0) -> tuple[SharedJournal, list[Entry]]:
    journal, entries = following(log, place, lsn)
    return journal, [*entries, *journal.lead("here:7340")]


def caught_up(journal: SharedJournal) -> list[Entry]:
    """Everything that comes until nothing came for a while."""
    entries = list(journal.follow(0.1))
    more = entries
    while more:
        more = list(journal.follow(0.1))
        entries += more
    return [*entries, *journal.follow(0.1)]


def settle(journal: SharedJournal, lsn: int) -> None:
    """Wait until a record stands."""
    stands = 0
    while stands < lsn:
        stands = journal.settle(stands)


def has_left(journal: SharedJournal) -> bool:
    return journal.leader.has_left


def lsns(entries: Sequence[Entry]) -> list[int]:
    return [entry.lsn for entry in entries]


def claim_by_another(log: SharedLog, writer: int = 5) -> Standing:
    """Store the claim of a server that has read everything; the standing after it."""
    counted = truth(log)
    standing = counted[-1].after if counted else Standing()
    (claim,), after = messages(standing, Content(Kind.CLAIM, meta=b'["there:7340",0,0]'), writer, PART_BYTES)
    log.store(claim)
    return after


def test_records_come_back_in_order_however_long(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        journal, read = leading(log)
        assert read == []
        for lsn, size in enumerate((1, 3 * PART_BYTES + 5, 0), 1):
            journal.append(lsn, [b"meta", b"x" * size, memoryview(b"yy")])
        settle(journal, 3)
        _, read = following(log)
        assert [applied_of(entry)[1] for entry in read] == [b"metax" + b"yy", b"meta" + b"x" * 605 + b"yy", b"metayy"]
        assert [bytes(entry.record[0]) for entry in read] == [b"meta"] * 3  # type: ignore[arg-type]
        _, rest = following(log, read[1].place, 2)
        assert rest == read[2:]

    tell(story)


def test_a_claim_that_another_thread_judges_confirms_nothing(
    tell: Callable[[Story], SharedLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    def story(world: World, log: SharedLog) -> None:
        journal, _ = leading(log)
        journal.confirm()
        claim_by_another(log)
        began = journal._deadline

        def judged(seconds: float) -> object:
            """The settling thread judges the claim, which has the number of the beat, before `confirm` looks."""
            monkeypatch.setattr(journal, "_deadline", began)
            with pytest.raises(Deposed):
                journal.settle(0)
            return began(seconds)

        monkeypatch.setattr(journal, "_deadline", judged)
        with pytest.raises(Deposed):
            journal.confirm()

    tell(story)


def by_lease(log: SharedLog, seconds: float = LEASE_SECONDS, place: Place = BEGINNING, lsn: int = 0) -> SharedJournal:
    """A journal that has read everything and relies on its lease while it leads."""
    journal = SharedJournal(LogEnd(log, PART_BYTES), Clock(log.world), seconds, reads_by_lease=True)
    assert not list(journal.read(lsn, place))
    return journal


def test_a_leader_relies_on_its_lease_from_when_it_sent_and_then_asks(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        journal = by_lease(log)
        log.stall(0.4)
        list(journal.lead("here:7340"))
        assert world.now >= 1_000.4
        assert journal._is_sure()
        end = log.end
        world.sleep(1_000.89 - world.now)
        journal.confirm()
        assert log.end == end, "no beat"
        world.sleep(0.02)
        assert not journal._is_sure()
        journal.confirm()
        assert log.end == end + 1
        assert journal._is_sure()
        journal.leave()
        assert not journal._is_sure()

    tell(story)


def test_a_leader_gives_its_lease_up_before_others_can_read_that_it_leaves(
    tell: Callable[[Story], SharedLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    def story(world: World, log: SharedLog) -> None:
        for ends in (SharedJournal.leave, lambda journal: journal.end("mark")):
            journal, sure = by_lease(log), list[bool]()
            list(journal.lead("here:7340"))
            send = journal._log.send

            def sent(message: bytes, stored: Callable[[int], None]) -> bool:
                sure.append(journal._is_sure())  # noqa: B023
                return send(message, stored)  # noqa: B023

            monkeypatch.setattr(journal._log, "send", sent)
            assert journal._is_sure()
            ends(journal)
            assert sure == [False]

    tell(story)


def test_a_server_waits_for_the_longest_lease_on_which_another_one_relies(
    tell: Callable[[Story], SharedLog],
) -> None:
    def story(world: World, log: SharedLog) -> None:
        leader = by_lease(log, 7.0)
        list(leader.lead("there:7340"))
        place = leader.roll(1)
        follower = by_lease(log, 2.0)
        assert (leader.silence_seconds, follower.silence_seconds) == (7.0, 7.0)
        follower, _ = following(log)
        assert follower.silence_seconds == 7.0, "also a server whose reads rely on no lease"
        leader.trim(place)
        begins_late = by_lease(log, 2.0, place)
        assert begins_late.silence_seconds == 7.0, "the place says it"

    tell(story)


def test_a_leader_does_not_rely_on_its_lease_beside_an_earlier_release(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        journal = by_lease(log)
        (report,), _ = messages(Standing(), Content(Kind.REPORT, meta=b'["old:7340",0,0,"old:7341"]'), NOBODY, 100)
        log.store(report)
        list(journal.lead("here:7340"))
        assert not journal._is_sure()
        journal.confirm()
        assert not journal._is_sure()
        (report,), _ = messages(Standing(), Content(Kind.REPORT, meta=b'["old:7340",0,0,"","","",0.0]'), NOBODY, 100)
        log.store(report)
        journal.confirm()
        assert journal._is_sure()

    tell(story)


def test_a_deposed_server_gets_what_counted_before_and_then_the_error(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        journal, _ = leading(log)
        journal.append(1, [b"one"])
        world.sleep(0.1)
        claim_by_another(log)
        journal.append(2, [b"two"])
        world.sleep(0.1)
        assert journal.settle(0) == 1
        for _ in range(2):
            with pytest.raises(Deposed, match="epoch 2"):
                journal.settle(1)
            with pytest.raises(Deposed):
                journal.durable()
            with pytest.raises(Deposed):
                journal.beat()
        assert log.end == 4
        journal.append(3, [b"three"])
        world.sleep(0.1)
        assert log.end == 4, "a server that leads no more sends nothing"
        journal.follow_again()
        assert caught_up(journal) == []
        assert (journal.leader.address, journal.leader.epoch) == ("there:7340", 2)
        assert (journal.gaps, journal.void) == (1, 1)

    tell(story)


def test_the_error_is_told_after_what_was_judged_by_a_beat(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        journal, _ = leading(log)
        journal.append(1, [b"one"])
        world.sleep(0.1)
        claim_by_another(log)
        journal.append(2, [b"two"])
        world.sleep(0.1)
        with pytest.raises(Deposed):
            journal.beat()
        assert journal.durable() == 1, "no error before `settle` has returned the record"
        assert journal.settle(0) == 1
        with pytest.raises(Deposed):
            journal.durable()

    tell(story)


def test_a_record_that_counts_and_was_not_returned_is_read_after_a_leadership(
    tell: Callable[[Story], SharedLog],
) -> None:
    def story(world: World, log: SharedLog) -> None:
        journal, _ = leading(log)
        for lsn in (1, 2):
            journal.append(lsn, [b"x"])
        settle(journal, 2)
        journal.append(3, [b"y"])
        for _ in range(3):  # the second beat is sent, the third one judges it
            world.sleep(LEASE_SECONDS / 2)
            journal.beat()
        assert [each.kind for each in truth(log)][-1] is Kind.BEAT
        claim_by_another(log)
        journal.append(4, [b"z"])
        world.sleep(0.1)
        with pytest.raises(Deposed):
            journal.beat()
        journal.follow_again()
        place = journal.roll(3)
        assert lsns(following(log, place, 2)[1]) == [3]
        assert lsns(caught_up(journal)) == [3]
        assert lsns(following(log, journal.roll(4), 3)[1]) == []

    tell(story)


def test_messages_stored_before_an_unknown_outcome_are_judged(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        journal, _ = leading(log)
        log.fates += [Fate(), LOST, Fate()]
        for lsn in (1, 2, 3):
            journal.append(lsn, [b"x"])
        world.sleep(0.5)
        assert journal.settle(0) == 1
        with pytest.raises(Unknown):
            journal.settle(1)
        journal.follow_again()
        assert caught_up(journal) == []
        assert list(journal.lead("here:7340")) == []
        journal.append(2, [b"again"])
        assert journal.settle(1) == 2

    assert [record_of(each) for each in truth(tell(story)) if each.lsn] == [(1, b"x"), (2, b"again")]


def test_a_late_message_counts_if_nobody_has_claimed(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        journal, _ = leading(log)
        log.fates += [Fate(delay=1.0, answer=None)]
        journal.append(1, [b"late"])
        with pytest.raises(Unknown):
            journal.settle(0)
        journal.follow_again()
        assert caught_up(journal) == []
        world.sleep(1.0)
        assert lsns(caught_up(journal)) == [1]
        first = truth(log)[0].after.writer
        assert list(journal.lead("here:7340")) == []
        assert truth(log)[-1].after.writer not in (first, NOBODY)

    tell(story)


def test_parts_that_were_read_before_a_leadership_failed_stay_read(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        leader, _ = leading(log)
        follower, _ = following(log)
        caught_up(follower)
        log.fates += [Fate(), Fate(delay=2.0)]
        leader.append(1, [b"x" * (PART_BYTES + 1)])
        world.sleep(0.2)
        caught_up(follower)
        log.fates += [LOST]
        with pytest.raises(Unknown):
            list(follower.lead("there:7340"))
        follower.follow_again()
        world.sleep(2.0)
        assert lsns(caught_up(follower)) == [1]

    tell(story)


def test_lead_returns_what_stood_before_the_claim(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        leader, _ = leading(log)
        follower, _ = following(log)
        leader.append(1, [b"x"])
        leader.settle(0)
        with pytest.raises(Deposed, match="epoch 1"):
            list(follower.lead("there:7340"))
        follower.follow_again()
        leader.append(2, [b"y"])
        assert leader.settle(1) == 2
        caught_up(follower)
        log.fates += [Fate(is_somewhere=True, strangers=1)]
        assert list(follower.lead("there:7340")) == []
        follower.append(3, [b"z"])
        assert follower.settle(2) == 3

    tell(story)


def test_a_claim_that_lost_the_race_returns_the_records_before_it(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        follower, _ = following(log)
        leader, _ = leading(log)
        leader.append(1, [b"x"])
        leader.settle(0)
        entries: list[Entry] = []
        with pytest.raises(Deposed):
            entries.extend(follower.lead("there:7340"))
        follower.follow_again()
        assert lsns([*entries, *caught_up(follower)]) == [1]

    tell(story)


def test_roll_claims_again_and_trim_keeps_the_last_claim(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        leader, _ = leading(log)
        follower, _ = following(log)
        for lsn in (1, 2):
            leader.append(lsn, [b"x"])
        settle(leader, 2)
        world.sleep(LEASE_SECONDS)
        leader.beat()
        place = leader.roll(3)
        assert [each.kind for each in truth(log)][-2:] == [Kind.BEAT, Kind.CLAIM]
        claimed_at = log.end - 1
        leader.append(3, [b"y"])
        assert leader.settle(2) == 3
        later = leader._place(leader._judge.standing)
        assert lsns(caught_up(follower)) == [1, 2, 3]
        follower.trim(later)
        assert log.first == 0, "a server that follows removes nothing"
        leader.trim(place)
        assert 0 < log.first <= claimed_at
        leader.trim(later)
        assert log.first == claimed_at
        _, entries = following(log, follower.roll(4), 3)
        assert entries == []
        with pytest.raises(ForeignLog):
            following(log)
        with pytest.raises(ForeignLog):
            following(log, place, 2)

    tell(story)


def test_a_server_starts_at_the_place_of_a_roll(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        leader, _ = leading(log)
        leader.append(1, [b"x" * 3 * PART_BYTES])
        assert leader.settle(0) == 1
        place = leader.roll(2)
        leader.trim(place)
        leader.append(2, [b"y"])
        assert leader.settle(1) == 2
        second, entries = following(log, place, 1)
        assert [applied_of(entry) for entry in entries] == [(2, b"y")]
        assert second.leader.address == "here:7340", "the claim of the roll is behind its place"
        place = second.roll(3)
        third, entries = following(log, place, 2)
        assert (entries, third.leader.address) == ([], "")
        world.sleep(LEASE_SECONDS)
        leader.beat()
        caught_up(third)
        assert third.leader.address == "here:7340", "beats tell the address"

    tell(story)


def test_a_checkpoint_of_a_follower_names_the_place_of_what_it_has(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        leader, _ = leading(log)
        follower, _ = following(log)
        for lsn in (1, 2, 3):
            leader.append(lsn, [b"x"])
        world.sleep(0.1)
        coming = follower.follow(0.1)
        assert next(coming).lsn == 1
        place = follower.roll(2)
        with pytest.raises(AssertionError, match="LSN 1, not 2"):
            follower.roll(3)
        del coming
        assert lsns(following(log, place, 1)[1]) == [2, 3]
        assert lsns(caught_up(follower)) == [2, 3]

    tell(story)


def test_a_server_that_leaves_says_so_and_sends_nothing_more(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        leader, _ = leading(log)
        follower, _ = following(log)
        leader.append(1, [b"x"])
        leader.settle(0)
        leader.leave()
        end = log.end
        world.sleep(LEASE_SECONDS)
        leader.beat()
        leader.leave()
        world.sleep(0.1)
        assert log.end == end
        assert lsns(caught_up(follower)) == [1]
        assert has_left(follower)
        assert following(log, follower.roll(2), 1)[0].leader.has_left
        assert list(follower.lead("there:7340")) == []
        assert not has_left(follower)
        assert [each.kind for each in truth(log)][-2:] == [Kind.LEAVE, Kind.CLAIM]

    tell(story)


def test_a_leave_that_nobody_answers_ends_all_the_same(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        leader, _ = leading(log)
        log.stall(1000.0)
        began = world.now
        leader.leave()
        assert world.now - began <= 6.0

    tell(story)


def test_places_of_other_journals_are_refused(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        leader, _ = leading(log)
        place = leader.roll(1)
        other = SharedLog(world, "another")
        with pytest.raises(ForeignLog, match=log.identity):
            following(other, place)
        with pytest.raises(Invalid, match=r"continues another journal .*journal-00001"):
            following(log, Place("journal-00001"), 1)
        with pytest.raises(Invalid, match=r"at LSN 3 continues another journal .*files"):
            following(log, BEGINNING, 3)
        leader.append(1, [b"x"])
        leader.settle(0)
        with pytest.raises(Corrupt, match="has LSN 1 at position 2, where LSN 8 belongs"):
            following(log, place, 7)

    tell(story)


def test_all_servers_of_a_log_have_one_timeline(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        one = following(log)[0].timeline()
        assert re.fullmatch("[0-9a-f]{12}", one)
        assert following(log)[0].timeline() == one
        assert following(SharedLog(world, "another"))[0].timeline() != one

    tell(story)


def test_append_does_not_wait_for_room(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        log.faults = Faults(no_room=1.0)
        journal, _ = leading(log)
        log.stall(1.0)
        began = world.now
        for lsn in range(1, 30):
            journal.append(lsn, [b"x"])
        assert world.now - began < 0.1
        settle(journal, 29)

    assert [each.lsn for each in truth(tell(story)) if each.lsn] == list(range(1, 30))


@pytest.mark.parametrize("what", ["settle", "lead", "roll", "gap"])
def test_a_log_that_does_not_answer_makes_the_outcome_unknown(what: str, tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        journal, _ = leading(log) if what != "lead" else following(log)
        if what in ("settle", "gap"):
            journal.append(1, [b"x"])
        if what == "gap":
            log.store(b"a stranger")
            world.sleep(0.1)
        log.stall(1000.0)
        began = world.now
        calls: dict[str, Callable[[], object]] = {
            "settle": lambda: journal.settle(0),
            "gap": lambda: journal.settle(0),
            "lead": lambda: list(journal.lead("here:7340")),
            "roll": lambda: journal.roll(1),
        }
        with pytest.raises(Unknown):
            calls[what]()
        assert ANSWER_SECONDS <= world.now - began <= ANSWER_SECONDS + 1

    tell(story)


def test_a_shorter_stall_within_a_longer_one_keeps_the_order_of_messages(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        journal, _ = leading(log)
        log.fates.append(Fate(delay=0.1))
        journal.append(1, [b"one"])
        log.stall(1.0)
        world.sleep(0.2)
        log.stall(0.1)
        journal.append(2, [b"two"])
        settle(journal, 2)
        _, read = following(log)
        assert [applied_of(entry) for entry in read] == [(1, b"one"), (2, b"two")]

    tell(story)


def test_a_log_that_was_cut_stops_the_server(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        journal, _ = leading(log)
        for lsn in (1, 2):
            journal.append(lsn, [b"x"])
            journal.settle(lsn - 1)
        del log.messages[1:]
        log.end = 1
        journal.append(3, [b"y"])
        world.sleep(0.1)
        with pytest.raises(Unknown, match="cut or created again"):
            journal.beat()
        with pytest.raises(ForeignLog, match="stored at position 1, before 3"):
            journal.durable()
        with pytest.raises(ForeignLog):
            journal.settle(2)

    tell(story)


def test_a_claim_in_a_log_that_was_cut_stops_the_server(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        leading(log)
        journal, _ = following(log)
        log.messages.clear()
        log.end = 0
        with pytest.raises(ForeignLog):
            list(journal.lead("here:7340"))

    tell(story)


def test_a_claim_that_fails_because_the_log_is_gone_stops_the_server(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        journal, _ = following(log)
        log.fates += [LOST, LOST]
        with pytest.raises(Unknown):
            list(journal.lead("here:7340"))
        journal.follow_again()
        log.is_gone = True
        with pytest.raises(ForeignLog, match="is gone"):
            list(journal.lead("here:7340"))

    tell(story)


def test_a_beat_is_sent_after_a_silence_and_once_a_lease(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        follower, _ = following(log)
        follower.beat()
        journal, _ = leading(log)
        kinds: list[str] = []

        def beat(seconds: float) -> None:
            world.sleep(seconds)
            journal.beat()
            world.sleep(0.01)
            journal.durable()
            kinds[:] = [each.kind.name for each in truth(log)]

        beat(0.2)
        assert kinds == ["CLAIM"]
        beat(0.05)
        assert kinds == ["CLAIM", "BEAT"]
        log.fates += [Fate(delay=0.9)]
        journal.append(1, [b"x"])
        beat(0.3)
        assert kinds == ["CLAIM", "BEAT"], "a record is under way"
        beat(0.69)
        assert kinds == ["CLAIM", "BEAT", "RECORD", "BEAT"], "new followers learn the address"
        caught_up(follower)
        assert follower.leader.address == "here:7340"
        assert 0 <= world.now - follower.leader.heard < 0.5

    tell(story)


def test_parts_and_beats_of_the_leader_are_heard_and_void_messages_are_not(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        leader, _ = leading(log)
        follower, _ = following(log)
        caught_up(follower)

        def is_heard() -> bool:
            before = follower.leader.heard
            world.sleep(0.1)
            caught_up(follower)
            return follower.leader.heard > before

        assert not is_heard()
        log.fates += [Fate(), Fate(delay=3.0)]
        leader.append(1, [b"x" * (PART_BYTES + 1)])
        assert is_heard()
        log.store(log.messages[-1][1])
        log.store(b"a stranger")
        assert not is_heard()

    tell(story)


def test_time_in_which_a_follower_stood_still_is_no_silence_of_the_leader(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        leader, _ = leading(log)
        follower, _ = following(log)
        caught_up(follower)

        def silence() -> float:
            return world.now - follower.leader.heard

        for _ in range(5):
            world.sleep(LEASE_SECONDS / 4)
            caught_up(follower)
        assert silence() > LEASE_SECONDS, "it looked, and heard nothing"
        world.sleep(LEASE_SECONDS)
        log.stall(0.2)
        assert list(follower.follow(0.1)) == []
        assert silence() < 0.2, "it did not look before"
        world.sleep(0.2)
        leader.append(1, [b"x"])
        world.sleep(0.1)
        for _ in follower.follow(0.1):
            world.sleep(LEASE_SECONDS)
        assert silence() < 0.1, "it worked on a record"

    tell(story)


def test_doubles_and_answers_without_a_position_cost_a_read(tell: Callable[[Story], SharedLog]) -> None:
    def story(world: World, log: SharedLog) -> None:
        journal, _ = leading(log)
        log.fates += [Fate(again=0.0), Fate(is_somewhere=True), Fate(strangers=1), Fate(skipped=2), Fate()]
        for lsn in range(1, 6):
            journal.append(lsn, [b"x"])
            world.sleep(0.05)
        settle(journal, 5)
        assert (journal.gaps, journal.void) == (3, 2)
        assert not journal._log.is_reading  # type: ignore[attr-defined]

    tell(story)
