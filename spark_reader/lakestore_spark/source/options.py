"""Typed options of the data source. Names ignore case; an unknown name is an error.

Options are parsed in the driver's Python workers. Executors get server and credentials with their partitions and need
no files or variables of the driver's machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pyspark.sql.types import StructField, StructType

from lakestore.client.credentials import TLS, Credentials, Pem, Token, credentials_for
from lakestore.client.profiles import Reads
from lakestore.client.servers import connect
from lakestore.client.transport import Transport
from lakestore.errors import Invalid

SERVER_DEFAULT = "localhost:7340"
EVERY_USE = ("server", "table", "token", "tls", "tls_ca", "tls_cert", "tls_secret_key")
READ = ("at", "columns", "where", "reads")
STREAM = ("startingOffsets", "maxOffsetsPerTrigger", "beforeImages", "columns", "where", "subscription")
WRITE = ("mode",)
OF_SPARK = (
    "path",
    "checkpointLocation",
    "queryName",
    "outputMode",
    "provider",
    "owner",
    "location",
    "comment",
    "external",
    "is_managed_location",
    "collation",
)
"""Options that Spark and its catalog add. `path` names the table if `table` is missing."""
SECRET = ("token", "tls_secret_key")
OF_CATALOG = "option."
"""Prefix of the second name that Spark gives to options of a catalog table."""
KEPT = "lakestore"
"""Key in the metadata of a schema's first column. A table of Spark's catalog stores its options there, because
PySpark gives the data source only the stored schema.
"""
_OURS = {name.lower() for name in (*EVERY_USE, *READ, *STREAM, *WRITE)}
_PEM_BEGIN = "-----BEGIN"


@dataclass(frozen=True, slots=True)
class Address:
    """Server and credentials of a table, pickled to executors."""

    server: str
    credentials: Credentials
    reads: Reads = "leader"

    def connect(self) -> Transport:
        return connect(self.server, self.credentials, reads=self.reads)


def with_stored_options(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Options, with those stored in the schema of a table of Spark's catalog."""
    kept = schema.fields[0].metadata.get(KEPT, {}) if schema.fields else {}
    return {**kept, **{name.lower(): value for name, value in options.items()}}


def with_options(schema: StructType, options: Options) -> StructType:
    """The schema of a new table of Spark's catalog, with the options stored in it."""
    first, *others = schema.fields
    metadata = {**first.metadata, KEPT: options.stored()}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


class Options:
    """The options of one use of the data source."""

    def __init__(self, options: Mapping[str, str], use: str, known: Iterable[str]) -> None:
        """Raises `Invalid` for an option that this `use`, such as `spark.read`, does not have."""
        self._said = {name.lower().removeprefix(OF_CATALOG): value for name, value in options.items()}
        every = {name.lower(): name for name in (*EVERY_USE, *READ, *STREAM, *WRITE, *OF_SPARK)}
        here = {name.lower() for name in (*EVERY_USE, *OF_SPARK, *known)}
        for name in self._said:
            if name not in every:
                names = ", ".join(sorted(set(every.values()) - set(OF_SPARK)))
                raise Invalid(f"the data source lakestore has no option {name!r}: its options are {names}")
            if name not in here:
                raise Invalid(f"option {every[name]} is not one of {use}: leave it out")

    def stored(self) -> dict[str, str]:
        """The options to store in Spark's catalog. Raises `Invalid` for secrets, which it would show."""
        secret = next((name for name in SECRET if name in self._said), None)
        if secret:
            raise Invalid(
                f"a table of Spark's catalog keeps no {secret}: leave it out, and set LAKESTORE_TOKEN_FILE (and"
                " LAKESTORE_CERT, LAKESTORE_KEY) where the driver runs"
            )
        return {name: value for name, value in self._said.items() if name in _OURS}

    @property
    def table(self) -> str:
        name = self.text("table") or self.text("path")
        if not name:
            raise Invalid("the data source lakestore needs a table: say option('table', 'shop.orders')")
        return name

    @property
    def address(self) -> Address:
        """The server with the current token: from the options, otherwise from the environment."""
        server = self.text("server") or SERVER_DEFAULT
        shown = credentials_for(server, self.text("token") or None, self._tls())
        token: Token | None = shown.bearer or None
        reads = cast("Reads", self.text("reads").lower() or "leader")
        return Address(server, Credentials(token, shown.pem if self._pem() is None else self._pem()), reads)

    def text(self, name: str) -> str:
        """A text; empty if it is not set."""
        return self._said.get(name.lower(), "").strip()

    def names(self, name: str) -> list[str]:
        """Names separated by commas; empty if not set."""
        return [part.strip() for part in self.text(name).split(",") if part.strip()]

    def flag(self, name: str) -> bool:
        """A boolean; false if not set."""
        said = self.text(name).lower() or "false"
        if said not in ("true", "false"):
            raise Invalid(f"option {name} is true or false, not {said!r}")
        return said == "true"

    def count(self, name: str) -> int:
        """A whole number above 0; 0 if not set."""
        said = self.text(name)
        if said and (not said.isascii() or not said.isdigit() or int(said) == 0):
            raise Invalid(f"option {name} is a whole number above 0, not {said!r}")
        return int(said) if said else 0

    def _tls(self) -> TLS | bool | None:
        if self._pem() is not None:
            return True
        return self.flag("tls") if self.text("tls") else None

    def _pem(self) -> Pem | None:
        ca, cert, key = (self._pem_of(name) for name in ("tls_ca", "tls_cert", "tls_secret_key"))
        if (cert is None) != (key is None):
            raise Invalid("a client certificate and its key go together: say tls_cert and tls_secret_key")
        return Pem(ca, cert, key) if ca or cert else None

    def _pem_of(self, name: str) -> bytes | None:
        said = self.text(name)
        if not said or said.startswith(_PEM_BEGIN):
            return said.encode() or None
        try:
            return Path(said).read_bytes()
        except OSError as error:
            raise Invalid(f"option {name}: file {said} cannot be read: {error.strerror}") from error
