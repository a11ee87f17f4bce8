"""A client in a process of its own: `python -m jepsen.system.client_process`, JSON lines in and out."""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
import traceback
from typing import Any

import lakestore as ls
from jepsen.operation import Invocation
from jepsen.workload import Client


class Served:
    """The client of the moment."""

    def __init__(self) -> None:
        self._client: Client | None = None

    def do(self, asked: dict[str, Any]) -> Any:
        """One line."""
        if "open" in asked:
            self._close()
            workload, reached, process = pickle.loads(base64.b64decode(asked["open"]))
            self._client = workload.client(reached, process)
            return None
        if "close" in asked:
            self._close()
            return None
        if self._client is None:
            raise RuntimeError("no client is open")
        return self._client.invoke(Invocation(*asked["do"]))

    def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def main() -> None:
    """Answer lines until there are no more."""
    # Nobody else's words may come between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    served = Served()
    for line in sys.stdin:
        try:
            said: dict[str, Any] = {"ok": served.do(json.loads(line))}
        except ls.LakestoreError as error:
            said = {"error": base64.b64encode(pickle.dumps(error)).decode()}
        except Exception:  # told by the other side
            said = {"crash": traceback.format_exc()}
        answers.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
