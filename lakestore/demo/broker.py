"""A Kafka broker of one's own. Its jars come by Maven coordinates, through the Ivy that Spark brings along, once."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self
from xml.sax.saxutils import quoteattr

from lakestore.demo.processes import Process, free_ports
from lakestore.errors import Unavailable
from lakestore.release import wheel_with

VERSION = "4.3.1"
FETCH_SECONDS, START_SECONDS, FORMAT_SECONDS = 240.0, 60.0, 60.0
_COORDINATES = (("org.apache.kafka", "kafka_2.13", VERSION), ("org.slf4j", "slf4j-simple", "1.7.36"))
_SETTINGS = """<ivysettings><settings defaultResolver="central"/><resolvers>
<ibiblio name="central" m2compatible="true" usepoms="true"{root}/></resolvers></ivysettings>"""
_MODULE = """<ivy-module version="2.0"><info organisation="lakestore" module="broker"/>
<dependencies>{dependencies}</dependencies></ivy-module>"""


def java() -> str:
    """The command that runs Java, as Spark finds it; `Unavailable` where there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if found is None:
        raise Unavailable("there is no Java: install a JDK 17 or newer, or set JAVA_HOME to it")
    return found


def jars() -> Path:
    """The folder with the broker's jars, fetched once for this environment; `Unavailable` where that fails."""
    folder = Path(sys.prefix) / "kafka" / VERSION
    if (folder / ".ready").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as place:
        fetched = _fetched(Path(place))
        if (folder / ".ready").exists():  # another process was as far in the meantime, and runs a broker of it
            return folder
        (fetched / ".ready").touch()
        shutil.rmtree(folder, ignore_errors=True)
        try:
            fetched.rename(folder)
        except OSError as error:
            if not (folder / ".ready").exists():
                raise Unavailable(f"Kafka's jars cannot be kept in {folder}: {error.strerror}") from error
    return folder


def _fetched(place: Path) -> Path:
    mirror = os.environ.get("DEFAULT_ARTIFACT_REPOSITORY")  # the variable by which Spark is told of one
    settings, module = place / "settings.xml", place / "ivy.xml"
    settings.write_text(_SETTINGS.format(root=f" root={quoteattr(mirror)}" if mirror else ""))
    wanted = "".join(
        f'<dependency org="{group}" name="{name}" rev="{version}" conf="default"/>'
        for group, name, version in _COORDINATES
    )
    module.write_text(_MODULE.format(dependencies=wanted))
    folder = place / "jars"
    command = [
        java(), "-jar", str(_ivy()), "-settings", str(settings), "-ivy", str(module), "-cache", str(place / "cache"),
        "-confs", "default", "-types", "jar", "bundle",
        "-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]", "-warn",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"Kafka's jars were not there after {FETCH_SECONDS:.0f} s") from error
    if done.returncode or not any(folder.glob("kafka_*.jar")):
        raise Unavailable(
            f"Kafka's jars cannot be fetched ({_problem(done.stdout + done.stderr)}): let this machine reach Maven "
            "Central, or name a mirror in DEFAULT_ARTIFACT_REPOSITORY"
        )
    return folder


def _problem(said: str) -> str:
    """The line that tells most of what Ivy says."""
    lines = [line.strip(" \t:") for line in said.splitlines() if line.strip(" \t:")]
    telling = [line for line in lines if "not found" in line or "exception" in line.lower()]
    return next(iter(telling or lines), "Ivy says nothing")


def _ivy() -> Path:
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise Unavailable(f"Kafka's jars come through Spark: {wheel_with('spark')}")
    found = sorted((Path(spark.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise Unavailable("Kafka's jars cannot be fetched: Spark has no Ivy")
    return found[-1]


class Broker:
    """One broker that is its own controller, with its data in a folder; it answers when the constructor returns."""

    def __init__(self, folder: Path, *, options: Sequence[str] = ("-Xmx1g",)) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port, self.controller_port = free_ports(2)
        self._java = [java(), *options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars()}/*"]
        self._file = folder / "server.properties"
        self._file.write_text("".join(f"{name}={value}\n" for name, value in self.properties().items()))
        cluster = self._tool("random-uuid").strip().splitlines()[-1]
        self._tool("format", "-t", cluster, "-c", str(self._file))
        self._process = self._started()

    @property
    def address(self) -> str:
        """For `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    def properties(self) -> dict[str, str]:
        """Its settings."""
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.folder / "logs"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }

    @property
    def pid(self) -> int | None:
        """The process's number, while it runs."""
        return self._process.pid

    def check(self) -> None:
        """`Unavailable` with the last lines of the broker's log if it has ended."""
        self._process.check()

    def kill(self) -> None:
        """kill -9 of the broker."""
        self._process.kill()

    def kill_and_restart(self) -> None:
        """kill -9 of the broker, and the same one again."""
        self.kill()
        self._process = self._started()

    def stop(self) -> None:
        """End it."""
        self._process.stop()

    def _tool(self, *arguments: str) -> str:
        command = [*self._java, "kafka.tools.StorageTool", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=FORMAT_SECONDS)
        if done.returncode:
            raise Unavailable(f"Kafka cannot make its folder: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def _started(self) -> Process:
        process = Process("Kafka broker", [*self._java, "kafka.Kafka", str(self._file)], self.folder / "broker.log")
        deadline = time.monotonic() + START_SECONDS
        try:
            while not self._answers():
                process.check()
                if time.monotonic() > deadline:
                    raise Unavailable(f"the Kafka broker did not open its port in {START_SECONDS:.0f} s")
                time.sleep(0.1)
        except BaseException:
            process.kill()
            raise
        return process

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()
