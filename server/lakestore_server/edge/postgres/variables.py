"""Variables of a session: SET, RESET, SHOW, and the values that drivers follow.

- ROLLBACK undoes what its transaction has set; the end of a transaction undoes what SET LOCAL has set.
- `lakestore.at`, `lakestore.require_freshness` and `lakestore.require_complete_through` decide what a question reads.
- A variable of Postgres without a meaning here takes every value of its kind, and changes nothing.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from lakestore.errors import Invalid
from lakestore.model.alteration import Requirement
from lakestore.model.times import position_text
from lakestore_server.edge.postgres.sqlstates import BAD_VALUE, FIXED_VARIABLE, UNKNOWN_VARIABLE, SqlError
from lakestore_server.edge.postgres.statements import tokens_of
from lakestore_server.queries.postgres.settings_rows import SERVER_VERSION, SERVER_VERSION_NUM

AT, FRESHNESS, THROUGH = "lakestore.at", "lakestore.require_freshness", "lakestore.require_complete_through"
_TRUE, _FALSE = {"on", "true", "yes", "1", "t", "y"}, {"off", "false", "no", "0", "f", "n"}
_UNITS_MS = {"": 1.0, "us": 0.001, "ms": 1.0, "s": 1_000.0, "min": 60_000.0, "h": 3_600_000.0, "d": 86_400_000.0}
_SPAN = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*(us|ms|s|min|h|d|)\s*")
_OFFSET = re.compile(r"([+-]?)(\d{1,2})(?::?00)?")
_POSIX = re.compile(r"(?:[a-z]{3,}|<[a-z0-9+-]+>)([+-]?)(\d{1,2})(?::00){0,2}")
"""A zone as POSIX writes it, such as the `GMT-08:00` that pgjdbc sends for eight hours east. It counts westward."""
_CUSTOM = re.compile(r"[a-z_][a-z0-9_$]*(?:\.[a-z_][a-z0-9_$]*)+")
CUSTOM_MAX = 64
"""Bound on the variables that a session adds. Their names have a point, such as `app.user`."""
VALUE_CHARS_MAX = 8_192


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable: default, check, description."""

    name: str
    """The name as SHOW ALL prints it."""
    default: str
    parsed: Callable[[str], str] | None = None
    """The stored form of a value, or `ValueError`; None for a variable that nobody can set."""
    is_reported: bool = False
    """Whether drivers are told of each change."""
    about: str = ""


def _plain(text: str) -> str:
    return text


def _boolean(text: str) -> str:
    folded = text.lower()
    if folded in _TRUE:
        return "on"
    if folded in _FALSE:
        return "off"
    raise ValueError("it is on or off")


def _choice(*choices: str) -> Callable[[str], str]:
    def parsed(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"it is one of {', '.join(choices)}")
        return text.lower()

    return parsed


def _number(low: int, high: int) -> Callable[[str], str]:
    def parsed(text: str) -> str:
        try:
            number = int(text)
        except ValueError as error:
            raise ValueError("it is a whole number") from error
        if not low <= number <= high:
            raise ValueError(f"it is a number from {low} to {high}")
        return str(number)

    return parsed


