"""The table of commands tells what the commands say of themselves."""

from __future__ import annotations

from importlib import import_module

import click
import pytest

from lakestore.cli.main import COMMANDS, cli, command


def first_sentence(text: str) -> str:
    """The first sentence of a help text."""
    return " ".join(text.partition("\n\n")[0].split()).split(". ")[0].rstrip(".") + "."


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_with_the_first_sentence_of_its_help(name: str) -> None:
    assert COMMANDS[name][1] == first_sentence(command(name).help or "")


def test_every_command_of_a_module_is_in_the_table() -> None:
    for module in {module for module, _ in COMMANDS.values()}:
        for each in import_module(f"lakestore.cli.{module}").COMMANDS:
            assert COMMANDS[each.name][0] == module


def test_an_unknown_command_is_refused_by_name() -> None:
    context = click.Context(cli)
    assert cli.list_commands(context) == sorted(COMMANDS)
    with pytest.raises(click.UsageError) as refused:
        cli.main(["tabels"], standalone_mode=False)
    assert refused.value.format_message() == "No such command 'tabels'. Did you mean 'tables'?"
