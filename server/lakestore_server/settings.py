"""Settings of a server; `lakestore.cli.settings` reads them from file, environment and flags.

A new setting is one field here with its docstring: unit, effect, and the meaning of its default.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lakestore.limits import Limits
from lakestore.model import file_uri
from lakestore.model.settings import option, section

DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Tls:
    """The certificates of all ports, as PEM files; they are read again when they change."""

    cert: str = option("", flag=True)
    """Certificate of the server and its chain; empty means no TLS."""
    key: str = option("", flag=True)
    """Private key of the certificate, without a password."""
    client_ca: str = option("", flag=True)
    """Authority of client certificates: clients of gRPC and Flight must then show one, HTTP clients may."""
    peer_ca: str = option("")
    """Authority of the certificates of other servers of a shared journal: a new server copies from them, a follower
    sends changes of the catalog to the leader. Empty means the authorities of this machine, for the second also this
    server's own certificate."""


@dataclass(frozen=True, slots=True)
class Http:
    """The HTTP port."""

    allowed_hosts: tuple[str, ...] = option(())
    """Host names that a request to a server without `auth` may name. The names of this machine are always allowed; `*`
    allows every name. A web page on another host name cannot call the server."""
    advertise: str = option("")
    """Address of HTTP, `host:port`, at which other servers of a shared journal reach this server; empty means the host
    of `advertise` and this server's port."""


@dataclass(frozen=True, slots=True)
class Flight:
    """The Flight SQL port, for ADBC and Arrow JDBC."""

    port: int = option(-1, low=-1, high=65_535)
    """Port of Flight SQL, usually 7343. It is off unless it is set: -1. 0 picks a free one."""


@dataclass(frozen=True, slots=True)
class Postgres:
    """The port of the Postgres protocol."""

    port: int = option(-1, low=-1, high=65_535)
    """Port of the Postgres protocol, usually 7342. It is off unless it is set: -1. 0 picks a free one."""


@dataclass(frozen=True, slots=True)
class Journal:
    """The log of commits."""

    kind: str = option("file", choices=("file", "kafka", "object"))
    """`file`: files of the data folder, for one server. `kafka`: a topic that several servers share: one commits, the
    others follow it. `object`: objects in a bucket that several servers share in the same way."""
    bootstrap: str = option("")
    """Brokers of Kafka, as `host:port,host:port`."""
    topic: str = option("lakestore-journal")
    """Topic of Kafka; `lakestore init-journal` creates it."""
    url: str = option("")
    """Bucket and prefix of the objects, as `s3://bucket/prefix`; `lakestore init-journal` begins it. Keys and endpoint
    come from the environment, as for the warehouse, or from `journal.options`."""
    group_seconds: float = option(0.02, low=0, high=10)
    """Time for which commits wait to share an object of the bucket while another object is on its way. A longer time
    needs fewer requests."""
    keep_all: bool = option(default=False)
    """Remove nothing from the bucket. A server on an empty folder can then start from the bucket alone, and reads every
    commit there was."""
    lease_seconds: float = option(3.0, low=0.5, high=3600)
    """Time without a message of the server that commits after which another one takes over."""
    reads: str = option("barrier", choices=("barrier", "lease"))
    """Proof that the server that commits still does, for reads of the newest state. `barrier`: a message that the
    journal stores before the answer. `lease`: none as long as no other server can have taken over. Then the clocks of
    all servers must run equally fast within a tenth."""
    options: tuple[str, ...] = option((), secret=True)
    """Options of Kafka's clients or of the bucket, each as `name=value`: `security.protocol=SASL_SSL`, or
    `endpoint=https://host`."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """The Iceberg catalog in which new lake tables live."""

    kind: str = option("own", choices=("own", "rest", "sql", "hive", "glue"))
    """`own`: the server's own. `rest`: another REST catalog. `sql`: a catalog in a database, as PyIceberg and Iceberg's
    JDBC catalog use it. `glue`: AWS Glue, with `boto3` installed. `hive`: the same, not tried to the end."""
    name: str = option("outside")
    """Name of this catalog in `lake={"catalog": NAME}` of a table. Every table keeps it, so it must not change.
    `lake={"catalog": "own"}` names the server's own catalog."""
    uri: str = option("", secret=True)
    """Address: `https://host/path`, `postgresql://user@host/database` or `thrift://host:port`. `${NAME}` in it is a
    variable of the environment."""
    options: tuple[str, ...] = option((), secret=True)
    """Properties of PyIceberg's catalog, each as `name=value`: `warehouse=prod`, `credential=${SECRET}` or
    `token=file:/run/secrets/token`."""
    check_seconds: float = option(30.0, low=0.1, high=DAY_SECONDS)
    """Time between two looks for commits that others made at the outside catalog."""


