"""The server's log on stderr: one line for each event, as text or as JSON with one schema.

{"time": ISO 8601 in UTC, "level": "info", "logger": "lakestore.…", "event": what happened, "fields": {…}}

Values of secret settings are masked wherever they appear.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from lakestore.model import settings as config
from lakestore.model.settings import MASK

ROOT = "lakestore"
SECRET_CHARS_MIN = 4
_FIELDS = "lakestore_fields"


def event(logger: logging.Logger, level: int, name: str, **fields: Any) -> None:
    """Log an event. Fields hold what differs between two events of the same name."""
    logger.log(level, name, extra={_FIELDS: fields})


class Formatter(logging.Formatter):
    """Formats a record as one line."""

    def __init__(self, *, as_json: bool, secrets: Sequence[str] = ()) -> None:
        super().__init__()
        self._as_json = as_json
        self._secrets = sorted((s for s in secrets if len(s) >= SECRET_CHARS_MIN), key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        fields = dict(getattr(record, _FIELDS, {}))
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        line = self._json(record, fields) if self._as_json else self._text(record, fields)
        for secret in self._secrets:
            line = line.replace(secret, MASK)
        return line

    def _json(self, record: logging.LogRecord, fields: dict[str, Any]) -> str:
        said = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            "fields": fields,
        }
        return json.dumps(said, default=str, ensure_ascii=False)

    def _text(self, record: logging.LogRecord, fields: dict[str, Any]) -> str:
        traceback = fields.pop("traceback", "")
        parts = [_time(record), record.levelname.lower(), record.name.removeprefix(f"{ROOT}."), record.getMessage()]
        parts += [f"{name}={_shown(value)}" for name, value in fields.items()]
        return " ".join(" ".join(parts).splitlines()) + (f"\n{traceback}" if traceback else "")


def _time(record: logging.LogRecord) -> str:
    return dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds")


def _shown(value: Any) -> str:
    text = str(value)
    return text if text and " " not in text and '"' not in text else json.dumps(text, ensure_ascii=False)


def configure(settings: Any, stream: TextIO | None = None) -> None:
    """Send this process's log to stderr, as the settings say."""
    secrets = [str(config.value_of(settings, each)) for each in config.options(type(settings)) if each.secret]
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Formatter(as_json=settings.log_format == "json", secrets=secrets))
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(settings.log_level.upper())
