"""Objects by name in an object store: puts that never replace, and the check that a store keeps this promise.

- A put creates an object or leaves the one that is there. Two puts of one name must not both create it.
- No request is repeated here: the caller knows whether it may be.
- `StoreError` says nothing about the outcome: the store may have done what was asked.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from lakestore.errors import Invalid, Unavailable
from lakestore.iceberg import store_counts
from lakestore.iceberg.store_counts import CREATE, DELETE, GET, HEAD, LIST
from lakestore.release import needs_extra
from lakestore_server.journals import store_errors

with needs_extra("server", "a journal in an object store"):
    import obstore
    from obstore.exceptions import AlreadyExistsError, BaseError
    from obstore.store import from_url

log = logging.getLogger("lakestore.journal")
Answer = TypeVar("Answer")
SCHEMES = ("s3", "gs", "abfs", "abfss")
REQUEST_SECONDS, CONNECT_SECONDS = 20.0, 3.0
CONNECTIONS = 32
LIST_CHUNK = 1_000
RACES, RACERS = 10, 8
RACES_MAX = 30
"""Races in which an answer is lost are repeated, up to this number of all of them."""


class StoreError(OSError):
    """The store refused a request or did not answer. It may have done what was asked."""

    is_refusal = False
    """True if the store will refuse the request again: the text says what to mend."""


class Store(Protocol):
    """Objects by name below one place. Thread-safe. Each method raises `StoreError`."""

    def put_new(self, name: str, data: bytes) -> bool:
        """Create an object; False if there is one of this name, or if the store did not take it for another put."""

    def get(self, name: str) -> bytes | None:
        """The bytes of an object; None without one."""

    def has(self, name: str) -> bool:
        """Whether there is an object."""

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects. Some of them may be absent."""


class ListingStore(Store, Protocol):
    """A store that lists its objects. A list has every object that was put before it."""

    def names(self, folder: str) -> list[str]:
        """The names of all objects below a folder, which has no `/` at its end."""


