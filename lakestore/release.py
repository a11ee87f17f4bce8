"""Which release of Lakestore this is, and how its extras are installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from lakestore.errors import Invalid

RELEASE = version("lakestore")
"""The release as pip names it."""


def wheel_with(extra: str) -> str:
    """The way to install an extra. Lakestore is in no package index, where its name is free for anybody."""
    return (
        f"`make setup` in a checkout installs it, and elsewhere the wheel that `make wheel` builds:"
        f" pip install 'dist/lakestore-{RELEASE}-py3-none-any.whl[{extra}]'"
    )


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """A block of imports for which `what` needs an extra: `Invalid` says how to install it if a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        if package.startswith("lakestore"):
            raise  # a module of ours that is missing is a defect
        raise Invalid(f"{what} needs {package}, which is not installed: {wheel_with(extra)}") from error
