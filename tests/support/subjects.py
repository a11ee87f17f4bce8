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
COMMITS = 20
"""Commits to look at where there is no `origin/main`."""
RULE = "tests/support/subjects.py"
"""Commits before the one that adds this file are older than the rule."""
IMPERATIVES = frozenset({"Bring", "Embed", "Feed", "Need", "Seed", "Shed", "Speed", "String", "Swing", "Wed"})
"""Imperatives that end like participles."""
_PARTICIPLE = re.compile(r"\w+(ed|ing)$")
_FIELDS = "%h%x1f%s%x1f%b%x1e"


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
    """Commits that are not in `origin/main`, else the last ones back to the commit that adds the rule.

    Merges are left out. Empty if there is no history to look at.
    """
    if _git(root, "rev-parse", "--git-dir") is None:
        return []
    base = (_git(root, "merge-base", "origin/main", "HEAD") or "").strip()
    found = _log(root, f"{base}..HEAD" if base else "HEAD", *([] if base else [f"--max-count={COMMITS}"]))
    added = (_git(root, "log", "--diff-filter=A", "--format=%h", "--", RULE) or "").split()
    names = [commit.name for commit in found]
    cut = next((names.index(name) + 1 for name in added if name in names), len(found))
    # The oldest commit of a shallow clone has no parent here: its lines are the whole tree.
    shallow = (_git(root, "rev-parse", "--is-shallow-repository") or "").strip() == "true"
    roots = (
        set((_git(root, "rev-list", "--max-parents=0", "--abbrev-commit", "HEAD") or "").split()) if shallow else set()
    )
    return [commit for commit in found[:cut] if commit.name not in roots]


def _log(root: Path, *revisions: str) -> list[Commit]:
    text = _git(root, "log", "--no-merges", f"--format={_FIELDS}", *revisions) or ""
    records = (record.strip("\n").split("\x1f") for record in text.split("\x1e") if record.strip())
    return [Commit(name, subject, body, _lines(root, name)) for name, subject, body in records]


def _lines(root: Path, name: str) -> int:
    counts = (_git(root, "show", "--numstat", "--format=", name) or "").split("\n")
    return sum(int(count) for line in counts for count in line.split("\t")[:2] if count.isdigit())


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
    wrong = [f"{commit.name} {commit.subject}: {text}" for commit in commits for text in problems(commit)]
    print("\n".join(wrong) or (f"{len(commits)} commit subjects are right" if commits else "no new commits to check"))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[2]))
