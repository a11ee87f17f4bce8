"""Kafka Connect in standalone mode with Debezium's PostgreSQL connector, by their Maven coordinates.

Versions are those of a user of November 2026. One process runs any number of connectors; they are made by its REST
port, and their offsets lie in a file, so a process that was killed goes on where it had noted to be.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jepsen.system.jvm import SHORT_LIVED
from jepsen.system.server import free_port
from lakestore.java import java
from lakestore_demo.ivy import fetch
from lakestore_demo.processes import Process
from tests.support.postgres import DATABASE, USER, Postgres

VERSION = "4.3.0-debezium-3.6.1"
START_SECONDS = 180.0
_COORDINATES = (
    "org.apache.kafka:connect-runtime:4.3.0",
    "org.apache.kafka:connect-json:4.3.0",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.1",
    "io.debezium:debezium-connector-postgres:3.6.1.Final",
)
_MAIN = "org.apache.kafka.connect.cli.ConnectStandalone"
_JSON = "org.apache.kafka.connect.json.JsonConverter"
_LOGGING = """<Configuration>
<Appenders><Console name="out"><PatternLayout pattern="%d %p %c %m%n"/></Console></Appenders>
<Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers></Configuration>"""


class Connect:
    """One Connect process; its topics are in the broker at `bootstrap`. A context manager."""

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        *,
        jars: Path | None = None,
        options: Sequence[str] = ("-Xmx512m", *SHORT_LIVED),
    ) -> None:
        """`jars` is a folder with Connect and its connectors; Debezium's PostgreSQL connector by default. `options` are
        the JVM's."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._port, self._options = folder, free_port(), options
        self._jars = jars or fetch("connect", VERSION, _COORDINATES)
        settings = {
            "bootstrap.servers": bootstrap,
            "key.converter": _JSON,
            "value.converter": _JSON,
            "offset.storage.file.filename": str(folder / "offsets"),
            "offset.flush.interval.ms": "500",
            "listeners": f"http://127.0.0.1:{self._port}",
            "plugin.discovery": "service_load",
        }
        (folder / "connect.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (folder / "log4j2.xml").write_text(_LOGGING)
        self.start()

    def start(self) -> None:
        """Start the process, and wait until its REST port answers."""
        command = [java(), *self._options, f"-Dlog4j2.configurationFile={self._folder / 'log4j2.xml'}"]
        command += ["-cp", f"{self._jars}/*", _MAIN]
        command.append(str(self._folder / "connect.properties"))
        self._process = Process("Kafka Connect", command, self._folder / "log")
        self._until(lambda: self._asked("GET", "/connectors") is not None)

    def kill(self) -> None:
        """kill -9 of the process."""
        self._process.kill()

    def postgres(self, name: str, postgres: Postgres, settings: Mapping[str, str]) -> None:
        """Make a connector that follows a database; `name` is also its slot and publication. `runs` waits for it."""
        common = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "database.hostname": "127.0.0.1",
            "database.port": str(postgres.port),
            "database.user": USER,
            "database.password": "",
            "database.dbname": DATABASE,
            "topic.prefix": name,
            "slot.name": name,
            "publication.name": name,
            "topic.creation.default.replication.factor": "1",
            "topic.creation.default.partitions": "1",
            "poll.interval.ms": "50",
        }
        self.make(name, {**common, **settings})

    def make(self, name: str, config: Mapping[str, str]) -> None:
        """Make a connector of any kind."""
        self._asked("POST", "/connectors", {"name": name, "config": dict(config)})

    def remove(self, name: str) -> None:
        """Remove a connector."""
        self._asked("DELETE", f"/connectors/{name}")

    def runs(self, name: str) -> None:
        """Wait until a connector runs."""
        self._until(lambda: self._runs(name))

    def committed(self, name: str, transaction: int) -> None:
        """Wait until Kafka has every event of a connector up to the end of a transaction of PostgreSQL.

        Connect stores the offset of an event only when Kafka has that event and all events before it. An event in one
        topic says nothing of another topic: the producer sends the waiting batches of each topic by themselves, and a
        topic of large events is seconds behind.
        """
        self._until(lambda: self._runs(name) and self._committed(name) >= transaction)

    def _committed(self, name: str) -> int:
        """The transaction whose end is the connector's stored offset; 0 if the offset is not the end of one."""
        offsets = (self._asked("GET", f"/connectors/{name}/offsets") or {}).get("offsets", [])
        stored = [each["offset"] for each in offsets if each["offset"].get("messageType") == "COMMIT"]
        return int(stored[0]["transaction_id"]) if stored else 0

    def _runs(self, name: str) -> bool:
        status = self._asked("GET", f"/connectors/{name}/status") or {}
        tasks = status.get("tasks", [])
        failed = [task["trace"] for task in tasks if task["state"] == "FAILED"]
        assert not failed, failed[0]
        return bool(tasks) and all(task["state"] == "RUNNING" for task in tasks)

    def _asked(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer of the REST port; None while it does not answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            if error.code in (404, 409):  # not there yet; the worker is busy
                return None
            raise AssertionError(f"Kafka Connect refuses {path}: {error.read().decode()[:2000]}") from error
        except (urllib.error.URLError, ConnectionError):
            return None

    def _until(self, holds: Any) -> None:
        ends = time.monotonic() + START_SECONDS
        while not holds():
            self._process.check()
            if time.monotonic() > ends:
                raise TimeoutError(f"Kafka Connect does not come to it: {self._process.tail()}")
            time.sleep(0.1)

    def close(self) -> None:
        """End the process."""
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()
