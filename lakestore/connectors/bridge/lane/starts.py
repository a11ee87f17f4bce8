"""Starts: the offset at which a partition is read, by its progress, by the start that bridge.yaml says, by Kafka."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from lakestore.connectors.bridge.lane.batch import Opened
from lakestore.connectors.bridge.lane.positions import Accepted, Ends, Place, Position, go_on
from lakestore.connectors.bridge.lane.source import Source
from lakestore.connectors.bridge.spec import TopicSpec
from lakestore.errors import Conflict, Invalid, LakestoreError, NotFound

_LOG = logging.getLogger("lakestore.bridge")


class Starts:
    """The judgement on partitions that a lane was given. For one thread."""

    def __init__(
        self, source: Source, topic_spec: Callable[[str], TopicSpec], is_later: Callable[[Place], bool]
    ) -> None:
        """`is_later` says of a partition without progress that it came later than this bridge, and so is read whole."""
        self._source, self._topic_spec, self._is_later = source, topic_spec, is_later
        self.topic_ids: dict[str, str] = {}

    def judged(self, cluster: str, held: Mapping[Place, Position | None], accepted: Accepted) -> Opened:
        """Offsets to read on from; topics with a partition that cannot be read are refused as a whole."""
        opened = Opened()
        self.topic_ids = self._source.topic_ids({place.topic for place in held})
        there = [place for place in held if place.topic in self.topic_ids]
        for place in held:
            if place.topic not in self.topic_ids:
                opened.refused[place.topic] = NotFound(f"topic {place.topic!r} is not there: was it deleted?")
        ends = self._source.ends(there)
        for place in there:
            now = Position(cluster, self.topic_ids[place.topic], 0)
            try:
                opened.offsets[place] = self._offset(place, held[place], now, ends[place], accepted)
                opened.until[place] = ends[place].stable
            except LakestoreError as error:
                opened.refused.setdefault(place.topic, error)
        opened.topic_ids = self.topic_ids
        for place in list(opened.offsets):
            if place.topic in opened.refused:
                del opened.offsets[place], opened.until[place]
        return opened

    def _offset(self, place: Place, held: Position | None, now: Position, ends: Ends, accepted: Accepted) -> int:
        if held is not None:
            offset, said = go_on(place, held, now, ends, accepted)
            if said:
                _LOG.warning("%s", said)
            if offset is not None:
                return offset
        spec = self._topic_spec(place.topic)
        if spec.start == "earliest" or self._is_later(place):
            return ends.low
        if spec.start == "latest":
            return ends.stable
        if spec.start == "offsets":
            return self._given(place, spec, ends)
        found = self._source.offsets_at([place], _milliseconds(spec.start))[place]
        return found if found >= 0 else ends.stable

    @staticmethod
    def _given(place: Place, spec: TopicSpec, ends: Ends) -> int:
        offset = spec.start_offsets.get(place.partition, ends.low)
        if not ends.low <= offset <= ends.high:
            raise Conflict(
                f"start_offsets of topic {place.topic!r} says {offset} for partition {place.partition}, which holds"
                f" {ends.low} to {ends.high}"
            )
        return offset


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise Invalid(f"start: {text!r} is no time: write it as 2026-11-22T10:00:00Z") from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000)
