"""A bridge in a process of its own, that can be killed."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import lakestore as ls
from lakestore.kafka.bridge.bridge import Bridge
from lakestore.kafka.bridge.spec import BridgeSpec


class BridgeProcess:
    """A bridge that runs until it is told to stop. `kill` is kill -9."""

    def __init__(self, folder: Path, spec: BridgeSpec, server: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "spec").write_bytes(pickle.dumps(spec))
        self._path = folder / "log"
        self._log = self._path.open("a")
        self._command = [sys.executable, "-m", __name__, str(folder / "spec"), server]
        self.start()

    def start(self) -> None:
        """Begin, or begin again."""
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def last_words(self) -> str:
        """The last line that it wrote."""
        lines = self._path.read_text().splitlines()
        return lines[-1] if lines else ""

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait(30)

    def stop(self) -> int:
        """An orderly end; the exit code."""
        self._process.terminate()
        return self._process.wait(60)

    def close(self) -> None:
        """An end that leaves nothing behind."""
        self.kill()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def once(folder: Path, spec: BridgeSpec, server: str) -> tuple[int, float]:
    """Records and seconds of a bridge that reads to the ends as of now, in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec").write_bytes(pickle.dumps(spec))
    command = [sys.executable, "-m", __name__, str(folder / "spec"), server, "once"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return int(said[-2]), float(said[-1])


def main(path: str, server: str, *, ends: bool) -> None:
    """Run the bridge of a spec until SIGTERM, or to the ends as of now."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    spec = pickle.loads(Path(path).read_bytes())
    with ls.connect(server) as lake:
        began = time.perf_counter()
        counts = Bridge(spec, lake).run(once=ends, stop=stop)
        sys.stdout.write(f"{counts.records} {time.perf_counter() - began}\n")


if __name__ == "__main__":
    import logging

    logging.basicConfig(level=logging.INFO)
    main(*sys.argv[1:3], ends=len(sys.argv) > 3)
