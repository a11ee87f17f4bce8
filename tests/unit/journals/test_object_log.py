"""A log of objects on a store in memory: order, groups, lost answers, numbers that others take, and removal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from obstore.store import MemoryStore

from lakestore.errors import Invalid, NewerFormat, NotFound, Unavailable
from lakestore_server.journals import object_log, object_store
from lakestore_server.journals.object_format import messages_of, object_of
from lakestore_server.journals.object_log import INDEX_BITS, ObjectLog, create
from lakestore_server.journals.object_store import ObjectStore, StoreError, check_races, store_of
from lakestore_server.state.commit_record import Unknown
from lakestore_server.state.judge import ForeignLog
from tests.support.waiting import until

PLACE = "s3://bucket/journal"


class Shop(ObjectStore):
    """A store in memory in which a test can make one request go wrong."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), PLACE)
        self.before: Callable[[str, str], None] = lambda method, name: None
        """Called before a request; it may raise."""
        self.after: Callable[[str, str], None] = lambda method, name: None
        self.requests: list[tuple[str, str]] = []

    def put_new(self, name: str, data: bytes) -> bool:
        return bool(self._watched("put", name, lambda: super(Shop, self).put_new(name, data)))

    def get(self, name: str) -> bytes | None:
        answer: bytes | None = self._watched("get", name, lambda: super(Shop, self).get(name))
        return answer

    def has(self, name: str) -> bool:
        return bool(self._watched("has", name, lambda: super(Shop, self).has(name)))

    def remove(self, names: Sequence[str]) -> None:
        self._watched("remove", names[0] if names else "", lambda: super(Shop, self).remove(names))

    def _watched(self, method: str, name: str, work: Callable[[], Any]) -> Any:
        self.requests.append((method, name))
        self.before(method, name)
        answer = work()
        self.after(method, name)
        return answer


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(object_log, "AGAIN_SECONDS", 0.005)
    shop = Shop()
    assert create(shop, PLACE)
    return shop


@pytest.fixture
def opened(store: Shop) -> Iterator[Callable[..., ObjectLog]]:
    logs: list[ObjectLog] = []

    def made(**options: Any) -> ObjectLog:
        log = ObjectLog(store, PLACE, races=False, **options)
        log.open("")
        list(log.read(0, 0.0, to_end=True))
        logs.append(log)
        return log

    yield made
    for log in logs:
        log.close()


def send(log: ObjectLog, *messages: bytes) -> list[int]:
    """Send messages, and return the list that gets their positions."""
    positions: list[int] = []
    for message in messages:
        assert log.send(message, positions.append)
    return positions


def sent(log: ObjectLog, *messages: bytes) -> list[int]:
    """The positions of messages, once all are stored."""
    positions = send(log, *messages)
    await_stored(log, positions, len(messages))
    return positions


def await_stored(log: ObjectLog, positions: Sequence[int], count: int) -> None:
    def are_stored() -> bool:
        log.poll(0.02)
        return len(positions) >= count

    until(are_stored, "messages")


def content(log: ObjectLog, start: int = 0) -> list[bytes | None]:
    return [data for _, data in log.read(start, 0.0, to_end=True)]


def at(number: int, index: int = 0) -> int:
    return (number << INDEX_BITS) + index


def name(number: int) -> str:
    return f"log/{number:020}"


def fail(store: Shop, method: str, start: str, times: int = 1) -> None:
    """Lose the answers of the next requests."""
    left = [times]

    def after(done: str, of: str) -> None:
        if done == method and of.startswith(start) and left[0]:
            left[0] -= 1
            raise StoreError("the answer is lost")

    store.after = after


def send_first(store: Shop, log: ObjectLog) -> tuple[list[int], threading.Event]:
    """Send a first message, whose put begins only when the event is set; the list gets its position."""
    go_on = threading.Event()

    def before(method: str, of: str) -> None:
        if (method, of) == ("put", name(0)):
            go_on.wait(60.0)

    store.before = before
    positions = send(log, b"1")
    until(lambda: ("put", name(0)) in store.requests, "the first put")
    return positions, go_on


def test_messages_come_back_in_order_at_every_end(opened: Callable[..., ObjectLog]) -> None:
    one, other = opened(), opened()
    texts = [b"%d" % number * (number + 1) for number in range(40)]
    positions = sent(one, *texts)
    assert positions == sorted(positions)
    assert content(one) == content(other) == texts
    half = positions[20]
    assert content(other, half) == texts[20:]
    assert [each for each, _ in other.read(half + 1, 0.0)] == positions[21:]
    assert content(other, positions[-1] + 1) == []


