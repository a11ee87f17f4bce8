"""The subjects of new commits: `.ci/run` checks them with `python -m tests.support.subjects`.

- A subject is an imperative: it begins with a capital letter, and its first word does not end in -ed or -ing.
- A subject has at most 72 characters.
- A commit that changes more than 20 lines has a body.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SUBJECT_CHARS = 72
LINES_WITHOUT_BODY = 20
EXEMPT = frozenset(
    {
        "a7711d06114c37860b6fb98454024d75047a39cb",
        "005c67f7c7a5388311e08c942196adfbe33112a8",
        "5049245962c76d95232cf55ab49afa5cbc412469",
    }
)
"""Three commits without a body that are older than this list."""
RULE = "tests/support/subjects.py"
"""Commits before the one that adds this file are older than the rule."""
IMPERATIVES = frozenset({"Bring", "Embed", "Feed", "Need", "Seed", "Shed", "Speed", "String", "Swing", "Wed"})
"""Imperatives that end like participles."""
_PARTICIPLE = re.compile(r"\w+(ed|ing)$")
_FIELDS = "%x1e%H%x1f%s%x1f%b%x1f"


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit."""

    name: str
    subject: str
    body: str
    lines: int
    """Lines added and removed."""


def problems(commit: Commit) -> Iterator[str]:
    """What the rules say against a commit."""
    first = commit.subject.split(" ", 1)[0].rstrip(":,")
    if not first[:1].isupper():
        yield "the subject does not begin with a capital letter"
    if _PARTICIPLE.match(first) and first not in IMPERATIVES:
        yield f"{first} is no imperative"
    if len(commit.subject) > SUBJECT_CHARS:
        yield f"the subject has {len(commit.subject)} characters, more than {SUBJECT_CHARS}"
    if commit.lines > LINES_WITHOUT_BODY and not commit.body.strip():
        yield f"{commit.lines} lines changed without a body that says why"


def new_commits(root: Path) -> list[Commit]:
    """Commits that are not in `origin/main`; without one, all commits since the last release.

    Merges are left out, and so are commits before the one that adds the rule. Empty if there is no history to look at.
    """
    if _git(root, "rev-parse", "--git-dir") is None:
        return []
    base = _words(root, "merge-base", "origin/main", "HEAD") or _words(root, "describe", "--tags", "--abbrev=0")
    older = _words(root, "log", "--diff-filter=A", "--format=%P", "--", RULE)
    found = _log(root, "HEAD", *(f"^{name}" for name in (*base, *older)))
    # The oldest commit of a shallow clone has no parent here: its lines are the whole tree.
    shallow = _words(root, "rev-parse", "--is-shallow-repository") == ["true"]
    roots = set(_words(root, "rev-list", "--max-parents=0", "HEAD")) if shallow else set()
    return [commit for commit in found if commit.name not in roots | EXEMPT]


def _log(root: Path, *revisions: str) -> list[Commit]:
    text = _git(root, "log", "--no-merges", "--numstat", f"--format={_FIELDS}", *revisions) or ""
    records = (record.split("\x1f") for record in text.split("\x1e") if record.strip())
    return [Commit(name, subject, body, _lines(counts)) for name, subject, body, counts in records]


def _lines(counts: str) -> int:
    return sum(int(count) for line in counts.split("\n") for count in line.split("\t")[:2] if count.isdigit())


def _words(root: Path, *arguments: str) -> list[str]:
    return (_git(root, *arguments) or "").split()


def _git(root: Path, *arguments: str) -> str | None:
    """The output of git; None if there is no git, or it fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def main(root: Path) -> int:
    """Print what is wrong with the new commits; 1 if anything is."""
    commits = new_commits(root)
    wrong = [f"{commit.name[:8]} {commit.subject}: {text}" for commit in commits for text in problems(commit)]
    print("\n".join(wrong) or (f"{len(commits)} commit subjects are right" if commits else "no new commits to check"))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[2]))
