"""`lakestore demo`: runs everything once and checks the result.

A server, a producer, a subscriber, a tiering service and Spark SQL reads run at the same time, and a Kafka topic with a
bridge if a broker can be started. After the producer stops, four results must be equal: the fold of the changelog, a
union read, lake + hot bucket by bucket, and what the producer sent. The bridge's table must hold what was sent to the
topic, and its dead letters the bad records.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lakestore.client.lake import Lake, connect
from lakestore.errors import LakestoreError, Unavailable
from lakestore.release import wheel_with
from lakestore.union import lake_snapshot as cold
from lakestore.union import plan
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_demo.actors import STEPS_PER_SECOND, Producer, Subscriber, quantile
from lakestore_demo.kafka import ADDRESS_VARIABLE, BRIDGE_FILE, LETTERS, PARTITIONS, PAYMENTS, TOPIC
from lakestore_demo.processes import QUICK_JAVA, Process, free_ports, lakestore
from lakestore_demo.reader import Answer, Reader
from lakestore_demo.shop import EVENTS, ORDERS, TABLES_FILE, State, definitions

if TYPE_CHECKING:
    from lakestore_demo.kafka import Kafka

BUILD = TABLES_FILE.parents[2] / "build"
START_SECONDS = 30
SPARK_SECONDS = 120
PARTS_SECONDS = 300
BRIDGE_SECONDS = 60
TOGETHER_SECONDS = 10
PROGRESS_SECONDS = 5

Echo = Callable[[str], None]


class Demo:
    """One run of the demo."""

    def __init__(self, folder: Path, echo: Echo, *, seconds: float, keep: bool = False) -> None:
        self._folder, self._seconds, self._echo, self._keep = folder, seconds, echo, keep
        self._started = time.perf_counter()
        self._stack = ExitStack()
        self._grpc, self._http, self._metrics = free_ports(3)
        self._server = f"127.0.0.1:{self._grpc}"
        self._stop, self._bridged = threading.Event(), threading.Event()
        self._jobs: dict[str, Future[None]] = {}
        self._processes: list[Process] = []
        self._kafka: Kafka | None = None
        self._tables = [ORDERS, EVENTS]

    def run(self) -> dict[str, bool]:
        """Run everything. Returns each comparison and whether it holds."""
        self._echo(opening(self._console, self._seconds, keep=self._keep))
        with self._stack:
            self._lake = self._serve()
            self._producer, self._subscriber = Producer(self._lake), Subscriber(self._client())
            self._reader = Reader(self._server, self._folder / "reader.log")
            self._stack.callback(self._end_kafka)
            pool = self._stack.enter_context(ThreadPoolExecutor(6))
            self._stack.callback(self._reader.stop)
            self._stack.callback(self._release)
            self._create()
            self._jobs["Kafka"] = pool.submit(self._run_kafka)
            self._jobs["Spark"] = pool.submit(self._reader.start)
            self._jobs["subscriber"] = pool.submit(self._subscriber.follow)
            self._say("writing the first orders")
            self._producer.load()
            self._written = time.perf_counter()
            self._jobs["producer"] = pool.submit(self._producer.stream, self._stop)
            # A first start downloads Iceberg's jar: two processes must not write one cache at once.
            self._await("jar of Iceberg", SPARK_SECONDS, self._reader.has_jars)
            self._begin(
                "tiering service", "tier", "--server", self._server, "--master", "local[1]", variables=QUICK_JAVA
            )
            self._await("Spark session", SPARK_SECONDS, lambda: self._reader.ready)
            self._jobs["reader"] = pool.submit(self._reader.read, self._stop)
            self._watch()
            self._stop.set()
            for name in ("producer", "reader", "Kafka"):
                self._jobs[name].result()
            answers = self._compare()
            self._report(answers)
            if self._keep:
                self._stay()
            return answers

    def _stay(self) -> None:
        """Keep every process until Ctrl-C."""
        self._echo(f"  console      {self._console}; Ctrl-C ends the server and the rest")
        with suppress(KeyboardInterrupt):
            while True:
                self._alive()
                time.sleep(1)

    @property
    def _console(self) -> str:
        return f"http://127.0.0.1:{self._http}/"

    def _release(self) -> None:
        """Let every thread end, also after a failure. A last commit wakes the subscriber."""
        self._stop.set()
        self._subscriber.stopping.set()
        if not self._subscriber.end.done():
            self._subscriber.end.cancel()
            with suppress(LakestoreError):
                self._processes[0].check()
                self._producer.step()

    def _serve(self) -> Lake:
        self._begin(
            "server", "serve", "--data", str(self._folder / "server"), "--port", str(self._grpc),
            "--http-port", str(self._http), "--warehouse", str(self._folder / "warehouse"),
        )  # fmt: skip
        deadline = time.perf_counter() + START_SECONDS
        while True:
            self._alive()
            lake = connect(self._server)
            try:
                lake.tables()
                self._stack.callback(lake.close)
                return lake
            except Unavailable:
                lake.close()
                if time.perf_counter() > deadline:
                    raise
                time.sleep(0.2)

    def _run_kafka(self) -> None:
        """Start a broker and the bridge, then send payments until the story ends. Runs in a thread of the pool."""
        self._kafka = kafka = kafka_if_possible(self._folder / "kafka", self._metrics, self._say)
        if kafka is not None and not self._stop.is_set():
            self._bridge(kafka)
            self._tables += [PAYMENTS, LETTERS]
            self._bridged.set()
            kafka.stream(self._stop)
        self._bridged.set()

    def _end_kafka(self) -> None:
        if self._kafka is not None:
            self._kafka.stop()

    def _bridge(self, kafka: Kafka) -> None:
        """Start the bridge, and wait until its metrics answer."""
        arguments = ("-f", str(BRIDGE_FILE), "--server", self._server, "--metrics-port", str(self._metrics))
        self._begin("bridge", "bridge", *arguments, variables={ADDRESS_VARIABLE: kafka.address})
        deadline = time.perf_counter() + BRIDGE_SECONDS
        while kafka.seen() is None:
            if time.perf_counter() > deadline:
                raise Unavailable(f"no bridge after {BRIDGE_SECONDS} s; see the logs in {self._folder}")
            if self._stop.wait(0.25):
                return

    def _client(self) -> Lake:
        lake = connect(self._server)
        self._stack.callback(lake.close)
        return lake

    def _begin(self, name: str, *arguments: str, variables: Mapping[str, str] = MappingProxyType({})) -> None:
        self._say(f"starting the {name}: lakestore {' '.join(arguments)}")
        process = Process(name, lakestore(*arguments), self._folder / f"{name.split()[0]}.log", variables)
        self._stack.callback(process.stop)
        self._processes.append(process)

    def _create(self) -> None:
        for arguments in definitions():
            table = self._lake.create_table(**arguments).definition
            self._say(f"table {table.name}: {len(table.columns)} columns, {table.buckets} buckets")

    def _alive(self) -> None:
        for process in self._processes:
            process.check()
        if self._kafka is not None:
            self._kafka.check()
        for job in self._jobs.values():
            if job.done():
                job.result()

    def _await(self, what: str, seconds: float, done: Callable[[], bool]) -> None:
        self._say(f"waiting for the {what}")
        begun = shown = time.perf_counter()
        while not done():
            time.sleep(0.25)
            self._alive()
            now = time.perf_counter()
            if now - begun > seconds:
                raise Unavailable(f"no {what} after {seconds:.0f} s; see the logs in {self._folder}")
            if now - shown > PROGRESS_SECONDS:
                shown = now
                self._progress()

    def _watch(self) -> None:
        """Let the story run for its seconds, and all parts of it side by side for at least `TOGETHER_SECONDS`."""
        self._await("first tiering round, Spark read and the bridge", PARTS_SECONDS, self._worked)
        now = time.perf_counter()
        end = max(self._written + self._seconds, now + min(TOGETHER_SECONDS, self._seconds))
        self._say(f"everything runs; {end - now:.0f} s more of it")
        while (left := end - time.perf_counter()) > 0:
            time.sleep(min(PROGRESS_SECONDS, left))
            self._alive()
            self._progress()

    def _progress(self) -> None:
        hot = sum(int(part["hot"]) for part in self._status())
        reads = self._reader.seconds
        last = f", last {reads[-1]:.1f} s" if reads else ""
        seen = self._kafka.seen() if self._kafka else None
        kafka = f" · {seen.records:,} of {self._kafka.sent:,} records from Kafka" if seen and self._kafka else ""
        self._say(
            f"{self._producer.loaded_rows + self._producer.rows:,} rows sent · {self._subscriber.changes:,} changes "
            f"folded · {hot:,} hot · {len(reads)} Spark reads{last}{kafka}"
        )

    def _status(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._lake.transport.status(pb.StatusRequest()).status)["tables"]
        return found

    def _tiered(self) -> bool:
        return all(part["snapshot_id"] for part in self._status() if part["name"] in (ORDERS, EVENTS))

    def _worked(self) -> bool:
        """Whether each part has done its work once while the producer writes."""
        return self._bridged.is_set() and bool(self._reader.seconds) and self._tiered()

    def _compare(self) -> dict[str, bool]:
        self._say("the producer stopped; comparing")
        self._subscriber.stopping.set()
        self._subscriber.end.set_result(self._producer.step())
        self._jobs["subscriber"].result(START_SECONDS)
        sent = self._producer.shop.state()
        read = State.of(self._lake.table(ORDERS).scan().to_arrow())
        answers = {
            "changelog fold = what was sent": self._subscriber.state.same(sent),
            "union read in Arrow = what was sent": read.same(sent),
            "union read in Spark = what was sent": self._reader.once()
            == Answer(sent.rows, self._producer.shop.total_cents),
        }
        if self._kafka is not None:
            answers.update(self._compare_kafka(self._kafka))
        for name in self._tables:
            found = verify(self._lake.transport, name)
            answers[f"{name}: log fold = index = lake + hot"] = found.same
            for problem in found.problems():
                self._echo(f"  {problem}")
        return answers

    def _compare_kafka(self, kafka: Kafka) -> dict[str, bool]:
        self._await("bridge to commit what is in the topic", BRIDGE_SECONDS, kafka.caught_up)
        joined = kafka.payments.joined(self._producer.shop.alive())
        return {
            "payments = records of the topic, folded": kafka.table_is_right(self._lake),
            "dead letters = its bad records, each once": kafka.letters_are_right(self._lake),
            "payments joined with orders in Spark = what was sent": self._reader.join() == Answer(*joined),
        }

    def _report(self, answers: dict[str, bool]) -> None:
        producer, lags, reads = self._producer, self._subscriber.lag_seconds, self._reader.seconds
        load = producer.loaded_rows / max(producer.load_seconds, 1e-9)
        stream = producer.rows / max(producer.stream_seconds, 1e-9)
        figures = {
            "rows/s": f"load {load:,.0f}, stream {stream:,.0f} (held to {STEPS_PER_SECOND} commits a second)",
            "commit": f"{_times(producer.commit_seconds)}: two tables at once, synced to disk",
            "freshness": f"commit to subscriber {_times(lags)}; union reads always the head",
            "Spark SQL": f"{len(reads)} union reads of two tables at one cut, {_times(reads)}",
            "Kafka": self._kafka.line() if self._kafka else "left out, as said above",
            **{name: _files(self._lake, name) for name in self._tables if name != LETTERS},
            "time": f"{time.perf_counter() - self._started:.0f} s",
        }
        lines = [
            "",
            *(f"  {'ok   ' if same else 'WRONG'}  {name}" for name, same in answers.items()),
            "",
            *(f"  {name:15}{text}" for name, text in figures.items()),
        ]
        self._echo("\n".join(lines))

    def _say(self, text: str) -> None:
        self._echo(f"[{time.perf_counter() - self._started:5.1f} s] {text}")


def _times(seconds: list[float]) -> str:
    middle, high = quantile(seconds, 0.5), quantile(seconds, 0.99)
    if high < 1:
        return f"p50 {middle * 1000:.0f} ms, p99 {high * 1000:.0f} ms"
    return f"p50 {middle:.1f} s, p99 {high:.1f} s"


def _files(lake: Lake, name: str) -> str:
    scan = plan.newest(lake.transport.plan, name)
    if not scan.in_lake:
        return f"{scan.live_rows:,} rows, none in the lake yet"
    files = cold.files(scan.metadata_location, scan.snapshot_id)
    data = [file for file in files if file.content == "data"]
    done = [each["summary"]["operation"] for each in cold.history(scan.metadata_location)]
    compactions = done.count("replace")
    return (
        f"{scan.live_rows:,} rows; {len(done) - compactions} flushes and {compactions} compactions left "
        f"{len(data)} data and {len(files) - len(data)} delete files; {scan.hot_rows:,} changes still hot"
    )


def opening(console: str, seconds: float, *, keep: bool) -> str:
    """The first screen: five lines that name the steps of the demo."""
    stays = "it stays open until Ctrl-C" if keep else "--keep leaves it open until Ctrl-C"
    return (
        "1. A server starts; a producer writes orders and events to it, a subscriber folds the changelog.\n"
        "2. A tiering service moves rows into Iceberg; Spark reads both tables at one cut meanwhile.\n"
        "3. A Kafka broker gets payments, bad ones too; a bridge writes them to a table. First starts download jars.\n"
        f"4. After {seconds:.0f} s of writing the producer stops; every reader must have exactly what was sent.\n"
        f"5. Console: {console} while the demo runs; {stays}.\n"
    )


def kafka_if_possible(folder: Path, metrics_port: int, say: Echo) -> Kafka | None:
    """Start a broker with its data in a folder. Returns None, after a line with the reason, if that is not possible."""
    if find_spec("confluent_kafka") is None:
        say(f"Kafka is left out: its library is not installed: {wheel_with('kafka')}")
        return None
    from lakestore_demo.kafka import Kafka

    try:
        kafka = Kafka(folder, metrics_port)
    except Unavailable as error:
        say(f"Kafka is left out: {error.message}")
        return None
    say(f"a Kafka broker runs, with a topic {TOPIC} of {PARTITIONS} partitions")
    return kafka


def run(echo: Echo, *, seconds: float, folder: Path | None = None, keep: bool = False) -> dict[str, bool]:
    """Run the demo in a folder; default: one below build/ that is removed afterwards. Returns the comparisons.

    With `keep` the processes stay after the comparison until Ctrl-C.
    """
    place = folder or BUILD / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    place.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("SPARK_LOCAL_DIRS", str(place / "spark"))
    answers: dict[str, bool] = {}
    try:
        answers = Demo(place, echo, seconds=seconds, keep=keep).run()
    finally:
        if answers and all(answers.values()) and folder is None:
            shutil.rmtree(place, ignore_errors=True)
        else:
            echo(f"  logs and data are in {place}")
    echo("  next         lakestore serve --data ./lake, then lakestore connect spark | duckdb | trino | pyiceberg")
    echo("               examples/shop/README.md has queries to try, docs/architecture.md says how it works")
    return answers