def test_messages_share_an_object_while_another_one_is_on_its_way(
    store: Shop, opened: Callable[..., ObjectLog]
) -> None:
    log = opened(group_seconds=10.0)
    _, go_on = send_first(store, log)
    positions = send(log, *[b"%d" % number for number in range(100)])
    go_on.set()
    await_stored(log, positions, 100)
    assert {position >> INDEX_BITS for position in positions} == {1}
    assert [position & 0xFFFF for position in positions] == list(range(100))


def test_an_answer_that_is_lost_leaves_one_message(store: Shop, opened: Callable[..., ObjectLog]) -> None:
    log = opened()
    fail(store, "put", "log/", times=3)
    assert sent(log, b"a") == [at(0)]
    fail(store, "has", "closed/", times=3)
    assert sent(log, b"b") == [at(1)]
    assert content(log) == [b"a", b"b"]


def test_equal_bytes_of_another_server_are_not_its_own(store: Shop, opened: Callable[..., ObjectLog]) -> None:
    one, other = opened(), opened()
    assert sent(one, b"same") == [at(0)]
    assert sent(other, b"same") == [at(1)]
    assert content(opened()) == [b"same", b"same"]


def test_messages_after_a_lost_number_are_sent_once_more(store: Shop, opened: Callable[..., ObjectLog]) -> None:
    log = opened(group_seconds=0.0)
    positions, go_on = send_first(store, log)
    send_later = send(log, b"2")
    until(lambda: ("has", f"closed/{0:020}") in store.requests[2:] and ("put", name(1)) in store.requests, "the second")
    store.before = lambda method, of: None
    assert store.put_new(name(0), object_of(0, 7, [b"another server's"]))
    go_on.set()
    await_stored(log, positions, 1)
    await_stored(log, send_later, 1)
    assert positions[0] < send_later[0]
    assert content(opened()) == [b"another server's", b"2", b"1", b"2"]
    assert [data for _, data in log.read(positions[0], 0.0)] == [b"1", b"2"]


def test_numbers_that_were_left_out_are_filled_if_their_leader_is_gone(
    store: Shop, opened: Callable[..., ObjectLog]
) -> None:
    follower, leader = opened(group_seconds=0.0), opened(group_seconds=0.0)
    for turn in range(object_log.LOSSES):  # the follower has not read them, so it loses each number
        sent(leader, b"leader's %d" % turn)
    assert sent(follower, b"report") == [at(object_log.LOSSES + 1)], "a number is left out"
    assert sent(follower, b"claim") == [at(object_log.LOSSES + 2)]
    found, start = list[bytes | None](), at(object_log.LOSSES)

    def is_read() -> bool:
        nonlocal start
        for position, data in follower.read(start, 0.05):
            found.append(data)
            start = position + 1
        return len(found) == 2

    until(is_read, "the claim")
    assert found == [b"report", b"claim"]
    assert sent(leader, b"late") == [at(object_log.LOSSES + 3)], "the leader has come too late for the number"


