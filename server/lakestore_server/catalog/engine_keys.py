"""Keys of the warehouse's S3 store that the catalog gives to engines, as `vended-credentials` of the Iceberg protocol.

- A key of `AssumeRole` opens the files of one table. It needs the right on that table: `read`, and for a key that
  writes `tier` on our table or `write` on another engine's table.
- A static key opens the whole warehouse. So it needs the right on every table: `read` for a key that only reads,
  `tier` for a key that writes.
- Keys stand in answers that ask for them and nowhere else: no file, no log, no status, no error.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from lakestore.errors import Invalid, Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.access.principals import ANYONE, EVERYTHING, Grant, Principal
from lakestore_server.catalog import locations
from lakestore_server.commit.engine import Engine
from lakestore_server.journals import store_errors
from lakestore_server.read.plan import metadata_of
from lakestore_server.settings import EngineKeys as KeySettings
from lakestore_server.state import swaps

log = logging.getLogger("lakestore.catalog")
Json = dict[str, Any]
ID, SECRET, TOKEN = store_errors.KEYS
STS_SECONDS = 10.0
CACHE_MAX = 10_000
READS = ("s3:GetObject", "s3:GetObjectVersion")
WRITES = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
_LINE = re.compile(r"\s*(?:export\s+)?([A-Z_]+)\s*=\s*(.*?)\s*")


@dataclass(frozen=True, slots=True)
class StoreKey:
    """One key of a store. Its text never shows the secret."""

    id: str = field(repr=False)
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)
    until: float = 0.0
    """The time at which the key ends, in seconds since 1970; 0 for a key without an end."""

    def config(self) -> dict[str, str]:
        """The key as properties of Iceberg's FileIO."""
        made = {"s3.access-key-id": self.id, "s3.secret-access-key": self.secret}
        if self.token:
            made["s3.session-token"] = self.token
        if self.until:
            made["s3.session-token-expires-at-ms"] = str(int(self.until * 1_000))
        return made


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of a table for which a key is asked."""

    target: str
    """The table's name, as rights name it."""
    folders: Sequence[str]
    """URIs of the folders that a reader of this answer opens."""
    write_right: str = ""
    """The right that writes files there, `tier` or `write`; empty for a presented cut, which nobody writes."""


class EngineKeys:
    """The keys of one server's warehouse. Thread-safe."""

    def __init__(
        self,
        settings: KeySettings,
        warehouse: str,
        *,
        is_local: bool,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """`is_local`: only programs of this machine, or principals, reach the server. `Invalid` for settings that give
        no key."""
        self._settings, self._environment = settings, environment
        self._warehouse = locations.plain(warehouse)
        self._roles = _RoleKeys(settings, environment)
        self.kind = self._kind(is_local=is_local)
        """`never`, `static` or `role`."""

    def _kind(self, *, is_local: bool) -> str:
        """The kind of keys that are given. `auto` gives the static key of the environment, if there is one."""
        give, is_s3 = self._settings.give, self._warehouse.startswith("s3://")
        if give == "auto":
            has_key = bool(self._settings.file or self._settings.read_file or self._environment.get(ID))
            return "static" if is_s3 and is_local and has_key else "never"
        if give != "never" and not is_s3:
            raise Invalid(f"engine_keys.give is {give} and the warehouse is not in S3: keys are given for s3:// alone")
        if give == "static":
            self._static(writes=True)
        if give == "role":
            if not self._settings.role:
                raise Invalid("engine_keys.give is role and engine_keys.role is not set: name the role by its ARN")
            self._roles.check()
        return give

    def endpoint_config(self) -> dict[str, str]:
        """Address and region of the store, without keys; empty for another store than S3."""
        if not self._warehouse.startswith("s3://"):
            return {}
        endpoint = self._settings.endpoint or store_errors.environment_endpoint(self._environment)
        region = next((self._environment[name] for name in store_errors.REGIONS if self._environment.get(name)), "")
        made = {"client.region": region, "s3.region": region} if region else {}
        if endpoint:
            is_virtual = self._environment.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "false").lower() in ("true", "1")
            made |= {"s3.endpoint": endpoint, "s3.path-style-access": str(not is_virtual).lower()}
        return made

    def status(self) -> dict[str, str]:
        """The kind of keys and the store's address and region, for `lakestore connect`."""
        about = self.endpoint_config()
        return {
            "engine_keys": self.kind,
            "store_endpoint": about.get("s3.endpoint", ""),
            "store_region": about.get("client.region", ""),
        }

    def answer(self, principal: Principal, files: TableFiles, refresh: str = "", *, is_load: bool = True) -> Json:
        """`config` and `storage-credentials` of an answer; empty if this principal gets no key. `refresh` is the path
        of the next key, for a key that ends. `is_load`: the table comes along; False for a next key."""
        key = self._key(principal, files)
        if key is None:
            return {}
        config = {**self.endpoint_config(), **key.config()}
        if refresh and key.until:
            config["client.refresh-credentials-endpoint"] = refresh
        # DuckDB takes a lone entry for the table's own folder, whatever its prefix: a cut has files of two folders.
        # Iceberg's Java library refuses a next key that has two entries.
        is_lone = len(files.folders) == 1 or not is_load
        prefixes = [self._warehouse] if is_lone else [*map(locations.plain, files.folders)]
        entries = [{"prefix": f"{prefix.rstrip('/')}/", "config": config} for prefix in prefixes]
        return {"config": config, "storage-credentials": entries}

    def reader_key(self, principal: Principal, files: TableFiles) -> pb.StoreKeyAnswer:
        """The key for Lakestore's own readers; without an id if this principal gets none."""
        key = self._key(principal, files)
        if key is None:
            return pb.StoreKeyAnswer()
        about = self.endpoint_config()
        return pb.StoreKeyAnswer(
            id=key.id,
            secret=key.secret,
            session=key.token,
            seconds=max(int(key.until - time.time()), 1) if key.until else 0,
            endpoint=about.get("s3.endpoint", ""),
            region=about.get("s3.region", ""),
            virtual_host=about.get("s3.path-style-access") == "false",
        )

    def _key(self, principal: Principal, files: TableFiles) -> StoreKey | None:
        if self.kind == "never" or not all(locations.inside(each, self._warehouse) for each in files.folders):
            return None
        if self.kind == "role":
            if not principal.may("read", files.target) or self._may_hold_a_database(files.folders):
                return None
            writes = bool(files.write_right) and principal.may(files.write_right, files.target)
            return self._roles.key(principal.name, tuple(map(locations.plain, files.folders)), writes=writes)
        may_write = principal.may("tier", EVERYTHING)
        if self._settings.read_file and principal.may("read", EVERYTHING) and not (may_write and files.write_right):
            return self._static(writes=False)
        return self._static(writes=True) if may_write else None

    def _may_hold_a_database(self, folders: Sequence[str]) -> bool:
        """Whether a folder lies directly in the warehouse, as folders of databases do. A database of its name may be
        created while the key is good, and the key would open its tables."""
        return any("/" not in locations.plain(each)[len(self._warehouse) + 1 :] for each in folders)

    def _static(self, *, writes: bool) -> StoreKey:
        """The static key, read from its file at each call, because files of keys are replaced."""
        setting, file = ("file", self._settings.file) if writes else ("read_file", self._settings.read_file)
        if not file:
            return key_of(self._environment, "the environment")
        return key_of(_variables(file, f"engine_keys.{setting}"), f"engine_keys.{setting} {file}")


