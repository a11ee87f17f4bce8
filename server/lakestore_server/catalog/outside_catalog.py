"""Iceberg catalogs of others, through PyIceberg: opened by settings, asked for tables, told commits.

- The catalog is opened at the first call. Calls block and are thread-safe.
- Errors are Lakestore's. After `Conflict` and `NoSuchTable` nothing happened; `Unavailable` says by `applied` whether a
  commit may have happened.
- A catalog that does not answer is left alone for a pause that doubles. Secrets are struck out of every error.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from lakestore.errors import Conflict, Corrupt, Invalid, LakestoreError, Unavailable
from lakestore.iceberg import metadata_files
from lakestore.model.file_uri import SCHEME
from lakestore.release import needs_extra
from lakestore_server.catalog import metadata, our_tables
from lakestore_server.catalog.errors import AlreadyExists, Forbidden, NoSuchTable
from lakestore_server.catalog.schemas import Json
from lakestore_server.host.clock import Clock
from lakestore_server.journals import store_errors

KINDS = ("rest", "sql", "hive", "glue")
REQUEST_SECONDS = 30.0
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 1.0, 15.0
"""First and longest time for which a catalog that does not answer is left alone."""
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_PASSWORD = re.compile(r"://[^:/@]*:([^@/]+)@")
_POSTGRES = re.compile(r"postgres(ql)?(\+psycopg)?://")
_POSTGRES_DEFAULTS = {"connect_timeout": "10", "tcp_user_timeout": "20000"}
_DRIVERS = {
    "hive": (("thrift.Thrift", "TException"),),
    "glue": (("botocore.exceptions", "BotoCoreError"), ("botocore.exceptions", "ClientError")),
}
"""Modules and errors of the libraries with which PyIceberg reaches other kinds of catalogs."""
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class OutsideSettings:
    """Kind, address and properties of one catalog."""

    name: str
    kind: str
    """`rest`, `sql`, `hive` or `glue`."""
    uri: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of PyIceberg's catalog. `${NAME}` is a variable of the environment, and a value `file:PATH` stands for
    the text of that file."""


@dataclass(frozen=True, slots=True)
class OutsideTable:
    """A table as the outside catalog has it."""

    location: str
    """URI of its current metadata."""
    uuid: str
    """Uuid of the Lakestore table; the Iceberg table's own if it names none."""
    doc: Json


