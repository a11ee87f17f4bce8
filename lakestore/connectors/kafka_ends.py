"""Ends of partitions, as Kafka tells them: of what was sent, and of what is decided.

A transaction is decided in a partition once its marker is there. Kafka answers before it writes the markers, and some
brokers forget them: a broker of release 4.1 to 4.3 that is restarted in between takes partitions without a leader for
deleted ones (KAFKA-20734). The messages stay undecided then, until the next transaction of that producer in the same
partition commits or aborts them along with its own.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from lakestore.connectors.kafka_client import CALL_SECONDS, DENIED

STEP_SECONDS = 5.0
PAUSE_SECONDS = 0.05
Place = tuple[str, int]
"""Topic and partition."""
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class Ends:
    """The ends of partitions. For one thread."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self._admin = AdminClient(self._settings)

    def become_decided(self, places: Collection[Place], seconds: float) -> bool:
        """Whether within that time all messages are decided that are there; `KafkaException` if Kafka does not tell."""
        end, pause = time.monotonic() + seconds, 0.001
        sent = self._of(places, IsolationLevel.READ_UNCOMMITTED)
        while any(offset < sent[place] for place, offset in self._of(places, IsolationLevel.READ_COMMITTED).items()):
            if time.monotonic() > end:
                return False
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS)
        return True

    def _of(self, places: Collection[Place], isolation: IsolationLevel) -> dict[Place, int]:
        asked = {TopicPartition(*place): _LATEST for place in places}
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            found = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=STEP_SECONDS)
            try:
                return {(at.topic, at.partition): future.result().offset for at, future in found.items()}
            except KafkaException as error:  # a broker that restarts knows neither topics nor leaders at first
                if error.args[0].code() in DENIED or time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_SECONDS)
                self._admin = AdminClient(self._settings)  # one remembers for long that it did not know a topic