class StoreKeys:
    """The verb by which Lakestore's own clients get the key for the files of one table."""

    def __init__(self, engine: Engine, keys: EngineKeys) -> None:
        self._engine, self._keys = engine, keys

    def store_key(self, request: pb.StoreKeyRequest) -> pb.StoreKeyAnswer:
        """The key that an engine of this principal would get for a cut of the table. The edge has checked that the
        principal may read it."""
        view = self._engine.view
        state = swaps.kept_table(view, request.table_uuid)
        location = metadata_of(view, state) if state else ""
        if state is None or not location:
            return pb.StoreKeyAnswer()
        table = state.table.name
        grants = Grant(frozenset(request.rights), (EVERYTHING,)), Grant(frozenset(("read",)), (table,))
        # metadata of our tables is in `metadata` of the table's folder
        files = TableFiles(table, (location.rsplit("/", 2)[0],))
        return self._keys.reader_key(Principal(request.owner or ANYONE.name, grants), files)


def key_of(variables: Mapping[str, str], where: str) -> StoreKey:
    """The key that variables hold; `Invalid` without one."""
    for name in (ID, SECRET):
        if not variables.get(name):
            raise Invalid(f"{where} lacks {name}: set it, or set engine_keys.give to never")
    return StoreKey(variables[ID], variables[SECRET], variables.get(TOKEN, ""))


def _variables(file: str, setting: str) -> Mapping[str, str]:
    try:
        text = Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise Invalid(f"{setting} {file} cannot be read: {why}") from error
    lines = (_LINE.fullmatch(line) for line in text.splitlines())
    return {found[1]: found[2].strip("'\"") for found in lines if found}


