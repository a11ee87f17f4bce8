"""Spark sessions for a server: Iceberg's runtime, the catalogs `lake` and `now`, and a `SparkLake`.

`session` creates a session; `attach` checks the user's session and says what is missing.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession

from lakestore.client.credentials import NOTHING, TLS, Credentials, Token, addresses_of
from lakestore.client.profiles import target
from lakestore.client.servers import connect
from lakestore.client.transport import Transport
from lakestore.errors import Invalid, Unavailable
from lakestore.iceberg import store_keys
from lakestore.java import set_java_home
from lakestore.v1.lakestore_pb2 import StatusRequest
from lakestore_spark.cut_tables import NOW
from lakestore_spark.source import register
from lakestore_spark.spark_lake import SparkLake

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
"""Maven coordinate of the tested Iceberg runtime."""
STORE_RUNTIME = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
"""Maven coordinate of the runtime's S3 support."""
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
LAKE = "lake"
"""Spark's name of the catalog of the tiered state."""
WAREHOUSES = {LAKE: "", NOW: "now"}
"""Catalog to the server's warehouse; empty for the tiered state."""
CATALOG_CLASS = "org.apache.iceberg.spark.SparkCatalog"
HTTP_PORT = 7341
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Environment variable of a program that spark-submit runs. Its Java runs already: master, memory and jars are set."""
_REACHED = "reached"
"""Key beside a server's status for the address that answered: of several servers, the leader's."""
_ASKS_FOR_KEYS = {"header.X-Iceberg-Access-Delegation": "vended-credentials"}
"""Catalog setting of a process without a key of the store: the server's catalog gives it one with each table."""
_NO_REFRESH = {"rest.auth.type": "oauth2", "token-refresh-enabled": "false"}
"""Catalog settings that keep our token for the whole session instead of exchanging it for one that lasts an hour."""


def session(
    server: str | None = None,
    *,
    profile: str | None = None,
    http: str | None = None,
    master: str | None = None,
    app: str = "lakestore",
    conf: Mapping[str, str] | None = None,
    token: Token | None = None,
    tls: TLS | bool | None = None,
    credentials: Credentials | None = None,
) -> SparkSession:
    """A SparkSession with Iceberg's runtime and this server's catalogs `lake` and `now`, using this token.

    If Spark already runs in this process, the result is a new session of it, so several servers can be read together.
    Under spark-submit its command line gives master and settings. Raises `Invalid` if it was given no Iceberg.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    asked = target(server, profile, token, tls)
    server, shown = asked.server, credentials or asked.credentials()
    about = _about(server, credentials=shown)
    is_store = about.get("warehouse", "").startswith("s3")
    catalogs = {
        **catalog_conf(http or _http_address(about, server), shown),
        **(_store_conf() if is_store else {}),
    }
    running = SparkSession.getActiveSession()
    if running is not None:
        own = running.newSession()
        for name, value in {**catalogs, **_session_conf(), **(conf or {})}.items():
            # Static settings are fixed when Spark starts, and refused afterwards. A catalog's can be set, but are not
            # modifiable by Spark's word.
            if name.startswith("spark.sql.catalog.") or own.conf.isModifiable(name):
                own.conf.set(name, value)
        register(own)
        return own
    packages = [RUNTIME, *([STORE_RUNTIME] if is_store else [])]
    asked_master = master or (conf or {}).get("spark.master", "")
    if _SUBMITTED in os.environ:
        static = {"spark.sql.extensions": EXTENSIONS}
    else:
        asked_master = asked_master or "local[*]"
        static = _static_conf(asked_master, *packages)
        set_java_home()
    settings = {**static, **_session_conf(), **catalogs, **(conf or {})}
    builder = SparkSession.builder.appName(app)
    for name, value in {**settings, **({"spark.master": asked_master} if asked_master else {})}.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    if not _has_iceberg(made):
        made.stop()
        raise Invalid(f"Spark lacks Iceberg: give spark-submit --packages {','.join(packages)}")
    register(made)
    return made


def attach(
    spark: SparkSession,
    server: str | None = None,
    *,
    profile: str | None = None,
    transport: Transport | None = None,
    token: Token | None = None,
    tls: TLS | bool | None = None,
) -> SparkLake:
    """The server's tables in this session. Raises `Invalid` that says what the session lacks."""
    asked = target(server, profile, token, tls)
    server, own = asked.server, transport or connect(asked.server, asked.credentials())
    close = own.close if transport is None else _nothing
    problem = missing(spark, http_address(server, own), own.credentials)
    if problem:
        close()
        raise Invalid(problem)
    register(spark)
    return SparkLake(spark, own, on_close=close)


def _nothing() -> None: ...


