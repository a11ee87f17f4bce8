"""The check of commit subjects: its rules, and which commits it looks at."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import subjects
from tests.support.subjects import RULE, Commit, main, new_commits, problems


def git(folder: Path, *arguments: str) -> None:
    settings = ("user.name=a", "user.email=a@example.org", "protocol.file.allow=always")
    options = [part for setting in settings for part in ("-c", setting)]
    subprocess.run(["git", *options, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path, subject: str, *, file: str = "file", lines: int = 1) -> None:
    place = folder / file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("".join(f"{subject} {n}\n" for n in range(lines)))
    git(folder, "add", ".")
    git(folder, "commit", "-m", subject)


def subjects_of(folder: Path) -> list[str]:
    return [each.subject for each in new_commits(folder)]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-b", "main")
    commit(folder, "written before the rule", lines=40)
    commit(folder, "Add the rule", file=RULE)
    return folder


@pytest.mark.parametrize(
    ("subject", "body", "lines", "count"),
    [
        ("Split the queue in one pass", "", 20, 0),
        ("Split the queue in one pass", "One pass takes half the time.", 21, 0),
        ("Split the queue in one pass", "\n", 21, 1),
        ("Seed the random tests", "", 1, 0),
        ("Bring the queue back", "", 1, 0),
        ("Added a queue", "", 1, 1),
        ("Splitting: the queue", "", 1, 1),
        ("split the queue", "", 1, 1),
        ("", "", 1, 1),
        ("S" * 72, "", 1, 0),
        ("S" * 73, "", 1, 1),
        ("adding " + "s" * 70, "", 30, 4),
    ],
)
def test_a_commit_breaks_these_rules(subject: str, body: str, lines: int, count: int) -> None:
    assert len(list(problems(Commit("abc", subject, body, lines)))) == count


def test_commits_back_to_the_rule_are_checked(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert subjects_of(repository) == ["Add the rule"]
    assert main(repository) == 0
    commit(repository, "Splitting the queue", lines=30)
    assert subjects_of(repository) == ["Splitting the queue", "Add the rule"]
    assert main(repository) == 1
    assert "Splitting is no imperative" in capsys.readouterr().out


def test_all_commits_since_the_last_release_are_checked(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(repository, "Say " + 69 * "s")
    planted = new_commits(repository)[0].name
    for number in range(30):
        commit(repository, f"Say {number}")
    assert len(new_commits(repository)) == 32
    assert main(repository) == 1
    assert "the subject has 73 characters, more than 72" in capsys.readouterr().out
    with monkeypatch.context() as patched:
        patched.setattr(subjects, "EXEMPT", frozenset({planted}))
        assert main(repository) == 0
    git(repository, "tag", "v1")
    commit(repository, "Say more")
    assert subjects_of(repository) == ["Say more"]


def test_commits_of_the_main_branch_elsewhere_are_not_new(repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", str(repository), str(clone))
    assert subjects_of(clone) == []
    assert main(clone) == 0
    commit(clone, "Say more")
    commit(repository, "Say something else")
    git(clone, "fetch")
    assert subjects_of(clone) == ["Say more"]


def test_without_history_there_is_nothing_to_check(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(repository, "said more", lines=30)
    shallow, empty, none = tmp_path / "shallow", tmp_path / "empty", tmp_path / "none"
    git(tmp_path, "clone", "--depth", "1", repository.as_uri(), str(shallow))
    git(shallow, "remote", "remove", "origin")
    empty.mkdir()
    git(empty, "init")
    none.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    for folder in (shallow, empty, none):
        assert main(folder) == 0
    monkeypatch.setenv("PATH", "")
    assert main(repository) == 0
    assert capsys.readouterr().out == "no new commits to check\n" * 4
