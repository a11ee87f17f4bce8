"""Answers that were made, as bytes, bounded in all; the time of the lease is put in when one is given."""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass

import orjson

from lakestore_server.iceberg.schemas import Json

UNTIL = f"until-{uuid.uuid4().hex}"
"""The text in a document in whose place the end of the lease comes."""


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """The answer to a load of one presented cut."""

    etag: str
    head: bytes
    tail: bytes

    @staticmethod
    def of(doc: Json, etag: str, location: str) -> KeptAnswer:
        """The answer of a document that says `UNTIL` once, and lies at a location as well."""
        # An empty `config`: DuckDB takes any key there for credentials of a storage.
        data = orjson.dumps({"metadata-location": location, "metadata": doc, "config": {}})
        head, _, tail = data.partition(UNTIL.encode())
        return KeptAnswer(etag, head, tail)

    def body(self, until: str) -> bytes:
        """The bytes of the answer with that end of the lease."""
        return b"".join((self.head, until.encode(), self.tail))

    @property
    def nbytes(self) -> int:
        """Bytes in memory, about."""
        return len(self.head) + len(self.tail)


class KeptAnswers:
    """Answers by cut and what else they are made of; the least recently used go. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max, self._bytes = bytes_max, 0
        self._lock = threading.Lock()
        self._answers: OrderedDict[tuple[int, str], KeptAnswer] = OrderedDict()

    def get(self, cut_id: int, made_of: str) -> KeptAnswer | None:
        """The answer, if it is kept."""
        with self._lock:
            found = self._answers.get((cut_id, made_of))
            if found is not None:
                self._answers.move_to_end((cut_id, made_of))
            return found

    def put(self, cut_id: int, made_of: str, answer: KeptAnswer) -> None:
        """Keep an answer; one that is larger than all that may be kept is not."""
        with self._lock:
            old = self._answers.pop((cut_id, made_of), None)
            self._bytes += answer.nbytes - (old.nbytes if old else 0)
            self._answers[cut_id, made_of] = answer
            while self._bytes > self._bytes_max:
                self._bytes -= self._answers.popitem(last=False)[1].nbytes
