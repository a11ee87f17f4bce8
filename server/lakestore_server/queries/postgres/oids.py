"""Oids of the objects of a lake: the same in every query, on every replica, and after a restore.

- A table's number is never reused, so its objects have `16384 + 8 * number` and the next seven numbers.
- Databases and principals have names only: their oids are hashes of the names, from 2^30 up.
- Two names of one hash: the later one in the order of asking gets the next free oid. Both keep different oids.
"""

from __future__ import annotations

import hashlib

from lakestore.model.table import Table
from lakestore_server.queries.postgres.fixed_catalog import FIRST_USER_OID

_SLOTS = 8
_HASHED = 1 << 30
TABLE, KEY_INDEX, KEY_CONSTRAINT = range(3)
"""Slots of a table's numbers."""


def table_oid(number: int, slot: int = TABLE) -> int:
    """The oid of a table with this number, or of its primary key; 0 if only its name tells the oid."""
    oid = FIRST_USER_OID + number * _SLOTS + slot
    return oid if 0 < number and oid < _HASHED else 0


class Oids:
    """Oids of one catalog."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], int] = {}
        self._used: set[int] = set()

    def named(self, kind: str, name: str) -> int:
        """The oid of an object that has a name alone."""
        oid = self._known.get((kind, name))
        if oid is None:
            digest = hashlib.sha256(f"{kind}:{name}".encode()).digest()
            oid = _HASHED + int.from_bytes(digest[:4], "big") % _HASHED
            while oid in self._used:
                oid = _HASHED + (oid + 1) % _HASHED
            self._known[kind, name] = oid
            self._used.add(oid)
        return oid

    def of_table(self, table: Table, slot: int = TABLE) -> int:
        """The oid of a table, or of its primary key."""
        return table_oid(table.number, slot) or self.named(f"table {slot}", table.uuid or table.name)
