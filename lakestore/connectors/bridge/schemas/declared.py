"""Schemas that the records of a topic name, or that bridge.yaml declares for records that name none."""

from __future__ import annotations

from lakestore.connectors.bridge.framing.cursors import Fault
from lakestore.connectors.bridge.framing.wire import Part, SchemaName
from lakestore.connectors.bridge.schemas.registry import Registered, Registry, subject_of
from lakestore.connectors.bridge.spec import SchemaSpec
from lakestore.errors import NotFound


class Schemas:
    """Finds schemas of one format for keys or values. An absent registry raises `Unavailable`, and is no fault."""

    def __init__(self, kind: str, part: Part, declared: SchemaSpec, registry: Registry | None) -> None:
        self.kind = kind
        """AVRO or PROTOBUF."""
        self.part: Part = part
        self.spec = declared
        self.registry = registry

    def named(self, name: SchemaName, topic: str) -> Registered | Fault:
        """The schema that records name; the topic is for the sentence."""
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

    def declared(self, topic: str) -> Registered | Fault:
        """The schema that bridge.yaml declares, or else the newest of the topic's subject."""
        if self.spec.text:
            return Registered(self.kind, self.spec.text)
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

    def former(self, topic: str, count: int) -> list[Registered]:
        """Versions of the topic's subject, the newest first; none for a schema that bridge.yaml has itself."""
        if self.registry is None or self.spec.text:
            return []
        found = self.registry.former(subject_of(topic, self.part, self.spec), count)
        return [each for each in found if each.kind == self.kind]

    @property
    def _fixed(self) -> bool:
        return self.spec.version is not None
