"""Damage to the frames of an honest HTTP/2 client, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.support import http2

_HEAD = 9


def broken(chance: random.Random, frames: Sequence[bytes]) -> bytes:
    """Some of the frames of a session, which begins with the preface, with damage."""
    begin, rest = list(frames[:2]), list(frames[2:])
    rest = rest[: chance.randint(1, len(rest))]
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        rest.insert(chance.randrange(len(rest) + 1), _frame(chance))
    if chance.random() < 0.1:
        begin = begin[chance.randrange(3) :]
    if chance.random() < 0.6:
        _move(chance, rest)
    data = bytearray(b"".join([*begin, *rest]))
    if data and chance.random() < 0.5:
        _damage(chance, data)
    return bytes(data) or b"\0"


def _move(chance: random.Random, frames: list[bytes]) -> None:
    way, place = chance.randrange(4), chance.randrange(len(frames))
    if way == 0:
        chance.shuffle(frames)
    elif way == 1:
        frames.insert(chance.randrange(len(frames) + 1), frames[place])
    elif way == 2:
        del frames[place]
    else:  # the stream of another call
        stream = chance.choice((b"\0\0\0\0", b"\0\0\0\1", b"\x7f\xff\xff\xff"))
        frames[place] = frames[place][:5] + stream + frames[place][_HEAD:]


def _damage(chance: random.Random, data: bytearray) -> None:
    way, place = chance.randrange(3), chance.randrange(len(data))
    if way == 0:
        del data[place:]
    elif way == 1:
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    else:
        data[place:place] = chance.randbytes(chance.randint(1, 40))


def _frame(chance: random.Random) -> bytes:
    """A frame of any kind whose body need not fit it."""
    kind, stream = chance.randrange(12), chance.choice((0, 1, 1, 3, 5, 2, 2**31 - 1))
    body = chance.randbytes(chance.choice((0, 4, 5, 8, 8, 6, 100, 5000)))
    return http2.frame(kind, stream, body, chance.choice((0, 1, 4, 5, 0x20, 0xFF)))