class OutsideCatalog:
    """One catalog of others. Names have a namespace of one level."""

    def __init__(self, settings: OutsideSettings, clock: Clock) -> None:
        self.name, self.kind = settings.name, settings.kind
        self._settings, self._clock = settings, clock
        self._opening = threading.Lock()
        self._opened: Any = None
        self._properties: dict[str, str] | None = None
        self._pause = 0.0
        self._quiet_until = 0.0
        self._why = ""

    def load(self, namespace: str, table: str) -> OutsideTable:
        """The table's present state, or `NoSuchTable`."""

        def load(catalog: Any) -> OutsideTable:
            loaded = catalog.load_table((namespace, table))
            return _outside_table(loaded)

        return self._call(load, f"{namespace}.{table}")

    def commit(self, namespace: str, table: str, requirements: Sequence[Json], updates: Sequence[Json]) -> str:
        """Commit to a table; the location of its new metadata. `Conflict` if a requirement is not met."""
        said = {
            "identifier": {"namespace": [namespace], "name": table},
            "requirements": [*requirements],
            "updates": [*updates],
        }

        def commit(catalog: Any) -> str:
            from pyiceberg.table import CommitTableRequest

            request = CommitTableRequest.model_validate(said)
            loaded = catalog.load_table((namespace, table))
            answer = catalog.commit_table(loaded, request.requirements, request.updates)
            return str(answer.metadata_location)

        return self._call(commit, f"{namespace}.{table}", changes=True)

    def register(self, namespace: str, table: str, location: str) -> None:
        """Make a table of a metadata file; the namespace is created if it is absent. `AlreadyExists` if the name is
        taken."""

        def register(catalog: Any) -> None:
            catalog.create_namespace_if_not_exists((namespace,))
            catalog.register_table((namespace, table), location)

        self._call(register, f"{namespace}.{table}", changes=True)

    def rename(self, source: tuple[str, str], target: tuple[str, str]) -> None:
        """Rename a table; the new namespace is created if it is absent."""

        def rename(catalog: Any) -> None:
            catalog.create_namespace_if_not_exists((target[0],))
            catalog.rename_table(source, target)

        self._call(rename, ".".join(source), changes=True)

    def drop(self, namespace: str, table: str) -> None:
        """Remove a table from the catalog. Its files stay."""
        self._call(lambda catalog: catalog.drop_table((namespace, table)), f"{namespace}.{table}", changes=True)

    def close(self) -> None:
        """End the connections; the next call opens the catalog again."""
        with self._opening:
            opened, self._opened = self._opened, None
        if opened is None:
            return
        engine = getattr(opened, "engine", None)  # of the catalog in a database, whose `close` PyIceberg leaves empty
        if engine is not None:
            engine.dispose()
        opened.close()

    def _call(self, ask: Callable[[Any], Answer], table: str, *, changes: bool = False) -> Answer:
        left = self._quiet_until - self._clock.monotonic()
        if left > 0:
            raise Unavailable(f"{self._why} (asked again in {left:.0f} s)")
        try:
            answer = ask(self._catalog())
        except _failures(self.kind) as error:
            raise self._explained(error, table, changes=changes) from error
        self._pause = 0.0
        return answer

    def _catalog(self) -> Any:
        with self._opening:
            if self._opened is None:
                self._properties = resolved(self._settings)
                self._opened = _opened(self._settings, self._properties)
            return self._opened

    def _explained(self, error: Exception, table: str, *, changes: bool) -> LakestoreError:
        """Our error for one of PyIceberg's or its drivers'. Its text has no secret."""
        text = self._without_secrets(" ".join(str(error).split())[:500]) or type(error).__name__
        where = f"catalog {self.name}"
        kind = _kind(error)
        if kind is NoSuchTable:
            return NoSuchTable(f"{where} has no table {table}")
        if kind is AlreadyExists:
            return AlreadyExists(f"{where} has a table {table} already")
        if kind is Conflict:
            return Conflict(f"{where} has another state of table {table}: {text}")
        if kind is Forbidden:
            return Forbidden(f"{where} refuses a request for table {table}: {text}")
        self._pause = min(max(self._pause * 2, PAUSE_SECONDS), PAUSE_SECONDS_MAX)
        self._quiet_until = self._clock.monotonic() + self._pause
        self._why = f"{where} does not answer: {text}"
        return Unavailable(self._why, applied="unknown" if changes else "no")

    def _without_secrets(self, text: str) -> str:
        properties = self._properties or {"uri": self._settings.uri, **self._settings.options}
        uri = properties.get("uri", "")
        secrets = [value for name, value in properties.items() if name != "uri" and len(value) > 3]
        for secret in (*_PASSWORD.findall(uri), *sorted(secrets, key=len, reverse=True)):
            text = text.replace(secret, "********")
        return _PASSWORD.sub(lambda match: match[0].replace(match[1], "********"), text)


def resolved(settings: OutsideSettings) -> dict[str, str]:
    """The properties of PyIceberg's catalog, with variables and files read; `Invalid` if one is missing."""
    place = f"catalog {settings.name}"
    properties = {name: _value(f"{place}: {name}", value) for name, value in settings.options.items()}
    if settings.uri:
        properties["uri"] = _value(f"{place}: uri", settings.uri)
    if settings.kind == "sql":
        properties = {"pool_pre_ping": "true", **properties, "uri": _database(properties.get("uri", ""))}
    if settings.kind in ("rest", "sql", "hive") and not properties.get("uri"):
        raise Invalid(f"{place} of kind {settings.kind} needs a uri")
    return properties


def _value(place: str, text: str) -> str:
    if text.startswith(SCHEME) and not text.startswith(f"{SCHEME}//"):  # with slashes it is a location
        path = Path(text.removeprefix(SCHEME))
        try:
            return path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(f"{place} names the file {path}, which cannot be read: {error}") from error

    def variable(match: re.Match[str]) -> str:
        value = os.environ.get(match[1])
        if value is None:
            raise Invalid(f"{place} names the variable {match[1]}, which is not set")
        return value

    return _VARIABLE.sub(variable, text)


