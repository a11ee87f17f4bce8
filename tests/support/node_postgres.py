"""node-postgres in a Node process of its own.

- Node and npm are those of the machine; `python -m tests.support.node_postgres` installs them on Debian as root.
- npm installs what `tests/support/node/package-lock.json` pins, once, into a folder of the environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILES = Path(__file__).parent / "node"
MISSING = "tests of node-postgres need Node and npm: install them (Debian: nodejs, npm)"
INSTALL_SECONDS, RUN_SECONDS = 180, 120


def is_there() -> bool:
    """Whether the machine has Node and npm."""
    return bool(shutil.which("node") and shutil.which("npm"))


def outcomes(dsn: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What `client.js` got from a port: work to its value or its SQLSTATE."""
    keys = {"database": dsn["dbname"], **{name: dsn[name] for name in ("host", "port", "user", "password")}}
    folder = _installed()
    command = ["node", str(folder / "client.js"), json.dumps(keys)]
    zone = {**os.environ, "TZ": "UTC"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, env=zone, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def _installed() -> Path:
    """The folder with the pinned packages and the program. Two tests at once may make it: the first rename wins."""
    if not is_there():
        raise FileNotFoundError(MISSING)
    files = sorted(FILES.iterdir())
    name = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    folder = Path(sys.prefix) / "node" / name
    if folder.exists():
        return folder
    folder.parent.mkdir(exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent))
    for file in files:
        shutil.copy(file, made)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    try:
        made.rename(folder)
    except OSError:  # another test has made it
        if not folder.exists():
            raise
        shutil.rmtree(made)
    return folder


def main() -> None:
    """Install Node and npm where they are missing and that can be; else say so in a line, for their test will fail."""
    if not is_there() and os.geteuid() == 0 and Path("/etc/debian_version").exists():
        print("installing Node (apt-get)", file=sys.stderr)
        for words in (["update"], ["install", "-y", "--no-install-recommends", "nodejs", "npm"]):
            subprocess.run(
                ["apt-get", "-qq", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
            )
    if not is_there():
        print(MISSING, file=sys.stderr)


if __name__ == "__main__":
    main()
