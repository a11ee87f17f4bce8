"""Connections to Kafka for the sink and the bridge: options, clients, translated errors.

If a broker, a password or a certificate is at fault, a call only reports a timeout. The library reports the cause to a
callback. `ReportedErrors` stores these causes, so that the raised error can name them.
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
"""Settings that only consumers have."""
_TELLING = (AUTHENTICATION, TLS, {KafkaError._RESOLVE}, {KafkaError._TRANSPORT})  # noqa: SLF001
"""Causes that the callback reports, most specific first."""
LOG = logging.getLogger("lakestore.kafka")
LOG.addHandler(logging.NullHandler())
Client = TypeVar("Client")


class ReportedErrors:
    """The latest errors that the library reported. Its threads call this object."""

    def __init__(self) -> None:
        self._newest: dict[int, KafkaError] = {}

    def __call__(self, error: KafkaError) -> None:
        self._newest[error.code()] = error

    def cause(self, error: KafkaError | None = None) -> KafkaError | None:
        """The most specific reported cause if the error is only a timeout, otherwise the error."""
        if error is not None and error.code() not in ABSENT:
            return error
        for codes in _TELLING:
            for code in codes:
                if code in self._newest:
                    return self._newest[code]
        return error

    def forget(self) -> None:
        self._newest.clear()


def id_of(uuid: object) -> str:
    """A topic id as Kafka's tools print it."""
    return str(uuid).translate({ord("/"): "_", ord("+"): "-"})


def settings_of(bootstrap: str, options: Mapping[str, str], heard: Callable[[KafkaError], None]) -> dict[str, Any]:
    """The settings that all clients of a cluster share. `options` win."""
    return {"bootstrap.servers": bootstrap, "error_cb": heard, "logger": LOG, **options}


def check_options(options: Mapping[str, str], ours: Collection[str], who: str) -> None:
    """Refuse options that `who`, for example "the sink", sets itself."""
    for option in ours:
        if option in options:
            raise Invalid(f"the Kafka option {option} is set by {who} itself: leave it out")


def without_group(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without consumer options, about which a producer would warn."""
    return {name: value for name, value in settings.items() if not _GROUPED.fullmatch(name)}


def make_client(kind: Callable[[dict[str, Any]], Client], settings: Mapping[str, Any]) -> Client:
    """Create a client. Raises `Invalid` with the option that the library refuses."""
    try:
        return kind(dict(settings))
    except (KafkaException, ValueError, TypeError) as error:
        raise Invalid(f"the Kafka options are refused: {reason(error)}") from error


def options_of(texts: Collection[str]) -> dict[str, str]:
    """Parse `--kafka-option name=value`."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Invalid(f"--kafka-option {name!r} is not of the form name=value")
        found[name] = value
    return found


def failure(
    error: KafkaException | KafkaError, bootstrap: str, what: str, heard: ReportedErrors | None = None
) -> LakestoreError:
    """Translate the library's error. `what` completes "Kafka at … did not …"."""
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
    """The library's own message."""
    cause = error.args[0] if error.args else error
    return str(cause.str() if isinstance(cause, KafkaError) else cause)