def _database(uri: str) -> str:
    """The URI with the driver of `[catalogs]` and with bounds on waiting, for PostgreSQL."""
    if not _POSTGRES.match(uri):
        return uri
    base, _, query = _POSTGRES.sub("postgresql+psycopg://", uri, count=1).partition("?")
    lacks = [f"{key}={value}" for key, value in _POSTGRES_DEFAULTS.items() if f"{key}=" not in query]
    return f"{base}?{'&'.join([*([query] if query else []), *lacks])}"


def store_properties(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """PyIceberg's names for the address and region of the store that the server's variables name. PyIceberg finds keys
    by itself."""
    region = next((environment[name] for name in store_errors.REGIONS if environment.get(name)), "")
    made = {"s3.region": region} if region else {}
    if endpoint := store_errors.environment_endpoint(environment):
        made["s3.endpoint"] = endpoint
    return made


def _opened(settings: OutsideSettings, properties: Mapping[str, str]) -> Any:
    properties = {**store_properties(), **properties}
    with needs_extra("catalogs", f"catalog {settings.name}"):
        from pyiceberg.catalog import load_catalog
        from pyiceberg.catalog.rest import RestCatalog
    if settings.kind != "rest":
        with needs_extra("catalogs", f"catalog {settings.name}"):
            return load_catalog(settings.name, **{**properties, "type": settings.kind})

    class BoundedRestCatalog(RestCatalog):
        """PyIceberg sets no bound on the time of a request."""

        def _create_session(self) -> Any:
            session = super()._create_session()
            send = session.request
            session.request = lambda *args, **more: send(*args, **{"timeout": REQUEST_SECONDS, **more})  # type: ignore[method-assign]
            return session

    return BoundedRestCatalog(settings.name, **properties)


def _failures(kind: str) -> tuple[type[Exception], ...]:
    """The errors of PyIceberg and of the drivers below it. An error that is none of them is a defect."""
    with needs_extra("catalogs", f"a catalog of kind {kind}"):
        from pyiceberg import exceptions
        from sqlalchemy.exc import SQLAlchemyError

    theirs = [each for each in vars(exceptions).values() if isinstance(each, type) and issubclass(each, Exception)]
    there = [each for each in _DRIVERS.get(kind, ()) if find_spec(each[0].partition(".")[0])]
    drivers = [getattr(import_module(module), name) for module, name in there]
    return (*theirs, *drivers, SQLAlchemyError, OSError, ValueError, NotImplementedError)


def _kind(error: Exception) -> type[LakestoreError]:
    """The kind of our error for an error of PyIceberg's; `Unavailable` for everything else."""
    from pyiceberg import exceptions

    kinds: tuple[tuple[tuple[type[Exception], ...], type[LakestoreError]], ...] = (
        ((exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError), NoSuchTable),
        ((exceptions.TableAlreadyExistsError,), AlreadyExists),
        ((exceptions.CommitFailedException,), Conflict),
        (
            (
                exceptions.BadRequestError,
                exceptions.UnauthorizedError,
                exceptions.ForbiddenError,
                exceptions.OAuthError,
                exceptions.ValidationError,
                exceptions.NotInstalledError,
                NotImplementedError,
                ValueError,
            ),
            Forbidden,
        ),
    )
    return next((ours for theirs, ours in kinds if isinstance(error, theirs)), Unavailable)


def _outside_table(loaded: Any) -> OutsideTable:
    location = str(loaded.metadata_location)
    with loaded.io.new_input(location).open() as file:
        data = file.read()
    try:
        doc = metadata.normal(metadata_files.parsed(data))
    except (ValueError, Invalid) as error:
        raise Corrupt(f"{location} is not readable table metadata: {error}") from error
    uuid = doc["properties"].get(our_tables.UUID_PROPERTY) or doc["table-uuid"]
    return OutsideTable(location, str(uuid), doc)