def test_the_leader_takes_the_numbers_that_were_left_out(
    store: Shop, opened: Callable[..., ObjectLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_log, "GAP_SECONDS", 60.0)
    follower, leader = opened(group_seconds=0.0), opened(group_seconds=0.0)
    for turn in range(object_log.LOSSES):
        sent(leader, b"leader's %d" % turn)
    sent(follower, b"report")
    assert list(follower.read(at(object_log.LOSSES), 0.0)) == [], "for a while it belongs to the leader"
    assert sent(leader, b"in time") == [at(object_log.LOSSES)]
    assert content(opened())[-2:] == [b"in time", b"report"]


def test_nothing_is_stored_before_the_lower_number_is(store: Shop, opened: Callable[..., ObjectLog]) -> None:
    log = opened(group_seconds=0.0)
    first, go_on = send_first(store, log)
    second = send(log, b"2")
    until(lambda: ("put", name(1)) in store.requests and store.requests[-1][0] == "has", "the second put")
    log.poll(0.1)
    assert (first, second) == ([], [])
    assert list(log.read(0, 0.05)) == []
    go_on.set()
    await_stored(log, second, 1)
    assert (first, second) == ([at(0)], [at(1)])


def test_a_put_of_a_removed_number_is_unknown_for_good(store: Shop, opened: Callable[..., ObjectLog]) -> None:
    paused, leader = opened(block=4), opened(block=4)
    reached, go_on = threading.Event(), threading.Event()

    def before(method: str, of: str) -> None:
        if (method, of) == ("put", name(0)) and threading.current_thread().name == "journal-puts":
            if not reached.is_set():
                reached.set()
                go_on.wait(60.0)

    store.before = before
    positions = send(paused, b"of the paused server")
    reached.wait(10.0)
    for number in range(9):
        sent(leader, b"%d" % number)
    leader.remove_before(at(8))
    assert store.get(name(0)) is None
    go_on.set()
    for _ in range(2):
        with pytest.raises(Unknown, match="were removed"):
            await_stored(paused, positions, 1)
    assert positions == []
    until(lambda: store.get(name(0)) is None, "the end of the void object")
    with pytest.raises(ForeignLog, match="not in the journal"):
        content(paused)
    paused.stop_sending()
    assert content(leader, at(8)) == [b"8"]
    assert sent(leader, b"9") == [at(9)]


def test_who_reads_an_object_of_a_removed_number_refuses_it(store: Shop, opened: Callable[..., ObjectLog]) -> None:
    log = opened(block=2)
    for number in range(5):
        sent(log, b"%d" % number)
    log.remove_before(at(4))
    assert store.put_new(name(1), object_of(1, 7, [b"void"]))
    for start in (at(0), at(1), at(3, 1)):
        behind = ObjectLog(store, PLACE, races=False, block=2)
        with pytest.raises(ForeignLog, match="start with the checkpoint of another server"):
            list(behind.read(start, 0.0))
        assert content(behind, at(4)) == [b"4"]
        behind.close()


def test_whole_blocks_are_closed_in_order_before_they_are_removed(
    store: Shop, opened: Callable[..., ObjectLog]
) -> None:
    log = opened(block=2)
    for number in range(9):
        sent(log, b"%d" % number)
    opened(block=2, keeps_all=True).remove_before(at(8))
    log.remove_before(at(3, 1))
    assert [store.get(name(number)) is None for number in range(4)] == [True, True, False, False]
    store.requests.clear()
    log.remove_before(at(8))
    log.remove_before(at(8))
    closed = [of for method, of in store.requests if method == "put"]
    assert closed == [f"closed/{block:020}" for block in (1, 2, 3)]
    assert content(log, at(8)) == [b"8"]


def test_the_log_begins_at_the_first_removal_until_its_block_is_gone(
    store: Shop, opened: Callable[..., ObjectLog]
) -> None:
    log = opened(block=2)
    positions = [sent(log, b"%d" % number)[0] for number in range(3)]
    opened(block=2, keeps_all=True).remove_before(positions[1])
    assert opened(block=2).bounds()[0] == 0
    log.remove_before(positions[1] + 1)
    log.remove_before(positions[1])
    assert opened(block=2).bounds()[0] == positions[1] + 1
    assert content(opened(block=2), positions[1]) == [b"1", b"2"], "who has a place in the block follows on"
    log.remove_before(positions[2])
    assert log.bounds()[0] == positions[2]


def test_an_unfinished_removal_is_finished_by_the_next_server(store: Shop, opened: Callable[..., ObjectLog]) -> None:
    log = opened(block=2)
    for number in range(5):
        sent(log, b"%d" % number)
    assert store.put_new(f"closed/{0:020}", b"")
    opened_again = ObjectLog(store, PLACE, races=False, block=2)
    opened_again.remove_before(at(0))
    assert [store.get(name(number)) is None for number in range(3)] == [True, True, False]


def test_a_removal_that_failed_is_finished_by_the_next_one(store: Shop, opened: Callable[..., ObjectLog]) -> None:
    log = opened(block=2)
    for number in range(7):
        sent(log, b"%d" % number)
    log.remove_before(at(2))

    def refuse(method: str, _of: str) -> None:
        if method == "remove":
            raise StoreError("the store does not answer")

    store.before = refuse
    for _ in range(2):
        with pytest.raises(Unavailable, match="does not answer"):
            log.remove_before(at(6))
    store.before = lambda *_: None
    log.remove_before(at(6))
    assert [store.get(name(number)) is None for number in range(7)] == [True] * 6 + [False]


def test_the_first_open_block_is_found_by_few_questions(store: Shop) -> None:
    log = ObjectLog(store, PLACE, races=False, block=2)
    objects = log._objects
    for count in range(40):
        assert objects.first_open() == count
        assert store.put_new(f"closed/{count:020}", b"")
    store.requests.clear()
    assert objects.first_open() == 40
    assert len(store.requests) < 16
    assert log.bounds() == (at(80), at(80))
    for number in range(80, 91):
        assert log.bounds() == (at(80), at(number))
        assert store.put_new(name(number), object_of(number, 1, []))


def test_damage_and_newer_formats_are_refused(store: Shop, opened: Callable[..., ObjectLog]) -> None:
    whole = object_of(0, 1, [b"message", b""])
    assert messages_of(0, whole) == [b"message", b""]
    for place in range(4, len(whole)):
        harmed = bytearray(whole)
        harmed[place] ^= 1
        with pytest.raises((ForeignLog, NewerFormat)):
            messages_of(0, bytes(harmed))
    with pytest.raises(ForeignLog, match="is a copy of"):
        messages_of(1, whole)
    log = opened()
    assert store.put_new(name(0), b"a stranger's")
    assert store.put_new(name(1), b"")
    assert content(log) == [b"a stranger's", b""]


def test_the_identity_tells_journals_apart(store: Shop) -> None:
    log = ObjectLog(store, PLACE, races=False)
    identity = log.open("")
    assert log.open(identity) == identity
    assert not create(store, PLACE)
    log.confirm()
    with pytest.raises(ForeignLog, match="was created again"):
        log.open("another")
    store.remove(["journal.json"])
    with pytest.raises(NotFound, match="lakestore init-journal"):
        log.open("")
    with pytest.raises(ForeignLog, match="is gone"):
        log.confirm()
    assert create(store, PLACE)
    with pytest.raises(ForeignLog, match="was created again"):
        log.confirm()

    def before(method: str, of: str) -> None:
        raise StoreError("no answer")

    store.before = before
    log.confirm()
    with pytest.raises(Unavailable, match="do address, bucket and keys fit"):
        create(store, PLACE)
    with pytest.raises(Unavailable, match="do address, bucket and keys fit"):
        log._objects.identity()


class Generous(Shop):
    """A store that looks before it puts, as some do."""

    def put_new(self, name: str, data: bytes) -> bool:
        is_new = self.get(name) is None
        if is_new:
            self.both.wait(10.0)
            self.content[name] = data
        return is_new

    def get(self, name: str) -> bytes | None:
        return self.content.get(name)

    def __init__(self) -> None:
        super().__init__()
        self.both, self.content = threading.Barrier(object_store.RACERS), dict[str, bytes]()


def test_a_store_that_lets_two_puts_win_is_refused_at_the_first_start(store: Shop) -> None:
    check_races(store, PLACE)
    with pytest.raises(Invalid, match=f"{object_store.RACERS} won; take a store in which one wins"):
        create(Generous(), PLACE)
    generous = Generous()
    generous.content["journal.json"] = b'{"format": 1, "id": "x"}'
    log = ObjectLog(generous, PLACE)
    with pytest.raises(Invalid, match="cannot hold a journal"):
        log.open("")
    assert ObjectLog(generous, PLACE).open("x") == "x", "a server that knows the journal has checked its store"


@pytest.mark.parametrize("url", ["", "s3://", "file:///tmp/x", "http://host/bucket", "bucket/prefix"])
def test_what_is_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="name a bucket and a prefix"):
        store_of(url)


