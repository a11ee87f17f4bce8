"""Tokens that the clients of a run were given, for reads of the past."""

from __future__ import annotations

import threading


class Tokens:
    """The newest tokens of all clients. Thread-safe; they do not pickle, so a workload's clients stay together."""

    def __init__(self, kept: int) -> None:
        self._kept, self._tokens, self._turn = kept, list[str](), threading.Lock()

    def keep(self, token: str) -> str:
        """Remember a token; old ones are forgotten."""
        with self._turn:
            self._tokens.append(token)
            del self._tokens[: -self._kept]
        return token

    def pick(self, number: int) -> str:
        """The token that a drawn number means; empty if there is none."""
        with self._turn:
            return self._tokens[number % len(self._tokens)] if self._tokens else ""
