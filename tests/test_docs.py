"""What the documents say is true: snippets run, commands and options exist, links and named tests lead somewhere.

`make docs` writes docs/api.md, cli.md, settings.md, metrics.md, rights.md and errors.md from the public names,
commands, settings, metrics, rights and errors of the code.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import shlex
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType

import click
import pytest

import lakestore
from lakestore import errors
from lakestore.cli.main import COMMANDS, command
from lakestore.model import settings, table_file, types
from lakestore_server.access import policy
from lakestore_server.edge import catalog_request
from lakestore_server.operate import metrics
from lakestore_server.settings import Settings
from tests.support import house

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "cli.md"
SETTINGS = ROOT / "docs" / "settings.md"
METRICS = ROOT / "docs" / "metrics.md"
RIGHTS = ROOT / "docs" / "rights.md"
API = ROOT / "docs" / "api.md"
ERRORS = ROOT / "docs" / "errors.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
HELP_COLUMNS = 100


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for said, text in fenced if said == language]


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Each command by its words, groups before their members."""
    for name in sorted(COMMANDS):
        yield from _with_members(name, command(name))


def _with_members(name: str, found: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, found
    if isinstance(found, click.Group):
        for each in sorted(found.commands):
            yield from _with_members(f"{name} {each}", found.commands[each])


def reference() -> str:
    """Every command's help, as docs/cli.md has it."""
    parts = ["# Command line\n\nWritten by `make docs` from the commands' own help.\n"]
    for name, found in every_command():
        context = click.Context(
            found,
            info_name=f"lakestore {name}",
            max_content_width=HELP_COLUMNS,
            terminal_width=HELP_COLUMNS,
            help_option_names=["-h", "--help"],
        )
        lines = found.get_help(context).splitlines()
        parts.append(f"## {name}\n\n```\n" + "\n".join(line.rstrip() for line in lines) + "\n```\n")
    return "\n".join(parts)


SETTINGS_HEAD = """# Settings of the server

Written by `make docs` from the fields of the settings. `lakestore serve --print-config` prints the values of a server
and where each comes from.

- A flag wins over a variable, and a variable over the file that `-c` names.
- An empty variable counts as not set. An unknown name is an error.
- In the file, the settings of a section are indented below its name: `limits.parts` is `parts` below `limits`.
- A list is `[a, b]` in the file and `a, b` in a variable.
- A secret is never shown. Keep it in a variable, or in a file that only the server reads.

| name in the file | variable | flag | must be | default | what it is |
|---|---|---|---|---|---|
"""


def settings_page() -> str:
    """Every setting, as docs/settings.md has it."""
    lines = []
    for each in settings.options(Settings):
        default = "" if each.is_required or each.default in ("", ()) else f"`{each.default}`"
        rule = each.rule + (", secret" if each.secret else "")
        flag = f"`{each.switch}`" if each.flag else ""
        lines.append(f"| `{each.name}` | `{each.variable}` | {flag} | {rule} | {default} | {each.text} |\n")
    return SETTINGS_HEAD + "".join(lines)


METRICS_HEAD = """# Metrics

Written by `make docs` from the metrics' own definitions. `GET /metrics` of the HTTP port answers in the format of
Prometheus. All samples of an answer are read at one commit. A counter starts at 0 with the process. A histogram has
`_bucket`, `_sum` and `_count`. A metric with the label `table` has one sample for each table.

| metric | kind | labels | what it is |
|---|---|---|---|
"""


def metrics_page() -> str:
    """Every metric, as docs/metrics.md has it."""
    lines = []
    for family in metrics.FAMILIES:
        name = family.name + ("_total" if family.kind == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{name}` | {family.kind} | {labels} | {family.text} |\n")
    return METRICS_HEAD + "".join(lines)


ERRORS_HEAD = """# Errors

Written by `make docs` from `lakestore.errors`. Every error that leaves the package is one of these; its `message` is
one sentence: what is wrong, where, and what to do. The command line prints that sentence and ends with exit code 1.

`error.applied` says whether the request may have taken effect: `"no"`, or `"unknown"` after an answer was lost.
Writers send such a request again by themselves for 60 seconds, and it happens once. After that the rows may be stored
or not: look before you send them again, or use a named producer. `error.retry_after` is a number of seconds, where the
server can say.

```
{tree}
```

| error | what it means | in HTTP |
|---|---|---|
"""


def errors_page() -> str:
    """Every error, as docs/errors.md has it."""
    tree = textwrap.dedent((errors.__doc__ or "").partition("\n\n")[2].partition("\n\n`applied`")[0]).strip("\n")
    rows = []
    for name in errors.__all__:
        found = getattr(errors, name)
        if issubclass(found, errors.LakestoreError):
            answered = "" if found is errors.LakestoreError else str(catalog_request.status_of(found(""))[0])
            rows.append(f"| `{name}` | {_sentence(found.__doc__)} | {answered} |\n")
    return ERRORS_HEAD.format(tree=tree) + "".join(rows)


API_HEAD = """# Public names

Written by `make docs` from the code. Programs import the modules below and use the names listed here; every other
module, and every name that begins with `_`, is internal and changes without notice.
"""


def api_page() -> str:
    """Every public module with its names, as docs/api.md has it."""
    parts = [API_HEAD]
    for name in ("lakestore", *(f"lakestore.{short}" for short in lakestore._PUBLIC_MODULES)):
        module = importlib.import_module(name)
        rows = [f"| `{title}` | {text} |\n" for public in module.__all__ for title, text in _told(module, public)]
        about = _sentence(module.__doc__)
        parts.append(f"## {name}\n\n{about}\n\n| name | what it is |\n|---|---|\n" + "".join(rows))
    return "\n".join(parts)


def _told(module: ModuleType, name: str) -> Iterator[tuple[str, str]]:
    """(name, first sentence) of a public name and, if it is a class, of its public methods and properties."""
    found = getattr(module, name)
    if not isinstance(found, type | FunctionType):
        yield name, _sentence(_constants(module.__name__)[name])
        return
    yield name, _sentence(found.__doc__)
    if isinstance(found, type):
        for member, value in vars(found).items():
            about = getattr(value, "__doc__", None)
            if not member.startswith("_") and about and callable(getattr(value, "fget", getattr(found, member))):
                yield f"{name}.{member}", _sentence(about)


@cache
def _constants(module: str) -> dict[str, str]:
    """Constants of a module with the docstrings below them."""
    body = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text()).body
    texts = {}
    for node, below in itertools.pairwise(body):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(below, ast.Expr):
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            texts.update(dict.fromkeys(names, ast.literal_eval(below.value)))
    return texts


def _sentence(text: str | None) -> str:
    """The first sentence of a docstring, on one line."""
    assert text, "a public name has a docstring"
    first = " ".join(text.strip().partition("\n\n")[0].split())
    return first.split(". ")[0].rstrip(".:").replace("|", "\\|") + "."


def typed_commands() -> Iterator[tuple[str, list[str]]]:
    """(page, words) of every `lakestore …` line in a plain block of a page."""
    for page in PAGES:
        if page == REFERENCE:
            continue
        for block in blocks(page, ""):
            for line in block.splitlines():
                if line.startswith("lakestore "):
                    yield page.name, shlex.split(line, comments=True)[1:]


def test_every_python_block_compiles_and_imports_what_exists() -> None:
    for page in PAGES:
        for block in blocks(page, "python"):
            compile(block, page.name, "exec")
            for line in re.findall(r"^(?:import|from) lakestore.*", block, re.MULTILINE):
                exec(line, {})


def test_every_command_line_in_the_documents_is_one() -> None:
    typed = list(typed_commands())
    assert typed
    commands = dict(every_command())
    for page, (name, *words) in typed:
        if name == "--profile":
            _, name, *words = words
        assert name in COMMANDS, f"{page}: lakestore {name}"
        while words and f"{name} {words[0]}" in commands:
            name = f"{name} {words.pop(0)}"
        known = {option for parameter in commands[name].params for option in (*parameter.opts, "-h", "--help")}
        for word in words:
            if word.startswith("-"):
                assert word.split("=")[0] in known, f"{page}: lakestore {name} {word}"


def test_the_reference_is_up_to_date() -> None:
    assert REFERENCE.read_text() == reference(), "run `make docs`"


def test_the_page_of_public_names_is_up_to_date() -> None:
    assert API.read_text() == api_page(), "run `make docs`"


def test_the_settings_page_is_up_to_date() -> None:
    assert SETTINGS.read_text() == settings_page(), "run `make docs`"


def test_the_page_of_rights_is_up_to_date() -> None:
    assert RIGHTS.read_text() == policy.reference(), "run `make docs`"


def test_the_page_of_errors_is_up_to_date() -> None:
    assert ERRORS.read_text() == errors_page(), "run `make docs`"


def test_the_metrics_page_is_up_to_date() -> None:
    assert METRICS.read_text() == metrics_page(), "run `make docs`"


def test_every_make_target_is_explained_and_those_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = set(" ".join(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)).split())
    explained = set(re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE))
    assert phony == explained
    assert makefile.count("\n") < 120
    readme = (ROOT / "README.md").read_text()
    for target in ("demo", "test", "lint", "bench"):
        assert f"make {target}" in readme
    for page in PAGES:
        text = page.read_text()
        for target in re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE):
            assert target in phony, f"{page.name}: make {target}"


def test_ci_runs_what_the_readme_names() -> None:
    run = (ROOT / ".ci" / "run").read_text()
    assert {"make test", "make lint"} <= set(re.findall(r"make [a-z]+", run))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / link).exists(), link
    for path in re.findall(
        r"`((?:tests|lakestore|server|tiering|spark_reader|docs|proto|examples)/[\w./]+\.\w+)`", text
    ):
        assert (ROOT / path).exists(), path


def test_the_page_of_tables_is_a_file_that_apply_takes_and_names_every_type() -> None:
    page = (ROOT / "docs" / "tables.md").read_text()
    (text,) = blocks(ROOT / "docs" / "tables.md", "yaml")
    for table in table_file.parse(text, "tables.yaml"):
        table.definition()
    named = {name for spoken in re.findall(r"`([^`]*)`", page) for name in spoken.split()}
    keys = ("TABLE_KEYS", "COLUMN_KEYS")
    assert {name for key in keys for name in getattr(table_file, key)} | set(types.NAMES) <= named


def test_the_architecture_is_read_in_ten_minutes_and_fits_a_screen() -> None:
    lines = (ROOT / "docs" / "architecture.md").read_text().splitlines()
    assert len(lines) <= 150
    assert [number for number, line in enumerate(lines, 1) if len(line) > 120] == []


def test_the_drawing_names_every_room() -> None:
    told = (ROOT / "docs" / "architecture.md").read_text().partition("## 2.")[0]
    named = {name for spoken in re.findall(r"`([^`]*)`", told) for name in spoken.split()}
    rooms = {house.room_of(module) for module in house.modules()}
    short = {room.removeprefix("lakestore_server.").replace(".", "/") for room in rooms}
    files = {
        "lakestore/errors",
        "lakestore/evolution",
        "lakestore/face",
        "lakestore/java",
        "lakestore/release",
        "lakestore/v1",
    }
    assert sorted(short - named - files) == [], "name it in docs/architecture.md §1"


if __name__ == "__main__":
    API.write_text(api_page())
    REFERENCE.write_text(reference())
    SETTINGS.write_text(settings_page())
    METRICS.write_text(metrics_page())
    RIGHTS.write_text(policy.reference())
    ERRORS.write_text(errors_page())


def test_every_promise_has_a_file_and_every_file_a_promise() -> None:
    rows = re.findall(r"^\|.*\| `(test_\w+\.py)` \|$", (ROOT / "GUARANTEES.md").read_text(), re.MULTILINE)
    files = sorted(path.name for path in (ROOT / "tests" / "promises").glob("test_*.py"))
    assert sorted(rows) == files, "one file for each line of GUARANTEES.md"
