"""Every task does what it says: each file of tasks is a morning of somebody's work, against one server."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import lakestore as ls
from lakestore.cli.main import run_command
from tests.support.documents import FILE_NAMED, Reader, output_of
from tests.support.rights import token_of, write_auth
from tests.support.served import Served
from tests.support.typed_here import Shell

TASKS = Path(__file__).parent / "tasks"
COUNT_MIN = 60
ANYTHING = "…"
SHELL_SECONDS = 60
STEP_SECONDS = 2
GUARDED = "8-rights"
"""The page whose server asks for tokens."""
_OPERATORS = re.compile(r"[|<>;&$`*?]|\b[A-Z_]+=")
"""Marks of a line that only a shell understands."""


@dataclass
class Step:
    """A typed command, or a block of Python, and the lines that are to come."""

    typed: str
    is_python: bool
    accepted: list[str] = field(default_factory=list)


@dataclass
class Task:
    """A task: files that are there, and steps."""

    title: str
    files: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)


def tasks_of(page: Path) -> Iterator[Task]:
    """The tasks of a file."""
    task, before = Task(""), ""
    block: list[str] = []
    language: str | None = None
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            if language is None:
                language, block = line[3:], []
                continue
            _take(task, language, block, before)
            language = None
        elif language is not None:
            block.append(line)
        elif line.startswith("## "):
            if task.title:
                yield task
            task = Task(line[3:]) if task.title else Task(line[3:], task.files, task.steps)
        elif line.strip():
            before = line
    yield task


def _take(task: Task, language: str, block: list[str], before: str) -> None:
    named = FILE_NAMED.search(before)
    if named and language != "python" and not any(line.startswith("$ ") for line in block):
        task.files[named[1]] = "".join(f"{line}\n" for line in block)
    elif language == "python":
        said = [line[2:] for line in block if line.startswith("# ")]
        task.steps.append(Step("\n".join(block), True, said))
    else:
        for line in block:
            if line.startswith("$ "):
                task.steps.append(Step(line[2:], False))
            elif line.startswith("> "):
                task.steps[-1].typed += f"\n{line[2:]}"
            else:
                task.steps[-1].accepted.append(line)


def matches(accepted: list[str], said: list[str]) -> bool:
    """Whether the lines that came are the accepted ones."""
    if not accepted:
        return not said
    if accepted[0] == ANYTHING:
        return any(matches(accepted[1:], said[skipped:]) for skipped in range(len(said) + 1))
    pattern = ".*".join(re.escape(part) for part in _narrow(accepted[0]).split(ANYTHING))
    return bool(said) and re.fullmatch(pattern, _narrow(said[0])) is not None and matches(accepted[1:], said[1:])


def _narrow(line: str) -> str:
    """The line with one blank between columns, which are as wide as their values."""
    return " ".join(line.split())


def typed(step: Step, reader: Reader, shell: Shell) -> list[str]:
    """What a step says, standard error among it."""
    line = reader.here(step.typed)
    if step.is_python:
        return output_of(lambda: reader.run_python(line))[0].splitlines()
    words = shlex.split(line) if not _OPERATORS.search(line) and "\n" not in line else []
    if words[:1] == ["lakestore"]:
        said, code = output_of(lambda: run_command(words[1:]))
    else:
        said, code = shell.run(line, SHELL_SECONDS)
    return [*(line.rstrip() for line in said.splitlines()), *([f"(exit code {code})"] if code else [])]


PAGES = sorted(TASKS.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tasks_of_a_morning(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "desk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    asks = page.stem == GUARDED
    if asks:
        write_auth(Path("auth.yaml"), {"admin": {"*": ["admin", "read", "write"]}})
        Path("admin.token").write_text(token_of("admin"))
        Path("admin.token").chmod(0o600)
    with Served(tmp_path / "server", ports=True, auth=str(folder / "auth.yaml") if asks else "") as served:
        about = served.server.about
        monkeypatch.setenv("LAKESTORE_SERVER", about["grpc"])
        reader = Reader(about["grpc"], about["http"], {"ls": ls})
        with contextlib.closing(Shell()) as shell:
            do(page, reader, shell, served.clock.advance)


def do(page: Path, reader: Reader, shell: Shell, pass_time: Callable[[float], None]) -> None:
    """Each task of a page, step by step. A server that asks for tokens reads its file again before each."""
    for task in tasks_of(page):
        for name, text in task.files.items():
            Path(name).write_text(reader.here(text))
        for step in task.steps:
            if page.stem == GUARDED:
                pass_time(STEP_SECONDS)
            said = typed(step, reader, shell)
            assert matches(step.accepted, said), f"{task.title}\n$ {step.typed}\n" + "\n".join(said)


def test_there_are_sixty_tasks_and_each_does_something() -> None:
    found = [task for page in PAGES for task in tasks_of(page)]
    assert all(task.steps for task in found), [task.title for task in found if not task.steps]
    assert len({task.title for task in found}) == len(found) >= COUNT_MIN