def missing(spark: SparkSession, http: str, credentials: Credentials = NOTHING) -> str:
    """Why this session cannot read the server; empty if it can. Missing catalogs are added."""
    if not _has_iceberg(spark):
        return f"this Spark session lacks Iceberg: start it with --packages {RUNTIME}"
    if EXTENSIONS not in str(spark.conf.get("spark.sql.extensions", "")):
        return f"this Spark session lacks Iceberg's SQL: start it with --conf spark.sql.extensions={EXTENSIONS}"
    for name, warehouse in WAREHOUSES.items():
        key, wanted = _key(name), _catalog_conf(name, http, credentials)
        if not spark.conf.get(key, ""):
            for setting, value in wanted.items():
                spark.conf.set(setting, value)
            continue
        decisive = [f"{key}.uri", *([f"{key}.warehouse", f"{key}.cache-enabled"] if warehouse else [])]
        others = [setting for setting in decisive if not _equal(spark.conf.get(setting, ""), wanted[setting])]
        if others:
            said = " ".join(f"--conf {setting}={wanted[setting]}" for setting in others)
            return f"the catalog {name!r} of this Spark session is another one: start it with {said}"
    return ""


def _equal(value: str | None, wanted: str) -> bool:
    return value == wanted or (value is not None and "://" in wanted and same_address(value, wanted))


def same_address(one: str, other: str) -> bool:
    """True if two URLs have the same host. `lakestore connect` prints the user's name for it, the server its own."""
    first, second = urlsplit(one.strip()), urlsplit(other.strip())
    try:
        if (first.scheme, first.port, first.path.rstrip("/")) != (second.scheme, second.port, second.path.rstrip("/")):
            return False
        return bool(_hosts(first.hostname or "") & _hosts(second.hostname or ""))
    except ValueError:  # the port is not a number
        return False


def _hosts(name: str) -> frozenset[str]:
    try:
        found = {str(address[0]) for *_, address in socket.getaddrinfo(name, None)} if name else set()
    except OSError:
        found = set()
    return frozenset({name, *found})


def _has_iceberg(spark: SparkSession) -> bool:
    jvm: Any = spark._jvm  # noqa: SLF001 (the one way to the JVM that PySpark gives)
    return isinstance(jvm.org.apache.iceberg.spark.SparkCatalog, JavaClass)


def http_address(server: str, transport: Transport | None = None, credentials: Credentials = NOTHING) -> str:
    """`host:port` of the server's HTTP side from its status, otherwise the default port."""
    return _http_address(_about(server, transport, credentials), server)


def _http_address(about: Mapping[str, str], server: str) -> str:
    reached = about.get(_REACHED) or addresses_of(server)[0]
    host, said = reached.rsplit(":", 1)[0], about.get("http", "")
    return _reachable(said, host) if said else f"{host}:{HTTP_PORT}"


def _about(server: str, transport: Transport | None = None, credentials: Credentials = NOTHING) -> dict[str, str]:
    try:
        own = transport or connect(server, credentials)
        said = json.loads(own.status(StatusRequest()).status)
        if transport is None:
            own.close()
    except Unavailable:
        return {}
    return {name: text for name, text in said.items() if isinstance(text, str)} | {_REACHED: own.address}


def _reachable(address: str, host: str) -> str:
    """The HTTP address as seen from this machine. A server that listens on all addresses is on the gRPC host."""
    named, port = address.rsplit(":", 1)
    return f"{host if named in ('0.0.0.0', '[::]', '') else named}:{port}"  # noqa: S104


def catalog_conf(http: str, credentials: Credentials = NOTHING) -> dict[str, str]:
    """Settings of the catalogs `lake` and `now`. Spark hides values of names that contain `token`."""
    return {key: value for name in WAREHOUSES for key, value in _catalog_conf(name, http, credentials).items()}


def _catalog_conf(name: str, http: str, credentials: Credentials) -> dict[str, str]:
    key, warehouse = _key(name), WAREHOUSES[name]
    settings = {
        "type": "rest",
        "uri": f"{'https' if credentials.pem else 'http'}://{http}/iceberg",
        # Spark would otherwise cache a loaded table for 30 s or until REFRESH TABLE.
        "cache-enabled": "false",
        **({"warehouse": warehouse} if warehouse else {}),
        **({} if store_keys.has_own() else _ASKS_FOR_KEYS),
        **({"token": credentials.bearer, **_NO_REFRESH} if credentials.bearer else {}),
    }
    return {key: CATALOG_CLASS, **{f"{key}.{setting}": value for setting, value in settings.items()}}


def _key(name: str) -> str:
    return f"spark.sql.catalog.{name}"


def _session_conf() -> dict[str, str]:
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }


def _store_conf() -> dict[str, str]:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    settings = {"s3.endpoint": endpoint, "s3.path-style-access": "true"} if endpoint else {}
    return {f"{_key(name)}.{setting}": value for name in WAREHOUSES for setting, value in settings.items()}


def _static_conf(master: str, *packages: str) -> dict[str, str]:
    return {
        **({"spark.driver.host": "127.0.0.1"} if master.startswith("local") else {}),
        "spark.jars.packages": ",".join(packages),
        "spark.jars.ivy": str(Path(sys.prefix) / "ivy"),
        "spark.sql.extensions": EXTENSIONS,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.pyspark.python": sys.executable,
    }
