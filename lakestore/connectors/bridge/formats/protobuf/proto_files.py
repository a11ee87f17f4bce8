""".proto texts to descriptors, by protoc in a process of its own: its complaints are read, and its faults end there."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from lakestore.errors import Invalid

PROTOC_SECONDS = 60.0
"""The longest run of protoc; a schema that takes longer is refused."""
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
"""Files that registries take for granted."""


def compiled(text: str, references: Mapping[str, str]) -> tuple[DescriptorPool, str]:
    """The descriptors of a .proto text and of all that it imports, and its file's name; `Invalid` with a sentence."""
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
        raise Invalid(f"this is no .proto file: {complaint[0] if complaint else 'protoc refuses it'}")
    return out.read_bytes()


def message(pool: DescriptorPool, file: str, path: tuple[int, ...], name: str = "") -> Descriptor:
    """The message at a place in its file, or of a full name; `Invalid` if there is none."""
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