def test_options_name_the_bucket_s_address() -> None:
    with pytest.raises(Invalid, match="write each as name=value"):
        store_of("s3://bucket/a b", ["endpoint"])
    with pytest.raises(Invalid, match="cannot be used"):
        store_of("s3://bucket/a b", ["no_such_option=1"])
    assert store_of("s3://bucket/a b", ["endpoint=http://localhost:1", "allow_http=true"]).url == "s3://bucket/a b"


def test_there_is_room_for_so_many_bytes(store: Shop, opened: Callable[..., ObjectLog]) -> None:
    log, go_on = opened(), threading.Event()
    store.before = lambda method, _: go_on.wait(60.0) if method == "put" else None  # type: ignore[assignment]
    positions: list[int] = []
    count = 0
    while log.send(b"x" * (4 << 20), positions.append):
        count += 1
    assert count == object_log.ROOM_BYTES // (4 << 20)
    go_on.set()
    await_stored(log, positions, count)
    assert log.send(b"x", positions.append)


def test_nothing_is_told_of_messages_from_before_the_end_of_sending(
    store: Shop, opened: Callable[..., ObjectLog]
) -> None:
    log = opened()
    fail(store, "put", "log/", times=1000)
    positions = send(log, b"lost?")
    until(lambda: store.get(name(0)) is not None, "the object")
    log.stop_sending()
    store.after = lambda method, of: None
    assert sent(log, b"next") == [at(1)]
    assert positions == []
    assert content(log) == [b"lost?", b"next"]


