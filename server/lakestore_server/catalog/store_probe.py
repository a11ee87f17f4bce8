"""The first requests to the object store of a warehouse: they tell a wrong address, key, bucket or region at the start.

- A new warehouse gets an object `.lakestore-store.json`. Before it is written, eight writers race for one name, ten
  times; a store in which two of them win is refused. A sequential check passes several stores that lose data.
- Later starts read the object and put it once more, which must change nothing: two requests.
- A store that does not answer is no refusal: rows that are not tiered do not need it. The caller decides.
"""

from __future__ import annotations

import time

import orjson

from lakestore.errors import Invalid, Unavailable
from lakestore.release import RELEASE
from lakestore_server.catalog import locations
from lakestore_server.catalog.metadata_store import local_folder
from lakestore_server.journals import object_store
from lakestore_server.journals.object_store import ListingStore, StoreError

NAME = ".lakestore-store.json"
RACES = f"{locations.SERVERS_FOLDER}/races"
USE = "a warehouse"
TRIES, PAUSE_SECONDS = 3, 0.3


def check_store(warehouse: str) -> None:
    """`Invalid` if a server cannot use the warehouse's store, with the variable to set; `Unavailable` if the store does
    not answer. A folder passes."""
    if local_folder(warehouse) is None:
        check(store_of(warehouse), warehouse)


def store_of(warehouse: str) -> ListingStore:
    """The store of a warehouse, for single requests."""
    return object_store.store_of(locations.plain(warehouse), setting="warehouse", options_setting="the environment")


def check(store: ListingStore, place: str) -> None:
    """`check_store` with a given store."""
    for attempt in range(TRIES):
        try:
            return _check_once(store, place)
        except StoreError as error:
            if error.is_refusal:
                raise Invalid(f"warehouse {error}") from error
            if attempt == TRIES - 1:
                raise Unavailable(f"the store of the warehouse is away: {error}") from error
        time.sleep(PAUSE_SECONDS)


def _check_once(store: ListingStore, place: str) -> None:
    mark = orjson.dumps({"release": RELEASE, "races": object_store.RACES, "racers": object_store.RACERS})
    if store.get(NAME) is not None and not store.put_new(NAME, mark):
        return
    object_store.check_races(store, place, folder=RACES, use=USE)
    store.names(RACES)  # the keys must allow lists, by which files of dropped tables are found
    store.put_new(NAME, mark)