def span_ms(text: str) -> int:
    """A span of time in milliseconds. Raises `ValueError`."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ValueError("it is a span of time such as 5000, 5s or 2min")
    found = round(float(match[1]) * _UNITS_MS[match[2]])
    if not 0 <= found < 1 << 31:
        raise ValueError("it is a span from 0 to 2147483647 milliseconds")
    return found


def _span(text: str) -> str:
    found = span_ms(text)
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if found and found % size == 0:
            return f"{found // size}{unit}"
    return f"{found}ms" if found else "0"


def _encoding(text: str) -> str:
    # Postgres ignores all signs of the name, also the quotes that asyncpg sends.
    if re.sub(r"[^A-Z0-9]", "", text.upper()) not in ("UTF8", "UNICODE", "SQLASCII"):
        raise ValueError("this server speaks UTF8 only")
    return "UTF8"


def _date_style(text: str) -> str:
    parts = [part.strip().upper() for part in text.split(",")]
    orders = {"YMD", "DMY", "MDY", "EURO", "EUROPEAN", "US", "NONEURO", "NONEUROPEAN"}
    if not parts or not set(parts) <= {"ISO", *orders}:
        raise ValueError("dates of this server are ISO only")
    return "ISO, " + next((part for part in parts if part in ("YMD", "DMY", "MDY")), "MDY")


@cache
def _zones() -> Mapping[str, str]:
    return {name.lower(): name for name in zoneinfo.available_timezones()}


def _zone(text: str) -> str:
    folded = text.strip().lower()
    if folded in ("default", "utc", "z", "zulu", "gmt", "etc/utc"):
        return "UTC"
    if folded in _zones():
        return _zones()[folded]
    eastward, westward = _OFFSET.fullmatch(folded), _POSIX.fullmatch(folded)
    match = eastward or westward
    if match:
        sign = "+" if (match[1] == "-") == bool(eastward) else "-"  # the names of Etc count westward
        name = f"etc/gmt{sign}{int(match[2])}"
        if name in _zones():
            return _zones()[name] if int(match[2]) else "UTC"
    raise ValueError("it is a zone such as Europe/Berlin, or a number of whole hours")


def _level(text: str) -> str:
    return _choice("read committed", "read uncommitted", "repeatable read", "serializable")(text)


def _position(text: str) -> str:
    return position_text(text) if text else ""


def _freshness(text: str) -> str:
    Requirement.of(text or None, None)
    return text


def _through(text: str) -> str:
    Requirement.of(None, text or None)
    return text


_DEFINITIONS = (
    Variable("application_name", "", _plain, True, "Name that the program gives itself"),
    Variable("backslash_quote", "safe_encoding", _plain),
    Variable("bytea_output", "hex", _choice("hex")),
    Variable("client_encoding", "UTF8", _encoding, True, "Encoding of the client's texts"),
    Variable("client_min_messages", "notice", _plain),
    Variable("DateStyle", "ISO, MDY", _date_style, True, "Form of dates"),
    Variable("default_table_access_method", "heap", _plain),
    Variable("default_text_search_config", "pg_catalog.simple", _plain),
    Variable("default_transaction_deferrable", "off", _boolean),
    Variable("default_transaction_isolation", "repeatable read", _level),
    Variable("default_transaction_read_only", "on", _boolean, True, "This port only reads, whatever is set"),
    Variable("enable_seqscan", "on", _boolean),
    Variable("extra_float_digits", "1", _number(-15, 3), about="Floats always have all their digits"),
    Variable("geqo", "on", _boolean),
    Variable("idle_in_transaction_session_timeout", "0", _span),
    Variable("idle_session_timeout", "0", _span),
    Variable("in_hot_standby", "off", None, True),
    Variable("integer_datetimes", "on", None, True),
    Variable("IntervalStyle", "postgres", _choice("postgres"), True, "Form of intervals"),
    Variable("is_superuser", "off", None, True),
    Variable("jit", "off", _boolean),
    Variable(AT, "", _position, False, "Token or time at which questions read; empty is the newest commit"),
    Variable(FRESHNESS, "", _freshness, False, "Span such as 10s: older data is refused"),
    Variable(THROUGH, "", _through, False, "Time through which data must be complete"),
    Variable("lc_collate", "C", None),
    Variable("lc_ctype", "C.UTF-8", None),
    Variable("lc_messages", "C", _plain),
    Variable("lc_monetary", "C", _plain),
    Variable("lc_numeric", "C", _plain),
    Variable("lc_time", "C", _plain),
    Variable("lock_timeout", "0", _span),
    Variable("max_identifier_length", "255", None),
    Variable("max_index_keys", "32", None),
    Variable("plan_cache_mode", "auto", _plain),
    Variable("row_security", "on", _boolean),
    Variable("scram_iterations", "4096", None, True),
    Variable("search_path", "public", _plain, False, "Databases of the lake in which plain names are looked up"),
    Variable("server_encoding", "UTF8", None, True),
    Variable("server_version", SERVER_VERSION, None, True),
    Variable("server_version_num", SERVER_VERSION_NUM, None),
    Variable("session_authorization", "", None, True),
    Variable("standard_conforming_strings", "on", _choice("on"), True),
    Variable("statement_timeout", "0", _span, False, "Time after which a statement is cancelled; 0 is without"),
    Variable("synchronize_seqscans", "on", _boolean),
    Variable("synchronous_commit", "on", _plain),
    Variable("tcp_keepalives_idle", "0", _number(0, 1 << 31)),
    Variable("TimeZone", "UTC", _zone, True, "Zone of times with a zone"),
    Variable("transaction_deferrable", "off", _boolean),
    Variable("transaction_isolation", "repeatable read", _level, about="A transaction reads one cut, whatever is set"),
    Variable("transaction_read_only", "on", _boolean),
    Variable("work_mem", "4MB", _plain),
    Variable("xmloption", "content", _plain),
)
VARIABLES: Mapping[str, Variable] = {variable.name.lower(): variable for variable in _DEFINITIONS}
_Values = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reading:
    """The values of variables that every question needs."""

    at: str
    """The position at which a question reads; empty for the newest commit."""
    requirement: Requirement | None
    """The demands of a question on its data."""
    search_path: tuple[str, ...]
    """The databases in which plain names are looked up, in order."""
    zone: str
    timeout_seconds: float
    """The time that a statement may take; 0 without a limit of the session."""


class Variables:
    """The variables of one session. Values are kept in mappings that are replaced, never changed."""

    def __init__(self, start: Mapping[str, str]) -> None:
        """`start` are the values that RESET returns to."""
        self._start: _Values = {}
        self._session: _Values = {}
        self._local: _Values = {}
        self._at_begin: _Values | None = None
        """The values of the session before the open transaction; None outside of one."""
        self._savepoints: list[tuple[str, _Values, _Values]] = []
        self._reported: dict[str, str] = {}
        self._reported_of: tuple[_Values, ...] = ()
        """The mappings at the last `reports`."""
        self._reading: Reading | None = None
        self._reading_of: tuple[_Values, ...] = ()
        """The mappings of `_reading`."""
        self._start = {name: self._parsed(name, (value,), fixed=True) for name, value in start.items()}

    def __getitem__(self, name: str) -> str:
        """The value that holds now."""
        folded = name.lower()
        for values in (self._local, self._session, self._start):
            if folded in values:
                return values[folded]
        variable = VARIABLES.get(folded)
        if variable is None:
            raise SqlError(UNKNOWN_VARIABLE, f'unrecognized configuration parameter "{name}"')
        return variable.default

    def get(self, name: str) -> str | None:
        """The value that holds now; None for a variable that does not exist."""
        try:
            return self[name]
        except SqlError:
            return None

    def put(self, name: str, values: Sequence[str] | None, *, is_local: bool = False) -> None:
        """SET, or RESET with None. A local value outside of a transaction is lost at once, as in Postgres."""
        folded = name.lower()
        if folded == "all" and values is None:
            self._session, self._local = {}, {}
            return
        value = None if values is None else self._parsed(folded, values)
        if value is None:
            self[folded]  # an unknown variable is refused
            value = self._start.get(folded, VARIABLES[folded].default if folded in VARIABLES else "")
        elif folded not in VARIABLES and len(self._session) + len(self._local) >= CUSTOM_MAX + len(VARIABLES):
            raise SqlError("54000", f"a session has at most {CUSTOM_MAX} variables of its own")
        if is_local:
            if self._at_begin is not None:
                self._local = {**self._local, folded: value}
            return
        self._session = {**self._session, folded: value}
        self._local = {key: text for key, text in self._local.items() if key != folded}

    def begin(self) -> None:
        """A transaction begins."""
        if self._at_begin is None:
            self._at_begin = self._session

    def commit(self) -> None:
        """The transaction ends; what SET LOCAL has set is undone."""
        self._end()

    def rollback(self) -> None:
        """The transaction ends; everything that it has set is undone."""
        if self._at_begin is not None:
            self._session = self._at_begin
        self._end()

    def _end(self) -> None:
        self._at_begin = None
        if self._local:
            self._local = {}
        self._savepoints.clear()

    def save(self, name: str) -> None:
        """SAVEPOINT."""
        self._savepoints.append((name, self._session, self._local))

    def saves(self, name: str) -> bool:
        """Whether there is a savepoint of this name."""
        return any(saved == name for saved, _, _ in self._savepoints)

    def release(self, name: str, *, undo: bool) -> None:
        """RELEASE, and with `undo` ROLLBACK TO, which keeps the savepoint."""
        while self._savepoints[-1][0] != name:
            self._savepoints.pop()
        if undo:
            _, self._session, self._local = self._savepoints[-1]
        else:
            self._savepoints.pop()

    def reports(self) -> list[tuple[str, str]]:
        """(name, value) of the variables whose value a driver does not know yet."""
        if self._are_those(self._reported_of):
            return []
        self._reported_of = self._mappings
        changes = []
        for folded, variable in VARIABLES.items():
            if variable.is_reported and self._reported.get(folded) != (value := self[folded]):
                self._reported[folded] = value
                changes.append((variable.name, value))
        return changes

    @property
    def _mappings(self) -> tuple[_Values, ...]:
        return self._local, self._session

    def _are_those(self, mappings: tuple[_Values, ...]) -> bool:
        """Whether no variable has changed since these were the mappings."""
        return len(mappings) == 2 and mappings[0] is self._local and mappings[1] is self._session

    def rows(self) -> list[tuple[str, str, str]]:
        """(name, value, description) of every variable, for SHOW ALL."""
        own = {*self._local, *self._session, *self._start} - set(VARIABLES)
        known = [(variable.name, self[variable.name], variable.about) for variable in VARIABLES.values()]
        return sorted([*known, *((name, self[name], "") for name in own)], key=lambda row: row[0].lower())

    @property
    def reading(self) -> Reading:
        """The present values for a question; the same object until a variable changes."""
        if self._reading is None or not self._are_those(self._reading_of):
            tokens = tokens_of(self["search_path"])
            self._reading = Reading(
                at=self[AT],
                requirement=Requirement.of(self[FRESHNESS] or None, self[THROUGH] or None),
                search_path=tuple(token.value for token in tokens if token.kind in ("word", "quoted", "string")),
                zone=self["timezone"],
                timeout_seconds=span_ms(self["statement_timeout"]) / 1_000,
            )
            self._reading_of = self._mappings
        return self._reading

    def _parsed(self, name: str, values: Sequence[str], *, fixed: bool = False) -> str:
        variable = VARIABLES.get(name)
        text = ", ".join(map(_list_item, values)) if name == "search_path" and len(values) > 1 else ", ".join(values)
        if len(text) > VALUE_CHARS_MAX or "\0" in text:
            raise SqlError(BAD_VALUE, f'invalid value for parameter "{name}": it is too long')
        if variable is None:
            if not _CUSTOM.fullmatch(name) or name.startswith("lakestore."):
                raise SqlError(UNKNOWN_VARIABLE, f'unrecognized configuration parameter "{name}"')
            return text
        if variable.parsed is None:
            if fixed:
                return text
            raise SqlError(FIXED_VARIABLE, f'parameter "{variable.name}" cannot be changed')
        try:
            return variable.parsed(text)
        except (ValueError, Invalid) as error:
            sentence = f'invalid value for parameter "{variable.name}": "{text}"'
            raise SqlError(BAD_VALUE, sentence, detail=str(error)) from error


def _list_item(text: str) -> str:
    return text if re.fullmatch(r"[a-z_][a-z0-9_$]*", text) else '"' + text.replace('"', '""') + '"'
