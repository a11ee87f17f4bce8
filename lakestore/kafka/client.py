"""Connections to Kafka, for the sink and the bridge: options, clients, and the library's errors as ours.

A call fails with a timeout alone where a broker, a password or a certificate is at fault; the library tells such
causes aside, to a callback. `Heard` keeps them, so that the error that is raised can name them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from lakestore.errors import Denied, Invalid, LakestoreError, NotFound, Unavailable

CALL_SECONDS = 60.0
AUTHENTICATION = {
    KafkaError._AUTHENTICATION,  # noqa: SLF001 (librdkafka's own errors have such names)
    KafkaError.SASL_AUTHENTICATION_FAILED,
}
DENIED = {
    *AUTHENTICATION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
UNKNOWN = {
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
}
ABSENT = {
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
    KafkaError._RESOLVE,  # noqa: SLF001
    KafkaError._TIMED_OUT,  # noqa: SLF001
}
TLS = {KafkaError._SSL}  # noqa: SLF001
_GROUPED = re.compile(r"(session|heartbeat|max\.poll|group|fetch|queued|check\.crcs|auto|enable\.auto)\b.*")
"""Names of settings that consumers alone have."""
_TELLING = (AUTHENTICATION, TLS, {KafkaError._RESOLVE}, {KafkaError._TRANSPORT})  # noqa: SLF001
"""Causes that the callback is told, the more telling first."""
LOG = logging.getLogger("lakestore.kafka")
LOG.addHandler(logging.NullHandler())
Client = TypeVar("Client")


class Heard:
    """The complaints of connections. The library calls it from its own threads."""

    def __init__(self) -> None:
        self._newest: dict[int, KafkaError] = {}

    def __call__(self, error: KafkaError) -> None:
        """Keep a complaint, the newest of its kind."""
        self._newest[error.code()] = error

    def cause(self, error: KafkaError | None = None) -> KafkaError | None:
        """The most telling complaint behind an error that only says that there was no answer; else the error."""
        if error is not None and error.code() not in ABSENT:
            return error
        for codes in _TELLING:
            for code in codes:
                if code in self._newest:
                    return self._newest[code]
        return error

    def forget(self) -> None:
        """Begin anew, as once a call has gone well."""
        self._newest.clear()


def id_of(uuid: object) -> str:
    """A topic's id as Kafka's own tools show it; the library's text has signs of paths and of queries in it."""
    return str(uuid).translate({ord("/"): "_", ord("+"): "-"})


def settings_of(bootstrap: str, options: Mapping[str, str], heard: Callable[[KafkaError], None]) -> dict[str, Any]:
    """The settings that every client of a cluster has; `options` win."""
    return {"bootstrap.servers": bootstrap, "error_cb": heard, "logger": LOG, **options}


def check_options(options: Mapping[str, str], ours: Collection[str], who: str) -> None:
    """Refuse options that `who`, as in "the sink", makes itself."""
    for option in ours:
        if option in options:
            raise Invalid(f"the Kafka option {option} is set by {who} itself: leave it out")


def without_group(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a client without a consumer has, for the library warns of the others."""
    return {name: value for name, value in settings.items() if not _GROUPED.fullmatch(name)}


def made(kind: Callable[[dict[str, Any]], Client], settings: Mapping[str, Any]) -> Client:
    """A client of the library, or `Invalid` with the option that the library refuses."""
    try:
        return kind(dict(settings))
    except (KafkaException, ValueError, TypeError) as error:
        raise Invalid(f"the Kafka options are refused: {reason(error)}") from error


def options_of(texts: Collection[str]) -> dict[str, str]:
    """The options that `--kafka-option name=value` says."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Invalid(f"--kafka-option {name!r} is not of the form name=value")
        found[name] = value
    return found


def failure(
    error: KafkaException | KafkaError, bootstrap: str, what: str, heard: Heard | None = None
) -> LakestoreError:
    """The library's error in our terms; `what` ends "Kafka at … did not …", as in "describe topic 'a'"."""
    first = error if isinstance(error, KafkaError) else error.args[0]
    cause = (heard.cause(first) if heard else None) or first
    code, text = cause.code(), cause.str().rstrip(".")
    at = f"Kafka at {bootstrap}"
    if code in AUTHENTICATION:
        return Denied(f"{at} refuses the login ({text}): check mechanism, username and password of sasl")
    if code in DENIED:
        return Denied(f"{at} does not let this user {what} ({text}): ask its administrator for the right")
    if code in TLS:
        return Unavailable(
            f"{at} and this client do not agree about TLS ({text}): does that port speak TLS, and do ca, cert and key"
            " fit it?"
        )
    if code in UNKNOWN:
        return NotFound(f"{at} did not {what}, for it has no such topic or partition ({text}): is the name right?")
    if code in ABSENT:
        return Unavailable(
            f"{at} does not answer ({text}): does a broker run there, and do tls and sasl say what that port speaks?"
        )
    return Unavailable(f"{at} did not {what}: {text}")


def reason(error: BaseException) -> str:
    """The library's own words."""
    cause = error.args[0] if error.args else error
    return str(cause.str() if isinstance(cause, KafkaError) else cause)
