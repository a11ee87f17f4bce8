"""The server's settings as command-line flags, one for each field that has a flag."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from lakestore.errors import Invalid
from lakestore.model import settings
from lakestore.model.settings import Option, SettingValues
from lakestore_server.settings import Settings

OBJECT_SCHEMES = ("s3", "gs", "abfs", "abfss")
_Command = TypeVar("_Command", bound=Callable[..., Any])


def setting_flags(command: _Command) -> _Command:
    """Adds the flags of the server's settings."""
    for each in reversed(settings.options(Settings)):
        if each.flag:
            lone: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if each.kind is bool else {}
            name = each.name.replace(".", "__")
            command = click.option(each.switch, name, metavar=_shown(each), help=_help(each), **lone)(command)
    return command


def journal_flag(command: _Command) -> _Command:
    """Adds --journal, which stands for several settings."""
    about = "The journal that servers share: kafka://host:port,host:port/topic, or s3://bucket/prefix."
    return click.option("--journal", "journal", metavar="URL", help=about)(command)


def journal_settings(url: str | None, switch: str = "--journal") -> dict[str, str]:
    """The settings that --journal, or another switch with a journal, stands for."""
    if url is None:
        return {}
    scheme, _, rest = url.partition("://")
    if scheme in OBJECT_SCHEMES and rest:
        return {"journal__kind": "object", "journal__url": url}
    bootstrap, _, topic = rest.partition("/")
    if scheme != "kafka" or not bootstrap or not topic or "/" in topic:
        raise Invalid(f"{switch} must be kafka://host:port/topic or s3://bucket/prefix, not {url!r}")
    return {"journal__kind": scheme, "journal__bootstrap": bootstrap, "journal__topic": topic}


def _shown(option: Option) -> str:
    if option.choices:
        return "|".join(option.choices)
    return {int: "INTEGER", float: "NUMBER", bool: "true|false", Path: "PATH"}.get(option.kind, "TEXT")


def _help(option: Option) -> str:
    default = "" if option.is_required or option.default in ("", ()) else f"  [default: {option.default}]"
    return option.text + default


def config_of(file: Path | None, flags: Mapping[str, Any]) -> SettingValues[Settings]:
    """The settings from file, environment and flags."""
    given = {name.replace("__", "."): value for name, value in flags.items() if value is not None}
    try:
        text = file.read_text() if file else ""
    except UnicodeDecodeError as error:
        raise Invalid(f"{file} is not text in UTF-8") from error
    return settings.read(Settings, file=str(file or ""), text=text, environment=os.environ, flags=given)
