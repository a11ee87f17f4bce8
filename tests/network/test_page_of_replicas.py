"""The blocks of docs/replicas.md, typed by a reader. Three servers share a topic of a real broker; the leader is killed
and loses its folder. A folder moves into a topic and back."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest

from jepsen.system.kafka import KafkaProcess
from jepsen.system.server import free_port
from tests.support.documents import ON_REPLICAS, REPLICAS, ROOT, Part, Reader, blocks, parts, runner_of
from tests.support.seeds import serial
from tests.support.waiting import until

pytestmark = pytest.mark.kafka
PAGE = ROOT / ON_REPLICAS
PORT = re.compile(r"\b73\d\d\b")
LEADER = "./a"
"""The folder of the first server, which the page kills before its first look-up."""


class Laptop:
    """The reader's folder, with the page's ports and broker."""

    def __init__(self, broker: str) -> None:
        self.reader = Reader("", "", {})
        self.servers: dict[str, subprocess.Popen[str]] = {}
        self._words: list[str] = []
        """The last command, which is typed again until it shows what the page shows."""
        ports = {port: str(free_port()) for port in sorted(set(PORT.findall(PAGE.read_text())))}
        self.reader.places = {"localhost:9092": broker, "lakestore-journal": serial("journal"), **ports}
        self.reader.places["shop-journal"] = serial("shop-journal")

    def type(self, part: Part) -> None:
        """Run a part as a reader does."""
        if part.block.file:
            Path(part.block.file).write_text(part.text)
        elif part.block.language == "text":
            until(lambda: self._shows(part.text), "what the page shows", 120)
        elif part.text.startswith("lakestore serve "):
            self._serve(shlex.split(self.reader.here(part.text))[1:])
        else:
            self._words = shlex.split(part.text)[1:]
            if self._words[:2] == ["journal", "move"]:
                self.stop(self._words[self._words.index("--data") + 1])
            self.reader.command(self._words)

    def _serve(self, words: list[str]) -> None:
        program = str(Path(sys.executable).parent / "lakestore")
        process = subprocess.Popen([program, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.servers[words[words.index("--data") + 1]] = process
        assert process.stdout is not None
        assert "gRPC on" in process.stdout.readline()
        if len(self.servers) == 1:
            port = int(words[words.index("--http-port") + 1])
            until(lambda: answers(port, "/ready?role=leader") == 200, "the first leader")

    def _shows(self, text: str) -> bool:
        """Whether commands have said these lines, whatever their numbers and the width of columns; else type the last
        command again."""
        said = "\n".join(" ".join(line.split()) for line in self.reader.said.splitlines())
        wanted = "\n".join(" ".join(line.split()) for line in text.splitlines())
        pattern = re.sub(r"[\d.]+", r"[\\d.]+", re.escape(wanted).replace("\\.", "."))
        if re.search(pattern, said):
            return True
        self.reader.command(self._words)
        return False

    def stop(self, folder: str) -> None:
        """End a server in order."""
        process = self.servers.pop(folder)
        process.terminate()
        process.communicate(timeout=120)

    def lose(self, folder: str) -> None:
        """Kill a server and remove its folder."""
        self._kill(self.servers.pop(folder))
        shutil.rmtree(folder)

    def close(self) -> None:
        for process in self.servers.values():
            self._kill(process)

    @staticmethod
    def _kill(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate(timeout=120)


def answers(port: int, path: str) -> int:
    """The status of an answer over HTTP."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def test_three_servers_on_one_laptop(kafka: KafkaProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKESTORE_PROFILES", str(tmp_path / "profiles.yaml"))
    found = parts(PAGE)
    assert {runner_of(part) for part in found} == {REPLICAS}
    assert sum(line.startswith("lakestore ") for line in blocks(PAGE)[0].typed) == 5
    looked_up = next(part for part in found if part.text.startswith("lakestore lookup"))
    laptop = Laptop(kafka.address)
    try:
        for part in found:
            if part is looked_up:
                laptop.lose(LEADER)
            laptop.type(part)
    finally:
        laptop.close()
