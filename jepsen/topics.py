"""Kafka as its clients see it: producers, and topics as a consumer of committed records reads them to their ends."""

from __future__ import annotations

import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

ANSWER_SECONDS = 20.0
READ_SECONDS = 60.0
QUIET = {"log_level": 0}
TRANSACTION_MS = 8_000
_AT_END = KafkaError._PARTITION_EOF  # noqa: SLF001 (librdkafka's own errors have such names)
_LATE = KafkaError._TIMED_OUT  # noqa: SLF001


class NotAnswered(KafkaException):
    """A topic was not read to its end in time."""


def producer(address: str, transactional: str = "") -> Producer:
    """A producer that sends nothing twice; with a name one of transactions."""
    settings = {
        "bootstrap.servers": address,
        "enable.idempotence": True,
        "linger.ms": 5,
        "message.timeout.ms": 6_000,
        **QUIET,
    }
    if transactional:
        settings |= {"transactional.id": transactional, "transaction.timeout.ms": TRANSACTION_MS}
    return Producer(settings)


def read_committed(address: str, topic: str, count: int | None = None) -> list[Message]:
    """Messages as a consumer of committed transactions sees them: all that were sent before, or the first of all.

    A broker answers a commit before its messages can be seen, and until then a consumer is told of an end before them.
    So transactions under way are waited for; one that stays open fails, as does a read that takes too long.
    """
    behind = ends(address, topic)
    consumer = _consumer(address, "read_committed")
    found: list[Message] = []
    reached = dict.fromkeys(behind, 0)
    deadline = time.monotonic() + READ_SECONDS
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in behind])
        while any(reached[each] < behind[each] for each in behind) if count is None else len(found) < count:
            if time.monotonic() > deadline:
                said = f"{topic} was read up to {reached} of {behind}: {len(found)} messages"
                raise NotAnswered(KafkaError(_LATE, said))
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == _AT_END:
                reached[message.partition() or 0] = message.offset() or 0
            elif not error.retriable():
                raise KafkaException(error)
    finally:
        consumer.close()
    return found


def ends(address: str, topic: str) -> dict[int, int]:
    """Per partition the offset behind all that was sent, whether it is committed or not."""
    consumer = _consumer(address, "read_uncommitted")
    try:
        partitions = consumer.list_topics(topic, ANSWER_SECONDS).topics[topic].partitions
        places = {partition: TopicPartition(topic, partition) for partition in partitions}
        return {each: consumer.get_watermark_offsets(place, ANSWER_SECONDS)[1] for each, place in places.items()}
    finally:
        consumer.close()


def _consumer(address: str, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            **QUIET,
        }
    )
