"""The counts of a change's result, by their names in the protocol: each row that was sent is in one of them."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor

from lakestore.v1 import lakestore_pb2 as pb

COUNTS: tuple[str, ...] = tuple(
    field.name for field in pb.ChangeResult.DESCRIPTOR.fields if field.type == FieldDescriptor.TYPE_UINT64
)
