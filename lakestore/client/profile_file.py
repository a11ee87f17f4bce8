"""The file of profiles: its sections as texts, and changes of it by one process after the other.

A change reads, edits and replaces the file under a lock of its own file, so that two logins at once are both kept, and
a reader sees the file of before or after. The file and those of tokens are the user's alone.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml

from lakestore.errors import Invalid
from lakestore.model import yaml_text

FILE_BYTES_MAX = 1 << 20
_SECTIONS = ("default", "profiles")
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(slots=True)
class Sections:
    """The sections of the file, as they are written."""

    default: str | None = None
    profiles: dict[str, dict[str, Any]] = field(default_factory=dict)


def read(file: Path) -> Sections:
    """The sections of the file; empty if there is none, `Invalid` with its path for one that is no such file."""
    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise Invalid(f"{file} holds no profiles: it is larger than {FILE_BYTES_MAX >> 20} MB")
        said = yaml_text.values(data.decode(), yaml_text.Texts)
    except FileNotFoundError:
        return Sections()
    except OSError as error:
        raise Invalid(f"the profiles in {file} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise Invalid(f"the profiles in {file} cannot be read: it is not text in UTF-8") from error
    except yaml_text.Unreadable as error:
        raise Invalid(f"the profiles in {file} cannot be read: {error}") from error
    if said is None:
        return Sections()
    if not isinstance(said, dict):
        raise Invalid(f"{file} holds no profiles: it has the sections default and profiles")
    if unknown := sorted(map(str, set(said) - set(_SECTIONS))):
        raise Invalid(f"{file}: {unknown[0]!r} is neither default nor profiles")
    return Sections(_default(file, said.get("default")), _entries(file, said.get("profiles")))


def _default(file: Path, said: Any) -> str | None:
    if said is not None and not isinstance(said, str):
        raise Invalid(f"{file}: default is the name of a profile")
    return said or None


def _entries(file: Path, said: Any) -> dict[str, dict[str, Any]]:
    said = {} if said is None else said
    if not isinstance(said, dict) or not all(isinstance(each, dict) for each in said.values()):
        raise Invalid(f"{file}: profiles is a section with a name and its server, tls and token_file for each")
    if not all(isinstance(name, str) and name for name in said):
        raise Invalid(f"{file}: the name of a profile is a text")
    return {name: {key: _truth(value) if key == "tls" else value for key, value in each.items()}
            for name, each in said.items()}  # fmt: skip


def _truth(said: Any) -> Any:
    """A word as YAML has truths, where it is one."""
    return _TRUTHS.get(said.lower(), said) if isinstance(said, str) else said


@contextmanager
def changing(file: Path) -> Iterator[Sections]:
    """The sections, to be edited inside: the file has them afterwards, and no other process changed it meanwhile."""
    try:
        file = file.resolve()  # a link to a file elsewhere stays one
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _opened_lock(file.with_name(f".{file.name}.lock")) as lock:
            _lock(lock)
            sections = read(file)
            yield sections
            said: dict[str, Any] = {"default": sections.default} if sections.default is not None else {}
            _replace(file, yaml.safe_dump({**said, "profiles": sections.profiles}, sort_keys=False, allow_unicode=True))
    except OSError as error:
        raise _unwritten(file, error) from error


def write_token(file: Path, token: str) -> None:
    """A file of a token, of the user's alone, there whole or not at all."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _replace(file, token + "\n")
    except OSError as error:
        raise _unwritten(file, error) from error


def _unwritten(file: Path, error: OSError) -> Invalid:
    return Invalid(
        f"{file} cannot be written ({error.strerror or error}): make room or rights for it, or name another file in"
        " LAKESTORE_PROFILES"
    )


def _opened_lock(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb+")


def _lock(lock: IO[bytes]) -> None:
    """Wait until nobody else has the lock; it goes with the open file."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(lock.fileno(), msvcrt.LK_LOCK, 1)
        return
    import fcntl

    fcntl.flock(lock, fcntl.LOCK_EX)


def _replace(file: Path, text: str) -> None:
    """A file of the user's alone, there whole or not at all, and on the disk."""
    made = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        made.replace(file)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