class _RoleKeys:
    """Keys of `AssumeRole`, each kept for half of its time."""

    def __init__(self, settings: KeySettings, environment: Mapping[str, str]) -> None:
        self._settings, self._environment = settings, environment
        self._lock = threading.Lock()
        self._keys: OrderedDict[tuple[str, tuple[str, ...], bool], StoreKey] = OrderedDict()

    def check(self) -> None:
        """`Invalid` if the server has no key of its own with which to ask, or no address of an STS."""
        self._own_key()
        if self._settings.sts and not re.match(r"https?://[^/@]+(/|$)", self._settings.sts):
            raise Invalid("engine_keys.sts is no address: write https://host or http://host:port")

    def key(self, principal: str, folders: tuple[str, ...], *, writes: bool) -> StoreKey:
        """A key for folders; `Unavailable` if STS does not answer, `Invalid` if it refuses."""
        what = principal, folders, writes
        with self._lock:
            kept = self._keys.get(what)
            if kept is not None and kept.until - time.time() > self._settings.seconds / 2:
                self._keys.move_to_end(what)
                return kept
        made = self._asked(principal, policy_of(folders, writes=writes))
        with self._lock:
            self._keys[what] = made
            while len(self._keys) > CACHE_MAX:
                self._keys.popitem(last=False)
        return made

    def _own_key(self) -> StoreKey:
        if self._settings.file:
            return key_of(
                _variables(self._settings.file, "engine_keys.file"), f"engine_keys.file {self._settings.file}"
            )
        return key_of(self._environment, "the environment")

    def _region(self) -> str:
        names = store_errors.REGIONS
        return next((self._environment[name] for name in names if self._environment.get(name)), "us-east-1")

    def _asked(self, principal: str, policy: str) -> StoreKey:
        region = self._region()
        url = self._settings.sts or f"https://sts.{region}.amazonaws.com"
        fields = {
            "Action": "AssumeRole",
            "Version": "2011-06-15",
            "RoleArn": self._settings.role,
            "RoleSessionName": re.sub(r"[^\w+=,.@-]", "-", f"lakestore-{principal}")[:64],
            "DurationSeconds": str(self._settings.seconds),
            "Policy": policy,
        }
        body = urllib.parse.urlencode(fields).encode()
        headers = signed_headers(url, body, self._own_key(), region, datetime.now(UTC))
        request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 (`check` has looked at it)
        try:
            with urllib.request.urlopen(request, timeout=STS_SECONDS) as answer:  # noqa: S310
                return _role_key(answer.read())
        except urllib.error.HTTPError as error:
            code = next(iter(re.findall(r"<Code>([\w.]+)</Code>", error.read().decode(errors="replace"))), "")
            sentence = f"{url} gives no keys of {self._settings.role}: HTTP {error.code} {code}".rstrip()
            if error.code >= 500:
                raise Unavailable(sentence) from None
            raise Invalid(f"{sentence}; check engine_keys.role and what the server's key may assume") from None
        except (OSError, ValueError, ElementTree.ParseError) as error:
            raise Unavailable(f"{url}, the STS of engine_keys, does not answer: {type(error).__name__}") from None


def policy_of(folders: Sequence[str], *, writes: bool) -> str:
    """The session policy that leaves of a role what folders need."""
    places = [_escaped(folder.partition("://")[2]).partition("/")[::2] for folder in folders]
    buckets = sorted({bucket for bucket, _ in places})
    objects = {
        "Effect": "Allow",
        "Action": [*READS, *(WRITES if writes else ())],
        "Resource": [f"arn:aws:s3:::{bucket}/{prefix}/*" for bucket, prefix in places],
    }
    lists = {
        "Effect": "Allow",
        "Action": ["s3:ListBucket"],
        "Resource": [f"arn:aws:s3:::{bucket}" for bucket in buckets],
        "Condition": {"StringLike": {"s3:prefix": [f"{prefix}/*" for _, prefix in places]}},
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [objects, lists]}, separators=(",", ":"))


def _escaped(text: str) -> str:
    """The text for a policy, where `*`, `?` and `$` would be wildcards and variables."""
    return re.sub(r"[*?$]", lambda found: f"${{{found[0]}}}", text)


def _role_key(answer: bytes) -> StoreKey:
    fields = {each.tag.rpartition("}")[2]: each.text or "" for each in ElementTree.fromstring(answer).iter()}  # noqa: S314 (from the STS that the operator names)
    if not all(fields.get(name) for name in ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")):
        raise ValueError("the answer has no key")
    until = datetime.fromisoformat(fields["Expiration"].replace("Z", "+00:00")).timestamp()
    return StoreKey(fields["AccessKeyId"], fields["SecretAccessKey"], fields["SessionToken"], until)


def signed_headers(url: str, body: bytes, key: StoreKey, region: str, now: datetime) -> dict[str, str]:
    """The headers of a POST to STS, signed by AWS Signature 4."""
    parts, stamp = urllib.parse.urlsplit(url), now.strftime("%Y%m%dT%H%M%SZ")
    headers = {
        "content-type": "application/x-www-form-urlencoded; charset=utf-8",
        "host": parts.netloc,
        "x-amz-date": stamp,
        **({"x-amz-security-token": key.token} if key.token else {}),
    }
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = "\n".join(("POST", parts.path or "/", "", lines, names, hashlib.sha256(body).hexdigest()))
    scope = f"{stamp[:8]}/{region}/sts/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    secret = f"AWS4{key.secret}".encode()
    for part in scope.split("/"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    proof = f"AWS4-HMAC-SHA256 Credential={key.id}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "authorization": proof}