def test_a_failed_request_costs_a_reader_no_earlier_answer(
    store: Shop, opened: Callable[..., ObjectLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_log, "LOOK_SECONDS_MAX", 0.0)
    writer = opened()
    for number in range(12):
        sent(writer, b"%d" % number)
    reader = opened()
    lock, counts = threading.Lock(), dict.fromkeys(("get", "has"), 0)

    def fail_some(method: str, _: str) -> None:
        with lock:
            counts[method] += 1
            if counts[method] % 4 == 3:
                raise StoreError("no answer")

    store.before = fail_some
    store.requests.clear()
    assert content(reader) == [b"%d" % number for number in range(12)]
    assert counts["get"] <= 4 * 12, "each round goes on where the last one failed"


@pytest.mark.parametrize("asked", [("get", "journal.json"), ("get", "beginning"), ("has", "closed/")])
def test_a_store_that_refuses_for_a_moment_ends_no_start(
    store: Shop, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, str]
) -> None:
    """Stores answer 503 SlowDown to many requests in a row while they grow."""
    monkeypatch.setattr(object_log, "LOOK_SECONDS_MAX", 0.0)
    log = ObjectLog(store, PLACE, races=False)
    fail(store, *asked, times=10)
    assert log.open("")
    assert log.bounds() == (0, 0)
    monkeypatch.setattr(object_log, "OPEN_SECONDS", 0.0)
    fail(store, *asked, times=10)
    with pytest.raises(Unavailable, match="the answer is lost"):
        assert not (log.open(""), log.bounds())
    log.close()


def test_a_log_that_grows_while_it_is_read_has_an_end(store: Shop, opened: Callable[..., ObjectLog]) -> None:
    writer, reader = opened(), opened()
    sent(writer, b"a")
    sent(writer, b"b")
    is_busy = threading.Lock()

    def grow(method: str, _: str) -> None:
        if method == "get" and is_busy.acquire(blocking=False):
            try:
                sent(writer, b"more")
            finally:
                is_busy.release()

    store.after = grow
    found = content(reader)
    store.after = lambda method, name: None
    assert found[:2] == [b"a", b"b"]
    assert len(found) < 10


@pytest.mark.parametrize(("is_created_again", "said"), [(False, "is gone"), (True, "was created again")])
def test_nothing_is_stored_in_a_bucket_that_was_emptied(
    store: Shop, opened: Callable[..., ObjectLog], monkeypatch: pytest.MonkeyPatch, is_created_again: bool, said: str
) -> None:
    """By hand, or by a rule that removes old objects: no reader would find what a leader puts there."""
    monkeypatch.setattr(object_log, "IDENTITY_SECONDS", 0.0)
    log = opened()
    assert sent(log, b"a") == [at(0)]
    store.remove(["journal.json", name(0)])
    if is_created_again:
        assert create(store, PLACE)
    for _ in range(2):
        with pytest.raises(Unknown, match=said):
            sent(log, b"b")
    with pytest.raises(ForeignLog, match=said):
        log.confirm()


def test_a_sender_asks_for_the_journal_now_and_then(store: Shop, opened: Callable[..., ObjectLog]) -> None:
    log = opened()
    store.requests.clear()
    for number in range(20):
        sent(log, b"%d" % number)
    assert store.requests.count(("get", "journal.json")) == 1
    assert len(content(log)) == 20
    log.stop_sending()
    fail(store, "get", "journal.json")
    assert sent(log, b"after a lost answer") == [at(20)]


def test_a_sender_keeps_its_newest_messages_alone(
    store: Shop, opened: Callable[..., ObjectLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader without followers has no gaps, so it reads none of its own messages."""
    monkeypatch.setattr(object_log, "OWN_BYTES", 250)
    log = opened()
    texts = [b"%d" % number * 100 for number in range(10)]
    for text in texts:
        sent(log, text)
    sender = log._senders.present
    assert sender is not None
    assert list(sender._own) == [8, 9]
    assert content(log) == texts
    assert sender._own_bytes == sum(len(each) for messages in sender._own.values() for each in messages)
