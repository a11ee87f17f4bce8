"""A standalone Spark cluster on this machine: a master and workers in processes of their own, which can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from jepsen.system.jvm import SHORT_LIVED
from jepsen.system.server import free_port
from tests.support.waiting import until

CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
SMALL = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": " ".join(SHORT_LIVED)}
ROOT = Path(__file__).resolve().parents[2]
EXECUTOR = "CoarseGrainedExecutorBackend"


@contextmanager
def process(log: Path, *command: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a group of its own, which ends with the block."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", **variables}
    with log.open("ab") as out:
        running = subprocess.Popen(
            command, stdout=out, stderr=out, start_new_session=True, env=variables, cwd=log.parent
        )
    try:
        yield running
    finally:
        kill(running)


def kill(running: subprocess.Popen[bytes]) -> None:
    """SIGKILL for a process and all that it has started."""
    if running.poll() is None:
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


@dataclass(frozen=True)
class Worker:
    running: subprocess.Popen[bytes]
    folder: Path
    """The folder with the logs of its executors."""

    def executors(self) -> list[int]:
        """Process ids of its executors."""
        return [number for number in _processes() if _is_executor(number, self.running.pid)]

    def said(self) -> str:
        """The logs of its executors, as one text."""
        return "".join(path.read_text() for path in self.folder.rglob("stderr"))


@dataclass(frozen=True)
class Cluster:
    address: str
    """The address of the master, as `--master` takes it."""
    workers: list[Worker]


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A master with workers of one core each, whose executors may have 600 MB."""
    port, log = free_port(), folder / "cluster.log"
    address = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    made: list[Worker] = []
    with ExitStack() as stack:
        master = (f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        stack.enter_context(process(log, CLASS, *master, **SMALL))
        for number in range(workers):
            work = folder / f"work{number}"
            options = ("--work-dir", str(work), "--cores", "1", "--memory", "600m", "--webui-port", "0", address)
            running = stack.enter_context(process(log, CLASS, f"{deploy}.worker.Worker", *options, **SMALL))
            made.append(Worker(running, work))
        registered = "Successfully registered with master"
        until(lambda: log.read_text().count(registered) == workers, "all workers are there", 90)
        yield Cluster(address, made)


def _processes() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]


def _is_executor(number: int, group: int) -> bool:
    try:
        return os.getpgid(number) == group and EXECUTOR in Path(f"/proc/{number}/cmdline").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False
