"""A finding: one thing that was looked at, how it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lakestore.errors import LakestoreError

Verdict = Literal["ok", "warning", "failed"]
"""`failed`: a server would not start, or would lose what it acknowledged."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    about: str
    """Its name, such as `data folder`."""
    verdict: Verdict
    found: str
    """The state of it, in a few words."""
    remedy: str = ""
    """The thing to do; empty when all is well."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as data."""
        return asdict(self)


Look = Callable[[], Iterable[Finding]]


def looked(about: str, look: Look) -> Iterator[Finding]:
    """The findings of a look; one that cannot be taken is a failed finding itself."""
    try:
        yield from look()
    except LakestoreError as error:
        yield Finding(about, "failed", error.message, "do what the sentence says")
    except OSError as error:
        yield Finding(about, "failed", _reason(error), "mend what the operating system or the store refuses")


def _reason(error: OSError) -> str:
    where = f": {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{where}"
