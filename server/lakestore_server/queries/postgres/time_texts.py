"""Constants of dates and times in the spellings of PostgreSQL that DuckDB does not read."""

from __future__ import annotations

import re
from datetime import datetime

from lakestore.errors import Invalid
from lakestore_server.queries.postgres.nodes import Node, call, cast, constant, number

TARGETS = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIME", "INTERVAL"})
_DAYS = {"today": 0, "now": 0, "yesterday": -1, "tomorrow": 1}
_OFFSET = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d)(:\d\d(?:\.\d+)?)?\s*(Z|UTC|[+-]\d\d?(?::?\d\d)?)?", re.IGNORECASE
)
_WORDY = ("%B %d, %Y", "%b %d, %Y", "%d %b %Y", "%d %B %Y", "%Y%m%d", "%m/%d/%Y", "%Y/%m/%d", "%b-%d-%Y", "%d-%b-%Y")
_ISO = re.compile(
    r"P(?=\d|T\d)(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?"
)
_SPACED_SIGN = re.compile(r"([+-])\s+(?=\d)")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(:\d\d(?:\.\d+)?)?\s*([ap])m", re.IGNORECASE)


def value(text: str, target: str) -> Node | None:
    """The value of a constant for a type of DuckDB; None if DuckDB reads the constant itself.

    Raises `Invalid` for a year before Christ.
    """
    word = text.strip()
    if target not in TARGETS:
        return None
    if target == "INTERVAL":
        return _interval(word)
    if target == "TIME":
        return _clock(word)
    if word.lower() in _DAYS:
        return _day(word.lower(), target)
    if re.search(r"\bBC$", word, re.IGNORECASE):
        raise Invalid("the query failed: a date BC is not supported by the Postgres port: write a later date")
    if re.fullmatch(r"[\d:. +-]+|epoch|-?infinity", word, re.IGNORECASE) is None and target == "DATE":
        return _wordy(word)
    match = _OFFSET.fullmatch(word)
    if match and match[4] and target != "DATE":
        zone = _zone(match[4]) if target != "TIMESTAMP" else ""
        said = f"{match[1]} {match[2]}{match[3] or ':00'}{zone}"
        return cast(constant(said), target) if said != word else None
    return _wordy(word) if target == "DATE" and re.fullmatch(r"\d{8}", word) else None


def _zone(text: str) -> str:
    if text.upper() in ("Z", "UTC"):
        return "+00"
    sign, digits = text[0], text[1:].replace(":", "")
    return f"{sign}{digits.zfill(2)}" if len(digits) <= 2 else f"{sign}{digits[:-2].zfill(2)}:{digits[-2:]}"


def _day(word: str, target: str) -> Node:
    now = call("now")
    if word == "now":
        return cast(now, target) if target != "TIMESTAMP WITH TIME ZONE" else now
    today = cast(now, "DATE")
    moved = call("+", today, number(_DAYS[word]), is_operator=True) if _DAYS[word] else today
    return moved if target == "DATE" else cast(moved, target)


def _wordy(word: str) -> Node | None:
    for form in _WORDY:
        try:
            day = datetime.strptime(word, form)
        except ValueError:
            continue
        return cast(constant(day.date().isoformat()), "DATE")
    return None


def _interval(word: str) -> Node | None:
    match = _ISO.fullmatch(word)
    if match:
        names = ("years", "months", "weeks", "days", "hours", "minutes", "seconds")
        parts = [f"{digits} {name}" for digits, name in zip(match.groups(), names, strict=True) if digits]
        return cast(constant(" ".join(parts)), "INTERVAL")
    plain = _SPACED_SIGN.sub(r"\1", word)
    return cast(constant(plain), "INTERVAL") if plain != word else None


def _clock(word: str) -> Node | None:
    match = _CLOCK.fullmatch(word)
    if match is None:
        return None
    hour = int(match[1]) % 12 + (12 if match[4].lower() == "p" else 0)
    return cast(constant(f"{hour:02}:{match[2]}{match[3] or ':00'}"), "TIME")
