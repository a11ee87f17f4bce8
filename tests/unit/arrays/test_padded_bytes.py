"""Byte strings in words are what they are one by one: in order, in what equals what, and in their hashes."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from lakestore_server.arrays.padded_bytes import SECRET_BYTES, HashSecrets, PaddedBytes, hash_of, joined

STRING = st.one_of(
    st.binary(max_size=20),
    st.text("ab\0", max_size=20).map(str.encode),
    st.integers(0, 40).map(lambda size: b"\0" * size),
    st.integers(0, 3).map(lambda n: b"x" * 200 + bytes([n])),
)
STRINGS = st.lists(STRING, max_size=30)
OTHERS = HashSecrets(bytes(range(256)) * (SECRET_BYTES // 256) + bytes(SECRET_BYTES % 256))
ZEROS = [b"\0" * size for size in (0, 1, 7, 8, 9, 0, 16)]


def shifted(strings: list[bytes]) -> PaddedBytes:
    """The strings as a part of more, so that their words begin somewhere."""
    return PaddedBytes.of([b"before", *strings, b"behind"]).part(slice(1, len(strings) + 1))


@example(strings=ZEROS, bound=b"\0" * 8, rows=[1, 0, 0])
@given(strings=STRINGS, bound=STRING, rows=st.lists(st.integers(0, 29), max_size=12))
def test_words_say_what_the_strings_say(strings: list[bytes], bound: bytes, rows: list[int]) -> None:
    chosen = [row for row in rows if row < len(strings)]
    for held in (PaddedBytes.of(strings), shifted(strings)):
        assert len(held) == len(strings)
        assert held.listed() == [held.one(row) for row in range(len(held))] == strings
        assert PaddedBytes.of_buffer(held.packed(), held.lengths).listed() == strings
        assert held.take(np.array(chosen, dtype=np.int64)).listed() == [strings[row] for row in chosen]
        assert held.part(slice(2, 7)).listed() == strings[2:7]
        assert joined([held, shifted(strings), held.part(slice(1))]).listed() == [*strings, *strings, *strings[:1]]
        assert held.below(bound).tolist() == [string < bound for string in strings]
        assert held.hashes().tolist() == list(map(hash_of, strings))
        assert held.hashes(OTHERS).tolist() == [hash_of(string, OTHERS) for string in strings]
        if strings:
            assert held.least() == min(strings)
            assert held.greatest() == max(strings)


@given(strings=STRINGS, common=st.binary(max_size=20))
def test_the_order_is_that_of_the_bytes_and_equal_ones_stay(strings: list[bytes], common: bytes) -> None:
    for some in (strings, [common + string for string in strings], strings + strings[::-1]):
        assert shifted(some).order().tolist() == sorted(range(len(some)), key=some.__getitem__)


@example(strings=ZEROS)
@given(strings=STRINGS)
def test_strings_are_equal_if_their_bytes_are_and_their_lengths(strings: list[bytes]) -> None:
    """Also to one that is followed by what fills the other up."""
    pairs = [(a, b) for a in range(len(strings)) for b in range(len(strings))]
    rows, others = (np.array([pair[at] for pair in pairs], dtype=np.int64) for at in (0, 1))
    same = PaddedBytes.of(strings).equal(rows, shifted(strings), others)
    assert same.tolist() == [strings[a] == strings[b] for a, b in pairs]


def test_rows_of_a_matrix_are_strings() -> None:
    for width in (1, 7, 8, 20):
        matrix = np.arange(5 * width, dtype=np.uint8).reshape(5, width)
        assert PaddedBytes.of_matrix(matrix).listed() == [bytes(row) for row in matrix]


def test_strings_that_differ_in_few_bits_have_different_hashes() -> None:
    """Each bit counts in both halves of the hash, wherever it stands."""
    zeros = bytes(510)
    strings = [zeros] + [zeros[:at] + bytes([1 << bit]) + zeros[at + 1 :] for at in range(510) for bit in range(8)]
    strings += [bytes(size) for size in range(510)]
    hashes = PaddedBytes.of(strings).hashes()
    for half in (hashes >> np.uint64(32), hashes & np.uint64((1 << 32) - 1)):
        assert len(np.unique(half)) > len(strings) - 20, "a few may meet by chance in 32 bits"
    assert len(np.unique(hashes)) == len(strings)
