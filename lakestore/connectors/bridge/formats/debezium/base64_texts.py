"""Base64 and the unscaled bytes of decimals, a column at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.connectors.bridge.framing.spans import spans
from lakestore.model.decimals import from_unscaled

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_BAD = 255
_CODES = np.full(256, _BAD, np.uint8)
_CODES[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(64, dtype=np.uint8)
_PAD = ord("=")
_DIGITS_MAX = 38
_WIDTH = 16
SCALE_MAX = 100_000
"""Zeros that a text gets at most: a message names any scale of 32 bits."""


def decoded(texts: pa.StringArray) -> tuple[pa.BinaryArray, pa.BooleanArray]:
    """The bytes that texts stand for, null where a text is null or wrong; and which are wrong."""
    offsets, data = _parts(texts)
    lengths = np.diff(offsets)
    wrong = lengths % 4 != 0
    if wrong.any():
        texts = pc.if_else(pa.array(wrong), pa.scalar("", texts.type), texts)
        offsets, data = _parts(texts)
        lengths = np.diff(offsets)
    data = data[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    pads = np.zeros(len(lengths), np.int64)
    some = lengths > 0
    ends = offsets[1:][some]
    last, before = data[ends - 1] == _PAD, data[ends - 2] == _PAD
    pads[some] = last.astype(np.int64) + (last & before)
    codes = _CODES[data]
    trailing = np.concatenate([ends[last] - 1, ends[last & before] - 2])
    codes[trailing] = 0
    rows_of = np.repeat(np.arange(len(lengths)), lengths) if (codes == _BAD).any() else None
    if rows_of is not None:
        wrong[np.unique(rows_of[codes == _BAD])] = True
        codes[codes == _BAD] = 0
    out = _bytes_of(codes)
    sizes = lengths // 4 * 3
    if pads.any():
        keep = np.ones(len(out), bool)
        ends3 = np.cumsum(sizes)
        keep[ends3[pads >= 1] - 1] = False
        keep[ends3[pads == 2] - 2] = False
        out = out[keep]
    made = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(sizes - pads, out=made[1:])
    raw = pa.BinaryArray.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(made), pa.py_buffer(out)])
    nulls = texts.is_null()
    hidden = pc.or_(pa.array(wrong), nulls)
    return pc.if_else(hidden, pa.scalar(None, pa.binary()), raw), pc.and_not(pa.array(wrong), nulls)


def _parts(texts: pa.StringArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    offsets, data = spans(texts.fill_null("") if texts.null_count else texts)
    return offsets.astype(np.int64), data


def _bytes_of(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    four = codes.reshape(-1, 4).astype(np.uint32)
    word = (four[:, 0] << 18) | (four[:, 1] << 12) | (four[:, 2] << 6) | four[:, 3]
    return np.stack([word >> 16, (word >> 8) & 255, word & 255], axis=1).astype(np.uint8).ravel()


def wide_decimals(raw: pa.BinaryArray, scale: int) -> tuple[pa.Array, pa.BooleanArray]:
    """Decimals of 38 digits from big-endian two's complement bytes; and which are too wide, null in the first."""
    count = len(raw)
    filled = raw.fill_null(b"\0") if raw.null_count else raw
    offsets, data = spans(filled)
    lengths = np.diff(offsets)
    wide = (lengths > _WIDTH) | (lengths == 0)
    rows = np.flatnonzero(~wide)
    first = np.zeros(count, np.uint8)
    first[rows] = data[offsets[:-1][rows]]
    made = np.where((first >= 128)[:, None], np.uint8(255), np.uint8(0)).repeat(_WIDTH, axis=1)
    for place in range(_WIDTH):
        at = rows[lengths[rows] > place]
        made[at, place] = data[offsets[1:][at] - 1 - place]
    words = made.view("<u8").reshape(count, 2)
    wide |= _over(words)
    buffer = pa.py_buffer(np.ascontiguousarray(made))
    kind = pa.decimal128(_DIGITS_MAX, scale)
    array = pa.Array.from_buffers(kind, count, [None, buffer])
    hidden = pc.or_(pa.array(wide), raw.is_null())
    return pc.if_else(hidden, pa.scalar(None, kind), array), pa.array(wide)


def _over(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Values of more than 38 digits, nearly: those beyond the high word of 10**38; all below are exact."""
    high = words[:, 1].view(np.int64)
    limit = (10**_DIGITS_MAX) >> 64
    return np.asarray((high >= limit) | (high < -limit))


def digits(raw: bytes, scale: int) -> str:
    """A decimal of big-endian two's complement bytes as exact digits, or with an exponent for a far scale."""
    whole = int.from_bytes(raw, "big", signed=True)
    number = from_unscaled(whole, scale)
    return format(number, "f") if abs(scale) < SCALE_MAX else str(number)
