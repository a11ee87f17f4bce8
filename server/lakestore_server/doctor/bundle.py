"""The support bundle: redacted texts in one archive."""

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

from lakestore.model import settings as config
from lakestore.model.settings import MASK
from lakestore_server.settings import Settings

_WORDS = """
about at bucket buckets by bytes code column columns compacting count damage database duty error event events failures
fields file files folder formats found freshness grpc health held_by holds http index job key_columns kind lag lake
lake_ahead largest le level limit logger lsn machine_mb mapped_files mapped_files_max memory method message name names
note offset owner partition peer port principal problem process producer reads_from_why records recovery_seconds
rejected release remedy reports rows running scheme seconds segment server settings_mb snapshot state status
subscription table tables tables_mb tier_problem time timeline topic topics traceback upkeep_slowed uuid verdict version
warehouse what when where why
"""
"""Names in lines of logs, of the status, of metrics and of findings."""
_SETTINGS = [each.name for each in config.options(Settings) if not each.secret]
HARMLESS = frozenset(_WORDS.split()).union(
    *(name.split(".") for name in _SETTINGS), (f"LAKESTORE_{name.replace('.', '_').upper()}" for name in _SETTINGS)
)
"""The names whose values stay."""
_ERROR = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Warning|Interrupt)|lakestore\.errors\.\w+")
_PLAIN = re.compile(
    r"""\\?["']?(?:[-+]?[\d.,]+(?:e[-+]?\d+)?(?:[A-Za-z%]{1,2})?|true|false|null|none|yes|no|)\\?["']?""", re.IGNORECASE
)
_VALUE = r"""\\"(?:[^"\\]|\\[^"])*(?:\\")? | "(?:[^"\\]|\\.)*"? | '[^'\n]*'? | \[[^\[\]{}]*\]?"""
_ASSIGNMENTS = tuple(
    re.compile(pattern, re.VERBOSE | re.MULTILINE)
    for pattern in (
        rf"""["'](?P<name>[\w.\ -]{{1,99}})\\?["']\s*(?::|=>)\s*(?P<value>{_VALUE} | [^\s"',;&{{}}\[\]]+)""",
        rf"""(?<![\w.-])(?P<name>[\w.-]{{1,99}})[ \t]*(?:=>|=(?!=))[ \t]*(?P<value>{_VALUE} | [^\s"',;&]+)""",
        r"""^[ \t]*(?:-[ \t]+)?(?:export[ \t]+)?(?P<name>[\w.-]{1,99})
            (?:[ \t]*=[ \t]*|[ \t]*:[ \t]+)(?P<value>\S[^\n]*)""",
    )
)
_BLOCK = re.compile(
    r"""^(?P<indent>[ \t]*(?:-[ \t]+)?)["']?(?P<name>[\w.-]{1,99})["']?[ \t]*:[ \t]*(?:[|>][-+\d]*)?[ \t]*\n""",
    re.MULTILINE,
)
_LINE = re.compile(r"(?P<indent>[ \t]*)[^\n]*\n?")


def _unknown_values(text: str) -> Iterator[tuple[int, int]]:
    """The spans of values and of YAML blocks whose names are not known to be harmless."""
    for pattern in _ASSIGNMENTS:
        for each in pattern.finditer(text):
            if not (_is_harmless(each["name"]) or _PLAIN.fullmatch(each["value"])):
                yield from _within_brackets(each) if each["value"][0] == "[" else (_within_quotes(each),)
    done = 0
    for head in _BLOCK.finditer(text):
        if head.start() >= done and not _is_harmless(head["name"]):
            done = _end_of_block(text, head.end(), len(head["indent"].expandtabs()))
            yield head.end(), done - (text[done - 1] == "\n")


def _within_brackets(match: re.Match[str]) -> Iterator[tuple[int, int]]:
    """The spans of a list's strings, so that JSON stays JSON; without quotes, all that is between the brackets."""
    begin, value = match.start("value"), match["value"]
    texts = [each.span() for each in re.finditer(r'(?<=")(?:[^"\\]|\\.)+(?="\s*[,\]])', value)]
    if not texts and not all(_PLAIN.fullmatch(part.strip()) for part in value.strip("[]").split(",")):
        texts = [(1, len(value) - (value[-1] == "]"))]
    yield from ((begin + a, begin + b) for a, b in texts)


