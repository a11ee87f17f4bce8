"""A client of a Confluent schema registry: schemas by number, GUID or subject, with their references.

- A number's schema never changes, so it is fetched once.
- A registry that does not answer, or answers nonsense, raises `Unavailable`. The caller waits and rejects no record.
- `NotFound` is raised only if the registry said so, and is retried soon: a new schema may reach a replica late.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import httpx2
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.error import OAuthTokenError

from lakestore.errors import Denied, Invalid, NotFound, Unavailable
from lakestore.kafka.bridge.decode.schemas import RegistrySchema
from lakestore.kafka.bridge.spec import RegistrySpec

SCHEMAS_KEPT = 10_000
UNKNOWN_SECONDS = 10.0
"""Seconds until an unknown number is asked for again."""
NEWEST_SECONDS = 30.0
"""Seconds for which the newest version of a subject is cached."""
TIMEOUT_SECONDS = 10.0
"""The longest wait for one answer, in seconds."""
REFERENCE_DEPTH_MAX = 32
_UNKNOWN = {40401, 40402, 40403, 404}
"""Errors by which a registry says that it has no such subject, version or schema."""
_DENIED = {401, 403}
_NUMBERS = ("timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity")
_Answer = TypeVar("_Answer")


class Registry:
    """A client of one registry. Safe for threads that share it."""

    def __init__(self, spec: RegistrySpec, clock: Callable[[], float] = time.monotonic) -> None:
        settings: dict[str, Any] = {"timeout": TIMEOUT_SECONDS, "max.retries": 1, "retries.wait.ms": 100}
        settings |= {name: _setting(name, value) for name, value in spec.options.items()}
        try:
            self._client = SchemaRegistryClient({**settings, "url": spec.url})
        except (ValueError, TypeError, OSError) as error:
            raise Invalid(f"the registry's settings are refused: {error}; see `registry` in bridge.yaml") from None
        self._url = spec.url
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[int | str, RegistrySchema] = OrderedDict()
        self._unknown: OrderedDict[int | str, float] = OrderedDict()
        self._newest: dict[str, tuple[float, RegistrySchema | None]] = {}

    def close(self) -> None:
        self._client.close()

    def by_id(self, name: int | str) -> RegistrySchema:
        """The schema with this number or GUID. Raises `NotFound`."""
        with self._lock:
            if name in self._known:
                self._known.move_to_end(name)
                return self._known[name]
            if self._clock() < self._unknown.get(name, 0.0):
                raise NotFound(f"the registry has no schema {name}")
        try:
            found = self._whole(self._asked(lambda: self._fetched(name), f"schema {name}"), _number(name))
        except NotFound:
            with self._lock:
                _keep(self._unknown, name, self._clock() + UNKNOWN_SECONDS)
            raise
        with self._lock:
            _keep(self._known, name, found)
        return found

    def newest(self, subject: str) -> RegistrySchema | None:
        """The newest version of a subject, possibly cached; None if the subject does not exist."""
        with self._lock:
            until, found = self._newest.get(subject, (0.0, None))
            if self._clock() < until:
                return found
        try:
            found = self.version(subject, None)
        except NotFound:
            found = None
        with self._lock:
            self._newest[subject] = (self._clock() + NEWEST_SECONDS, found)
        return found

    def version(self, subject: str, version: int | None) -> RegistrySchema:
        """A version of a subject; None: the newest. Raises `NotFound`."""
        what = f"version {version or 'latest'} of {subject}"
        wanted: Any = version or "latest"
        answer = self._asked(lambda: self._client.get_version(subject, wanted), what)
        return self._whole(answer.schema, answer.schema_id, subject, answer.version)

    def former(self, subject: str, count: int) -> list[RegistrySchema]:
        """At most `count` newest versions of a subject, newest first; empty if the subject does not exist."""
        try:
            versions = self._asked(partial(self._client.get_versions, subject), f"versions of {subject}")
        except NotFound:
            return []
        return [self.version(subject, version) for version in sorted(versions, reverse=True)[:count]]

    def _fetched(self, name: int | str) -> Schema:
        return self._client.get_schema(name) if isinstance(name, int) else self._client.get_schema_by_guid(name)

    def _whole(
        self, schema: Schema | None, number: int | None, subject: str = "", version: int | None = None
    ) -> RegistrySchema:
        if schema is None or not isinstance(schema.schema_str, str):
            raise self._without_schema()
        references: dict[str, str] = {}
        self._collect(schema, references, 0)
        kind = (schema.schema_type or "AVRO").upper()
        return RegistrySchema(kind, schema.schema_str, references, number, subject, version)

    def _collect(self, schema: Schema, texts: dict[str, str], depth: int) -> None:
        if depth > REFERENCE_DEPTH_MAX:
            raise NotFound(f"a schema refers to others more than {REFERENCE_DEPTH_MAX} deep")
        for reference in schema.references or ():
            name, subject, version = reference.name, reference.subject, reference.version
            if name is None or subject is None or version is None:
                raise NotFound("a schema refers to another without name, subject or version")
            if name in texts:
                continue
            what = f"version {version} of {subject}, which another schema refers to,"
            target = self._asked(partial(self._client.get_version, subject, version, deleted=True), what).schema
            if not isinstance(target.schema_str, str):
                raise self._without_schema()
            self._collect(target, texts, depth + 1)
            texts[name] = target.schema_str

    def _without_schema(self) -> Unavailable:
        self._forget()
        return Unavailable(f"the registry at {self._url} answered without a schema: asked again soon")

    def _forget(self) -> None:
        self._client.clear_caches()  # type: ignore[no-untyped-call]

    def _asked(self, call: Callable[[], _Answer], what: str) -> _Answer:
        try:
            return call()
        except SchemaRegistryError as error:
            code, status = error.error_code, error.http_status_code
            if code in _UNKNOWN and status == 404:
                raise NotFound(f"the registry has no {what} (error {code})") from None
            if status in _DENIED:
                text = f"the registry at {self._url} refuses to show {what} (HTTP {status}): mend the credentials"
                raise Denied(text) from None
            text = f"the registry at {self._url} answered HTTP {status} when asked for {what}: asked again soon"
            raise Unavailable(text) from None
        except (httpx2.HTTPError, OAuthTokenError) as error:
            text = f"the registry at {self._url} does not answer ({type(error).__name__}: {error}): asked again soon"
            raise Unavailable(text) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._forget()
            text = f"the registry at {self._url} answered nonsense when asked for {what}: asked again soon"
            raise Unavailable(text) from error


def _setting(name: str, value: str) -> Any:
    if name not in _NUMBERS:
        return False if name == "ssl.ca.location" and value == "false" else value
    try:
        return float(value) if name == "timeout" else int(value)
    except ValueError:
        raise Invalid(f"the registry's {name} is a number, not {value!r}") from None


def _number(name: int | str) -> int | None:
    return name if isinstance(name, int) else None


def _keep(cache: OrderedDict[int | str, Any], name: int | str, value: Any) -> None:
    cache[name] = value
    cache.move_to_end(name)
    while len(cache) > SCHEMAS_KEPT:
        cache.popitem(last=False)
