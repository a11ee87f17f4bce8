"""Protobuf messages as trees of fields with the Arrow type of every column.

- A field that can be absent is null if it is: messages, `optional`, members of a oneof, all fields of proto2. A plain
  field of proto3 has its zero.
- An enum is its name, or the digits of a number without a name. A Timestamp is a moment in microseconds, a Duration a
  number of them, a wrapper its value.
- A message without fields is true if present. A recursive message, Struct, Value, ListValue and Any are JSON texts.
  uint64 is a decimal, because no integer column holds it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FeatureSet, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from lakestore.errors import Invalid
from lakestore.kafka.bridge.decode.avro_schema import ALIASES

PROTOC_SECONDS = 60.0
"""The longest run of protoc, in seconds. A schema that takes longer is refused."""
TEXT_BYTES_MAX = 8 << 20
_MAIN = "lakestore_bridge_schema.proto"
_KNOWN = {
    "confluent/meta.proto": """syntax = "proto3"; package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
    "confluent/type/decimal.proto": """syntax = "proto3"; package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
""",
}
"""Files that registries provide implicitly."""


def compile_proto(text: str, references: Mapping[str, str]) -> tuple[DescriptorPool, str]:
    """Compile a .proto text and its imports. Returns the descriptors and the file's name. Raises `Invalid`."""
    given = {**_KNOWN, **references, _MAIN: text}
    if sum(len(each) for each in given.values()) > TEXT_BYTES_MAX:
        raise Invalid(f"a .proto file with its imports is larger than {TEXT_BYTES_MAX} bytes")
    with tempfile.TemporaryDirectory(prefix="lakestore-proto-") as folder:
        for name, content in given.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\0" in name:
                raise Invalid(f"a .proto file imports {name!r}, which is no name in a registry")
            place = Path(folder, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)
        found = FileDescriptorSet.FromString(_protoc(Path(folder)))
    pool = DescriptorPool()
    try:
        for file in found.file:
            pool.Add(file)
        pool.FindFileByName(_MAIN)
    except (TypeError, KeyError) as error:
        raise Invalid(f"this .proto file does not hold together: {error}") from None
    return pool, _MAIN


