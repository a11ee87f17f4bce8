"""Two servers with a journal in three Kafka brokers, beside Kafka's own producer on the same brokers, turn by turn.

Everything runs on one machine, so ratios and times count. `LAKESTORE_BENCH_KILLS` is how often the leader is killed,
100 unless set, and `LAKESTORE_BENCH_COPY_GB` what a new server copies, 5 unless set.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer

import lakestore
from lakestore_server.journals.kafka_log import Admin, KafkaTopic
from tests.bench.blobs import BATCH_ROWS, ROW_BYTES, TURN_BATCHES, appended, batch_of, random_blobs, sent
from tests.bench.report import Figure
from tests.bench.rows import SCHEMA, rows
from tests.bench.streaming import written
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_servers import LEASE_SECONDS, KafkaServers, role_of
from tests.support.waiting import until

KILLS = int(os.environ.get("LAKESTORE_BENCH_KILLS", "100"))
COPY_GB = float(os.environ.get("LAKESTORE_BENCH_COPY_GB", "5"))
COPY_RATE = re.compile(r"copy is complete.*mb_per_second=([\d.]+)")
ALONE_SECONDS = 5.0
ROUNDS = 3
SINGLES = 200
KEYS, KEYED_ROWS, KEYED_BATCHES = 1_000_000, 10_000, 100
LAG_BATCHES, LAG_ROWS, LAG_RATE = 400, 2_500, 100_000
PATIENCE = 60.0
VALUE = pa.schema([("value", pa.binary())])


@contextmanager
def _pair(cluster: KafkaCluster, folder: Path) -> Iterator[tuple[KafkaServers, lakestore.Lake]]:
    """Servers of a journal of their own, with a client of both."""
    folder.mkdir(parents=True)
    Admin(KafkaTopic(cluster.address, folder.name)).create(replicas=3)
    with KafkaServers(f"kafka://{cluster.address}/{folder.name}", folder, patience=PATIENCE) as pair:
        pair.the("leader")
        with lakestore.connect(pair.addresses) as lake:
            yield pair, lake


def measure(folder: Path) -> Iterator[Figure]:
    """All figures, each part with servers of its own."""
    parts: list[Callable[[KafkaCluster, Path], Iterator[Figure]]] = [_large, _single, _keyed, _lag, _copy, _failover]
    (folder / "kafka").mkdir(parents=True)
    with KafkaCluster(folder / "kafka") as cluster:
        for part in parts:
            yield from part(cluster, folder / part.__name__.strip("_"))


def _large(cluster: KafkaCluster, folder: Path) -> Iterator[Figure]:
    blobs = random_blobs()
    batches = [batch_of(each) for each in blobs]
    ours, theirs = [], []
    with _pair(cluster, folder) as (_, lake):
        for turn in range(ROUNDS):
            Admin(KafkaTopic(cluster.address, f"rows{turn}")).create(replicas=3)
            theirs.append(sent(cluster.address, f"rows{turn}", blobs) * ROW_BYTES / 1e6)
            table = lake.create_table(f"bench.rows{turn}", VALUE, buckets=1)
            ours.append(appended(table, batches, TURN_BATCHES) * ROW_BYTES / 1e6)
            if table.scan().count() != TURN_BATCHES * BATCH_ROWS:
                raise AssertionError("rows are missing")
    mine, other = median(ours), median(theirs)
    shown = f"{mine:,.0f} MB/s, Kafka {other:,.0f} MB/s: {mine / other:.2f}x"
    what = "random 1 KB rows in 1 MB batches through the Kafka journal, beside Kafka's producer"
    yield Figure(what, shown, "≥ 0.8x", mine / other >= 0.8)


def _single(cluster: KafkaCluster, folder: Path) -> Iterator[Figure]:
    """One row after the other; both take turns row by row."""
    Admin(KafkaTopic(cluster.address, "singles")).create(replicas=3)
    producer = Producer({"bootstrap.servers": cluster.address, "acks": "all", "linger.ms": 0})
    row = random_blobs()[0][0]
    failed: list[object] = []

    def send() -> None:
        producer.produce("singles", row, on_delivery=lambda error, _: failed.append(error) if error else None)
        producer.flush()

    ours, theirs = [], []
    with _pair(cluster, folder) as (_, lake):
        table = lake.create_table("bench.singles", VALUE, buckets=1)
        for number in range(-10, SINGLES):
            took = _seconds(lambda: table.append([{"value": row}])), _seconds(send)
            if number >= 0:
                ours.append(took[0] * 1e3)
                theirs.append(took[1] * 1e3)
    if failed:
        raise AssertionError(f"Kafka refused rows: {failed[0]}")
    mine, other = median(ours), median(theirs)
    shown = f"p50 {mine:.2f} ms, Kafka {other:.2f} ms"
    yield Figure("append of one row of 1 KB, beside Kafka's producer", shown, "≤ Kafka + 1 ms", mine <= other + 1)


def _keyed(cluster: KafkaCluster, folder: Path) -> Iterator[Figure]:
    chance = np.random.default_rng(1)
    with _pair(cluster, folder) as (_, lake):
        table = lake.create_table("bench.keyed", SCHEMA, primary_key=["id"])
        with table.writer() as out:
            for start in range(0, KEYS, 100_000):
                out.upsert(rows(np.arange(start, start + 100_000, dtype=np.int64)))
        rates = []
        for _ in range(ROUNDS):
            batches = [rows(chance.integers(0, KEYS, KEYED_ROWS)) for _ in range(KEYED_BATCHES)]
            rates.append(written(table, lakestore.Writer.upsert, batches))
    shown = f"{median(rates):,.0f} rows/s"
    yield Figure("1 M uniform upserts into 1 M keys", shown, "≥ 400,000 rows/s", median(rates) >= 400_000)


def _lag(cluster: KafkaCluster, folder: Path) -> Iterator[Figure]:
    """From a commit's acknowledgement by the leader until a subscriber of the follower has its last row."""
    came: dict[int, float] = {}
    acknowledged: list[float] = []
    with _pair(cluster, folder) as (pair, lake), lakestore.connect(pair.the("follower").address) as alone:
        table = lake.create_table("bench.lag", SCHEMA, buckets=1)
        token = table.append(rows(np.arange(1, dtype=np.int64)))
        followed = alone.table("bench.lag")
        if followed.scan(at=token).count() != 1:
            raise AssertionError("rows are missing")

        def read() -> None:
            for batch in followed.changes("earliest"):
                now, last = time.perf_counter(), int(batch.to_arrow().column("id")[-1].as_py())
                came[last] = now
                if last == LAG_BATCHES * LAG_ROWS:
                    return

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        began = time.perf_counter()
        for number in range(LAG_BATCHES):
            time.sleep(max(0.0, began + number * LAG_ROWS / LAG_RATE - time.perf_counter()))
            first = number * LAG_ROWS + 1
            table.append(rows(np.arange(first, first + LAG_ROWS, dtype=np.int64)))
            acknowledged.append(time.perf_counter())
        rate = LAG_BATCHES * LAG_ROWS / (time.perf_counter() - began)
        reader.join(PATIENCE)
        if reader.is_alive():
            raise AssertionError("rows are missing at the follower")
    lasts = np.array(sorted(came))
    times = np.array([came[last] for last in lasts])
    at = np.searchsorted(lasts, np.arange(1, LAG_BATCHES + 1) * LAG_ROWS)
    lags = np.maximum(times[at] - np.array(acknowledged), 0.0) * 1e3
    p50, p99 = np.percentile(lags, [50, 99])
    shown = f"p50 {p50:.0f}, p99 {p99:.0f}, most {lags.max():.0f} ms at {rate:,.0f} rows/s"
    met = bool(p99 < 250 and rate >= 0.95 * LAG_RATE)
    what = f"lag of the follower at 100,000 rows/s, in commits of {LAG_ROWS:,} rows"
    yield Figure(what, shown, "p99 < 250 ms at that rate", met)


