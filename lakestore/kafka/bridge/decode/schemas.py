"""The schemas that records of Avro and Protobuf name or that bridge.yaml declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakestore.errors import NotFound
from lakestore.kafka.bridge.decode.framing import Fault, Part, SchemaName
from lakestore.kafka.bridge.spec import SchemaSpec

if TYPE_CHECKING:
    from lakestore.kafka.bridge.decode.registry import Registry


@dataclass(frozen=True, slots=True)
class RegistrySchema:
    """A schema of the registry."""

    kind: str
    """AVRO, PROTOBUF or JSON."""
    text: str
    references: Mapping[str, str] = field(default_factory=dict)
    """Name to text of every direct and indirect reference, dependencies first."""
    id: int | None = None
    subject: str = ""
    version: int | None = None


class Schemas:
    """Finds schemas of one format for keys or values. Raises `Unavailable` if the registry does not answer."""

    def __init__(self, kind: str, part: Part, declared: SchemaSpec, registry: Registry | None) -> None:
        self.kind = kind
        """AVRO or PROTOBUF."""
        self.part: Part = part
        self.spec = declared
        self.registry = registry

    def by_name(self, name: SchemaName, topic: str) -> RegistrySchema | Fault:
        """The schema that records name. The topic is for messages."""
        if self.registry is None:
            text = f"the record names schema {name.id}, and there is no registry: set source.registry"
            return Fault("unknown-schema", text, "")
        try:
            found = self.registry.by_id(name.id)
        except NotFound as error:
            return Fault("unknown-schema", f"{error}; a record of {topic} names it", "")
        if found.kind != self.kind:
            text = f"schema {name.id}, which a record of {topic} names, is {found.kind} and not {self.kind}"
            return Fault("wrong-schema-type", text, "")
        return found

    def declared_schema(self, topic: str) -> RegistrySchema | Fault:
        """The schema that bridge.yaml declares, otherwise the newest of the topic's subject."""
        if self.spec.text:
            return RegistrySchema(self.kind, self.spec.text)
        subject = subject_of(topic, self.part, self.spec)
        if self.registry is None:
            text = f"the record names no schema, and none is declared for the {self.part} of {topic}: set schema"
            return Fault("no-schema", text, "")
        try:
            found = self.registry.version(subject, self.spec.version) if self._fixed else self.registry.newest(subject)
        except NotFound as error:
            return Fault("no-schema", str(error), "")
        if found is None:
            return Fault("no-schema", f"the record names no schema, and the registry has no subject {subject}", "")
        if found.kind != self.kind:
            return Fault("wrong-schema-type", f"the schema of {subject} is {found.kind} and not {self.kind}", "")
        return found

    def former(self, topic: str, count: int) -> list[RegistrySchema]:
        """Versions of the topic's subject, newest first; empty if bridge.yaml has the schema itself."""
        if self.registry is None or self.spec.text:
            return []
        found = self.registry.former(subject_of(topic, self.part, self.spec), count)
        return [each for each in found if each.kind == self.kind]

    @property
    def _fixed(self) -> bool:
        return self.spec.version is not None


def subject_of(topic: str, part: str, schema: SchemaSpec) -> str:
    """The subject of a topic's records: the declared one, otherwise the one of the topic's name."""
    return schema.subject or f"{topic}-{part}"