class ObjectStore:
    """`ListingStore` in S3, GCS, Azure, or another store that obstore knows."""

    def __init__(self, store: Any, url: str) -> None:
        self._store, self.url = store, url

    def put_new(self, name: str, data: bytes) -> bool:
        store_counts.of_process().add(CREATE)
        try:
            obstore.put(self._store, name, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        except (BaseError, OSError) as error:
            raise self._failure(error) from error
        return True

    def get(self, name: str) -> bytes | None:
        return self._answer(GET, lambda: bytes(obstore.get(self._store, name).bytes()))

    def has(self, name: str) -> bool:
        return self._answer(HEAD, lambda: obstore.head(self._store, name)) is not None

    def names(self, folder: str) -> list[str]:
        store_counts.of_process().add(LIST)
        try:
            return [each["path"] for page in obstore.list(self._store, folder, chunk_size=LIST_CHUNK) for each in page]
        except (BaseError, OSError) as error:
            raise self._failure(error) from error

    def remove(self, names: Sequence[str]) -> None:
        if not names:
            return
        store_counts.of_process().add(DELETE)
        try:
            obstore.delete(self._store, list(names))
        except FileNotFoundError:  # some stores refuse to remove what is absent
            for name in names:
                self._answer(DELETE, lambda name=name: obstore.delete(self._store, name))  # type: ignore[misc]
        except (BaseError, OSError) as error:
            raise self._failure(error) from error

    def _answer(self, kind: str, call: Callable[[], Answer]) -> Answer | None:
        """The answer of a call, counted as a kind of request; None if the object is absent."""
        store_counts.of_process().add(kind)
        try:
            return call()
        except FileNotFoundError as error:
            if store_errors.refusal(error, self.url):
                raise self._failure(error) from None
            return None
        except (BaseError, OSError) as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> StoreError:
        if sentence := store_errors.refusal(error, self.url):
            made = StoreError(f"{self.url} cannot be used: {sentence}")
            made.is_refusal = True
            return made
        return StoreError(f"the object store {self.url} did not answer: {store_errors.brief(error)}")


def store_of(
    url: str, options: Collection[str] = (), *, setting: str = "journal.url", options_setting: str = "journal.options"
) -> ObjectStore:
    """The store at a URL. Keys and endpoint come from the environment, as for the warehouse, or from options. Errors
    name the settings."""
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES or not url.partition("://")[2]:
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise Invalid(f"{setting} is {url!r}: name a bucket and a prefix as {known}")
    given = dict(_option(each, options_setting) for each in options)
    if not given:
        store_errors.check_environment(url)
    client: dict[str, Any] = {
        "timeout": timedelta(seconds=REQUEST_SECONDS),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        # options of the client hide the variable, by which obstore itself would know it
        "allow_http": given.pop("allow_http", os.environ.get("AWS_ALLOW_HTTP", "false")).lower() == "true",
        "pool_max_idle_per_host": str(CONNECTIONS),
    }
    try:
        store = from_url(
            url,
            config=given,
            client_options=client,
            retry_config={"max_retries": 0},  # type: ignore[call-overload]
        )
    except (BaseError, ValueError, TypeError) as error:
        raise Invalid(f"{setting} {url} cannot be used: {store_errors.brief(error)}") from error
    return ObjectStore(store, url)


def _option(text: str, setting: str) -> tuple[str, str]:
    name, is_given, value = text.partition("=")
    if not is_given or not name:
        raise Invalid(f"an entry of {setting} has no `=`: write each as name=value, as in endpoint=https://host")
    return name, value


def check_races(store: Store, place: str, *, folder: str = "races", use: str = "a journal or its checkpoints") -> None:
    """`Invalid` if the store lets two puts of one name win: then two servers could acknowledge one number. `Invalid`
    too if it refuses puts. Objects lie below `folder` while this runs."""
    run, names, races = secrets.token_hex(8), list[str](), 0
    with ThreadPoolExecutor(RACERS, thread_name_prefix="races") as racers:
        while races < RACES:
            if len(names) == RACES_MAX:
                raise Unavailable(
                    f"the object store {place} did not answer often enough: do address, bucket and keys fit?"
                )
            names.append(f"{folder}/{run}/{len(names):02}")
            try:
                races += _race(store, f"{place} cannot hold {use}", names[-1], racers)
            except Invalid:
                _remove_trial(store, names, place)
                raise
    _remove_trial(store, names, place)


def _remove_trial(store: Store, names: Sequence[str], place: str) -> None:
    try:
        store.remove(names)
    except StoreError as error:
        log.warning("objects of a trial stay in %s/%s: %s", place, names[0].rpartition("/")[0], error)


def _race(store: Store, verdict: str, name: str, racers: ThreadPoolExecutor) -> bool:
    """Whether one put of a name won. False if an answer was lost, so nobody knows. `Invalid` with the verdict if more
    than one won."""
    start = threading.Barrier(RACERS)

    def race(racer: int) -> bool | StoreError:
        start.wait()
        try:
            return store.put_new(name, f"racer {racer}".encode())
        except StoreError as error:
            log.debug("a put of a race has no answer: %s", error)
            return error

    answers = list(racers.map(race, range(RACERS)))
    for answer in answers:
        if isinstance(answer, StoreError) and answer.is_refusal:
            raise Invalid(str(answer)) from answer
    winners = [racer for racer, is_first in enumerate(answers) if is_first is True]
    try:
        winner = store.get(name)
    except StoreError as error:
        log.debug("the winner of a race is not known: %s", error)
        winner = None
    if len(winners) > 1 or (winners and winner not in (None, f"racer {winners[0]}".encode())):
        raise Invalid(
            f"{verdict}: of {RACERS} puts of one new object, each with `If-None-Match: *`, {max(len(winners), 2)} won;"
            " take a store in which one wins"
        )
    return bool(winners) and winner is not None
