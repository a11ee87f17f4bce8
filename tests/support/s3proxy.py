"""S3Proxy by its Maven coordinates: an S3 server in a process of its own, made by others.

It keeps the promise of `If-None-Match: *` with both of its backends, memory and a folder. It asks for no keys.
"""

from __future__ import annotations

import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.error import HTTPError

from jepsen.system.jvm import SHORT_LIVED
from jepsen.system.server import free_port
from lakestore.java import java
from lakestore_demo.ivy import fetch

VERSION = "4.0.0"
_ARTIFACTS = (
    f"org.gaul:s3proxy:{VERSION}",
    "args4j:args4j:2.37",
    "ch.qos.logback:logback-classic:1.6.1",
    "ch.qos.logback:logback-core:1.6.1",
    "com.fasterxml.jackson.core:jackson-annotations:2.22",
    "com.fasterxml.woodstox:woodstox-core:7.2.1",
    "com.google.guava:failureaccess:1.0.3",
    "com.google.guava:guava:33.6.0-jre",
    "com.google.jimfs:jimfs:1.3.1",
    "jakarta.servlet:jakarta.servlet-api:6.0.0",
    "org.apache.sshd:sshd-common:2.19.0",
    "org.apache.sshd:sshd-core:2.19.0",
    "org.apache.sshd:sshd-sftp:2.19.0",
    "org.codehaus.woodstox:stax2-api:4.3.0",
    "org.slf4j:slf4j-api:2.0.18",
    "tools.jackson.core:jackson-core:3.2.1",
    "tools.jackson.core:jackson-databind:3.2.1",
    "tools.jackson.dataformat:jackson-dataformat-xml:3.2.1",
)
"""The jars whose classes S3Proxy loads with its two backends. It depends on 180 more, for other clouds: Ivy took 233 s
for all of them, and takes 15 s for these."""
_LOGGING = """<configuration>
<appender name="out" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%d %m%n</pattern></encoder></appender>
<root level="warn"><appender-ref ref="out"/></root></configuration>"""
START_SECONDS = 180.0


class S3ProxyProcess:
    """The server, with one bucket. A context manager."""

    def __init__(
        self, folder: Path, *, bucket: str = "lakestore", stores_files: bool = False, memory: str = "1g"
    ) -> None:
        """`stores_files`: objects are files below the folder, not in memory."""
        port = free_port()
        self.address, self.bucket = f"127.0.0.1:{port}", bucket
        (folder / "objects").mkdir(parents=True)
        configuration = folder / "s3proxy.properties"
        settings = {
            "s3proxy.authorization": "none",
            "s3proxy.endpoint": f"http://{self.address}",
            "jclouds.provider": "filesystem" if stores_files else "transient",
            "jclouds.filesystem.basedir": folder / "objects",
            "jclouds.identity": "nobody",
            "jclouds.credential": "nothing",
        }
        configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (folder / "logback.xml").write_text(_LOGGING)
        jars = fetch("s3proxy", f"{VERSION}-alone", _ARTIFACTS, transitive=False)
        command = [java(), f"-Xmx{memory}", *SHORT_LIVED, f"-Dlogback.configurationFile={folder / 'logback.xml'}"]
        command += ["-cp", f"{jars}/*", "org.gaul.s3proxy.Main"]
        with (folder / "s3proxy.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--properties", str(configuration)], stdout=log, stderr=subprocess.STDOUT
            )
        try:
            self._await_bucket()
        except BaseException:
            self.close()
            raise

    def _await_bucket(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with suppress(OSError):
                try:
                    ask = urllib.request.Request(f"http://{self.address}/{self.bucket}", method="PUT")
                    urllib.request.urlopen(ask, timeout=5.0).close()
                except HTTPError as error:
                    raise AssertionError(f"S3Proxy makes no bucket: {error}") from error
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError("S3Proxy does not start")
            time.sleep(0.1)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which servers find it."""
        return environment_of(self.address)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def environment_of(address: str) -> dict[str, str]:
    """The variables for an S3 server at an address, or for a proxy before it."""
    return {
        "AWS_ENDPOINT_URL": f"http://{address}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",  # S3Proxy asks for none
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
