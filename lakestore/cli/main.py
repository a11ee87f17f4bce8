"""The entry point: collects the commands and turns every error into one sentence and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from lakestore.cli import apply, backup, inspect, rows, serve, tables, token, verify
from lakestore.errors import LakestoreError

FAILED, INTERRUPTED = 1, 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lakestore")
def cli() -> None:
    """A log server with primary-key tables whose rows move into Apache Iceberg, read as one table."""


def _first_sentence(text: str) -> str:
    """What the list of commands says of one; click would end it somewhere."""
    return " ".join(text.partition("\n\n")[0].split()).split(". ")[0].rstrip(".") + "."


for group in (serve, apply, tables, rows, verify, inspect, token, backup):
    for command in group.COMMANDS:
        command.short_help = _first_sentence(command.help or "")
        cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit."""
    sys.exit(run_command(arguments))


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    try:
        answer = cli.main(args=None if arguments is None else list(arguments), standalone_mode=False)
        sys.stdout.flush()
        return answer if isinstance(answer, int) else 0
    except click.exceptions.Abort:
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except LakestoreError as error:
        return _failed(_sentence(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever reads our output has seen enough; what is still buffered must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _failed(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except Exception as error:
        if os.environ.get("LAKESTORE_DEBUG"):
            raise
        return _failed(f"a defect of Lakestore ({type(error).__name__}: {error}); LAKESTORE_DEBUG=1 shows where")


def _sentence(error: LakestoreError) -> str:
    unknown = " (it may have been applied)" if error.applied == "unknown" else ""
    return f"{error.message}{unknown}"


def _failed(sentence: str) -> int:
    click.echo(f"lakestore: {' '.join(sentence.split())}", err=True)
    return FAILED
