"""The pipeline of one topic: decoder, then mapping. It takes a block and returns its results; no record raises."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from lakestore.kafka.bridge.decode.decoding import Decoder
from lakestore.kafka.bridge.drift.watching import Drift
from lakestore.kafka.bridge.expressions import first_table
from lakestore.kafka.bridge.inputs import Inputs
from lakestore.kafka.bridge.map import (
    DeadLetterTables,
    Ends,
    TopicMapping,
    add_truncates,
    refuse_companions,
    settle_records,
)
from lakestore.kafka.bridge.outcome import TOMBSTONE, DecodedBlock, MappedBlock
from lakestore.kafka.bridge.records import Ints, Records
from lakestore.kafka.bridge.spec import CHANGES, TopicSpec
from lakestore.limits import DEFAULT, Limits
from lakestore.model.table import Table
from lakestore.rows.distinct import distinct

TOLD_MAX = 1_000
"""Unread fields of a topic that are logged."""
_LOG = logging.getLogger("lakestore.bridge")


class Pipeline:
    """Turns the records of a topic into rows of tables. One thread uses it at a time."""

    def __init__(
        self,
        *,
        topic: TopicSpec,
        tables: Mapping[str, Table],
        decoder: Decoder,
        keys: Decoder | None = None,
        limits: Limits = DEFAULT,
        drift: Drift | None = None,
    ) -> None:
        """`tables` by full name may gain tables; a new definition takes effect at the next block.

        `keys` decodes keys of tombstones, and all keys that the value decoder leaves alone; None: keys are bytes.
        """
        self.topic = topic
        self._drift = drift
        self.decoder, self.keys = decoder, keys
        self._told: set[tuple[str, str]] = set()
        """Table and field of the unread fields that were logged."""
        self.mapping = TopicMapping(topic, tables, limits)
        self._letters = DeadLetterTables(topic)
        self._tables = tables

    def process(self, records: Records) -> MappedBlock:
        ends = Ends()
        decoded = self._decoded(records)
        self._letters.note(decoded.origin)
        for name, rejects in self._letters.by_table(records, decoded.rejects).items():
            ends.reject(name, rejects)
        name = first_table(self.topic, records.topic)
        passed = dict(decoded.passed)
        tombstones = passed.pop(TOMBSTONE, None) if self.topic.format not in CHANGES else None
        for reason, left in passed.items():
            ends.leave(reason, left)
        inputs = Inputs.of(records, decoded)
        if self.keys is not None and inputs.keys is None:
            inputs = self._with_keys(inputs, name, ends)
        if len(inputs):
            self.mapping.rows(inputs, ends)
            refuse_companions(inputs, ends)
        if tombstones is not None and len(tombstones):
            self._tombstones(records, tombstones, name, ends)
        if self._drift is not None:
            for table in list(ends.rejects):
                ends.rejects[table] = list(self._drift.name_proposals(table, records.topic, ends.rejects[table]))
        mapped = settle_records(records, ends, decoded.extra)
        self._tell_unread(records, mapped)
        if not decoded.truncates:
            return mapped
        return add_truncates(mapped, decoded, self.topic, records, self._tables)

    def learn(self, records: Records) -> None:
        """Remember the ends of committed blocks: a null value that follows a delete of its key is not a delete."""
        self.decoder.decode(records, self.mapping.wanted(records.topic, "value"))

    def _tell_unread(self, records: Records, mapped: MappedBlock) -> None:
        for (table, field), unread in mapped.unread.items():
            if (table, field) not in self._told and len(self._told) < TOLD_MAX:
                self._told.add((table, field))
                place = f"{records.topic}/{records.partition[unread[0]]} offset {records.offset[unread[0]]}"
                text = "no column of table %s has field %s, from %s on: such values are counted, and are not stored"
                _LOG.warning(text, table, field, place)

    def _decoded(self, records: Records) -> DecodedBlock:
        wanted = self.mapping.wanted(records.topic, "value")
        decoded = self.decoder.decode(records, wanted)
        if self._drift is None:
            return decoded
        schema = self.decoder.schema()
        renamed = self._drift.follow(records.topic, schema, decoded)
        anew = self.mapping.wanted(records.topic, "value")
        if anew != wanted and wanted is not None:  # the decoder only reads requested fields, and more are requested now
            return self._drift.follow(records.topic, schema, self.decoder.decode(records, anew))
        return renamed

    def _with_keys(self, inputs: Inputs, name: str, ends: Ends) -> Inputs:
        records = inputs.records
        numbers = distinct(inputs.record)
        some = records if len(numbers) == len(records) else records.take(numbers)
        found = self._decoded_keys(some)
        ends.reject(name, [replace(reject, record=int(numbers[reject.record])) for reject in found.rejects])
        place = np.full(len(records), -1, dtype=np.int64)
        place[numbers[found.record]] = np.arange(len(found.record))
        for keyless in found.passed.values():
            place[numbers[keyless]] = len(found.record)  # records without a key have nulls
        at = place[inputs.record]
        good = np.flatnonzero(at >= 0)
        keys = pa.concat_arrays([found.values, pa.nulls(1, found.values.type)])
        return replace(inputs.take(good), keys=keys.take(pa.array(at[good])))

    def _decoded_keys(self, records: Records) -> DecodedBlock:
        assert self.keys is not None, "called for keys that are decoded"
        return self.keys.decode(records, self.mapping.wanted(records.topic, "key"))

    def _tombstones(self, records: Records, numbers: Ints, name: str, ends: Ends) -> None:
        inputs = Inputs.tombstones(records, numbers, None)
        if self.keys is not None:
            inputs = self._with_keys(inputs, name, ends)
        if len(inputs):
            self.mapping.tombstones(inputs, ends)
