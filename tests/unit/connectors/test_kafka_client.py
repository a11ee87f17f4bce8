"""Kafka's errors as ours: each cause has its kind and a sentence with what to do; options are checked by name."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from lakestore.errors import Denied, Invalid, LakestoreError, NotFound, Unavailable
from lakestore.kafka.client import ReportedErrors, check_options, failure, make_client, options_of, settings_of


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (KafkaError._AUTHENTICATION, Denied, "check mechanism, username and password"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, Denied, "check mechanism, username and password"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Denied, "does not let this user read topic 'a'"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, Denied, "ask its administrator for the right"),
        (KafkaError._SSL, Unavailable, "do not agree about TLS"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, NotFound, "is the name right?"),
        (KafkaError._TRANSPORT, Unavailable, "does a broker run there"),
        (KafkaError.NOT_COORDINATOR, Unavailable, "did not read topic 'a'"),
    ],
)
def test_an_error_has_its_kind_and_one_sentence(code: int, kind: type[LakestoreError], says: str) -> None:
    error = failure(KafkaException(KafkaError(code, "why")), "h:1", "read topic 'a'")
    assert type(error) is kind
    assert says in error.message
    assert error.message.startswith("Kafka at h:1 ")


def test_a_timeout_is_told_by_its_cause() -> None:
    heard = ReportedErrors()
    late = KafkaError(KafkaError._TIMED_OUT, "late")
    assert "does a broker run there" in failure(late, "h:1", "read", heard).message
    heard(KafkaError(KafkaError._TRANSPORT, "refused"))
    heard(KafkaError(KafkaError._ALL_BROKERS_DOWN, "all down"))
    assert "refused" in failure(late, "h:1", "read", heard).message
    heard(KafkaError(KafkaError._AUTHENTICATION, "wrong"))
    assert isinstance(failure(late, "h:1", "read", heard), Denied)
    unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no")
    assert isinstance(failure(unknown, "h:1", "read", heard), NotFound), "says itself what is wrong"
    heard.forget()
    assert isinstance(failure(late, "h:1", "read", heard), Unavailable)


def test_options_are_refused_by_name() -> None:
    assert options_of(["a.b=c=d"]) == {"a.b": "c=d"}
    with pytest.raises(Invalid, match="not of the form name=value"):
        options_of(["=x"])
    with pytest.raises(Invalid, match=r"option group\.id is set by the bridge itself"):
        check_options({"group.id": "x"}, ("group.id",), "the bridge")
    with pytest.raises(Invalid, match=r"options are refused: .*no\.such"):
        make_client(Producer, settings_of("h:1", {"no.such": "x"}, ReportedErrors()))
