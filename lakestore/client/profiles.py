"""Profiles: servers by name, with TLS and token file, in one file of the user.

Order of precedence: arguments and flags, a profile named by an argument or flag, the environment, other profiles,
`localhost:7340`. A profile's credentials are only sent to its server, unless profile and server are both named.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, get_args

import yaml

from lakestore.client.credentials import (
    TLS,
    TLS_VARIABLES,
    TOKEN_VARIABLES,
    Credentials,
    Token,
    addresses_of,
    credentials_for,
)
from lakestore.errors import Invalid
from lakestore.model import yaml_text
from lakestore.model.names import suggestion

Reads = Literal["leader", "follower", "nearest"]
"""Where reads go: to the leader; to the nearest follower, or the leader if there is none; to the nearest server."""
FILE_BYTES_MAX = 1 << 20
_SECTIONS = ("default", "profiles")
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(slots=True)
class Sections:
    """The sections of the file as written."""

    default: str | None = None
    profiles: dict[str, dict[str, Any]] = field(default_factory=dict)


def read(file: Path) -> Sections:
    """The sections of the file; empty without a file. Raises `Invalid` with the path for an invalid file."""
    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise Invalid(f"{file} holds no profiles: it is larger than {FILE_BYTES_MAX >> 20} MB")
        said = yaml_text.values(data.decode(), yaml_text.TextLoader)
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


def _default(file: Path, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise Invalid(f"{file}: default is the name of a profile")
    return value or None


def _entries(file: Path, said: Any) -> dict[str, dict[str, Any]]:
    said = {} if said is None else said
    if not isinstance(said, dict) or not all(isinstance(each, dict) for each in said.values()):
        raise Invalid(f"{file}: profiles is a section with a name and its server, tls and token_file for each")
    if not all(isinstance(name, str) and name for name in said):
        raise Invalid(f"{file}: the name of a profile is a text")
    return {name: {key: _truth(value) if key == "tls" else value for key, value in each.items()}
            for name, each in said.items()}  # fmt: skip


def _truth(word: Any) -> Any:
    return _TRUTHS.get(word.lower(), word) if isinstance(word, str) else word


@contextmanager
def edit_sections(file: Path) -> Iterator[Sections]:
    """Edit the sections. They are written at the end of the block, under a lock."""
    try:
        file = file.resolve()  # a link to a file elsewhere stays a link
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
    """Write a token file readable only by the user, atomically."""
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
    """Wait for the lock. It is released when the file is closed."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(lock.fileno(), msvcrt.LK_LOCK, 1)
        return
    import fcntl

    fcntl.flock(lock, fcntl.LOCK_EX)


def _replace(file: Path, text: str) -> None:
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


SERVER_DEFAULT = "localhost:7340"
SERVER_VARIABLE, PROFILE_VARIABLE, FILE_VARIABLE = "LAKESTORE_SERVER", "LAKESTORE_PROFILE", "LAKESTORE_PROFILES"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_KEYS = {"server", "tls", "token_file", "reads"}
_TLS_FILES = {"ca", "cert", "key"}


@dataclass(frozen=True, slots=True)
class Profile:
    """A server by name."""

    name: str
    server: str = SERVER_DEFAULT
    tls: TLS | bool | None = None
    token_file: Path | None = None
    reads: Reads | None = None
    """Where reads go, of several servers."""

    def token(self) -> str:
        """The current token, from a file that others cannot read."""
        assert self.token_file is not None
        return _private(self.token_file)


@dataclass(frozen=True, slots=True)
class Profiles:
    """The profiles of a file."""

    file: Path
    named: Mapping[str, Profile]
    default: str | None = None
    """The profile used if none is named."""

    def of(self, name: str) -> Profile:
        """A profile by name. Raises `Invalid` that lists the profiles."""
        if name not in self.named:
            there = ", ".join(sorted(self.named)) or "none: `lakestore login --profile NAME --server …` makes one"
            raise Invalid(
                f"there is no profile {name!r} in {self.file}{suggestion(name, self.named)}; there are {there}"
            )
        return self.named[name]


def file_of_profiles() -> Path:
    """LAKESTORE_PROFILES, or profiles.yaml in the platform's settings folder."""
    if said := os.environ.get(FILE_VARIABLE):
        return Path(said)
    if os.name == "nt":
        return Path(os.environ.get("APPDATA") or Path.home()) / "lakestore" / "profiles.yaml"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "lakestore" / "profiles.yaml"


