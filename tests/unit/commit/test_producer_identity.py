"""Producers are remembered, counted and forgotten by their kind; a retry is never taken for a new commit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.client.producer import Producer
from lakestore.client.writer import change
from lakestore.errors import Exhausted, Fenced, Invalid, LakestoreError, NotFound, ProducerForgotten
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.served import DAY, SCHEMA, Served
from tests.support.switch import ends

HOUR = 3_600


@pytest.fixture
def served(served: Served) -> Served:
    served.lake.create_table("t.log", SCHEMA, buckets=1)
    return served


def commit(served: Served, producer: Producer, value: int = 0, owner: str = "") -> str:
    """The producer's next commit, as a client of this release sends it."""
    (batch,) = pa.table({"v": [value]}, schema=SCHEMA).to_batches()
    request = producer.request([change("t.log", pb.APPEND, [batch])])
    request.owner = owner
    return served.lake.transport.commit(request).token


def drawn(served: Served) -> Producer:
    """A client's own producer, drawn now."""
    view = served.engine.view
    return Producer(timeline=view.timeline, born=view.lsn)


def opened(served: Served, name: str, owner: str = "") -> Producer:
    info = served.lake.transport.open_producer(pb.OpenProducerRequest(producer=name, owner=owner))
    return Producer.opened(name, info)


def test_progress_of_one_owner_s_producers_is_bounded_together(tmp_path: Path) -> None:
    with Served(tmp_path / "data", limits=Limits(progress_total_bytes=10)) as served:
        served.lake.create_table("t.log", SCHEMA, buckets=1)

        def note(name: str, owner: str, progress: str) -> None:
            producer = opened(served, name, owner)
            (batch,) = pa.table({"v": [1]}, schema=SCHEMA).to_batches()
            request = producer.request([change("t.log", pb.APPEND, [batch])], progress)
            request.owner = owner
            with served.lake.within(60.0):
                served.lake.transport.commit(request)

        note("a", "one", "éé")
        note("b", "one", "123456")
        for name, progress in (("a", "éé1"), ("b", "1234567"), ("c", "1")):
            with pytest.raises(Exhausted, match="10 bytes in all"):
                note(name, "one", progress)
        note("d", "two", "1234567890")
        note("b", "one", "1")
        served.restart()
        note("a", "one", "123456789")
        with pytest.raises(Exhausted):
            note("c", "one", "1")
        served.lake.transport.drop_producer(pb.DropProducerRequest(producer="a"))
        note("c", "one", "123456789")


def test_a_named_producer_stays_whatever_others_write(tmp_path: Path) -> None:
    limits = Limits(producers=2, unnamed_producers=20, unnamed_producer_seconds=300)
    with Served(tmp_path / "data", limits=limits) as served:
        log = served.lake.create_table("t.log", SCHEMA, buckets=1)
        with log.writer(producer="etl") as writer:
            writer.append(pa.table({"v": [1]}, schema=SCHEMA), progress="file 1")
        zombie = log.writer(producer="etl")
        for round_ in range(3):
            for _ in range(15):
                commit(served, drawn(served))
            served.clock.advance(HOUR)
            served.append("t.log", round_)
        served.restart()
        log = served.lake.table("t.log")
        assert log.writer(producer="etl").progress == "file 1"
        zombie._producer.timeline = ""
        assert type(ends(lambda: commit(served, zombie._producer))) is Fenced
        opened(served, "second")
        for refused in (
            lambda: opened(served, "third"),
            lambda: commit(served, Producer("stable", timeline=served.engine.timeline)),
        ):
            with served.lake.within(1.0):  # else it is tried again for a while
                assert isinstance(ends(refused), Exhausted), "a name without an epoch counts as named"
        opened(served, "third", owner="somebody else")
        served.lake.drop_producer("second")
        opened(served, "third of ours")


def test_epochs_of_a_name_only_grow(served: Served) -> None:
    first = opened(served, "etl")
    commit(served, first)
    served.lake.drop_producer("etl")
    assert served.lake.producers() == []
    error = ends(lambda: commit(served, first))
    assert type(error) is ProducerForgotten
    served.restart()
    second = opened(served, "etl")
    assert second.epoch > first.epoch
    assert type(ends(lambda: commit(served, first))) is Fenced
    forged = Producer("etl", second.epoch + 1, timeline=second.timeline)
    assert type(ends(lambda: commit(served, forged))) is Fenced, "nobody was given that epoch"
    commit(served, second)
    with pytest.raises(NotFound):
        served.lake.drop_producer("nobody")
    with pytest.raises(NotFound):
        served.lake.drop_producer(drawn(served).name)


