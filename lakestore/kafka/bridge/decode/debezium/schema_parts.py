"""Splits JSON records of Kafka Connect into schema part and payload.

Most records have the same schema part. A record is compared, as bytes, with the texts in front of earlier payloads, so
a schema of many kilobytes costs one comparison. Only a new text is parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.kafka.bridge.decode.debezium.connect_values import Kind, from_connect
from lakestore.kafka.bridge.decode.framing import spans
from lakestore.kafka.bridge.records import Ints

_KNOWN_MAX = 1_000
_WRAPPED = rb'^[ \t\r\n]*\{[ \t\r\n]*"(schema|payload)"[ \t\r\n]*:'
_FRONT = re.compile(r'\s*\{\s*"schema"\s*:\s*')
_PAYLOAD = re.compile(r'\s*,\s*"payload"\s*:\s*')
_SPACES = np.frombuffer(b" \t\r\n", np.uint8)


@dataclass(frozen=True, slots=True)
class Part:
    """Records of one schema."""

    rows: Ints
    kind: Kind | None
    """None: the records bring no schema."""
    texts: pa.BinaryArray


class SchemaParts:
    """The schema texts seen so far, and their kinds."""

    def __init__(self) -> None:
        self._known: dict[bytes, Kind | None] = {}
        self.newest: Kind | None = None

    @property
    def kinds(self) -> list[Kind]:
        older = [kind for kind in reversed(self._known.values()) if kind is not None and kind is not self.newest]
        return older if self.newest is None else [self.newest, *older]

    def split(self, texts: pa.BinaryArray) -> Iterator[Part]:
        """Split records by schema; no text is null. A broken record is returned unchanged."""
        texts, rows = _trimmed(texts), np.arange(len(texts), dtype=np.int64)
        while len(rows):
            first = texts[0].as_py()
            front = self._front(first)
            if front is not None:
                taken = _true(pc.starts_with(texts, front))
                kind = self._known[front]
                self.newest = kind or self.newest
                yield Part(rows[taken], kind, pc.binary_slice(_of(texts, taken), len(front), -1))
            else:
                taken = ~_true(pc.match_substring_regex(texts, _WRAPPED))
                if taken[0]:
                    yield Part(rows[taken], None, _of(texts, taken))
                else:
                    taken[:] = False
                    taken[0] = True
                    yield self._alone(rows[:1], first)
            texts, rows = _of(texts, ~taken), rows[~taken]

    def _front(self, text: bytes) -> bytes | None:
        for known in self._known:
            if text.startswith(known):
                return known
        try:
            whole = text.decode()
            found = _FRONT.match(whole)
            if found is None:
                return None
            schema, end = json.JSONDecoder().raw_decode(whole, found.end())
        except (ValueError, RecursionError):
            return None
        payload = _PAYLOAD.match(whole, end)
        if payload is None:
            return None
        front = whole[: payload.end()].encode()
        while len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[front] = from_connect(schema) if isinstance(schema, Mapping) else None
        return front

    def _alone(self, row: Ints, text: bytes) -> Part:
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError):
            whole = None
        if not isinstance(whole, dict) or not isinstance(whole.get("payload"), dict):
            return Part(row, None, pa.array([text], pa.binary()))
        schema = whole.get("schema")
        kind = from_connect(schema) if isinstance(schema, Mapping) else None
        self.newest = kind or self.newest
        return Part(row, kind, pa.array([json.dumps(whole["payload"]).encode()], pa.binary()))


def _trimmed(texts: pa.BinaryArray) -> pa.BinaryArray:
    offsets, data = spans(texts)
    if not np.isin(data[offsets[1:][np.diff(offsets) > 0] - 1], _SPACES).any():
        return texts
    return pa.array([text.rstrip(b" \t\r\n") for text in texts.to_pylist()], pa.binary())


def _of(texts: pa.BinaryArray, rows: npt.NDArray[np.bool_]) -> pa.BinaryArray:
    return texts if rows.all() else texts.filter(pa.array(rows))


def _true(flags: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    return np.asarray(flags.to_numpy(zero_copy_only=False))
