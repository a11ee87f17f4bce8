"""A standalone Spark cluster: a master and a worker, whose executors come and go with the tierer's driver."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from jepsen.system import processes
from jepsen.system.processes import Found, Nursery
from jepsen.system.server import free_port
from jepsen.system.tierer import SHORT_LIVED

START_SECONDS = 60.0
_DEPLOY = "org.apache.spark.deploy"
_EXECUTOR = "CoarseGrainedExecutorBackend"
_SMALL = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED, "SPARK_LOCAL_IP": "127.0.0.1"}


class SparkCluster:
    """Master and worker. Executors that are killed are started again by the worker, not by us. Thread-safe."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        import pyspark

        self._nursery, self._folder, self._log = nursery, folder, folder / "cluster.log"
        self._class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        self._port = free_port()
        self.address = f"spark://127.0.0.1:{self._port}"
        self._running: list[subprocess.Popen[bytes]] = []
        self._turn = threading.RLock()

    def start(self) -> None:
        """Start both unless they run, and wait until they know each other."""
        with self._turn:
            if self._running:
                return
            ports = "--port", str(self._port), "--webui-port", "0"
            self._begin(f"{_DEPLOY}.master.Master", "--host", "127.0.0.1", *ports)
            work = "--work-dir", str(self._folder / "work"), "--cores", "2", "--memory", "1400m"
            self._begin(f"{_DEPLOY}.worker.Worker", *work, "--webui-port", "0", self.address)
            deadline = time.monotonic() + START_SECONDS
            while "Successfully registered with master" not in self._log.read_text(errors="replace"):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the Spark cluster did not start: {self._log.read_text()[-2000:]}")
                time.sleep(0.1)

    def _begin(self, *command: str) -> None:
        packages = os.pathsep.join(folder for folder in sys.path if folder)
        with self._log.open("ab") as log:
            environment = {**_SMALL, "PYTHONPATH": packages, "PYSPARK_PYTHON": sys.executable}
            self._running.append(
                self._nursery.spawn([self._class, *command], stdout=log, stderr=log, environment=environment)
            )

    def executors(self) -> list[Found]:
        """The JVMs that do the work now."""
        with self._turn:
            pids = [each.pid for each in self._running]
        return [each for pid in pids for each in processes.descendants(pid) if _EXECUTOR in each.command]

    def stop(self) -> None:
        """End both at once."""
        with self._turn:
            for each in self._running:
                each.kill()
                each.wait()
            self._running.clear()