def _copy(cluster: KafkaCluster, folder: Path) -> Iterator[Figure]:
    """A new server copies from the only one, into which a client appends as fast as it can, before and meanwhile."""
    folder.mkdir(parents=True)
    Admin(KafkaTopic(cluster.address, folder.name)).create(replicas=3)
    batches = [batch_of(each) for each in random_blobs()]
    done: list[float] = []
    is_over = threading.Event()
    with KafkaServers(f"kafka://{cluster.address}/{folder.name}", folder, "a", patience=PATIENCE) as servers:
        servers.the("leader")
        with lakestore.connect(servers.addresses) as lake:
            table = lake.create_table("bench.rows", VALUE, buckets=1)
            appended(table, batches, int(COPY_GB * 1e9 / (BATCH_ROWS * ROW_BYTES)))

            def write() -> None:
                number = 0
                while not is_over.is_set():
                    table.append(batches[number % len(batches)])
                    done.append(time.perf_counter())
                    number += 1

            writer = threading.Thread(target=write, daemon=True)
            writer.start()
            time.sleep(ALONE_SECONDS)
            began = time.perf_counter()
            new = servers.add("b")
            ended = time.perf_counter()
            is_over.set()
            writer.join(PATIENCE)
        said = COPY_RATE.search(new.said())
    if said is None:
        raise AssertionError("the new server copied nothing")
    alone = sum(each < began for each in done) / ALONE_SECONDS
    meanwhile = sum(began <= each < ended for each in done) / (ended - began)
    rate, part = float(said[1]), meanwhile / alone
    peer = f"the peer {alone:,.0f} -> {meanwhile:,.0f} MB/s: {part:.2f}x"
    shown = f"{rate:,.0f} MB/s, {peer}, serves after {ended - began:.0f} s"
    what = f"a new server copies {COPY_GB:g} GB from a peer, into which a client appends"
    yield Figure(what, shown, "≥ 150 MB/s, peer ≥ 0.85x", rate >= 150 and part >= 0.85)


