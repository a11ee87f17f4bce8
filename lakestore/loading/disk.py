"""Errors of the disk with the file that they are of, which those of a full disk do not name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: Path | None) -> Iterator[None]:
    """An `OSError` inside is raised of this file; of None, and of a pipe that nobody reads, as it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if path is None or not error.errno:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
