"""The blocks of a document, run as a reader would run them: Python, command lines, files, SQL.

Each line of a shell and each other block is a `Part`; `runner_of` says which tests run it, and `tests/support/unrun.py`
has those that none does.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from lakestore.cli.main import INTERRUPTED, run_command
from tests.support.unrun import NOT_RUN, WRITTEN

FILE_NAMED = re.compile(r"\bfile `([\w.-]+)`")
"""The name of a file in the sentence before a block that is the file."""
_PLACES = ("localhost:7340", "localhost:7341", "lake.example.com:7340", "localhost:9092")
FOLLOW_SECONDS = 0.7
"""Time after which somebody who reads along ends what follows for ever."""
ROOT = Path(__file__).resolve().parents[2]
HERE, SPARK, KAFKA, REPLICAS, NOWHERE = "here", "spark", "kafka", "replicas", "nowhere"
"""Runners of a part: test_pages_run.py, test_pages_on_spark.py, network/test_bridge_cli.py and
network/test_page_of_replicas.py of tests, or nobody."""
ON_SPARK = ("docs/spark.md", "docs/from-delta.md")
"""Pages whose Python is Spark's."""
ON_REPLICAS = "docs/replicas.md"
"""The page whose servers share a journal."""
BROKER = {"bridge", "init-bridge", "dlq"}
"""Commands that want a broker, or what a bridge has brought."""
_PROGRAMS = ("lakestore", "make", "python", "export", "docker", "useradd", "S3_PASSWORD=…")
"""First words of a shell's blocks."""
_SETTING = re.compile(r"(--conf )?[a-z][\w.-]+=\S+")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    language: str
    text: str
    file: str = ""
    """The file that the sentence before it names, if it names one."""

    @property
    def typed(self) -> list[str]:
        """The lines that a reader types, if it is a shell's: continued ones are one, comments are left out."""
        lines = [line.partition(" #")[0].strip() for line in self.text.replace("\\\n", " ").splitlines()]
        lines = [" ".join(line.split()) for line in lines if line and not line.startswith("#")]
        plain = self.language == "" and lines[0].split()[0] in _PROGRAMS
        return lines if plain or self.language == "sh" else []

    @property
    def settings(self) -> list[str]:
        """The lines of a file of settings, `name=value` each; none if it is none."""
        lines = [line for line in self.text.splitlines() if line and not line.startswith("#")]
        return lines if self.language == "" and all(_SETTING.fullmatch(line) for line in lines) else []


@dataclass(frozen=True, slots=True)
class Part:
    """A line of a shell, or a whole block: the step that a reader takes at once."""

    page: str
    """The page's path in the checkout."""
    block: Block
    text: str

    @property
    def key(self) -> tuple[str, str]:
        """Page and first line, by which it is listed."""
        return self.page, self.text.strip().partition("\n")[0]


def pages() -> list[Path]:
    """Every page of the checkout that has blocks; the mornings of tests/everyday run by themselves."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = [ROOT / name for name in sorted(listed.splitlines()) if not name.startswith("tests/everyday/")]
    return [page for page in found if page.exists() and blocks(page)]


def name_of(page: Path) -> str:
    """The path of a page in the checkout."""
    return page.relative_to(ROOT).as_posix()


def parts(page: Path) -> list[Part]:
    """The parts of a page, in order."""
    name = name_of(page)
    if name in WRITTEN:
        return []
    return [Part(name, block, text) for block in blocks(page) for text in block.typed or [block.text]]


def runner_of(part: Part) -> str | None:
    """The runner of a part; None if the part has none and no reason is listed."""
    block, words = part.block, part.text.split()
    if part.key in NOT_RUN:
        return NOWHERE
    if part.page == ON_REPLICAS:
        return REPLICAS
    if block.typed:
        return _runner_of_line(block, words) if words[0] == "lakestore" else None
    if block.language == "python":
        return SPARK if part.page in ON_SPARK or "lakestore.spark" in block.text else HERE
    told = block.language in ("yaml", "sql", "text") or block.file or block.settings
    return HERE if told else None


def _runner_of_line(block: Block, words: list[str]) -> str:
    if words[1] == "serve":
        return HERE
    if not BROKER.isdisjoint(line.split()[1] for line in block.typed if line.startswith("lakestore ")):
        return KAFKA
    return SPARK if words[1] == "tier" else KAFKA if "kafka" in words else HERE


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    found: list[Block] = []
    language: str | None = None
    text: list[str] = []
    before = ""
    for line in page.read_text().splitlines():
        assert line.startswith("```") or not line.lstrip().startswith(("```", "~~~")), f"{page}: a fence is indented"
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
    """A person who types a page's blocks, one after the other, against one server."""

    def __init__(self, grpc: str, http: str, names: Mapping[str, Any], broker: str = "localhost:9092") -> None:
        self.places = dict(zip(_PLACES, (grpc, http, grpc, broker), strict=True))
        """Addresses in pages to the addresses of this server."""
        self.names = dict(names)
        """Names that Python's blocks share."""
        self.ran: list[str] = []
        self.said = ""
        """Everything that commands have said so far."""

    def here(self, text: str) -> str:
        """The text with this server's ports."""
        for told, place in self.places.items():
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

    def command(self, words: list[str], codes: tuple[int, ...] = (0,)) -> None:
        """Run a command, whose exit code is one of these. One that follows is ended, as by Ctrl-C."""
        follows = _follows(words)
        with interrupted() if follows else kept_handlers():
            said, code = output_of(lambda: run_command([self.here(word) for word in words]))
            assert code in ((*codes, INTERRUPTED) if follows else codes), f"lakestore {shlex.join(words)}: {said}"
            self.said += said
        self.ran.append(words[0])

    def saw(self, text: str) -> None:
        """Have seen each line of an output, whatever its numbers are."""
        for line in text.splitlines():
            pattern = re.sub(r"[\d.,]+", r"[\\d.,]+", re.escape(line).replace("\\.", "."))
            assert re.search(rf"(?m)^{pattern}$", self.said), line


def _follows(words: list[str]) -> bool:
    """Whether a command goes on until it is ended."""
    if words[0] == "bridge":
        return not {"--check", "--plan", "--once"} & set(words)
    return words[0] == "changes" and bool({"-f", "--follow"} & set(words))


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
        signal.raise_signal(signal.SIGINT)

    with kept_handlers():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a command may set its own
        signal.signal(signal.SIGALRM, end)
        began, (left, _) = time.monotonic(), signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        except KeyboardInterrupt:
            return
        finally:  # pytest's own limit goes on
            signal.setitimer(signal.ITIMER_REAL, max(0.1, left - (time.monotonic() - began)) if left else 0)


@contextlib.contextmanager
def kept_handlers() -> Iterator[None]:
    """What is set for signals in between is undone, as it is when a command's process ends."""
    before = [(each, signal.getsignal(each)) for each in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for each, handler in before:
            signal.signal(each, handler)


def words_of(part: Part) -> list[str]:
    """The words behind `lakestore` of a line; the servers of tests speak without TLS."""
    return shlex.split(part.text.replace("--tls true", "--tls false"))[1:]
