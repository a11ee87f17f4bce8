"""Rules of places and properties: files inside the warehouse, one folder per table, no code, no credentials. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping

from lakestore.errors import Invalid
from lakestore.model import file_uri
from lakestore.model.names import PRESENTED
from lakestore.model.outside_values import shown_name
from lakestore_server.catalog.errors import Forbidden
from lakestore_server.catalog.schemas import Json
from lakestore_server.state import catalog_change

PROPERTIES_BYTES_MAX = 256 << 10
"""The most bytes of names and values of one namespace's or table's properties."""
SERVERS_FOLDER = ".lakestore"
"""A folder of the warehouse for files of the servers. No namespace has a leading dot."""
_PATH = re.compile(r"write\..*path|write\.object-storage\.path|write\.folder-storage\.path")
_REFUSED = re.compile(
    r"io-impl|py-io-impl|write\.location-provider\.impl|write\.py-location-provider\.impl"
    r"|(s3|gcs|adls|oss|client|hdfs|hf|rest)\..*|.*(access-key|secret|token|credential|password).*",
    re.IGNORECASE,
)
_SHARED = re.compile(r"comment|owner|description|read\.parquet\.vectorization\.enabled|user\..+|[^.]+")
_RESERVED = {
    "format-version", "uuid", "snapshot-count", "current-snapshot-summary", "current-snapshot-id", "location",
    "current-snapshot-timestamp-ms", "current-schema", "default-partition-spec", "default-sort-order", "provider",
    "sort-order", "identifier-fields", "format", "external", "transient_lastDdlTime",
}  # fmt: skip
"""Names without a dot that engines interpret; other such names are free."""
_NAME = re.compile(r"[^\x00-\x1f\x7f/\\?#%.][^\x00-\x1f\x7f/\\?#%]{0,254}")


def plain(uri: str) -> str:
    """One spelling of a place: file URIs become paths, doubled and trailing slashes go."""
    text = str(uri)
    path = file_uri.to_path(text)
    if path is not None:
        return re.sub(r"/+", "/", path).rstrip("/") or "/"
    scheme, _, rest = text.partition("://")
    return f"{scheme.lower()}://{re.sub(r'/+', '/', rest).rstrip('/')}"


def inside(place: str, folder: str) -> bool:
    """Whether a place is strictly inside a folder. The part below the folder must not have `.`, `..` or `%`, because an
    engine that unescapes would write somewhere else."""
    return is_file_of(place, folder) and "%" not in plain(place)[len(plain(folder)) :]


def is_file_of(place: str, folder: str) -> bool:
    """Whether a file is inside a folder for a reader that does not unescape. Engines write `%` into partition names."""
    text, above = plain(place), plain(folder) + "/"
    below = text[len(above) :]
    return text.startswith(above) and "\x00" not in below and not {".", ".."} & set(below.split("/"))


def overlap(one: str, other: str) -> bool:
    """Whether two folders are equal or one contains the other."""
    return plain(one) == plain(other) or inside(one, other) or inside(other, one)


def metadata_number(name: str) -> int | None:
    """The number in front of a metadata file's name; None for another file."""
    first = name.split("-", 1)[0]
    return int(first) if first.isdecimal() and name.endswith(".metadata.json") else None


def numbered(location: str) -> tuple[str, int | None]:
    """The folder and the number of a metadata file."""
    folder, name = location.rsplit("/", 1)
    return folder, metadata_number(name)


def is_path(key: str) -> bool:
    """Whether a table property says where files go."""
    return _PATH.fullmatch(key) is not None


def is_refused(key: str) -> bool:
    """Whether a table property would load code or hold credentials."""
    return _REFUSED.fullmatch(key) is not None


def is_shared(key: str) -> bool:
    """Whether anybody may set a property on our table: no writer, reader or maintenance uses it."""
    return _SHARED.fullmatch(key) is not None and key not in _RESERVED and not is_refused(key)


def check_name(name: object) -> str:
    """A name of a namespace or table that can also name a folder, or `Invalid`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Invalid(
            f"name {shown_name(name)} is not 1 to 255 characters without control characters, / \\ ? # % and"
            " leading dots"
        )
    return name


def check_namespace(name: object) -> str:
    """A name of a namespace with a folder of its own, or `Invalid`."""
    if check_name(name) == PRESENTED:
        raise Invalid(f"namespace {PRESENTED} is for presented files: choose another name")
    return str(name)


def check_size(properties: Mapping[str, str], what: str) -> None:
    """Refuse more bytes of properties than the catalog keeps and sends with every answer."""
    size = catalog_change.size_of(properties)
    if size > PROPERTIES_BYTES_MAX:
        raise Invalid(
            f"the properties of {what} take {size:,} bytes, more than {PROPERTIES_BYTES_MAX:,}: keep less there"
        )


def check_properties(properties: Mapping[str, str], warehouse: str) -> None:
    """Refuse properties that load code, hold credentials or point outside the warehouse."""
    check_size(properties, "a table")
    for key, value in properties.items():
        if is_refused(key):
            raise Forbidden(
                f"property {key} is not allowed: it would load code or hold credentials; set it in the engine"
            )
        if is_path(key) and not inside(value, warehouse):
            raise Forbidden(f"property {key} must lie inside the warehouse {warehouse}")


def check_table(doc: Json, warehouse: str) -> None:
    """Refuse metadata of a foreign table with files outside the warehouse."""
    if not inside(doc["location"], warehouse):
        raise Forbidden(f"location {doc['location']} must lie inside the warehouse {warehouse}")
    check_properties(doc["properties"], warehouse)


def folders(doc: Json) -> list[str]:
    """Every folder that a table writes to."""
    return [doc["location"], *(value for key, value in doc["properties"].items() if is_path(key))]


def table_folder(metadata_location: str) -> str:
    """The folder of the table with this metadata file."""
    return posixpath.dirname(posixpath.dirname(metadata_location))


def check_found(places: Iterable[str], namespaces: Iterable[str]) -> None:
    """Refuse places of a table that contain a whole namespace."""
    for namespace in namespaces:
        for place in places:
            if plain(place) == plain(namespace) or inside(namespace, place):
                raise Forbidden(f"location {place} is not one table's: it holds a namespace")


def check_not_presented(places: Iterable[str], warehouse: str) -> None:
    """Refuse places that overlap a folder of files that the server removes."""
    for place in places:
        if overlap(place, f"{warehouse}/{PRESENTED}"):
            raise Forbidden(f"location {place} is for presented files: choose another one")
        if overlap(place, f"{warehouse}/{SERVERS_FOLDER}"):
            raise Forbidden(f"location {place} is for files of the servers: choose another one")


def check_free(places: Iterable[str], others: Iterable[str]) -> None:
    """Refuse places that overlap another table's folder, given by its metadata file."""
    for other in others:
        for place in places:
            if overlap(place, table_folder(other)):
                raise Forbidden(f"location {place} belongs to another table")
