"""Decoders: a format's way from a block of records to rows."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from lakestore.kafka.bridge.outcome import Decoded
from lakestore.kafka.bridge.records import Records


class Decoder(Protocol):
    """A format of values and keys. One thread uses a decoder at a time; schemas it has seen may be kept."""

    def decode(self, records: Records, wanted: pa.Schema | None) -> Decoded:
        """The rows of a block. A record that cannot be read is a reject; nothing a record holds may raise.

        `wanted` tells formats without a schema (JSON) the fields, nested as in the record, and the Arrow types that
        columns are made of; None: all fields, by inference.
        """
        ...

    def schema(self) -> pa.Schema | None:
        """Fields that the newest known schema tells; None for a format without."""
        ...
