"""Operators of jsonb: whether a value contains another one, or has a key."""

from __future__ import annotations

import json
from typing import Any

from lakestore.errors import Invalid
from lakestore_server.queries.postgres.nodes import Node, call, conjunction, constant, constant_text
from lakestore_server.queries.postgres.patterns import json_key


def contains(outer: Node, text: str) -> Node:
    """`outer @> text` for a constant. Raises `Invalid` for a text that is no JSON, and for lists of objects."""
    try:
        inner = json.loads(text)
    except ValueError:
        raise Invalid(f"the query failed: invalid input syntax for type json: {text!r}") from None
    value = call("to_json" if constant_text(outer) is None else "json", outer)
    return call("json_known", value, conjunction(_terms(value, inner)))


def _terms(outer: Node, inner: Any) -> list[Node]:
    """The conditions under which the JSON value `outer` contains `inner`."""
    if isinstance(inner, dict):
        terms = [call("json_is", outer, constant("OBJECT"))]
        for key, value in inner.items():
            terms += _terms(call("json_extract", outer, constant(json_key(key))), value)
        return terms
    if isinstance(inner, list):
        terms = [call("json_is", outer, constant("ARRAY"))]
        for value in inner:
            if isinstance(value, dict | list):
                raise Invalid(
                    "the query failed: @> with objects inside a list is not supported by the Postgres port: compare"
                    " the fields one by one"
                )
            terms.append(call("json_has_item", outer, constant(json.dumps(value, ensure_ascii=False))))
        return terms
    return [call("json_equals", outer, constant(json.dumps(inner, ensure_ascii=False)))]
