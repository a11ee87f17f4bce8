"""Settings declared by a frozen dataclass, read from file < environment < flags, with the origin of each value.

A field is `name: type = option(default, low=…, flag=True)` with a docstring; a `section` field holds nested settings.
File keys, variables, flags, checks and docs/settings.md are generated from the fields.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import itertools
import json
import math
import re
import textwrap
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

from lakestore.errors import Invalid
from lakestore.model import yaml_text

PREFIX = "LAKESTORE_"
NOT_SETTINGS = frozenset(
    f"LAKESTORE_{name}"
    for name in "CACHE CONFIG DEBUG SEED SERVER PROFILE PROFILES TOKEN TOKEN_FILE TLS CA CERT KEY".split()
)
"""Variables with our prefix that are no server settings."""
MASK = "********"
_NOT_OURS = re.compile(r"LAKESTORE_(SERVICE_(HOST|PORT.*)|PORT_\d+_.*|(MODEL|BENCH|CRASH)_.*|FLIPS|EXPLORE)")
"""Variables that Kubernetes sets for a service named lakestore, and variables of the tests."""
_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path", tuple: "a list"}
_OPTION = "lakestore.option"
Settings = TypeVar("Settings")


def option(
    default: Any = dataclasses.MISSING,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    flag: bool = False,
) -> Any:
    """A field with a setting; without a default it is required. `flag` adds a command-line flag."""
    if secret and flag:
        raise ValueError("a secret cannot be a flag: every user of the machine sees the arguments of a process")
    about = {"low": low, "high": high, "choices": choices, "secret": secret, "flag": flag}
    return dataclasses.field(default=default, metadata={_OPTION: about})


def range_of(field: dataclasses.Field[Any]) -> tuple[float, float]:
    """Lowest and highest value of a number."""
    about = field.metadata[_OPTION]
    low, high = about["low"], about["high"]
    return -math.inf if low is None else low, math.inf if high is None else high


def section(of: type[Settings]) -> Settings:
    """A field with nested settings, named `section.name` and `LAKESTORE_SECTION_NAME`."""
    made: Any = dataclasses.field(default_factory=of)
    return typing.cast("Settings", made)


@dataclass(frozen=True, slots=True)
class Option:
    """One setting."""

    name: str
    """With the section: `limits.queue_bytes_max`."""
    kind: type
    default: Any
    text: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    secret: bool
    flag: bool

    @property
    def variable(self) -> str:
        return PREFIX + self.name.replace(".", "_").upper()

    @property
    def switch(self) -> str:
        """The command-line flag, if there is one."""
        return "--" + re.sub(r"[._]", "-", self.name)

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def rule(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        kind = _KINDS[self.kind]
        if self.low is not None and self.high is not None:
            return f"{kind} from {self.low:,} to {self.high:,}"
        if self.low is not None:
            return f"{kind}, {self.low:,} or more"
        return kind if self.high is None else f"{kind}, {self.high:,} or less"

    def parse(self, value: Any, where: str) -> Any:
        """Convert an outside value, which may be a text, to the setting's type. Raises `Invalid`."""
        parsed = _parsed(self.kind, value)
        bad = Invalid(f"{where}: {self.name} must be {self.rule}, not {MASK if self.secret else repr(value)}")
        if parsed is None or (self.choices and parsed not in self.choices):
            raise bad
        if self.kind in (int, float) and not (
            (self.low is None or parsed >= self.low) and (self.high is None or parsed <= self.high)
        ):
            raise bad
        return parsed

    def shown(self, value: Any) -> str:
        """The value as YAML; secrets are masked."""
        if value is dataclasses.MISSING:
            return "null"
        if self.secret and value:
            return json.dumps(MASK)
        return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)


def _parsed(kind: type, value: Any) -> Any:
    if kind is bool:
        if isinstance(value, str) and value.lower() in (*_YES, *_NO):
            return value.lower() in _YES
        return value if isinstance(value, bool) else None
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, int | str | kind):
            return None
        try:
            return kind(value)
        except ValueError:
            return None
    if kind is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
            return None
        return tuple(part.strip() for part in parts)
    if kind is Path:
        return Path(value) if isinstance(value, str | Path) and str(value) else None
    return value if isinstance(value, str) else None


def options(of: type[Any]) -> tuple[Option, ...]:
    """All settings of a class and its sections."""
    return tuple(_options(of, ""))


def _options(of: type[Any], prefix: str) -> Iterator[Option]:
    kinds, texts = typing.get_type_hints(of), field_texts(of)
    for field in dataclasses.fields(of):
        kind = kinds[field.name]
        if dataclasses.is_dataclass(kind):
            yield from _options(typing.cast("type[Any]", kind), f"{prefix}{field.name}.")
            continue
        about = field.metadata[_OPTION]
        kind = typing.get_origin(kind) or kind
        yield Option(prefix + field.name, kind, field.default, texts[field.name], **about)


def value_of(settings: Any, option: Option) -> Any:
    """The value of a setting."""
    for name in option.name.split("."):
        settings = getattr(settings, name)
    return settings


