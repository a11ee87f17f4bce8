"""Positions of change events in their source as one number, per connector, for `versioned` where a topic's order is
not that of the changes.

- postgresql: `lsn`. A later change of a key has a higher one.
- mysql, mariadb: number of the binlog file, `pos`, `row`. Comparable on one server only: after a failover, not.
- sqlserver: `commit_lsn`. Changes of one transaction tie; these are in one partition in their order.
- oracle: `scn`. Changes of one transaction may tie, likewise.
- mongodb: cluster time, as seconds of `ts_ms` and `ord`.
- lakestore: `offset`.
Other connectors have none that is one number, and a number that is too large for its place is none either: null.
A snapshot's rows have the position that the snapshot was begun at.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_FILE_BITS, _POS_BITS, _ROW_BITS = 19, 32, 12
_VLF_BITS, _BLOCK_BITS, _SLOT_BITS = 23, 28, 12
_ORD_BITS = 31
_Numbers = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]


def positions(source: pa.StructArray) -> pa.Int64Array:
    """The position of each event by its `source`; null where it has none that is one number."""
    made = pa.nulls(len(source), pa.int64())
    connector = pc.struct_field(source, "connector")
    for name in pc.unique(connector).to_pylist():
        how = _HOW.get(name or "")
        if how is not None:
            made = pc.if_else(pc.equal(connector, name), how(source), made)
    return made


def _number(source: pa.StructArray, name: str) -> pa.Int64Array:
    return pc.struct_field(source, name)


def _scn(source: pa.StructArray) -> pa.Int64Array:
    text = pc.struct_field(source, "scn")
    numeric = pc.match_substring_regex(text, r"^[0-9]{1,18}$")
    return pc.if_else(numeric, text, pa.scalar(None, pa.string())).cast(pa.int64())


def _binlog(source: pa.StructArray) -> pa.Int64Array:
    found = pc.extract_regex(pc.struct_field(source, "file"), r"\.(?P<n>[0-9]{1,9})$")
    file, row = _plain(pc.struct_field(found, "n").cast(pa.int64())), _plain(_number(source, "row").fill_null(0))
    return _packed([file, _plain(_number(source, "pos")), row], [_FILE_BITS, _POS_BITS, _ROW_BITS])


def _commit_lsn(source: pa.StructArray) -> pa.Int64Array:
    text = pc.struct_field(source, "commit_lsn")
    found = pc.extract_regex(text, r"^(?P<a>[0-9a-fA-F]{8}):(?P<b>[0-9a-fA-F]{8}):(?P<c>[0-9a-fA-F]{4})$")
    parts = []
    for name in "abc":
        digits = pc.struct_field(found, name)
        parts.append(_plain(pc.binary_join_element_wise("0x", digits, "").cast(pa.int64())))
    return _packed(parts, [_VLF_BITS, _BLOCK_BITS, _SLOT_BITS])


def _cluster_time(source: pa.StructArray) -> pa.Int64Array:
    seconds = pc.divide(_number(source, "ts_ms"), 1_000)
    return _packed([_plain(seconds), _plain(_number(source, "ord"))], [32, _ORD_BITS])


def _plain(numbers: pa.Int64Array) -> _Numbers:
    return numbers.fill_null(-1).to_numpy(), numbers.is_valid().to_numpy(zero_copy_only=False)


def _packed(parts: list[_Numbers], bits: list[int]) -> pa.Int64Array:
    """Numbers side by side, the first one highest; null where one is null or needs more bits than it has."""
    made = np.zeros(len(parts[0][0]), np.int64)
    good = np.ones(len(made), bool)
    for (numbers, valid), width in zip(parts, bits, strict=True):
        good &= valid & (numbers >= 0) & (numbers < 1 << width)
        made = (made << width) | np.where(good, numbers, 0)
    return pa.array(made, mask=~good)


_HOW = {
    "postgresql": lambda source: _number(source, "lsn"),
    "lakestore": lambda source: _number(source, "offset"),
    "mysql": _binlog,
    "mariadb": _binlog,
    "sqlserver": _commit_lsn,
    "oracle": _scn,
    "mongodb": _cluster_time,
}
