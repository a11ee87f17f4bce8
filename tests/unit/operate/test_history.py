"""History: what a curve shows is what was sampled, in bounded bytes, also over its rings' ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import tracing
from lakestore_server.operate import history as module
from lakestore_server.operate.clients import Clients
from lakestore_server.operate.history import FIGURES, FINE, PER_MINUTE, SERVER_FIGURES, History, Kind, Series
from lakestore_server.operate.sampler import Sampler
from tests.support.seeds import seeded
from tests.support.served import SCHEMA, Served
from tests.support.world.clock import START_US, HandClock

STEP_US = 10_000_000
SERVER = [0.0] * len(SERVER_FIGURES)
RING_BYTES = Kind.TABLE.ring_bytes


def sample(rows: float, hot_us: int = 0) -> list[float]:
    """A table's sample with these rows."""
    return [rows, 0.0, hot_us, *[0.0] * (len(FIGURES) - 3)]


def test_curves_are_the_samples_of_a_model_over_both_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FINE", 24)
    monkeypatch.setattr(module, "MINUTES", 10)
    chance = seeded()
    for _ in range(20):
        history, told = History(1 << 30), []
        still, begins = chance.randrange(0, 90), chance.randrange(0, 30)
        for number in range(120):
            rows = 7.0 if number < still else float(chance.randrange(100))
            at = START_US + number * STEP_US
            told.append((at, rows, at - 3_000_000 if number % 3 else 0))
            history.add(at, [number, *SERVER[1:]], {"a": sample(rows, told[-1][2])} if number >= begins else {})
            since = chance.randrange(0, number + 2)
            found = history.table("a", since)
            expected = told[max(begins, since, number - 23) :]
            assert found.next == number + 1
            if number >= begins:
                assert found.times_us == [at for at, _, _ in expected]
                assert found.values[0] == [rows for _, rows, _ in expected]
                ages = [3.0 if hot else 0.0 for _, _, hot in expected]
                assert found.values[2] == pytest.approx(ages, abs=1e-3)
            assert history.server(since).values[0] == [float(n) for n in range(max(since, number - 23), number + 1)]
        minutes = history.table("a", 0, by_minutes=True)
        ends = range(max(-(-begins // PER_MINUTE), 10), 20)
        means = [sum(rows for _, rows, _ in told[PER_MINUTE * m : PER_MINUTE * (m + 1)]) / PER_MINUTE for m in ends]
        assert minutes.values[0] == pytest.approx(means, rel=1e-5)
        assert minutes.times_us == [told[PER_MINUTE * m + PER_MINUTE - 1][0] for m in ends]


def test_memory_is_bounded_and_the_stillest_table_makes_room() -> None:
    limits = Limits(history_bytes=2 * RING_BYTES)
    history = History(limits.history_bytes)
    moves = {"a": 0, "b": 0, "c": 0}
    for number in range(FINE + 10):
        moves["a"] += 1
        moves["b"] = min(number, 5)
        moves["c"] = max(number - FINE, 0)
        history.add(START_US + number * STEP_US, SERVER, {name: sample(value) for name, value in moves.items()})
        assert history.nbytes <= limits.history_bytes
    assert history.nbytes == 2 * RING_BYTES
    assert history.table("c", FINE + 6).values[0] == [6.0, 7.0, 8.0, 9.0]
    assert set(history.table("b", 0).values[0]) == {5.0}  # it has been still, and its curve says so
    assert len(history.table("a", 0).times_us) == FINE
    history.add(START_US, SERVER, {})
    assert history.nbytes == 0
    assert history.table("a", 0).times_us == []
    assert (RING_BYTES, Kind.BRIDGE.ring_bytes) == (115_200, 14_400)  # as docs/console.md has them


def test_streams_are_drawn_beside_tables_and_share_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FINE", 24)
    monkeypatch.setattr(module, "MINUTES", 10)
    chance, small = seeded(), Kind.BRIDGE.ring_bytes
    history = History(Kind.TABLE.ring_bytes + 3 * small)
    names = [Series(chance.choice([Kind.SUBSCRIPTION, Kind.BRIDGE]), name) for name in "abcdef"]
    begins = {name: chance.randrange(0, 40) for name in names}
    ends = {name: chance.randrange(60, 160) for name in names}
    told: dict[Series, list[float]] = {name: [] for name in names}
    for number in range(120):
        lags = {name: float(chance.randrange(5)) for name in names if begins[name] <= number < ends[name]}
        for name in names:
            told[name] = [*told[name], lags[name]] if name in lags else []
        history.add(START_US + number * STEP_US, SERVER, {"a": sample(number)}, lags)
        assert history.nbytes <= Kind.TABLE.ring_bytes + 3 * small
        for name, found in zip(names, history.streams(names, 0), strict=True):
            (values,) = found.values
            assert values == told[name][len(told[name]) - len(values) :][-24:]
            assert not told[name] or values[-1] == told[name][-1] == history.newest(name.kind)[name.name]
    full = [name for name, each in zip(names, history.streams(names, 0), strict=True) if len(each.times_us) == 24]
    assert len(full) <= 3
    assert len(history.table("a", 0).times_us) == 24
    history.add(START_US, SERVER, {"a": sample(0)}, {})
    assert history.nbytes == Kind.TABLE.ring_bytes


def test_many_streams_find_no_room_once_and_not_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    is_still = module.Ring.is_still

    def counted(ring: module.Ring, number: int) -> bool:
        looks.append(number)
        return is_still(ring, number)

    monkeypatch.setattr(module.Ring, "is_still", counted)
    history = History(500 * Kind.BRIDGE.ring_bytes)
    names = [Series(Kind.SUBSCRIPTION, str(i)) for i in range(1_000)]
    for number in range(3):
        looks.clear()
        history.add(START_US, SERVER, {}, dict.fromkeys(names, float(number)))
    assert history.nbytes == 500 * Kind.BRIDGE.ring_bytes
    assert len(looks) == 1_000  # a look at each, for all those that found no room


def test_a_table_without_a_ring_shows_only_what_is_known_of_it() -> None:
    history = History(0)
    for number in range(8):
        history.add(START_US + number * STEP_US, SERVER, {"a": sample(number // 4)})
    found = history.table("a", 0)
    assert (found.values[0], len(found.times_us)) == ([1.0] * 4, 4)
    assert history.nbytes == 0
    assert np.isfinite(found.values).all()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as made:
        yield made


def test_a_sampler_notes_rates_ages_and_tables(served: Served) -> None:
    server = served.server
    sampler = Sampler(served.engine, server.service.status, server.service.calls, served.clock)
    served.lake.create_table("a.b", SCHEMA, buckets=1)
    served.append("a.b", 1, 2, 3)
    uuid = served.state("a.b").table.uuid
    served.clock.advance(10)
    sampler.run_once()
    served.append("a.b", *range(40))
    served.clock.advance(9)
    sampler.run_once()
    found, whole = sampler.history.table(uuid, 0), sampler.history.server(0)
    assert found.values[0] == [3.0, 43.0]
    assert found.values[2] == pytest.approx([10.0, 20.0])
    assert whole.values[SERVER_FIGURES.index("rows")][-1] == pytest.approx(4.0)
    assert whole.values[SERVER_FIGURES.index("lag")] == pytest.approx([10.0, 20.0])
    assert all(map(math.isfinite, whole.values[SERVER_FIGURES.index("disk_free_bytes")]))


def test_clients_are_known_while_they_have_a_stream_and_some_time_after(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandClock()
    clients = Clients(clock)
    clients.calls("grpc", "etl", "ipv4:1.2.3.4:5", "Talk")
    clients.opens("grpc", "etl", "ipv4:1.2.3.4:5")
    clients.calls("http", "", "1.2.3.4:6", "GET /")
    clock.advance(400)
    (kept,) = clients.now()
    assert (kept.principal, kept.call, kept.calls, kept.streams, kept.connected_seconds) == ("etl", "Talk", 1, 1, 400)
    clients.ends("grpc", "etl", "ipv4:1.2.3.4:5")
    clients.ends("grpc", "nobody", "unknown")
    clock.advance(200)
    assert len(clients.now()) == 1
    clock.advance(200)
    assert list(clients.now()) == []
    monkeypatch.setattr("lakestore_server.operate.clients.CLIENTS_MAX", 10)
    for number in range(100):
        clients.calls("http", "", str(number), "GET /")
        clock.advance(1)
    assert len(clients.now()) <= 10


def test_a_sampler_notes_how_far_streams_are_behind(served: Served) -> None:
    server = served.server
    sampler = Sampler(served.engine, server.service.status, server.service.calls, served.clock)
    served.lake.create_table("a.b", SCHEMA, buckets=2)
    served.append("a.b", 1, 2, 3)
    list(served.lake.table("a.b").changes("earliest", until="now", subscription="feed"))
    served.append("a.b", *range(40))
    for process, lag in ((1, 70), (2, 5)):
        name = tracing.name_of(tracing.BRIDGE, "shop", "host", process)
        served.lake.transport.report(pb.ReportRequest(producer=name, lag=lag, detail="{}"))
    sampler.run_once()
    served.clock.advance(10)
    served.lake.transport.report(pb.ReportRequest(producer=name, lag=7, detail="{}"))
    served.clock.advance(10)  # the first process has ended, and its place is the other's
    sampler.run_once()
    feed, bridge = Series(Kind.SUBSCRIPTION, "feed"), Series(Kind.BRIDGE, "bridge/shop")
    assert [each.values for each in sampler.history.streams([feed, bridge], 0)] == [[[43.0, 43.0]], [[75.0, 7.0]]]
    served.clock.advance(60)
    served.lake.transport.drop_subscription(pb.DropSubscriptionRequest(subscription="feed"))
    sampler.run_once()
    assert [each.values for each in sampler.history.streams([feed, bridge], 0)] == [[[]], [[]]]