def field_texts(of: type[Any]) -> dict[str, str]:
    """Field name to its docstring."""
    body = typing.cast("ast.ClassDef", ast.parse(textwrap.dedent(inspect.getsource(of))).body[0]).body
    texts = {}
    for node, following in itertools.pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(following, ast.Expr):
            texts[node.target.id] = " ".join(str(ast.literal_eval(following.value)).split())
    return texts


@dataclass(frozen=True, slots=True)
class SettingValues(Generic[Settings]):
    """Every value with its origin. Values are checked one by one, not together."""

    of: type[Settings]
    values: Mapping[str, Any]
    origins: Mapping[str, str]

    def settings(self) -> Settings:
        """The settings. Raises `Invalid` if a required one is missing."""
        for each in options(self.of):
            if self.values[each.name] is dataclasses.MISSING:
                flag = f"{each.switch}, " if each.flag else ""
                raise Invalid(f"{each.name} is not set: give {flag}{each.variable}, or {each.name}: in the file of -c")
        return typing.cast("Settings", self._built(self.of, ""))

    def _built(self, of: type[Any], prefix: str) -> Any:
        kinds, values = typing.get_type_hints(of), {}
        for field in dataclasses.fields(of):
            kind, name = kinds[field.name], prefix + field.name
            nested = dataclasses.is_dataclass(kind)
            values[field.name] = self._built(kind, f"{name}.") if nested else self.values[name]
        return of(**values)

    def as_data(self) -> list[dict[str, Any]]:
        """Every setting with value and origin. Secrets are masked; a missing required value is null."""
        found = []
        for each in options(self.of):
            value = self.values[each.name]
            held = None if value is dataclasses.MISSING else value
            held = MASK if each.secret and held else str(held) if isinstance(held, Path) else held
            found.append({"setting": each.name, "value": held, "origin": self.origins[each.name]})
        return found

    def lines(self) -> Iterator[str]:
        """A file with every value and its origin as a comment, secrets masked."""
        said = ""
        for each in options(self.of):
            *sections, name = each.name.split(".")
            if sections and sections != said.split("."):
                said = ".".join(sections)
                yield f"{said}:"
            value = each.shown(self.values[each.name])
            yield f"{'  ' * len(sections)}{name}: {value}  # {self.origins[each.name]}"


def read(
    of: type[Settings], *, file: str = "", text: str = "", environment: Mapping[str, str], flags: Mapping[str, Any]
) -> SettingValues[Settings]:
    """Read settings from a file's text, variables and flags; later sources win."""
    known = {each.name: each for each in options(of)}
    values = {name: each.default for name, each in known.items()}
    origins = {name: "not given" if each.is_required else "default" for name, each in known.items()}

    def take(name: str, value: Any, where: str, origin: str) -> None:
        values[name], origins[name] = known[name].parse(value, where), origin

    for name, value in _in_file(file, text, known):
        take(name, value, file, file)
    for name, value in _in_environment(environment, known):
        take(name, value, f"variable {known[name].variable}", known[name].variable)
    for name, value in flags.items():
        take(name, value, f"flag {known[name].switch}", known[name].switch)
    return SettingValues(of, values, origins)


def _in_environment(environment: Mapping[str, str], known: Mapping[str, Option]) -> Iterator[tuple[str, str]]:
    by_variable = {each.variable: name for name, each in known.items()}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS or _NOT_OURS.fullmatch(variable):
            continue
        if variable not in by_variable:
            raise Invalid(f"the environment sets {variable}, which is not a setting{_hint(variable, by_variable)}")
        if value and not (variable == "LAKESTORE_PORT" and value.startswith("tcp://")):
            yield by_variable[variable], value


def _in_file(file: str, text: str, known: Mapping[str, Option]) -> Iterator[tuple[str, Any]]:
    try:
        found = yaml_text.values(text, _Loader) or {}
    except yaml_text.Unreadable as error:
        raise Invalid(f"{file} is not YAML: {error}") from error
    if not isinstance(found, dict):
        raise Invalid(f"{file} must hold 'name: value' lines, such as data: ./lake")
    yield from _flat(file, found, "", known)


def _flat(file: str, found: Mapping[Any, Any], prefix: str, known: Mapping[str, Option]) -> Iterator[tuple[str, Any]]:
    for key, value in found.items():
        name = f"{prefix}{key}".replace("-", "_")
        if name in known:
            yield name, value
        elif any(each.startswith(f"{name}.") for each in known):
            if not isinstance(value, dict):
                raise Invalid(f"{file}: {name} is a section: write its settings below it, indented")
            yield from _flat(file, value, f"{name}.", known)
        else:
            raise Invalid(f"{file}: there is no setting {name!r}{_hint(name, known)}")


def _hint(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f": did you mean {close[0]}?" if close else ": `lakestore serve --print-config` lists all"


class _Loader(yaml_text.UniqueKeysLoader):
    """Treats names with - and _ as equal."""

    def name_of(self, key: yaml.Node) -> str:
        return str(key.value).replace("-", "_")