def _failover(cluster: KafkaCluster, folder: Path) -> Iterator[Figure]:
    """The longest time between two acknowledgements around each kill of the leader."""
    with _pair(cluster, folder) as (pair, lake):
        outages = list(_outages(pair, lake.create_table("bench.log", VALUE, buckets=1)))
    p50, p99 = np.percentile(outages, [50, 99])
    shown = f"p50 {p50:.2f}, p99 {p99:.2f}, most {max(outages):.2f} s over {KILLS} kills"
    bar = f"p50 < {LEASE_SECONDS + 0.5}, p99 < {LEASE_SECONDS + 1.5} s"
    met = bool(p50 < LEASE_SECONDS + 0.5 and p99 < LEASE_SECONDS + 1.5)
    what = f"leader killed, lease of {LEASE_SECONDS} s: time to the next acknowledged write"
    yield Figure(what, shown, bar, met)


def _outages(pair: KafkaServers, table: lakestore.Table) -> Iterator[float]:
    done, is_over, failures = list[float](), threading.Event(), list[BaseException]()

    def write() -> None:
        try:
            while not is_over.is_set():
                table.append([{"value": b"x"}])
                done.append(time.perf_counter())
        except BaseException as error:
            failures.append(error)

    def more(count: int) -> bool:
        if failures:
            raise failures[0]
        return len(done) >= count

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    for _ in range(KILLS):
        leader, count = pair.the("leader"), len(done)
        until(lambda: more(count + 20), "commits", PATIENCE)  # noqa: B023
        before = len(done) - 1
        leader.kill()
        count = len(done)
        until(lambda: more(count + 20), "commits of the other server", PATIENCE)  # noqa: B023
        yield _longest(done[before:])
        again = pair.start_again(leader)
        until(lambda: role_of(again) == "follower", "a follower", PATIENCE)  # noqa: B023
    is_over.set()
    writer.join(PATIENCE)
    if failures:
        raise failures[0]
    if table.scan().count() != len(done):
        raise AssertionError("acknowledged rows are missing, or are there twice")


def _longest(times: Sequence[float]) -> float:
    return max(later - earlier for earlier, later in pairwise(times))


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