def test_named_producers_are_listed_and_go_by_age(tmp_path: Path) -> None:
    with Served(tmp_path / "data", producer_idle_seconds=2 * DAY) as served:
        served.lake.create_table("t.log", SCHEMA, buckets=1)
        used, idle = opened(served, "used", "anna"), opened(served, "idle")
        for _ in range(3):
            served.clock.advance(DAY)
            commit(served, used)
            served.run()
        (listed,) = served.lake.producers()
        assert (listed.name, listed.owner, listed.epoch, listed.last_sequence) == ("used", "anna", used.epoch, 3)
        served.kill()
        served.start()
        assert [each.name for each in served.lake.producers()] == ["used"], "the end is in the journal"
        assert type(ends(lambda: commit(served, idle))) is ProducerForgotten


def test_an_unnamed_producer_is_remembered_longer_than_any_retry(served: Served) -> None:
    """However late a retry comes it gets its answer or `ProducerForgotten`, and never a second time the rows."""
    retry, early = drawn(served), drawn(served)
    token = commit(served, retry, 7)
    served.clock.advance(HOUR - 1)
    served.append("t.log", 1)
    retry.sequence = 0
    assert commit(served, retry, 7) == token
    served.clock.advance(HOUR + 1)
    served.append("t.log", 2)
    served.restart()
    retry.sequence = 0
    error = ends(lambda: commit(served, retry, 7))
    assert type(error) is ProducerForgotten
    assert error.applied == "no", "this try did nothing; the client knows of its others"
    assert type(ends(lambda: commit(served, early))) is ProducerForgotten, "who can tell it from one that was forgotten"
    fresh = drawn(served)
    commit(served, fresh, 8)
    assert served.values("t.log") == [7, 1, 2, 8]
    unsaid = Producer("b" * 32)
    commit(served, unsaid, 9)
    late = Producer("c" * 32, sequence=4)
    error = ends(lambda: commit(served, late))
    assert type(error) is ProducerForgotten
    assert error.applied == "unknown", "a client before protocol 5 gives a producer up only then"


def test_a_client_at_rest_goes_on_by_itself(served: Served) -> None:
    log = served.lake.table("t.log")
    writer = log.writer()
    served.append("t.log", 1)
    writer.append(pa.table({"v": [2]}, schema=SCHEMA))
    writer.flush()
    first = writer._producer.name
    served.clock.advance(2 * HOUR)
    other = served.lake.transport
    other.commit(Producer().request([change("t.log", pb.APPEND, pa.table({"v": [3]}, schema=SCHEMA).to_batches())]))
    served.append("t.log", 4)
    for value in (5, 6):
        writer.append(pa.table({"v": [value]}, schema=SCHEMA))
    writer.close()
    assert writer._producer.name != first
    assert sorted(served.values("t.log")) == [1, 2, 3, 4, 5, 6]


def test_an_owner_at_the_limit_gives_up_its_own_that_have_rested(tmp_path: Path) -> None:
    with Served(tmp_path / "data", limits=Limits(unnamed_producers=3)) as served:
        served.lake.create_table("t.log", SCHEMA, buckets=1)
        victim = drawn(served)
        commit(served, victim, 1, owner="victim")
        many = [drawn(served) for _ in range(4)]
        for each in many[:3]:
            commit(served, each, 2, owner="flood")
        with served.lake.within(1.0):
            error = ends(lambda: commit(served, many[3], 2, owner="flood"))
        assert isinstance(error, Exhausted)
        assert error.retry_after
        commit(served, many[0], 3, owner="flood")
        served.clock.advance(302)
        many[3].sequence = 0
        commit(served, many[3], 4, owner="flood")
        assert type(ends(lambda: commit(served, many[1], 5, owner="flood"))) is ProducerForgotten, "it rested longest"
        victim.sequence = 0
        commit(served, victim, 1, owner="victim")
        assert sorted(served.values("t.log")) == [1, 2, 2, 2, 3, 4]


def test_what_follows_a_refused_first_commit_is_refused_as_that(served: Served) -> None:
    producer = drawn(served)
    producer.sequence = 1
    error: LakestoreError | None = ends(lambda: commit(served, producer))
    assert type(error) is ProducerForgotten
    known = drawn(served)
    commit(served, known)
    known.sequence = 5
    assert type(ends(lambda: commit(served, known))) is Invalid