def read_profiles() -> Profiles:
    """The profiles in the file; none without a file."""
    file = file_of_profiles()
    return profiles_of(file, read(file))


def profiles_of(file: Path, sections: Sections) -> Profiles:
    """The profiles in a file's sections. Raises `Invalid` with the file, the profile and the rule."""
    named = {name: _profile(file, name, each) for name, each in sections.profiles.items()}
    return Profiles(file, named, sections.default)


def _profile(file: Path, name: str, section: dict[str, Any]) -> Profile:
    place = f"{file}: profile {name}"
    if unknown := sorted(set(map(str, section)) - _KEYS):
        raise Invalid(
            f"{place} has {unknown[0]!r}{suggestion(unknown[0], _KEYS)}; it takes server, tls, token_file and reads"
        )
    server, tls, token_file = section.get("server", SERVER_DEFAULT), section.get("tls"), section.get("token_file")
    if not isinstance(server, str) or not server.isprintable() or any(len(w.split()) != 1 for w in server.split(",")):
        raise Invalid(f"{place}: server is a host and port such as lake.example.com:7340, or several between commas")
    if token_file is not None and not isinstance(token_file, str):
        raise Invalid(f"{place}: token_file is a path")
    kept = None if token_file is None else _path(place, file, token_file)
    reads = section.get("reads")
    if reads is not None and reads not in get_args(Reads):
        raise Invalid(f"{place}: reads is one of {', '.join(get_args(Reads))}, not {reads!r}")
    return Profile(name, _as_listed(server), _tls(place, file, tls), kept, reads)


def _as_listed(server: str) -> str:
    return ",".join(addresses_of(server))


def _tls(place: str, file: Path, value: Any) -> TLS | bool | None:
    if value is None or isinstance(value, bool):
        return value
    fits = isinstance(value, dict) and set(value) <= _TLS_FILES
    if not fits or not all(isinstance(path, str) for path in value.values()):
        raise Invalid(f"{place}: tls is true, false or files: {{ca: …, cert: …, key: …}}")
    return TLS(**{name: _path(place, file, path) for name, path in value.items()})


def _path(place: str, file: Path, text: str) -> Path:
    try:
        if not text or "\0" in text:
            raise Invalid(f"{place}: {text!r} is not a file path")
        return file.parent / Path(text).expanduser()
    except RuntimeError as error:
        raise Invalid(f"{place}: {text!r} is in the home folder of a user who is not known here") from error


def _private(file: Path) -> str:
    """The token in a file. Raises if others may read the file."""
    try:
        mode = file.stat().st_mode
        if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise Invalid(f"token file {file} can be read by others: chmod 600 {file}, and think about a new token")
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise Invalid(f"token file {file} cannot be read ({why}): `lakestore login` makes it") from error


@dataclass(frozen=True, slots=True)
class Target:
    """A server and its credentials."""

    server: str
    token: Token | None = None
    tls: TLS | bool | None = None
    reads: Reads | None = None

    def credentials(self) -> Credentials:
        return credentials_for(self.server, self.token, self.tls)


def target(
    server: str | None = None,
    profile: str | None = None,
    token: Token | None = None,
    tls: TLS | bool | None = None,
) -> Target:
    """The server of a call, with the credentials in arguments and profile."""
    said = os.environ.get(SERVER_VARIABLE) or None
    if profile is not None:
        chosen: Profile | None = read_profiles().of(profile)
    else:
        chosen = _unnamed() if server is None else None
    if server is None:
        server = chosen.server if profile is not None and chosen else said or (chosen.server if chosen else None)
    address = _as_listed(server or SERVER_DEFAULT)
    if chosen is None or (profile is None and chosen.server != address):
        return Target(address, token, tls)
    if tls is None and (profile is not None or not _has(TLS_VARIABLES)):
        tls = chosen.tls
    if token is None and chosen.token_file is not None and (profile is not None or not _has(TOKEN_VARIABLES)):
        token = _reader(chosen)
    return Target(address, token, tls, chosen.reads)


def _unnamed() -> Profile | None:
    name = os.environ.get(PROFILE_VARIABLE)
    if name:
        return read_profiles().of(name)
    profiles = read_profiles()
    return profiles.of(profiles.default) if profiles.default is not None else None


def _reader(profile: Profile) -> Callable[[], str]:
    return profile.token


def _has(variables: tuple[str, ...]) -> bool:
    return any(os.environ.get(name) for name in variables)