@dataclass(frozen=True, slots=True)
class EngineKeys:
    """Keys of the warehouse's S3 store that the catalog gives to engines that ask for `vended-credentials`."""

    give: str = option("auto", choices=("auto", "never", "static", "role"))
    """`static`: one key for the whole warehouse, to principals with a right on every table: `tier`, or `read` for the
    key of `engine_keys.read_file`. `role`: a key of `engine_keys.role` for the files of one table, to principals with a
    right on this table. `auto`: `static` if a key is set and the server has `auth` or listens on this machine alone."""
    file: str = option("")
    """File with lines AWS_ACCESS_KEY_ID=… and AWS_SECRET_ACCESS_KEY=…, read at each use: the static key that writes, or
    the key that assumes the role. Empty means the server's own key in its environment."""
    read_file: str = option("")
    """File of the same form with a static key that only reads. Empty means none."""
    role: str = option("")
    """ARN of the role of `role`; the server's key must be allowed to assume it."""
    sts: str = option("")
    """Address of the STS that knows the role; empty means AWS's for the region."""
    seconds: int = option(3600, low=900, high=43_200)
    """Time for which a key of the role is good. Engines get a key that is good for at least half of it."""
    endpoint: str = option("")
    """Address of the store as engines reach it; empty means the server's own, AWS_ENDPOINT_URL."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting of a server. Paths are relative to the working folder."""

    data: Path = option(flag=True)
    """Folder of journal, index and segments; one server at a time."""
    host: str = option("127.0.0.1", flag=True)
    """Address to listen on."""
    port: int = option(7340, low=0, high=65_535, flag=True)
    """Port of gRPC; 0 picks a free one."""
    http_port: int = option(7341, low=0, high=65_535, flag=True)
    """Port of catalog, metrics and console; 0 picks a free one."""
    warehouse: str = option("", flag=True)
    """URI of the lake's files; empty means `warehouse` in the data folder."""
    lease_grace_seconds: float = option(3600.0, low=0, high=DAY_SECONDS)
    """Time after a start, and after a server begins to lead, in which nothing expires that a reader from before may
    hold."""
    tls: Tls = section(Tls)
    """Encryption of connections."""
    http: Http = section(Http)
    """Catalog, metrics and console."""
    flight: Flight = section(Flight)
    """Queries of drivers of Arrow."""
    postgres: Postgres = section(Postgres)
    """SQL for drivers of Postgres."""
    journal: Journal = section(Journal)
    """The log of commits."""
    catalog: Catalog = section(Catalog)
    """Where new lake tables live."""
    engine_keys: EngineKeys = section(EngineKeys)
    """Keys of the warehouse's store for engines."""
    checkpoints: str = option("", flag=True)
    """Bucket and prefix for checkpoints and their files, as `s3://bucket/prefix`, with a journal in Kafka or a bucket.
    A server on an empty disk then starts from there and from the journal. Keys and endpoint come from the environment,
    as for the warehouse, or from `checkpoints_options`. All servers of the journal need it; empty means none."""
    checkpoints_options: tuple[str, ...] = option((), secret=True)
    """Options of the bucket of `checkpoints`, each as `name=value`: `endpoint=https://host`."""
    checkpoints_keep_seconds: float = option(3600.0, low=0, high=30 * DAY_SECONDS)
    """Time for which the bucket keeps a checkpoint that a newer one has replaced, with the journal after it. A server
    that copies it must be done by then, else it begins again with the newest one."""
    advertise: str = option("", flag=True)
    """Address of gRPC at which clients and other servers reach this server; empty means where it listens."""
    auth: str = option("", flag=True)
    """File of principals, tokens and rights, read again when it changes; empty means everyone has every right."""
    token_key: str = option("")
    """File with 32 random bytes or more, from which the key of access tokens is made; read at the start. Empty means a
    key of this server's own. Servers that share a journal and have `auth` need the same file."""
    insecure: bool = option(default=False, flag=True)
    """Listen beyond this machine even without TLS and auth."""
    metrics_open: bool = option(default=False)
    """Show /metrics to everyone; otherwise it needs the right to read every table."""
    limits: Limits = section(Limits)
    """Limits of what the server accepts and keeps."""

    retention_check_seconds: float = option(60.0, low=0.1, high=DAY_SECONDS)
    """Time between two looks for rows that retention lets go."""
    expiry_check_seconds: float = option(10.0, low=0.1, high=DAY_SECONDS)
    """Time between two looks for rows whose `ttl` is over."""
    progress_check_seconds: float = option(5.0, low=0.1, high=DAY_SECONDS)
    """Time between two looks at the feeds of tables, for `lakestore.progress`."""
    rescale_check_seconds: float = option(0.2, low=0.01, high=DAY_SECONDS)
    """Time between two looks at tables that are being rescaled; they are looked at in memory."""
    subscription_idle_seconds: float = option(7 * DAY_SECONDS, low=1, high=3_650 * DAY_SECONDS)
    """Time for which a named subscription without a reader or acknowledgement stays and holds its tables' log."""
    producer_idle_seconds: float = option(30 * DAY_SECONDS, low=1, high=3_650 * DAY_SECONDS)
    """Time for which a named producer that nobody opens or writes with stays, with its progress."""
    rebalance_seconds: float = option(10.0, low=0, high=3600)
    """Time in which a consumer of a shared subscription must acknowledge the sent rows of a bucket that moves to
    another consumer. Then the other consumer begins after the last acknowledgement."""
    tier: bool = option(default=False, flag=True)
    """Whether a tierer runs beside the server, as a process of its own, while this server leads. It needs the extra
    `spark`, memory for Spark, and on a server with `auth` a token: in the variable `LAKESTORE_TOKEN` or in the file
    that `LAKESTORE_TOKEN_FILE` names."""
    tier_master: str = option("local[*]")
    """Place where the Spark of that tierer runs its tasks: `local[*]`, `spark://…`, `yarn`, `k8s://…`."""
    drain_seconds: float = option(20.0, low=0, high=3600)
    """Time that an orderly end may take: half of it for running calls, the rest for a last checkpoint. The next start
    reads the rest from the journal. A second signal ends the server at once."""
    owner_required: bool = option(default=False)
    """Whether a new table needs a contract that names its owner. Tables from before stay as they are. Tables of dead
    letters need none."""
    log_format: str = option("text", choices=("text", "json"), flag=True)
    """The log on stderr: lines to read, or one JSON object per line."""
    log_level: str = option("info", choices=("debug", "info", "warning", "error"), flag=True)
    """Lines of this level and worse are logged."""
    slow_seconds: float = option(5.0, low=0, high=3600)
    """Calls that take longer are logged, except streams; 0 logs none."""

    @property
    def warehouse_uri(self) -> str:
        """`warehouse`, or its default, as a URI."""
        return file_uri.user_location(self.warehouse or str(self.data / "warehouse"))
