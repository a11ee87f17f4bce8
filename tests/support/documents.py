"""The blocks of a document, run as a reader would run them: Python, command lines, files, SQL."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from lakestore.cli.main import INTERRUPTED, run_command

FILE_NAMED = re.compile(r"\bfile `([\w.-]+)`")
"""The name of a file in the sentence before a block that is the file."""
_PLACES = ("localhost:7340", "localhost:7341")
FOLLOW_SECONDS = 1.5
"""Time after which somebody who reads along ends what follows for ever."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    language: str
    text: str
    file: str = ""
    """The file that the sentence before it names, if it names one."""


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    found: list[Block] = []
    language: str | None = None
    text: list[str] = []
    before = ""
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            if language is not None:
                named = FILE_NAMED.search(before)
                found.append(Block(language, "".join(f"{each}\n" for each in text), named[1] if named else ""))
                before = ""
            language, text = (line[3:].strip(), []) if language is None else (None, [])
        elif language is not None:
            text.append(line)
        elif line.strip():
            before = line
    return found


class Reader:
    """Somebody who types a page's blocks, one after the other, against one server."""

    def __init__(self, grpc: str, http: str, names: Mapping[str, Any]) -> None:
        self._places = dict(zip(_PLACES, (grpc, http), strict=True))
        self.names = dict(names)
        """What Python's blocks share."""
        self.ran: list[str] = []

    def here(self, text: str) -> str:
        """The text with this server's ports."""
        for told, place in self._places.items():
            text = text.replace(told, place)
        return text

    def python(self, text: str) -> None:
        """Run a block; comments below a `print` are what it prints."""
        promised = (
            [line.strip()[2:] for line in text.splitlines() if re.match(r"\s*# ", line)] if "print(" in text else []
        )
        follows = ".changes(" in text and "until=" not in text
        with interrupted() if follows else contextlib.nullcontext():
            said, _ = output_of(lambda: self.run_python(self.here(text)))
            if promised:
                assert said.splitlines() == promised
        self.ran.append("python")

    def run_python(self, text: str) -> int:
        """Run a text among this reader's names; 0, as of a command."""
        exec(compile(text, "<block>", "exec"), self.names)
        return 0

    def command(self, words: list[str]) -> None:
        """Run a command. One that follows is ended, as by Ctrl-C."""
        follows = "-f" in words or "--follow" in words
        with interrupted() if follows else contextlib.nullcontext():
            said, code = output_of(lambda: run_command([self.here(word) for word in words]))
            assert code in ((0, INTERRUPTED) if follows else (0,)), f"lakestore {shlex.join(words)}: {said}"
        self.ran.append(words[0])


def output_of(call: Callable[[], int]) -> tuple[str, int]:
    """Whatever a call prints, standard error among it, and its answer."""
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        answer = call()
    said.seek(0)
    return said.read(), answer


@contextlib.contextmanager
def interrupted(seconds: float = FOLLOW_SECONDS) -> Iterator[None]:
    """What takes longer is ended as by Ctrl-C; a block that ends so has run."""

    def end(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def commands(text: str) -> Iterator[list[str]]:
    """The words behind `lakestore` of each line of a block that runs it."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("lakestore "):
            yield shlex.split(line, comments=True)[1:]
