"""The tierer's process, its Spark, and whoever starts it again when it has ended by itself."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from jepsen.system import processes
from jepsen.system.processes import Found, Nursery

EPOCH_SECONDS = 3
LOOK_SECONDS = 0.5
STOP_SECONDS = 30.0
READY, READY_SECONDS = "Ctrl-C ends it", 120.0
"""Part of the line that it writes when it begins its work."""
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that lives for seconds: it takes half the time to warm up."""
_DEFAULTS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.task.maxFailures": "8",
}


class Tierer:
    """`lakestore tier`, as a service: one that ends by itself, as a fenced one does, is started again. Thread-safe."""

    def __init__(
        self,
        nursery: Nursery,
        folder: Path,
        server: str,
        master: str,
        environment: Mapping[str, str] | None = None,
        by: str = "",
    ) -> None:
        """`by`: host and port of the HTTP proxy by which its Spark reaches the catalog."""
        self._nursery, self._log, self._server, self._master = nursery, folder / "tierer.log", server, master
        conf = folder / "spark"
        conf.mkdir(parents=True, exist_ok=True)
        said = {**_DEFAULTS, **_way(by)}
        (conf / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in said.items()))
        self._environment = {"SPARK_CONF_DIR": str(conf), "SPARK_LOCAL_IP": "127.0.0.1", **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = threading.RLock()
        self._is_wanted = False
        self._closed = threading.Event()
        self.lives = 0
        """How often it was started."""
        threading.Thread(target=self._watch, name="tierer-watch", daemon=True).start()

    def found(self) -> list[Found]:
        """Its own process, the one of Python, if it runs."""
        process = self._process
        found = processes.look(process.pid) if process is not None and process.poll() is None else None
        return [found] if found else []

    def driver(self) -> list[Found]:
        """The JVM of its Spark."""
        return [
            each for one in self.found() for each in processes.descendants(one.pid) if "SparkSubmit" in each.command
        ]

    def start(self) -> bool:
        """Start it unless it runs; whether it had to be started. It serves some seconds later."""
        with self._turn:
            self._is_wanted = True
            if self.found():
                return False
            self.lives += 1
            command = ["tier", "--epoch-seconds", str(EPOCH_SECONDS)]
            command += ["--master", self._master, "--server", self._server]
            with self._log.open("ab") as log:
                self._process = self._nursery.spawn(
                    [sys.executable, "-m", "lakestore", *command],
                    stdout=log,
                    stderr=log,
                    environment=self._environment,
                )
            return True

    def wait(self, seconds: float = READY_SECONDS) -> bool:
        """Wait until its Spark has come up; whether it has in that time."""
        deadline = time.monotonic() + seconds
        while READY not in self._log.read_text(errors="replace"):
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_SECONDS)
        return True

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            with self._turn:
                if self._is_wanted and not self._closed.is_set():
                    self.start()

    def abandon(self) -> list[Found]:
        """Another one takes its place, while all its processes are left as they are; these."""
        with self._turn:
            found = self.found()
            found += [each for one in found for each in processes.descendants(one.pid)]
            self._process = None
            self.start()
            return found

    def kill(self, *, whole: bool) -> list[int]:
        """kill -9 of its own process, or of its Spark too; it stays away until it is started."""
        with self._turn:
            self._is_wanted = False
            found = self.found()
            rest = [each for one in found for each in processes.descendants(one.pid)] if whole else []
            killed = processes.kill([*found, *rest])
            if self._process is not None and found:
                self._process.wait(STOP_SECONDS)
            return killed

    def stop(self) -> None:
        """End it for good, in order if it goes."""
        self._closed.set()
        with self._turn:
            self._is_wanted = False
            process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _way(by: str) -> dict[str, str]:
    """The settings of Spark's catalogs that reach the server by a proxy."""
    host, _, port = by.rpartition(":")
    names = [f"spark.sql.catalog.{name}.rest.client.proxy" for name in ("lake", "now")] if by else []
    return {f"{name}.{key}": value for name in names for key, value in (("hostname", host), ("port", port))}
