"""Which release of Lakestore this is."""

from importlib.metadata import version

RELEASE = version("lakestore")
"""The release as pip names it."""


def wheel_with(extra: str) -> str:
    """The way to install an extra. Lakestore is in no package index, where its name is free for anybody."""
    return (
        f"`make setup` in a checkout installs it, and elsewhere the wheel that `make wheel` builds:"
        f" pip install 'dist/lakestore-{RELEASE}-py3-none-any.whl[{extra}]'"
    )
