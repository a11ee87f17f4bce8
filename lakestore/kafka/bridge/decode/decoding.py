"""The interface of decoders: a block of records in, rows out."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from lakestore.kafka.bridge.outcome import DecodedBlock
from lakestore.kafka.bridge.records import Records


class Decoder(Protocol):
    """A decoder of keys or values. One thread uses a decoder at a time; it may cache schemas."""

    def decode(self, records: Records, wanted: pa.Schema | None) -> DecodedBlock:
        """Decode a block. An unreadable record is a reject; no record makes this raise.

        `wanted` names the fields and their Arrow types for formats without a schema (JSON), nested as in the record;
        None: all fields, with inferred types.
        """
        ...

    def schema(self) -> pa.Schema | None:
        """The fields of the newest known schema; None for a format without schemas."""
        ...
