"""Stand-ins for the process of a query, without the allow list: `python -m tests.support.hostile_query MODULE WALLS`.

Run in the place of `lakestore_server.host.confined_process`. The texts `!files` and `!calls` try what code of an
attacker would try from within the process; any other text runs as SQL that nobody has checked.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from lakestore_server.host import confined_process
from lakestore_server.host.child import Parent, PartPieces

SERVER = os.getppid()


def _tried(tries: dict[str, Callable[[], object]]) -> list[list[str]]:
    """What each attempt came to: `done`, or the error."""
    rows = []
    for name, attempt in tries.items():
        try:
            attempt()
            rows.append([name, "done"])
        except (OSError, KeyError) as error:
            rows.append([name, type(error).__name__])
    return rows


def _files(folder: str) -> dict[str, Callable[[], object]]:
    return {
        "the server's environment": lambda: Path(f"/proc/{SERVER}/environ").read_bytes(),
        "the server's memory": lambda: Path(f"/proc/{SERVER}/maps").read_bytes(),
        "its own environment": lambda: Path("/proc/self/environ").read_bytes(),
        "passwords": lambda: Path("/etc/passwd").read_bytes(),
        "names of the data": lambda: os.listdir(folder),
        "a file of the data": lambda: Path(folder, "secret.txt").read_bytes(),
        "a new file": lambda: Path(folder, "written.txt").write_bytes(b"x"),
        "a file less": lambda: Path(folder, "secret.txt").unlink(),
        "another name": lambda: Path(folder, "secret.txt").rename(Path(folder, "other.txt")),
        "a link": lambda: Path(folder, "link").symlink_to("/etc/passwd"),
    }


def _calls(folder: str) -> dict[str, Callable[[], object]]:
    return {
        "a connection": lambda: socket.create_connection(("127.0.0.1", int(folder)), 5),
        "a socket of names": lambda: socket.socket(socket.AF_UNIX),
        "another program": lambda: subprocess.run(["/bin/true"], check=True),
        "another process": os.fork,
        "a signal": lambda: os.kill(SERVER, 0),
        "a higher limit": lambda: os.nice(-5),
        "another user": lambda: os.setuid(0 if os.getuid() else 1),
    }


def _thread_is_confined() -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(row[1] for row in _tried(_files("/"))[:4]))
    thread.start()
    thread.join()
    assert set(found) == {"PermissionError"}, found


def _attempts(text: str) -> list[list[str]] | None:
    """What the attempts of a text came to; None for a text that is SQL."""
    kind, _, rest = text.partition(" ")
    if kind == "!files":
        if "landlock" in sys.argv:
            _thread_is_confined()
        return _tried(_files(rest))
    if kind == "!calls":
        return _tried(_calls(rest))
    if kind == "!exec":
        os.execv("/bin/true", ["true"])
    if kind == "!ptrace":
        ctypes.CDLL(None).ptrace(16, SERVER, 0, 0)
    if kind == "!environment":
        return _tried({name: lambda: None for name in os.environ})
    return None


def main(parent: Parent, confine: Callable[[], None]) -> None:
    """As the process of a query does, behind the wall."""
    import pyarrow as pa  # starts threads, so only behind the wall

    from lakestore.union import sql_gate
    from lakestore_server.queries import process
    from lakestore_server.queries.question import Bounds, Figures, Head, Part, Question

    answered = process.answered

    def hostile(wire: process.PipeWire, question: Question, bounds: Bounds) -> PartPieces:
        rows = _attempts(question.text)
        if rows is None:
            return (yield from answered(wire, question, bounds))
        yield Head(pa.schema([]), "").to_bytes()
        yield Part.head(len(rows)) + json.dumps(rows).encode()
        return Figures(len(rows)).to_bytes()

    process.answered = hostile
    sql_gate.check = lambda *_: None
    process.main(parent, confine)


if __name__ == "__main__":
    confined_process.PACKAGES.append("tests")
    sys.argv[1] = "tests.support.hostile_query"
    confined_process.main()
