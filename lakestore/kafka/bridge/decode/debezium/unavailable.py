"""Finds Debezium's markers for values that the source did not send, before they are read as values.

A marker appears as text, as the base64 of its bytes, as bytes, as the only text or UUID of an array, as an array of its
bytes' numbers, or as key and value of an hstore map.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import md5
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MARKER = "__debezium_unavailable_value"


@dataclass(frozen=True, slots=True)
class Markers:
    """The markers of a topic in every form."""

    texts: pa.Array
    raw: pa.Array
    numbers: tuple[tuple[int, ...], ...]
    lone: frozenset[str | bytes]
    """Texts or bytes that mark an array if they are its only element."""

    @staticmethod
    def of(placeholders: Sequence[str] = ()) -> Markers:
        """Debezium's marker and the connector's own placeholders. A placeholder after `hex:` is bytes."""
        raw = [
            bytes.fromhex(text[4:]) if text.startswith("hex:") else text.encode() for text in (MARKER, *placeholders)
        ]
        base64 = [b64encode(marker).decode() for marker in raw]
        texts = [marker.decode(errors="replace") for marker in raw]
        uuids = [str(_uuid(marker)) for marker in raw]
        return Markers(
            pa.array(sorted({*texts, *base64, *_lists(texts), *_lists(base64), *_lists(uuids)})),
            pa.array(sorted(set(raw)), pa.binary()),
            tuple(tuple(marker) for marker in raw),
            frozenset({*texts, *base64, *uuids, *raw}),
        )

    def mask(self, array: pa.Array) -> pa.BooleanArray | None:
        """Mask of the rows that hold a marker; None if no row does."""
        t = pa.types
        if t.is_string(array.type):
            mask = pc.is_in(array, value_set=self.texts)
        elif t.is_binary(array.type):
            mask = pc.is_in(array, value_set=self.raw)
        elif t.is_list(array.type):
            mask = self._lists(array)
        elif t.is_map(array.type):
            mask = self._maps(array)
        else:
            return None
        return mask if pc.any(mask).as_py() else None

    def _lists(self, array: pa.ListArray) -> pa.BooleanArray:
        inner, lengths = array.type.value_type, pc.list_value_length(array).fill_null(-1).to_numpy()
        mask = np.zeros(len(array), bool)
        if pa.types.is_integer(inner):
            likely = np.isin(lengths, [len(numbers) for numbers in self.numbers])
            for row in np.flatnonzero(likely).tolist():
                mask[row] = tuple(array[row].as_py()) in self.numbers
        elif pa.types.is_string(inner) or pa.types.is_binary(inner):
            alone = np.flatnonzero(lengths == 1)
            mask[alone] = self._is_lone(pc.list_element(array.take(pa.array(alone)), 0))
        return pa.array(mask)

    def _maps(self, array: pa.MapArray) -> pa.BooleanArray:
        mask = np.zeros(len(array), bool)
        if pa.types.is_string(array.type.key_type):
            offsets = array.offsets.to_numpy()
            alone = np.flatnonzero((np.diff(offsets) == 1) & array.is_valid().to_numpy(zero_copy_only=False))
            mask[alone] = self._is_lone(array.keys.take(pa.array(offsets[alone])))
        return pa.array(mask)

    def _is_lone(self, values: pa.Array) -> npt.NDArray[np.bool_]:
        known = [value for value in self.lone if isinstance(value, str) == pa.types.is_string(values.type)]
        return np.asarray(pc.is_in(values, value_set=pa.array(known, values.type)).to_numpy(zero_copy_only=False))


def _lists(texts: Sequence[str]) -> list[str]:
    return [f"[{json.dumps(text, ensure_ascii=False)}]" for text in texts]


def _uuid(name: bytes) -> UUID:
    return UUID(bytes=md5(name, usedforsecurity=False).digest(), version=3)
