"""The commands of the command line as a tree, walked to its leaves."""

from __future__ import annotations

from collections.abc import Iterator

import click

from lakestore.cli.main import COMMANDS, command


def leaves() -> Iterator[tuple[str, click.Command]]:
    """Each command that can be run, by the words that name it; a group that runs by itself too."""
    for name in sorted(COMMANDS):
        yield from _leaves(name, command(name))


def _leaves(name: str, found: click.Command) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(found, click.Group) or found.invoke_without_command:
        yield name, found
    if isinstance(found, click.Group):
        for inner in found.commands.values():
            yield from _leaves(f"{name} {inner.name}", inner)
