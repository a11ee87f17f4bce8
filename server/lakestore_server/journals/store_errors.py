"""Sentences for the errors of an object store, in place of obstore's dump.

- A refusal stays until the operator mends what the sentence names. No caller repeats the request.
- Every other error may be over at the next attempt: no connection, 5xx, a time-out that the store reports as 400.
- The sentences name the variables that obstore reads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from lakestore.errors import Invalid
from lakestore.iceberg.places import UNKNOWN_AUTHORITY

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Variables with the address of a store that is not AWS's."""
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_SWITCHES = ("AWS_ALLOW_HTTP", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>\s*([\w.]+)\s*</Code>")
_MESSAGE = re.compile(r"<Message>\s*([^<]{1,300}?)\s*</Message>")
_TRANSIENT = frozenset(("RequestTimeout", "IncompleteBody", "BadDigest", "SlowDown", "InternalError", "Throttling"))
"""Codes of answers 400 and 403 that the same request may not get at the next attempt."""
_CAUSES = re.compile(
    r"kind: (ConnectionRefused|TimedOut|ConnectionReset|HostUnreachable|NetworkUnreachable)"
    r'|error: "(failed to lookup[^"]*)'
    r"|(BadScheme|invalid peer certificate: [\w ]+|UnknownIssuer)"
)
_WORDS = {
    "ConnectionRefused": "nothing listens there",
    "TimedOut": "no answer came in time",
    "ConnectionReset": "the connection broke",
    "HostUnreachable": "the host cannot be reached",
    "NetworkUnreachable": "the network cannot be reached",
    "UnknownIssuer": UNKNOWN_AUTHORITY,
    "invalid peer certificate: UnknownIssuer": UNKNOWN_AUTHORITY,
    "BadScheme": "plain HTTP is not allowed: set AWS_ALLOW_HTTP=true",
}
_GRANTS = "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"


class StoreRefusal(OSError):
    """The store refused a request and will refuse it again. The text says what to mend."""


def environment_endpoint(environment: Mapping[str, str] = os.environ) -> str:
    """The address of a store that is not AWS's; empty for AWS."""
    return next((environment[name] for name in ENDPOINTS if environment.get(name)), "")


def check_environment(url: str, environment: Mapping[str, str] = os.environ) -> None:
    """`Invalid` if a variable of the store at `url` is empty or malformed; the sentence names the variable."""
    if not url.lower().startswith("s3://"):
        return
    for name in (*KEYS, *REGIONS, *ENDPOINTS, *_SWITCHES):
        if name in environment and not environment[name].strip():
            raise Invalid(f"{url} cannot be used: the variable {name} is empty; give it a value, or unset it")
    for name in _SWITCHES:
        if environment.get(name, "false").lower() not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
            raise Invalid(f"{url} cannot be used: {name} is {environment[name]!r}; write true or false")
    for name in ENDPOINTS:
        _check_endpoint(url, name, environment.get(name, ""), environment)


def _check_endpoint(url: str, name: str, endpoint: str, environment: Mapping[str, str]) -> None:
    if not endpoint:
        return
    try:
        parts = urlsplit(endpoint)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        is_address = False
    if not is_address or parts.username is not None:
        shown = "" if "@" in endpoint else f" {endpoint!r}"
        raise Invalid(f"{url} cannot be used: {name}{shown} is no address; write http://host:port or https://host")
    if parts.scheme == "http" and environment.get("AWS_ALLOW_HTTP", "false").lower() not in ("true", "1", "yes", "on"):
        raise Invalid(f"{url} cannot be used: {name} is plain HTTP; set AWS_ALLOW_HTTP=true, or use https://")


def refusal(error: BaseException, url: str) -> str:
    """The sentence on a refusal; empty for an error that may be over at the next attempt, and for an absent object."""
    text = str(error)
    if not url.startswith("s3"):
        return _refusal_elsewhere(text, url)
    code = next(iter(_CODE.findall(text)), "")
    status = next((int(each) for each in _STATUS.findall(text)), 0)
    if code in _TRANSIENT or code == "NoSuchKey" or (status >= 500 and status != 501):
        return ""
    said = _sentence(code, status, text, url)
    return f"{said} (the store says {code}: {_said(text)})" if said and code else said


def _said(text: str) -> str:
    return next(iter(_MESSAGE.findall(text)), "nothing else")


_BY_CODE = {
    "InvalidAccessKeyId": "{endpoint} does not know the access key: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "SignatureDoesNotMatch": "the secret does not fit the access key at {endpoint}: set AWS_SECRET_ACCESS_KEY",
    "RequestTimeTooSkewed": "the clock of this machine differs from the clock of {endpoint}: set it right",
    "NoSuchBucket": "{endpoint} has no bucket {bucket}: create it, name another in {url}, or set AWS_ENDPOINT_URL",
    **dict.fromkeys(
        ("ExpiredToken", "InvalidToken", "TokenRefreshRequired"),
        "the session token is over: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
    ),
}
_ELSEWHERE = ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException")
_KEYLESS = ("169.254.169.254", "MissingAccessKeyId", "MissingSecretAccessKey")


def _sentence(code: str, status: int, text: str, url: str) -> str:
    bucket, endpoint = url.partition("://")[2].partition("/")[0], environment_endpoint() or "AWS"
    if code in _BY_CODE:
        return _BY_CODE[code].format(endpoint=endpoint, bucket=bucket, url=url)
    if code in _ELSEWHERE or status in (301, 307, 308) or "redirect without LOCATION" in text:
        return f"bucket {bucket} is in another region or at another address: set AWS_REGION or AWS_ENDPOINT_URL"
    if any(word in text for word in _KEYLESS):
        return "no keys of the store are set: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    # A HEAD has no body, and some stores send none with the 404 of an absent object: only a put tells.
    if "ETag Header missing" in text or (not code and status in (404, 405) and "performing PUT" in text):
        what = f" (HTTP {status})" if status else ""
        return f"{endpoint} does not answer as an S3 store{what}: set AWS_ENDPOINT_URL"
    if status in (401, 403):
        return f"the keys may not use {url}: grant {_GRANTS} to the key in AWS_ACCESS_KEY_ID, or set another key"
    is_refused = status == 501 or (400 <= status < 500 and status not in (404, 405))
    return f"{endpoint} refuses a request that Lakestore needs, with HTTP {status}" if is_refused else ""


def _refusal_elsewhere(text: str, url: str) -> str:
    """GCS and Azure: by HTTP status alone."""
    status = next((int(each) for each in _STATUS.findall(text)), 0)
    names = "GOOGLE_APPLICATION_CREDENTIALS" if url.startswith("gs") else "AZURE_STORAGE_ACCOUNT_KEY"
    if status in (400, 401, 403):
        return f"the store refuses {url} with HTTP {status}: set {names}"
    if status == 404 and re.search(r"bucket|container", text, re.IGNORECASE):
        return f"there is no bucket or container of {url}: create it, or name another"
    return ""


def brief(error: BaseException) -> str:
    """The cause of an error in a few words: the deepest that obstore names, without its dump."""
    text = str(error)
    if cause := next((next(filter(None, each)) for each in _CAUSES.findall(text)), ""):
        return _WORDS.get(cause, cause)
    status = next(iter(_STATUS.findall(text)), "")
    code = next(iter(_CODE.findall(text)), "")
    if status:
        return f"HTTP {status} {code}".rstrip()
    return next(iter(text.splitlines()), type(error).__name__)
