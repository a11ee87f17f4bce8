"""The support bundle: texts in one archive, with whatever looks like a secret masked."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lakestore.model.settings import MASK

LOG_BYTES_MAX = 1 << 20
"""The end of a log that is taken."""
FILES_MAX = 100_000
"""Files of a data folder that are listed."""
_MODE = 0o600
_NAME = r"""(?:token|passw(?:or)?d|passphrase|pwd|secret|credential|signature|\bsig\b|sasl\.jaas\.config
    |(?:api|access|account|session|private)[_-]?key(?:[_-]?id)?)"""
"""The part of a name by which its value is a secret."""
_QUOTED = r""""(?:[^"\\]|\\.)*"? | '[^']*'?"""
_SECRETS = tuple(
    re.compile(pattern, re.IGNORECASE | re.VERBOSE | re.MULTILINE)
    for pattern in (
        # name: value, to the end of a line that begins with the name
        rf"^[ \t]*(?:-[ \t]+)?(?:export[ \t]+)?[\w.-]{{0,99}}{_NAME}[\w.-]{{0,99}}"
        r"[ \t]*[:=](?=[ \t]*(?P<value>[^\s\"'][^\n]*))",
        # name=value and "name": "value", anywhere
        rf"(?<![\w.-])[\w.-]{{0,99}}{_NAME}[\w.-]{{0,99}}\\?[\"']?\s*[:=](?=\s*(?P<value>{_QUOTED} | [^\s\"',;&]+))",
        # --name value
        rf"(?<![\w.-])--[\w-]{{0,99}}{_NAME}[\w-]{{0,99}}[ \t](?=[ \t]*(?P<value>{_QUOTED} | \S+))",
        # an Authorization header
        r"\b(?:bearer|basic)\s(?=\s*(?P<value>[^\s\"',;]+))",
        # user:password@ of a URL; a slash in the password is none of a path behind a port
        r"""(?<![a-z0-9+.-])[a-z0-9+.-]+://
            (?=(?P<value>[^\s/?\#"'<>]{0,999} | [^\s/@:"'<>]{0,99}:(?!\d{1,5}(?:[/"'\s,]|$))[^\s"'<>]{0,999})@)""",
    )
)
_SHAPES = re.compile(
    r"""(?P<value>\blakestore_(?=[\w-]*[A-Z])[\w-]{43}(?![\w-])   # a token, as `lakestore token` makes it
      | \beyJ[\w-]{8,}\.[\w-]+\.[\w-]*                           # an access token
      | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b                            # an access key of AWS
      | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----[\s\S]*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
      | \A(?:(?!-----BEGIN)[\s\S])*?-----END\ [A-Z ]*PRIVATE\ KEY-----)   # of a log that was cut in its middle
    """,
    re.VERBOSE,
)
"""Secrets by their own looks."""
_NAMED = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS")
"""Ends of a part of a variable's name whose value is a secret, wherever it shows up in a text."""
_NAMED_WHOLE = frozenset({"KEY", "PASS"})
_SECRET_CHARS_MIN = 6


def masked(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """The text without passwords, tokens and keys: by the names before them, and by this process's own variables."""
    found = [_within_quotes(each) for pattern in (*_SECRETS, _SHAPES) for each in pattern.finditer(text)]
    for secret in _secrets(environment):
        found += [each.span() for each in re.finditer(re.escape(secret), text)]
    parts: list[str] = []
    done = 0
    for begin, end in sorted(found):
        if begin >= done and begin < end:
            parts += [text[done:begin], MASK]
        done = max(done, end)
    return "".join([*parts, text[done:]])


def _within_quotes(found: re.Match[str]) -> tuple[int, int]:
    begin, end = found.span("value")
    if found["value"][:1] in ('"', "'"):
        begin, end = begin + 1, end - (end - begin > 1 and found["value"][-1] == found["value"][0])
    return begin, end


def _secrets(environment: Mapping[str, str]) -> Iterator[str]:
    """The values of secret variables, as they are and as JSON and URLs write them."""
    for name, value in environment.items():
        parts = name.upper().split("_")
        is_named = any(part.endswith(_NAMED) for part in parts) or not _NAMED_WHOLE.isdisjoint(parts)
        if (is_named or name.upper().endswith("_PWD")) and "FILE" not in parts and len(value) >= _SECRET_CHARS_MIN:
            said = json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]
            yield from dict.fromkeys((value, *said, quote(value, safe=""), quote(value)))


def as_json(data: Any) -> str:
    """Data as indented JSON."""
    return json.dumps(data, indent=1, default=str, ensure_ascii=False) + "\n"


def end_of(path: Path) -> str:
    """The last megabyte of a text file, from the begin of a line on."""
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - LOG_BYTES_MAX))
        text = file.read().decode(errors="replace")
    return text if size <= LOG_BYTES_MAX else text.partition("\n")[2]


def files(folder: Path) -> list[dict[str, Any]]:
    """Names, sizes and ages of a data folder's files; nothing of their contents."""
    found: list[dict[str, Any]] = []
    now = time.time()
    for above, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(above, name)
            try:
                about = path.stat()
            except FileNotFoundError:  # a server that runs removes files meanwhile
                continue
            place = str(path.relative_to(folder))
            found.append({"file": place, "bytes": about.st_size, "age_seconds": round(now - about.st_mtime)})
            if len(found) == FILES_MAX:
                return found
    return found


def write(target: Path, parts: Mapping[str, str]) -> None:
    """Write the archive, which only its owner may read, whole or not at all; `FileExistsError` if there is one."""
    number = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        with os.fdopen(number, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in parts.items():
                data = masked(text).encode()
                entry = tarfile.TarInfo(f"lakestore-support/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), _MODE
                archive.addfile(entry, io.BytesIO(data))
    except BaseException:
        target.unlink(missing_ok=True)
        raise