def _protoc(folder: Path) -> bytes:
    out = folder / "descriptors.bin"
    dates = find_spec("google.type.date_pb2")
    assert dates is not None
    assert dates.origin is not None
    includes = [folder, Path(dates.origin).parents[2]]
    command = [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{each}" for each in includes)]
    command += ["--include_imports", f"--descriptor_set_out={out}", str(folder / _MAIN)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROTOC_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Invalid("protoc does not come to an end with this .proto file") from None
    if done.returncode:
        lines = done.stderr.replace(f"{folder}/", "").replace(_MAIN, "the schema").splitlines()
        complaint = [line.strip() for line in lines if line.strip() and "warning:" not in line]
        raise Invalid(f"this is not a .proto file: {complaint[0] if complaint else 'protoc refuses it'}")
    return out.read_bytes()


def message(pool: DescriptorPool, file: str, path: tuple[int, ...], name: str = "") -> Descriptor:
    """The message at a path in its file, or of a full name. Raises `Invalid`."""
    found = pool.FindFileByName(file)
    if name:
        try:
            return pool.FindMessageTypeByName(name)
        except KeyError:
            raise Invalid(f"the .proto file has no message {name}: give its full name, with the package") from None
    level = list(found.message_types_by_name.values())
    here: Descriptor | None = None
    for step in path:
        if not 0 <= step < len(level):
            raise Invalid(f"the .proto file has no message at place {list(path)}")
        here = level[step]
        level = list(here.nested_types)
    if here is None:
        raise Invalid("the .proto file has no message")
    return here


NUMBER = b"number"
"""Key in the metadata of an Arrow field: the field's number in its message."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""
_F = FieldDescriptor
SCALARS: dict[int, tuple[str, int, pa.DataType]] = {
    _F.TYPE_DOUBLE: ("double", FIXED64, pa.float64()),
    _F.TYPE_FLOAT: ("float", FIXED32, pa.float32()),
    _F.TYPE_INT64: ("int64", VARINT, pa.int64()),
    _F.TYPE_UINT64: ("uint64", VARINT, pa.decimal128(20, 0)),
    _F.TYPE_INT32: ("int32", VARINT, pa.int32()),
    _F.TYPE_FIXED64: ("fixed64", FIXED64, pa.decimal128(20, 0)),
    _F.TYPE_FIXED32: ("fixed32", FIXED32, pa.uint32()),
    _F.TYPE_BOOL: ("bool", VARINT, pa.bool_()),
    _F.TYPE_STRING: ("string", BYTES, pa.string()),
    _F.TYPE_BYTES: ("bytes", BYTES, pa.binary()),
    _F.TYPE_UINT32: ("uint32", VARINT, pa.uint32()),
    _F.TYPE_ENUM: ("enum", VARINT, pa.string()),
    _F.TYPE_SFIXED32: ("sfixed32", FIXED32, pa.int32()),
    _F.TYPE_SFIXED64: ("sfixed64", FIXED64, pa.int64()),
    _F.TYPE_SINT32: ("sint32", VARINT, pa.int32()),
    _F.TYPE_SINT64: ("sint64", VARINT, pa.int64()),
}
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_JSON = {f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue", "Any")}
_WIDER: dict[str, tuple[str, ...]] = {
    "int32": ("int64",),
    "uint32": ("uint64",),
    "enum": (),
    "sint32": ("sint64",),
}
"""Kinds that can read everything the key's kind writes on the same wire type."""


@dataclass(frozen=True, slots=True)
class ProtoField:
    """A field of a message."""

    name: str
    number: int
    kind: str
    """A scalar's name, or message, timestamp, duration, wrapper, empty, json."""
    wire: int
    arrow: pa.DataType
    """Type of one value."""
    label: str = ""
    """Empty, repeated or map."""
    presence: bool = True
    required: bool = False
    oneof: str = ""
    message: Message | None = None
    """Fields of the message, or of a map's entries."""
    symbols: tuple[tuple[int, str], ...] = ()
    closed: bool = False
    """True if the enum refuses numbers without a name."""
    is_checked: bool = False
    """True if a text that is not UTF-8 makes the message invalid, even if a later value replaces it."""
    aliases: tuple[str, ...] = ()
    """Names of this field number in older schemas."""
    descriptor: Any = None
    """The message's descriptor if its values become JSON."""

    @property
    def column(self) -> pa.DataType:
        if self.label == "repeated":
            return pa.list_(self.arrow)
        return self.arrow

    @property
    def field(self) -> pa.Field:
        nullable = self.presence and not self.required and not self.label
        said = {NUMBER: str(self.number).encode()}
        if self.aliases:
            said[ALIASES] = json.dumps(self.aliases).encode()
        return pa.field(self.name, self.column, nullable=nullable, metadata=said)


@dataclass(frozen=True, slots=True)
class Message:
    """A message's fields."""

    name: str
    fields: tuple[ProtoField, ...]

    @property
    def arrow(self) -> pa.DataType:
        return pa.struct([field.field.with_nullable(True) for field in self.fields])

    @property
    def schema(self) -> pa.Schema:
        """Top-level fields with their nullability."""
        return pa.schema([field.field for field in self.fields])


def build_message(descriptor: Descriptor) -> Message:
    """Build the tree of a message. Raises `Invalid` if no column can hold a field."""
    return _message(descriptor, (descriptor.full_name,))


def _message(descriptor: Descriptor, within: tuple[str, ...]) -> Message:
    fields = tuple(_field(field, within) for field in descriptor.fields)
    return Message(descriptor.full_name, fields)


def _field(field: FieldDescriptor, within: tuple[str, ...]) -> ProtoField:
    if field.type == _F.TYPE_GROUP:
        raise Invalid(f"{field.full_name} is a group of proto2, which is not read: make it a message")
    label = "repeated" if field.is_repeated else ""
    oneof = field.containing_oneof
    told = oneof.full_name if oneof is not None and len(oneof.fields) > 1 else ""
    if field.type != _F.TYPE_MESSAGE:
        kind, wire, arrow = SCALARS[field.type]
        made = ProtoField(field.name, field.number, kind, wire, arrow, label, bool(field.has_presence))
        if field.enum_type is not None:
            symbols = tuple((value.number, value.name) for value in reversed(field.enum_type.values))
            made = replace(made, symbols=symbols, closed=bool(field.enum_type.is_closed))
        if field.type == _F.TYPE_STRING:
            made = replace(made, is_checked=_is_checked(field))
    else:
        made = _of_message(field, label, within)
    return replace(made, oneof=told, required=bool(field.is_required))


def _is_checked(field: FieldDescriptor) -> bool:
    assert field.containing_type is not None
    written_in = field.containing_type.file
    for options in (field.GetOptions(), written_in.GetOptions()):
        if options.features.HasField("utf8_validation"):
            return bool(options.features.utf8_validation == FeatureSet.VERIFY)
    file = FileDescriptorProto()
    written_in.CopyToProto(file)
    return file.syntax not in ("", "proto2")


def _of_message(field: FieldDescriptor, label: str, within: tuple[str, ...]) -> ProtoField:
    kind = field.message_type
    assert kind is not None
    made = ProtoField(field.name, field.number, "message", BYTES, pa.null(), label)
    if kind.GetOptions().map_entry:
        entry = _message(kind, within)
        key, value = entry.fields
        return replace(made, label="map", message=entry, arrow=pa.map_(key.column, value.column))
    if kind.full_name == _TIMESTAMP:
        return replace(made, kind="timestamp", arrow=pa.timestamp("us", tz="UTC"), message=_message(kind, within))
    if kind.full_name == _DURATION:
        return replace(made, kind="duration", arrow=pa.int64(), message=_message(kind, within))
    if kind.full_name in _WRAPPERS:
        inner = _message(kind, within)
        return replace(made, kind="wrapper", arrow=inner.fields[0].arrow, message=inner)
    if kind.full_name in _JSON or kind.full_name in within:
        return replace(made, kind="json", arrow=pa.string(), descriptor=kind)
    if not kind.fields:
        return replace(made, kind="empty", arrow=pa.bool_())
    inner = _message(kind, (*within, kind.full_name))
    return replace(made, message=inner, arrow=inner.arrow)


def add_aliases(newest: Message, older: Message) -> Message:
    """Add the names that the field numbers had in an older message as aliases."""
    before = {field.number: field.name for field in older.fields}
    fields = [_aliased(field, before.get(field.number, field.name)) for field in newest.fields]
    return replace(newest, fields=tuple(fields))


def _aliased(field: ProtoField, former: str) -> ProtoField:
    known = former == field.name or former in field.aliases
    return field if known else replace(field, aliases=(*field.aliases, former))


def merge_messages(newest: Message, older: Message) -> Message:
    """The newest message plus the fields that only the older has; of two kinds the wider stays."""
    newest = add_aliases(newest, older)
    before = {field.number: field for field in older.fields}
    fields = [_wider(field, before.pop(field.number, field)) for field in newest.fields]
    names = {field.name for field in fields}
    former = [field for field in before.values() if field.name not in names]
    fields += [replace(field, presence=True, required=False) for field in former]
    return replace(newest, fields=tuple(fields))


def _wider(field: ProtoField, older: ProtoField) -> ProtoField:
    if field.label != older.label:
        return field
    if field.message is not None and older.message is not None and field.kind == older.kind == "message":
        inner = merge_messages(field.message, older.message)
        if field.label == "map":
            key, value = inner.fields
            return replace(field, message=inner, arrow=pa.map_(key.column, value.column))
        return replace(field, message=inner, arrow=inner.arrow)
    if field.kind == older.kind == "enum":
        told = {number for number, _ in field.symbols}
        return replace(field, symbols=(*(each for each in older.symbols if each[0] not in told), *field.symbols))
    if older.kind in _WIDER.get(field.kind, ()):
        return replace(field, kind=older.kind, arrow=older.arrow)
    return field


def conflict(writer: Message, reader: Message, path: str = "") -> str:
    """Path of a field that the reader's message cannot read as the writer wrote it; empty if there is none."""
    known = {field.number: field for field in reader.fields}
    for field in writer.fields:
        target = known.get(field.number)
        below = f"{path}.{field.name}" if path else field.name
        if target is None or target.label != field.label:
            return below
        if field.message is not None and target.message is not None and field.kind == target.kind == "message":
            found = conflict(field.message, target.message, below)
            if found:
                return found
        elif not _reads(field.kind, target.kind):
            return below
    return ""


def _reads(writer: str, reader: str) -> bool:
    return writer == reader or reader in _WIDER.get(writer, ()) or (writer, reader) == ("string", "bytes")
