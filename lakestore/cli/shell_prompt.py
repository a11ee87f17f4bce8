"""The prompt of the shell: lines with history and completion, by prompt_toolkit."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from lakestore.cli.shell import COMMAND_NAMES, is_complete
from lakestore.errors import LakestoreError
from lakestore.model.table import Table
from lakestore.release import needs_extra

with needs_extra("duckdb", "the shell"):
    from prompt_toolkit import PromptSession
    from prompt_toolkit.application import get_app
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.history import FileHistory

WORDS = """
SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT OFFSET JOIN LEFT RIGHT FULL INNER CROSS ON USING AS AND OR NOT
IN BETWEEN LIKE ILIKE IS NULL TRUE FALSE CASE WHEN THEN ELSE END CAST DISTINCT UNION ALL WITH VALUES COUNT SUM
AVG MIN MAX COALESCE DATE_TRUNC EXTRACT INTERVAL TIMESTAMP DATE EXPLAIN DESCRIBE SUMMARIZE SHOW TABLES AT ASC
DESC OVER PARTITION QUALIFY EXISTS FILTER LOWER UPPER NOW
""".split()
_WORD = re.compile(r"[\w.\\]+$")


def history_file() -> Path:
    """The history file in the user's state folder, readable only by the user."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "lakestore"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / "sql_history"
    file.touch(mode=0o600)
    return file


class Names(Completer):
    """Completes tables, columns of the statement's tables, SQL words, and shell commands."""

    def __init__(self, tables: Callable[[], list[Table]]) -> None:
        self._known = tables

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        found = _WORD.search(before)
        word = found[0] if found else ""
        if not word and not complete_event.completion_requested:
            return
        for name in self.names(document.text, word, first=not before[: len(before) - len(word)].strip()):
            yield Completion(name, start_position=-len(word))

    def names(self, text: str, word: str, *, first: bool) -> list[str]:
        """Names that start with a word of a statement."""
        if first and word.startswith((".", "\\")):
            return [name for name in COMMAND_NAMES if name.startswith(word)]
        try:
            tables = self._known()
        except LakestoreError:
            tables = []  # the server is away; the query will report it
        lowered = text.lower()
        columns = {c.name for table in tables if table.name.lower() in lowered for c in table.columns}
        begin = word.lower()
        dotted = begin.rpartition(".")
        found = [
            name for name in (*sorted(columns), *(table.name for table in tables)) if name.lower().startswith(begin)
        ]
        if dotted[0]:
            found += [f"{word[: len(dotted[0])]}.{c}" for c in sorted(columns) if c.lower().startswith(dotted[2])]
        cased = [each if word.isupper() or not word else each.lower() for each in WORDS]
        found += [each for each in cased if word and each.lower().startswith(begin)]
        return list(dict.fromkeys(found))


class Prompt:
    """Reads a whole statement or a command."""

    def __init__(self, tables: Callable[[], list[Table]]) -> None:
        open_ = Condition(lambda: not is_complete(get_app().current_buffer.text))
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(str(history_file())),
            completer=Names(tables),
            complete_while_typing=False,
            multiline=open_,
            enable_history_search=True,
            prompt_continuation=lambda width, number, wrapped: f"{'…> ':>{width}}",
        )

    def read(self, prompt: str) -> str:
        """The next input. Raises EOFError at the end and KeyboardInterrupt on Ctrl-C."""
        return self._session.prompt(prompt)