def _is_harmless(name: str) -> bool:
    return name in HARMLESS or _ERROR.fullmatch(name) is not None


def _end_of_block(text: str, begin: int, indent: int) -> int:
    """The end of the lines that are indented further."""
    while begin < len(text):
        line = _LINE.match(text, begin)
        if line is None or (line[0].strip() and len(line["indent"].expandtabs()) <= indent):
            break
        begin = line.end()
    return begin


_NAME = r"""(?:token|passw(?:or)?d|passphrase|pwd|secret|credential|signature|\bsig\b|sasl\.jaas\.config
    |user[._-]info|basic[._-]auth|authorization|cookie|\bpem\b|\bsas\b
    |(?:api|access|account|session|private|shared|encryption|master|hmac|signing)[ _-]?key(?:[_-]?id)?)"""
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
        # --name value, also as a list of arguments
        rf"(?<![\w.-])--[\w-]{{0,99}}{_NAME}[\w-]{{0,99}}(?:[ \t]|[\"']\s*,)(?=\s*(?P<value>{_QUOTED} | \S+))",
        # a header of two words, a tuple, a tag, a name in a URL's escapes, a sentence
        r"\b(?:authorization|cookie)\\?[\"']?\s*[:=]\s*[\"']?(?P<value>[^\n\"']+)",
        rf"[\"']{_NAME}[\"']\s*,\s*(?P<value>{_QUOTED})",
        rf"<[\w.:-]{{0,99}}{_NAME}[\w.:-]{{0,99}}>(?P<value>[^<]+)",
        rf"{_NAME}\w{{0,99}}%3D(?P<value>[^\s&]+)",
        r"\bpass(?:word|phrase)[ ]+(?:is[ ]+)?(?P<value>[^\s:=]+)",
        # an Authorization header
        r"\b(?:bearer|basic|negotiate)\s(?=\s*(?P<value>[^\s\"',;]+))",
        # user:password@ of a URL; a slash in the password is none of a path behind a port
        r"(?<![\w.+-])[\w.+-]{1,99}:(?P<value>[^\s/@:\"']{1,999})@(?=[\w.-])",
        r"""(?<![a-z0-9+.-])[a-z0-9+.-]+://
            (?=(?P<value>[^\s/?\#"'<>]{0,999} | [^\s/@:"'<>]{0,99}:(?!\d{1,5}(?:[/"'\s,]|$))[^\s"'<>]{0,999})@)""",
    )
)
_SHAPES = re.compile(
    r"""(?P<value>\blakestore_(?=[\w-]*[A-Z])[\w-]{43}(?![\w-])   # a token, as `lakestore token` makes it
      | \beyJ[\w-]{8,}\.[\w-]+\.[\w-]*                           # an access token
      | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b                            # an access key of AWS
      | (?<![\w.:/+-])(?=[\w+/-]*[a-z])(?=[\w+/-]*[A-Z])(?=[\w+/-]*\d)[A-Za-z\d][\w+/-]{19,}={0,2}   # as drawn
      | -----BEGIN\ [A-Z0-9 ]*-----[\s\S]*?(?:-----END\ [A-Z0-9 ]*-----|\Z)
      | \A(?:(?!-----BEGIN)[\s\S])*?-----END\ [A-Z0-9 ]*-----)   # of a log that was cut in its middle
    """,
    re.VERBOSE,
)
"""Secrets by their own looks."""
_NAMED = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS")
"""Ends of a part of a variable's name whose value is a secret, wherever it shows up in a text."""
_NAMED_WHOLE = frozenset({"KEY", "PASS"})
_SECRET_CHARS_MIN = 6


def masked(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """The text with each value masked that may be a secret.

    Values stay if their names are harmless and nothing in them looks like a secret.
    """
    found = [_within_quotes(each) for pattern in (*_SECRETS, _SHAPES) for each in pattern.finditer(text)]
    found += _unknown_values(text)
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


LOG_BYTES_MAX = 1 << 20
"""The end of a log that is taken."""
FILES_MAX = 100_000
"""Files of a data folder that are listed."""
_MODE = 0o600


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
