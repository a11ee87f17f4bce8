"""ClickHouse in a process of its own: chdb, the whole engine as a library.

It reads files of this machine only below its working folder (whatever `user_files_path` says), so that is the root.
"""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

_ROOT = "/"


class ClickHouseProcess:
    """One engine; statements run one after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT
        )

    def rows(self, text: str) -> list[list[Any]]:
        """The rows of a statement; `RuntimeError` with ClickHouse's words if it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(text), file=self._process.stdin, flush=True)
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError(f"ClickHouse ended with code {self._process.wait()}")
        answer = json.loads(said)
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return list(answer)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def _serve() -> None:
    """Answer each line of standard input, a statement in JSON: its rows, or the text of its error."""
    import chdb

    connection = chdb.connect(":memory:")
    for line in sys.stdin:
        try:
            found = connection.query(json.loads(line), "JSONCompactEachRow").bytes().decode()
            answer: Any = [json.loads(row) for row in found.splitlines()]
        except (RuntimeError, chdb.ChdbError) as error:
            answer = str(error)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
