"""Framing: every record is a payload, a null or a reject, and a payload is what the framing was put around."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore.kafka.bridge.decode.framing import SchemaName, strip_framing
from lakestore.kafka.bridge.outcome import Stage
from lakestore.kafka.bridge.records import Headers, Records

GUID = UUID("89791762-2336-186f-9674-299b90a802e2")


def block(values: list[bytes | None], headers: list[Headers | None] | None = None) -> Records:
    """Records of one partition with these values, which are their keys too."""
    none = np.zeros(len(values), np.int64)
    column = pa.array(values, pa.binary())
    return Records("orders", "id", none, np.arange(len(values)), none, column, column, headers)


def test_a_number_and_a_guid_stand_in_front() -> None:
    found = strip_framing(block([b"\0\0\0\1\2abc", None, b"\1" + GUID.bytes + b"xyz", b"\0\0\0\1\2"]), "confluent")
    assert found.payloads.to_pylist() == [b"abc", b"xyz", b""]
    assert [found.schemas[at] for at in found.schema] == [SchemaName(258), SchemaName(str(GUID)), SchemaName(258)]
    assert (found.record.tolist(), found.nulls.tolist(), found.rejects) == ([0, 2, 3], [1], [])


def test_short_and_wrong_framing_is_rejected_and_shifts_nobody() -> None:
    found = strip_framing(block([b"", b"\0\0\0", b"{}", b"\1" + b"x" * 15, b"\0\0\0\0\7ok"]), "confluent")
    codes = [(reject.record, reject.stage, reject.code) for reject in found.rejects]
    short, magic = (Stage.WIRE, "short-payload"), (Stage.WIRE, "bad-magic")
    assert codes == [(0, *short), (1, *short), (2, *magic), (3, *short)]
    assert (found.record.tolist(), found.payloads.to_pylist(), list(found.schemas)) == ([4], [b"ok"], [SchemaName(7)])


def test_the_header_names_the_schema_and_leaves_the_bytes_alone() -> None:
    values: list[bytes | None] = [b"abc", b"\0\0\0\0\7x", b"d", b"e"]
    named: list[Headers | None] = [
        (("__value_schema_id", b"\0\0\0\0\5"), ("other", None)),
        None,
        (("__value_schema_id", b"\1" + GUID.bytes),),
        (("__value_schema_id", b"\2?"),),
    ]
    found = strip_framing(block(values, named), "confluent")
    assert found.payloads.to_pylist() == [b"abc", b"x", b"d"]
    assert [found.schemas[at].id for at in found.schema] == [5, 7, str(GUID)]
    assert [(reject.record, reject.code) for reject in found.rejects] == [(3, "bad-header")]
    assert strip_framing(block(values, named), "plain", "key").payloads.to_pylist() == values


def test_a_protobuf_message_has_its_place_in_the_file() -> None:
    values = [b"\0\0\0\0\7\0abc", b"\0\0\0\0\7\4\2\0x", b"\0\0\0\0\7\2\0y", b"\0\0\0\0\7\3z", b"\0\0\0\0\7\4\2"]
    found = strip_framing(block(list(values)), "confluent", format="protobuf")
    assert [found.schemas[at].message for at in found.schema] == [(0,), (1, 0), (0,)]
    assert found.payloads.to_pylist() == [b"abc", b"x", b"y"]
    assert [reject.code for reject in found.rejects] == ["bad-message-index", "short-payload"]
    headers: list[Headers | None] = [(("__value_schema_id", b"\0\0\0\0\7\4\2\0"),)]
    told = strip_framing(block([b"p"], headers), "auto", format="protobuf")
    assert (told.schemas[0], told.payloads.to_pylist()) == (SchemaName(7, (1, 0)), [b"p"])


def test_auto_sees_framing_where_the_format_cannot_begin_so() -> None:
    values: list[bytes | None] = [b"\0\0\0\0\7{}", b"{}", b""]
    json = strip_framing(block(values), "auto", format="json")
    assert (json.payloads.to_pylist(), json.schema.tolist()) == ([b"{}", b"{}", b""], [0, -1, -1])
    assert strip_framing(block(values), "auto", format="raw").payloads.to_pylist() == values
    assert strip_framing(block(values), "auto", format="avro").payloads.to_pylist() == values
    assert len(strip_framing(block(values), "auto", format="avro", registry=True).rejects) == 2
    single = strip_framing(block([b"\xc3\1" + b"12345678" + b"body"]), "auto", format="avro")
    assert (single.schemas[0].id, single.payloads.to_pylist()) == ("crc64:" + b"12345678".hex(), [b"body"])


@pytest.mark.parametrize("wire", ["auto", "plain", "confluent"])
@given(values=st.lists(st.none() | st.binary(max_size=24) | st.binary(max_size=9).map(lambda end: b"\0" + end)))
def test_every_record_ends_once(wire: str, values: list[bytes | None]) -> None:
    for form in ("json", "avro", "protobuf", "raw"):
        found = strip_framing(block(values), wire, format=form, registry=True)  # type: ignore[arg-type]
        ends = sorted([*found.record.tolist(), *found.nulls.tolist(), *(reject.record for reject in found.rejects)])
        assert ends == list(range(len(values)))
        for record, payload in zip(found.record.tolist(), found.payloads.to_pylist(), strict=True):
            assert (values[record] or b"").endswith(payload)
