"""Rows of a block to tables: by a part of each record, and by names with placeholders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.connectors.bridge.casting import casts
from lakestore.connectors.bridge.casting.cast_rules import Rule
from lakestore.connectors.bridge.mapping.inputs import Inputs
from lakestore.connectors.bridge.outcome import Reject, Stage
from lakestore.connectors.bridge.paths import Path
from lakestore.connectors.bridge.records import Ints
from lakestore.connectors.bridge.spec import RouteSpec, TableSpec, TopicSpec
from lakestore.rows.literals import short

_PLACE = re.compile(r"\{(topic|database|schema|table)\}")
_ODD = re.compile(r"[^A-Za-z0-9_]")
ORIGIN = ("database", "schema", "table")


@dataclass(slots=True)
class Routed:
    """Rows by table."""

    tables: list[tuple[str, TableSpec, Ints]] = field(default_factory=list)
    """Whole name, and the rows of the inputs."""
    rejects: list[Reject] = field(default_factory=list)
    skipped: list[Ints] = field(default_factory=list)
    """Records that no table is named for, where that is asked for."""


def table_name(template: str, topic: str, origin: Mapping[str, str | None] | None = None) -> str:
    """The whole name of a table; characters that names do not have become _.

    A part of the origin that is not known is the topic.
    """
    known = {"topic": topic, **(origin or {})}
    return _PLACE.sub(lambda place: _ODD.sub("_", known.get(place[1]) or topic), template)


def names_origin(template: str) -> bool:
    """Whether a table's name tells the origins of change events apart."""
    return any(place[1] in ORIGIN for place in _PLACE.finditer(template))


def first_table(topic: TopicSpec, name: str) -> str:
    """The table whose dead letters have the records that no route takes."""
    return table_name(topic.tables[0].table, name)


def routed(topic: TopicSpec, inputs: Inputs) -> Routed:
    """The rows of each table."""
    found = Routed()
    if isinstance(topic.target, TableSpec):
        _named(topic.target, inputs, np.arange(len(inputs)), found)
        return found
    route = topic.target
    path = Path.of(route.by)
    texts, _ = casts.cast(inputs.read(path), Rule(pa.string()))
    values = texts.dictionary_encode()
    codes = values.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    for code, value in enumerate(values.dictionary.to_pylist()):
        rows = np.flatnonzero(codes == code)
        if value in route.tables:
            _named(route.tables[value], inputs, rows, found)
        else:
            _without(route, path, short(repr(value)), inputs.record[rows], found)
    nulls = np.flatnonzero(codes == -1)
    if len(nulls):
        _without(route, path, "null, missing or no text", inputs.record[nulls], found)
    return found


def _without(route: RouteSpec, path: Path, shown: str, records: Ints, found: Routed) -> None:
    if route.otherwise == "skip":
        found.skipped.append(records)
        return
    say = f"{path} is {shown}, for which the route names no table: add it under route.tables, or say otherwise: skip"
    found.rejects += [Reject(record, Stage.ROUTE, "no-route", say, str(path)) for record in records.tolist()]


def _named(spec: TableSpec, inputs: Inputs, rows: Ints, found: Routed) -> None:
    """The tables of rows whose spec is known: one, unless the name tells them apart by their origin."""
    if inputs.origin is None or not names_origin(spec.table):
        if len(rows):
            found.tables.append((table_name(spec.table, inputs.records.topic), spec, rows))
        return
    for origin, of_it in origins(inputs.origin.take(pa.array(rows))):
        found.tables.append((table_name(spec.table, inputs.records.topic, origin), spec, rows[of_it]))


def origins(origin: pa.StructArray) -> Iterator[tuple[dict[str, str | None], Ints]]:
    """Each origin of rows, and its rows; a part is None where rows do not tell it."""
    names = [name for name in ORIGIN if origin.type.get_field_index(name) >= 0]
    texts = [pc.struct_field(origin, [origin.type.get_field_index(name)]).cast(pa.string()) for name in names]
    joined = pc.binary_join_element_wise(*[text.fill_null("") for text in texts], "\x1f").dictionary_encode()
    codes = joined.indices.to_numpy(zero_copy_only=False)
    for code in range(len(joined.dictionary)):
        rows = np.flatnonzero(codes == code)
        yield {name: text[int(rows[0])].as_py() for name, text in zip(names, texts, strict=True)}, rows
