"""Raw records: the value as it came, in one binary field `value`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lakestore.connectors.bridge.outcome import TOMBSTONE, Decoded
from lakestore.connectors.bridge.records import Records

_SCHEMA = pa.schema([pa.field("value", pa.binary())])


class RawDecoder:
    """Bytes that nobody looks into."""

    def schema(self) -> pa.Schema | None:
        """One field."""
        return _SCHEMA

    def decode(self, records: Records, wanted: pa.Schema | None) -> Decoded:
        """The rows of a block; nulls are tombstones."""
        there = np.flatnonzero(records.values.is_valid().to_numpy(zero_copy_only=False))
        if len(there) == len(records):
            return Decoded(pa.StructArray.from_arrays([records.values], fields=list(_SCHEMA)), there)
        rows = pa.StructArray.from_arrays([records.values.take(pa.array(there))], fields=list(_SCHEMA))
        return Decoded(rows, there, passed={TOMBSTONE: np.setdiff1d(np.arange(len(records)), there)})
