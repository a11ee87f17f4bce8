"""The mark of a shared journal in its warehouse: an object that names the journal and the place of the warehouse.

- The first leader writes it before the first commit. So a server whose journal has commits and whose warehouse has no
  mark is not on the warehouse of the others.
- The name begins with a dot, so no namespace can have it.
- The tables name their files by the place. A folder that is mounted elsewhere than at the other servers is refused,
  unless both paths lead to the same file.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import orjson

from lakestore.errors import Corrupt, Invalid, Unavailable
from lakestore.release import RELEASE
from lakestore_server.catalog import locations
from lakestore_server.catalog.metadata_store import Storage, local_folder

NAME = ".lakestore-journal.json"


class WarehouseMark:
    """The mark of one journal in one warehouse. Thread-safe. Every call may wait as long as the store takes."""

    def __init__(self, storage: Storage, warehouse: str, journal: str) -> None:
        """`journal` is the timeline that follows from the journal's identity."""
        self._storage, self._warehouse, self._journal = storage, warehouse.rstrip("/"), journal
        self.location = f"{self._warehouse}/{NAME}"
        self.id = ""
        """The random id of the mark that was seen last; empty before, and for a mark of an early release."""

    def is_there(self) -> bool:
        """Whether the warehouse has the mark of this journal. `Invalid` for that of another journal or another place,
        `Unavailable` if the warehouse does not answer."""
        data = self._read()
        if not data:
            return False
        journal, place, self.id = self._parsed(data)
        if journal != self._journal:
            raise Invalid(
                f"the warehouse {self._warehouse} belongs to another journal, as {NAME} in it says: name the warehouse"
                " of this journal's other servers, or an empty one for a new journal"
            )
        if locations.plain(place) != locations.plain(self._warehouse) and not self._is_same_file(place):
            raise Invalid(
                f"the warehouse is {place} at the other servers and {self._warehouse} here. Tables name their files by"
                " that place: mount it at the same path, and name it alike"
            )
        return True

    def put(self) -> None:
        """Write the mark, if no other server has written it meanwhile."""
        about = {"journal": self._journal, "warehouse": self._warehouse, "release": RELEASE}
        body = {**about, "id": secrets.token_hex(8)}
        try:
            if self._read() == b"":  # a server died while it wrote a local file
                self._storage.remove(self.location)
            self._storage.write_new(self.location, orjson.dumps(body))
            self.id = body["id"]
        except FileExistsError:
            self.is_there()
        except OSError as error:
            raise Unavailable(f"{self.location} could not be written: {error}") from error

    def lack(self) -> Invalid:
        """The error of a server whose journal has commits and whose warehouse has no mark."""
        return Invalid(
            f"the warehouse {self._warehouse} lacks {NAME}, which the first server of this journal wrote into its own:"
            " name the warehouse of the other servers, a bucket or a folder that is mounted at all of them"
        )

    def _read(self) -> bytes | None:
        """The bytes of the mark; None without one."""
        try:
            return self._storage.read(self.location)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"{self.location} could not be read: {error}") from error

    def differs(self) -> Invalid:
        """The error of a server whose warehouse has another mark than that of the server that leads or has led."""
        return Invalid(
            f"the warehouse {self._warehouse} is not that of the server that led this journal before: two warehouses"
            f" have a {NAME} of this journal. Name the same bucket at all servers, or a folder that all of them mount"
        )

    def _parsed(self, data: bytes) -> tuple[str, str, str]:
        try:
            body = orjson.loads(data)
            return str(body["journal"]), str(body["warehouse"]), str(body.get("id", ""))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupt(f"{self.location} is damaged: copy it from a backup of the warehouse") from error

    def _is_same_file(self, place: str) -> bool:
        theirs, own = local_folder(place), local_folder(self._warehouse)
        if theirs is None or own is None:
            return False
        one, other = Path(theirs) / NAME, Path(own) / NAME
        return one.exists() and other.exists() and os.path.samefile(one, other)
