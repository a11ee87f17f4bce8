"""A PostgreSQL server of a test's own, with logical decoding switched on.

- The programs are those of the machine; `python -m tests.support.postgres` installs them on Debian as root.
- The data lies in a temporary folder that the server's user owns, for PostgreSQL refuses to run as root.
- SQL goes through `psql`; rows come back as JSON.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jepsen.system.server import free_port

USER, DATABASE = "postgres", "shop"
START_SECONDS, SQL_SECONDS = 60.0, 300.0
MISSING = "tests of Debezium need PostgreSQL: install it (Debian: postgresql)"
_SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "10",
    "max_wal_senders": "10",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "shared_buffers": "64MB",
    "timezone": "UTC",
}
"""A test's database need not survive a power cut."""


def programs() -> Path | None:
    """Return the folder of the newest `initdb` and `postgres`; None if there is none."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    known = shutil.which("initdb")
    return debian[-1].parent if debian else Path(known).parent if known else None


class Postgres:
    """One server with an empty database `shop`. A context manager; closing it removes the data."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        """`settings` differ from those of a test's database."""
        found = programs()
        if found is None:
            raise FileNotFoundError(MISSING)
        self._programs = found
        self._account = USER if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="lakestore-postgres-"))
        if self._account is not None:
            owner = pwd.getpwnam(self._account)
            os.chown(self._folder, owner.pw_uid, owner.pw_gid)
        self.port = free_port()
        try:
            self._run("initdb", "-D", "data", "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
            with (self._folder / "data" / "postgresql.conf").open("a") as lines:
                lines.writelines(f"{name} = '{value}'\n" for name, value in {**_SETTINGS, **(settings or {})}.items())
            self._process = self._started()
            self.run(f"CREATE DATABASE {DATABASE}", database="postgres")
        except BaseException:
            self._remove()
            raise

    def _started(self) -> subprocess.Popen[bytes]:
        command = [str(self._programs / "postgres"), "-D", "data", "-p", str(self.port), "-k", str(self._folder)]
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self._folder, user=self._account, stdout=log, stderr=log)
        ends = time.monotonic() + START_SECONDS
        ready = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready, check=False).returncode:
            if process.poll() is not None or time.monotonic() > ends:
                process.kill()
                raise AssertionError(f"PostgreSQL did not start: {(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        return process

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(
            command, cwd=self._folder, user=self._account, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def run(self, sql: str, *, database: str = DATABASE) -> str:
        """Run statements, each in a transaction of its own unless they say BEGIN; return what they print."""
        command = [str(self._programs / "psql"), "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-d", database]
        command += ["-q", "-A", "-t", "-X", "-v", "ON_ERROR_STOP=1", "-f", "-"]
        done = subprocess.run(command, input=sql, capture_output=True, text=True, timeout=SQL_SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query, as PostgreSQL's own JSON of them; numbers with a point are texts' digits."""
        printed = self.run(f"SELECT row_to_json(r) FROM ({query}) r")
        return [json.loads(line, parse_float=str) for line in printed.splitlines() if line]

    def close(self) -> None:
        """End the server and remove its data."""
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:  # a replication connection keeps it
            self._process.kill()
            self._process.wait(30)
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def main() -> None:
    """Install PostgreSQL on Debian as root if it is missing; otherwise say in one line that it is missing."""
    if programs() is None and os.geteuid() == 0 and Path("/etc/debian_version").exists():
        print("installing PostgreSQL (apt-get)", file=sys.stderr)
        for words in (["update"], ["install", "-y", "--no-install-recommends", "postgresql"]):
            subprocess.run(
                ["apt-get", "-qq", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
            )
    if programs() is None:
        print(MISSING, file=sys.stderr)


if __name__ == "__main__":
    main()
