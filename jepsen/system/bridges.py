"""A Kafka broker with its topics, and two bridges of one name that share the topics and bring them into tables."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

from jepsen.system.kafka import KafkaProcess, Topics
from jepsen.system.processes import Nursery

TOPICS = {"jepsen-log": 3, "jepsen-keyed": 3}
"""Partitions by topic."""
COUNT = 2
LOOK_SECONDS = 0.5
STOP_SECONDS = 30.0
_FILE = """name: jepsen
source:
  bootstrap: "{kafka}"
  options: {{session.timeout.ms: 1500, heartbeat.interval.ms: 300}}
batch: {{rows: {rows}, time: 50ms}}
topics:
  - topic: jepsen-log
    table: jepsen.bridged
    format: json
    columns: [{{name: id, type: int64, required: true}}, {{name: n, type: int64, required: true}}]
    coordinates: true
    on_error: dlq
  - topic: jepsen-keyed
    table: jepsen.bridged_keyed
    format: json
    key_format: json
    primary_key: [id]
    columns: [{{name: id, type: int64, from: key.id}}, {{name: n, type: int64, required: true}}]
    coordinates: true
    on_error: dlq
    tombstone: delete
"""


class Bridges:
    """The broker and the bridges. A bridge that ends by itself is started again, as a supervisor would. Thread-safe."""

    def __init__(self, nursery: Nursery, folder: Path, server: str, rows: int = 40) -> None:
        """`rows`: the most of one commit."""
        self._nursery, self._folder, self._server = nursery, folder, server
        self.broker = KafkaProcess(folder / "kafka", nursery=nursery)
        topics = Topics(self.broker.address)
        for topic, partitions in TOPICS.items():
            topics.make(topic, partitions)
        self._file = folder / "bridge.yaml"
        self._file.write_text(_FILE.format(kafka=self.broker.address, rows=rows))
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * COUNT
        self._wanted = [False] * COUNT
        self._turn = threading.RLock()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="bridge-watch", daemon=True).start()

    @property
    def address(self) -> str:
        """The broker's."""
        return self.broker.address

    def start(self) -> None:
        """Start whatever does not run."""
        with self._turn:
            self.broker.start()
            for number in range(COUNT):
                self.start_bridge(number)

    def start_bridge(self, number: int) -> None:
        """Start one bridge unless it runs."""
        with self._turn:
            self._wanted[number] = True
            process = self._processes[number]
            if process is not None and process.poll() is None:
                return
            command = [sys.executable, "-m", "lakestore", "bridge", "-f", str(self._file), "--server", self._server]
            with (self._folder / f"bridge{number}.log").open("ab") as log:
                self._processes[number] = self._nursery.spawn(command, stdout=log, stderr=log)

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            with self._turn:
                for number in range(COUNT):
                    if self._wanted[number] and not self._closed.is_set():
                        self.start_bridge(number)

    def signal_bridge(self, number: int, sent: int) -> bool:
        """Send a signal to one bridge; whether it runs. One that is killed stays away until it is started."""
        with self._turn:
            process = self._processes[number]
            if process is None or process.poll() is not None:
                return False
            if sent == signal.SIGKILL:
                self._wanted[number] = False
            process.send_signal(sent)
            if sent == signal.SIGKILL:
                process.wait(STOP_SECONDS)
            return True

    def signal_broker(self, sent: int) -> bool:
        """Send a signal to the broker; whether it runs."""
        with self._turn:
            return self.broker.signal(sent)

    def mend(self) -> None:
        """Everything goes on and runs."""
        self.signal_broker(signal.SIGCONT)
        for number in range(COUNT):
            self.signal_bridge(number, signal.SIGCONT)
        self.start()

    def stop(self) -> None:
        """End all of it at once."""
        self._closed.set()
        with self._turn:
            for number in range(COUNT):
                self.signal_bridge(number, signal.SIGKILL)
            self.broker.kill()
