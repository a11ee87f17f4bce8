"""The entry point: imports the command and turns every error into one sentence and an exit code."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from lakestore.cli.profile_option import profile_option
from lakestore.errors import LakestoreError
from lakestore.wire import tracing

_SENTENCES = {
    errno.EEXIST: "{file} is there already: name another one, or remove it",
    errno.EISDIR: "{file} is a folder: name a file",
    errno.ENOTDIR: "{file} lies below a file, which is no folder: name another place",
    errno.EACCES: "this user may not read or write {file}: get the right, or name another place",
    errno.EPERM: "this user may not read or write {file}: get the right, or name another place",
    errno.EROFS: "{file} lies on a file system that takes no writes: name another place",
    errno.ENOSPC: "there is no room left for {file}: make room, or name another place",
    errno.EDQUOT: "the quota leaves no room for {file}: make room, or name another place",
    errno.EFBIG: "{file} would be larger than its file system takes: name another place",
    errno.ENAMETOOLONG: "{file} has too long a name: name a shorter one",
    errno.EMFILE: "this process has too many files open: raise its limit (ulimit -n)",
    errno.ENFILE: "this machine has too many files open: raise its limit",
}


def sentence(error: OSError) -> str:
    """The file and the problem as one sentence."""
    file = str(error.filename) if error.filename is not None else "the output"
    if error.errno == errno.ENOENT and error.filename is not None:
        return _absent(Path(file))
    known = _SENTENCES.get(error.errno or 0)
    if known is not None:
        return known.format(file=file)
    what = error.strerror or str(error)
    return f"{file} cannot be used: {what}" if error.filename is not None else what


def _absent(file: Path) -> str:
    if not file.parent.is_dir():
        return f"the folder of {file} is not there: make it, or name another place"
    return f"there is no {file}: look at the name"


_CHOICE = "NPY_DISABLE_CPU_FEATURES"
_AVX512 = "AVX512F X86_V4 AVX512_ICL AVX512_SPR"
"""The names before and since numpy 2.4."""
_ZEN_4 = {"vendor_id": "AuthenticAMD", "cpu family": "25"}
"""The family of Zen 3 and Zen 4. Zen 3 has no AVX-512; Zen 5 has another family and is fast."""
_PROCESSORS = Path("/proc/cpuinfo")


def spare_slow_sorts(processors: Path = _PROCESSORS) -> None:
    """Make numpy sort with AVX2 where AVX-512 is slower, here and in children. Call before importing numpy."""
    if _CHOICE not in os.environ and "numpy" not in sys.modules and _is_zen_4(processors):
        os.environ[_CHOICE] = _AVX512


def _is_zen_4(processors: Path) -> bool:
    try:
        first = processors.read_text().partition("\n\n")[0]
    except OSError:  # not Linux
        return False
    told = dict(re.findall(r"^(\w[\w ]*\w)\s*: (.*)$", first, re.MULTILINE))
    return told.items() >= _ZEN_4.items() and "avx512f" in told.get("flags", "").split()


FAILED, INTERRUPTED = 1, 130


COMMANDS = {
    "adopt": ("adoption", "Make an Iceberg table of a catalog one of ours, without rewriting its data."),
    "alter": (
        "administration",
        "Change columns and options of TABLE in one commit.",
    ),
    "apply": ("apply", "Create or evolve tables to match a file; docs/tables.md describes the file."),
    "backup": ("backup", "Copy a running server's data into the new folder DEST on the server's machine."),
    "bridge": (
        "bridge",
        "Write records of Kafka topics to tables, exactly once; docs/bridge.md describes the file.",
    ),
    "changes": ("changes", "Show the changes of TABLE in order."),
    "clock": ("doctor", "Show whether the server trusts its clock, and what waits for that."),
    "connect": (
        "connect",
        "Print the lines that open this lake in ENGINE: its head, a past cut, what is tiered.",
    ),
    "contract": (
        "contract",
        "Read, check, apply, compare and measure contracts of tables; docs/contracts.md describes the file.",
    ),
    "create": (
        "administration",
        "Create TABLE from columns, or like another table.",
    ),
    "databases": ("administration", "List the databases, after creating or removing one."),
    "delete": (
        "administration",
        "Delete the rows of TABLE that match a condition now; primary-key tables only.",
    ),
    "demo": ("serve", "Run a complete example and check its results."),
    "describe": ("tables", "Show the columns, settings and contract of TABLE."),
    "dlq": ("dlq", "List, show, replay and drop records that a bridge rejected, and rows that broke a contract."),
    "doctor": (
        "doctor",
        "Check this machine, the settings of a server, and a running server.",
    ),
    "drop": (
        "administration",
        "Drop TABLE.",
    ),
    "erase": (
        "erase",
        "Remove the bytes of the rows of TABLE that match from every file.",
    ),
    "files": ("tables", "List the files of TABLE in the lake."),
    "freshness": ("freshness", "The cost of a lake that is as fresh as a table promises."),
    "init-bridge": (
        "bridge",
        "Write a first bridge.yaml for TOPIC, or for all topics of a PREFIX, from newest records or a registry.",
    ),
    "init-journal": (
        "serve",
        "Create the journal that several servers share, or check one that exists: a topic, or objects in a bucket.",
    ),
    "inspect": (
        "doctor",
        "Describe journal, segment, checkpoint and index files, or all of a data folder or a backup.",
    ),
    "journal": ("journal", "Move the journal of a data folder into a topic of Kafka or a bucket, or back into files."),
    "login": (
        "profiles",
        "Ask for your token, check it with the server, and store both under the name of --profile.",
    ),
    "logout": ("profiles", "Remove the token of --profile, or of the default profile."),
    "lookup": (
        "rows",
        "Look up rows of TABLE by KEY.",
    ),
    "producers": ("tables", "List the named producers, their owners, when they were last used, and their progress."),
    "profiles": ("profiles", "List the profiles: servers by name, as `lakestore login` stores them."),
    "proposals": ("proposals", "List, approve and reject changes of tables that wait for an approver."),
    "read": ("rows", "Read TABLE: the lake and newer rows together."),
    "release": (
        "adoption",
        "Make TABLE a plain Iceberg table of the catalog; its log and its index are removed.",
    ),
    "rename": ("administration", "Rename TABLE to NEW_NAME, also into another database."),
    "replicas": ("tables", "Show the servers that share the journal."),
    "rescale": ("administration", "Give TABLE another number of buckets while reads and writes go on."),
    "replay": ("administration", "Fill a branch of TABLE, compare it with TABLE, and swap it into its place."),
    "restore": (
        "backup",
        "Create a data folder from the backup SRC after checking every byte; no server is needed.",
    ),
    "serve": ("serve", "Run the server until it is stopped."),
    "sizing": (
        "sizing",
        "Estimate disk, memory, bytes written and times of a table, and the first limit that it reaches.",
    ),
    "sql": (
        "sql",
        'Run queries over tables, each at one cut: lakestore sql "SELECT count(*) FROM shop.orders", or a shell.',
    ),
    "status": ("tables", "Show what is hot, what is tiered and how far behind, of TABLE or of all."),
    "subscriptions": (
        "changes",
        "List the named subscriptions, their lag, and the consumers that share them.",
    ),
    "support-bundle": (
        "doctor",
        "Put everything that a supporter needs into one file, without rows, tokens, keys or passwords.",
    ),
    "tables": ("tables", "List the tables."),
    "tier": ("serve", "Move rows into the lake, compact and expire there, with Spark; for ever, or once."),
    "token": (
        "token",
        "Make a token for PRINCIPAL, and an entry for the server's auth file that holds only its hash.",
    ),
    "truncate": (
        "administration",
        "Remove all rows of TABLE from log and lake.",
    ),
    "undrop": (
        "administration",
        "Restore the dropped TABLE; `lakestore tables --dropped` lists the candidates.",
    ),
    "verify": ("doctor", "Check TABLE: log fold = index = lake + hot, per bucket, at one cut."),
    "who": (
        "proposals",
        "Show owner, delegates, approvers, contract version and the last ten decisions of TABLE.",
    ),
    "write": ("write", "Write FILE to TABLE: a path, a folder, a glob, a URI, or - for stdin."),
}
"""Command to its module in this package and the first sentence of its help."""


class _Commands(click.Group):
    """Imports a command when it runs or its help is shown. The list of commands imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return command(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first argument."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            raise click.exceptions.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


def command(name: str) -> click.Command:
    """The imported command of a name in the table."""
    found: Sequence[click.Command] = import_module(f"lakestore.cli.{COMMANDS[name][0]}").COMMANDS
    return next(each for each in found if each.name == name)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lakestore")
@profile_option
def cli() -> None:
    """A log server with primary-key tables whose rows move into Apache Iceberg, read as one table."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit."""
    spare_slow_sorts()
    sys.exit(run_command(arguments))


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    tracing.begin("-".join(["lakestore", *given[:1]]))
    try:
        answer = cli.main(args=given, standalone_mode=False)
        sys.stdout.flush()
        return answer if isinstance(answer, int) else 0
    except (click.exceptions.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output closed the pipe. Output that is still buffered must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not isinstance(error, click.ClickException | LakestoreError | OSError) and os.environ.get("LAKESTORE_DEBUG"):
            raise
        return _failed(error, as_json="--json" in given)


def _failed(error: Exception, *, as_json: bool) -> int:
    """Print an error to stderr as a sentence or an object."""
    from lakestore.model.terminal_text import terminal_text  # keeps the list of commands free of imports

    if isinstance(error, click.ClickException) and not as_json:
        usage = io.StringIO()
        error.show(usage)
        click.echo(terminal_text(usage.getvalue()), err=True, nl=False)
        return error.exit_code
    about = _about(error)
    about["message"] = " ".join(str(about["message"]).split())
    if as_json:
        click.echo(json.dumps({"error": about}, ensure_ascii=False), err=True)
    else:
        unknown = " (it may have been applied)" if about["applied"] == "unknown" else ""
        click.echo(terminal_text(f"lakestore: {about['message']}{unknown}"), err=True)
    return error.exit_code if isinstance(error, click.ClickException) else FAILED


def _about(error: Exception) -> dict[str, Any]:
    about = {"kind": "Internal", "message": str(error), "applied": "no", "retry_after_seconds": None}
    if isinstance(error, LakestoreError):
        retry = error.retry_after or None
        return about | {
            "kind": error.kind, "message": error.message, "applied": error.applied, "retry_after_seconds": retry
        }  # fmt: skip
    if isinstance(error, click.ClickException):
        return about | {"kind": "Usage", "message": error.format_message()}
    if isinstance(error, OSError):
        return about | {"kind": "System", "message": sentence(error)}
    return about | {
        "message": f"a defect of Lakestore ({type(error).__name__}: {error}); LAKESTORE_DEBUG=1 shows where",
    }
