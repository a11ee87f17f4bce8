"""Conversations of the Postgres protocol that no honest client has, drawn from a seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

from tests.support import postgres_wire as wire

TEXTS = (
    "SELECT 1",
    "SELECT order_id, customer FROM shop.orders ORDER BY 1",
    "SELECT customer FROM shop.orders WHERE order_id = $1",
    "SELECT $1::int8 + $2::int8",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT a; ROLLBACK TO a; RELEASE a",
    "DECLARE c CURSOR FOR SELECT 1",
    "FETCH 3 FROM c",
    "CLOSE c",
    "COPY shop.orders TO STDOUT (FORMAT binary)",
    "COPY shop.orders FROM STDIN",
    "SET TimeZone = 'Europe/Berlin'",
    "SHOW ALL",
    "PREPARE p AS SELECT $1",
    "EXECUTE p(1)",
    "DEALLOCATE ALL",
    "DISCARD ALL",
    "",
    ";;;",
    "SELECT",
    "SELECT '" + "x" * 3000 + "'",
    "SELECT (" * 300,
    "/*" * 50,
    "SELECT 'Größe 雪' AS \"Größe\"",
    "SELECT * FROM pg_catalog.pg_class",
    "\x01\x02",
)
_KINDS = "QPBDECSHXdcfFpZRTK*\x00"
_SIZES = (0, 1, 3, 4, 5, 2**31 - 1, -1, -(2**31), 1 << 20)


def messages(chance: random.Random) -> list[bytes]:
    """Messages after the start-up: valid ones for the most part, in any order."""
    return [_message(chance) for _ in range(chance.randint(1, 12))]


def _message(chance: random.Random) -> bytes:
    text, name = chance.choice(TEXTS), chance.choice(("", "", "a", "é" * 40))
    values = [chance.choice((None, b"", b"1", b"\0" * 8, chance.randbytes(9))) for _ in range(chance.randint(0, 3))]
    formats = [chance.choice((0, 1, 1, 2, -1)) for _ in range(chance.randint(0, 3))]
    made = (
        lambda: wire.query(text),
        lambda: wire.parse(text, name, [chance.choice((0, 20, 25, 2**32 - 1)) for _ in range(chance.randint(0, 3))]),
        lambda: wire.bind(values, portal=name, formats=formats, results=formats[:1]),
        lambda: wire.describe(chance.choice("SPX"), name),
        lambda: wire.execute(name, chance.choice((0, 1, 2, -1, 2**31 - 1))),
        lambda: wire.close(chance.choice("SPX"), name),
        lambda: wire.SYNC,
        lambda: wire.SYNC,
        lambda: wire.FLUSH,
        lambda: wire.message(chance.choice(_KINDS), chance.randbytes(5)),
    )
    return chance.choice(made)()


def broken(chance: random.Random, parts: Sequence[bytes]) -> bytes:
    """The bytes of messages with some damage."""
    parts = list(parts)
    way = chance.randrange(8)
    if way == 0:
        chance.shuffle(parts)
    elif way == 1:
        parts.append(parts[chance.randrange(len(parts))])
    data = bytearray(b"".join(parts))
    if way == 2:
        del data[chance.randrange(len(data)) :]
    elif way == 3:
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif way == 4:
        place = chance.randrange(len(data))
        data[place:place] = chance.randbytes(chance.randint(1, 40))
    elif way == 5:  # a length that is a lie
        kind = bytes([chance.randrange(256)])
        data[0:0] = kind + struct.pack("!i", chance.choice(_SIZES)) + chance.randbytes(chance.randint(0, 20))
    elif way == 6:  # a count that is a lie
        data += wire.message("B", b"\0\0" + struct.pack("!hh", chance.choice((-1, 32767)), chance.choice((-1, 32767))))
    return bytes(data)


def replayed(chance: random.Random, session: Sequence[bytes]) -> bytes:
    """A recorded session with damage: to its start and login, or to some of its later messages."""
    ready = next((place for place, part in enumerate(session) if part[:1] == b"p"), 0) + 1
    login, rest = session[:ready], session[ready:]
    if not rest or chance.random() < 0.15:
        return broken(chance, login)
    begin = chance.randrange(len(rest))
    chosen = rest[begin : begin + chance.randint(1, 40)]
    if chance.random() < 0.3:
        chosen = [*chosen, *messages(chance)]
    return b"".join(login) + broken(chance, chosen)


def beginning(chance: random.Random) -> bytes:
    """The first bytes of a connection: of an honest client for the most part."""
    way = chance.randrange(12)
    if way == 0:
        return wire.TLS + wire.start()
    if way == 1:
        return wire.GSS + wire.start()
    if way == 2:
        return wire.cancel(chance.randrange(-(2**31), 2**31), chance.randbytes(chance.choice((0, 4, 32, 300))))
    if way == 3:
        return chance.randbytes(chance.randint(1, 60))
    if way == 4:
        return broken(chance, [wire.start(options="-c a=b --c", database="x" * 200)])
    if way == 5:
        return wire.start("ann", (chance.choice((0, 2, 3, 4, 0xFFFF)), chance.randrange(0x10000)))
    if way == 6:
        return struct.pack("!i", chance.choice(_SIZES)) + chance.randbytes(20)
    return wire.start()
