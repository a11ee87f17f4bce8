"""An S3 store with accounts: it checks each signature, region and bucket, and gives keys of a role that see one prefix.

The store is ours (`jepsen.system.object_store`); the guard before it does what AWS does for keys: AWS Signature 4 over
the request as it came, session policies of `AssumeRole`, and the error codes of S3.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.message import Message
from fnmatch import fnmatchcase
from math import inf
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from jepsen.system.object_store import Call, Object, Objects, ObjectStore, Refused
from tests.support.certificates import Signed

BUCKET, REGION = "lakestore", "eu-west-3"
KEY, SECRET = "AKIALAKESTORETEST", "zq8/Secret+Of=The*Test"
READER_KEY, READER_SECRET = "AKIAREADER", "reader-Secret-1"
ROLE = "arn:aws:iam::123456789012:role/lake"
_READS = ("s3:GetObject", "s3:ListBucket")
ALLOW_ALL: tuple[Mapping[str, Any], ...] = ({"Effect": "Allow", "Action": "s3:*", "Resource": "*"},)
ALLOW_READS: tuple[Mapping[str, Any], ...] = ({"Effect": "Allow", "Action": list(_READS), "Resource": "*"},)


@dataclass(frozen=True, slots=True)
class Account:
    """The secret of a key, and what the key may do."""

    secret: str
    statements: tuple[Mapping[str, Any], ...]
    token: str = ""
    until: float = inf
    """The time at which the key ends, in seconds since 1970."""


@dataclass(slots=True)
class Guard:
    """The accounts of a store."""

    accounts: dict[str, Account]
    buckets: set[str] = field(default_factory=lambda: {BUCKET})
    used: list[tuple[str, str, str]] = field(default_factory=list)
    """(key, action, resource) of every request that passed."""
    roles: list[dict[str, str]] = field(default_factory=list)
    """The fields of every AssumeRole."""
    role_seconds: float | None = None
    """The life of a key of the role, whatever is asked; None: as asked."""

    def __call__(self, call: Call) -> str | None:
        key, region, service = self._proven(call)
        account = self.accounts[key]
        if service == "sts":
            return self._assumed(dict(parse_qsl(call.body.decode())))
        if region != REGION:
            raise Refused(400, "AuthorizationHeaderMalformed")
        parts = urlsplit(call.target)
        bucket, _, name = unquote(parts.path)[1:].partition("/")
        if bucket not in self.buckets:
            raise Refused(404, "NoSuchBucket")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        action, resource = _action(call.method, bucket, name, query)
        if not _allows(account.statements, action, resource, query.get("prefix", "")):
            raise Refused(403, "AccessDenied")
        self.used.append((key, action, resource))
        return None

    def end_keys(self) -> None:
        """End every key of the role now."""
        for key, account in list(self.accounts.items()):
            if account.token:
                self.accounts[key] = replace(account, until=0.0)

    def may(self, key: str, action: str, resource: str) -> bool:
        """Whether a key may do something with an object."""
        return _allows(self.accounts[key].statements, action, resource, "")

    def _proven(self, call: Call) -> tuple[str, str, str]:
        """(key, region, service) of a request whose signature fits."""
        given = call.headers.get("Authorization", "")
        if not given.startswith("AWS4-HMAC-SHA256 "):
            raise Refused(403, "AccessDenied")
        fields = dict(part.strip().split("=", 1) for part in given.partition(" ")[2].split(","))
        key, day, region, service, _ = fields["Credential"].rsplit("/", 4)
        account = self.accounts.get(key)
        if account is None:
            raise Refused(403, "InvalidAccessKeyId")
        if call.headers.get("x-amz-security-token", "") != account.token:
            raise Refused(403, "InvalidToken")
        if time.time() > account.until:
            raise Refused(400, "ExpiredToken")
        names = fields["SignedHeaders"].split(";")
        own = _signature(call, account.secret, (day, region, service), names)
        if not hmac.compare_digest(own, fields["Signature"]):
            raise Refused(403, "SignatureDoesNotMatch")
        return key, region, service

    def _assumed(self, fields: dict[str, str]) -> str:
        self.roles.append(fields)
        if fields.get("RoleArn") != ROLE:
            raise Refused(403, "AccessDenied")
        policy = json.loads(fields["Policy"])["Statement"]
        own = hashlib.sha512(f"role {len(self.roles)}".encode()).hexdigest()
        key, secret, token = f"ASIA{own[:16].upper()}", own[16:56], own[56:]
        ends = time.time() + (self.role_seconds or int(fields["DurationSeconds"]))
        self.accounts[key] = Account(secret, tuple(policy), token, ends)
        until = datetime.fromtimestamp(ends, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return (
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
            f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>"
            f"<SessionToken>{token}</SessionToken><Expiration>{until}</Expiration>"
            "</Credentials></AssumeRoleResult></AssumeRoleResponse>"
        )


def _action(method: str, bucket: str, name: str, query: Mapping[str, str]) -> tuple[str, str]:
    if not name:
        return ("s3:DeleteObject" if "delete" in query else "s3:ListBucket"), f"arn:aws:s3:::{bucket}"
    actions = {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "DELETE": "s3:DeleteObject"}
    return actions.get(method, "s3:PutObject"), f"arn:aws:s3:::{bucket}/{name}"


def _allows(statements: tuple[Mapping[str, Any], ...], action: str, resource: str, prefix: str) -> bool:
    for each in statements:
        actions, resources = _texts(each["Action"]), _texts(each["Resource"])
        condition = each.get("Condition", {}).get("StringLike", {}).get("s3:prefix")
        fits = any(fnmatchcase(action, pattern) for pattern in actions)
        fits = fits and any(fnmatchcase(resource, pattern) for pattern in resources)
        if fits and (condition is None or any(fnmatchcase(prefix, pattern) for pattern in _texts(condition))):
            return True
    return False


def _texts(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _signature(call: Call, secret: str, scope: tuple[str, str, str], names: list[str]) -> str:
    parts = urlsplit(call.target)
    path = quote(unquote(parts.path), safe="/-_.~")
    pairs = sorted(
        (quote(unquote(key), safe="-_.~"), quote(unquote(value), safe="-_.~")) for key, value in _pairs(parts.query)
    )
    query = "&".join(f"{key}={value}" for key, value in pairs)
    headers = "".join(f"{name}:{_value(call.headers, name)}\n" for name in names)
    payload = call.headers.get("x-amz-content-sha256") or hashlib.sha256(call.body).hexdigest()
    canonical = "\n".join((call.method, path, query, headers, ";".join(names), payload))
    day, region, service = scope
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(("AWS4-HMAC-SHA256", call.headers["x-amz-date"], f"{day}/{region}/{service}/aws4_request", digest))
    key = f"AWS4{secret}".encode()
    for each in (day, region, service, "aws4_request"):
        key = hmac.digest(key, each.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()


def _pairs(query: str) -> list[tuple[str, str]]:
    return [(each.partition("=")[0], each.partition("=")[2]) for each in query.split("&") if each]


def _value(headers: Message, name: str) -> str:
    return ",".join(" ".join(each.split()) for each in headers.get_all(name, []))


class GuardedStore:
    """The store behind its guard, with one bucket. A context manager."""

    def __init__(self, objects: Objects | None = None, tls: Signed | None = None) -> None:
        """`tls`: the certificate and key with which it speaks https; None for plain HTTP."""
        self.guard = Guard({KEY: Account(SECRET, ALLOW_ALL), READER_KEY: Account(READER_SECRET, ALLOW_READS)})
        self.store = ObjectStore(objects, self.guard, (tls.cert, tls.key) if tls else None)
        self.url = f"{'https' if tls else 'http'}://{self.store.address}"
        self.warehouse = f"s3://{BUCKET}/lake"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a server finds the store."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": str(self.url.startswith("http:")).lower(),
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


class LaxObjects(Objects):
    """Objects of a store that knows no conditions: the last put stays."""

    def put(self, key: str, data: bytes, wanted: Message) -> Object:
        return super().put(key, data, Message())


class LateObjects(Objects):
    """Objects of a store that looks before it puts, as some do: of writers at the same time several win."""

    def put(self, key: str, data: bytes, wanted: Message) -> Object:
        if wanted.get("If-None-Match") == "*" and key in self.keys(key):
            raise Refused(412, "PreconditionFailed")
        time.sleep(0.02)
        return super().put(key, data, Message())
