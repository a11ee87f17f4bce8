"""Databases are kept in memory and in every checkpoint, so there is an end to them; what is there goes on."""

from __future__ import annotations

import pytest

from lakestore.errors import LimitReached
from lakestore_server.state import catalog_change
from lakestore_server.state.catalog_change import CatalogChange, SetNamespace


def test_one_more_database_than_there_may_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_change, "NAMESPACES_MAX", 2)
    catalog_change.check_change(CatalogChange((SetNamespace("b"),)), {"a": {}}, {}, {})
    catalog_change.check_change(CatalogChange((SetNamespace("b", {"x": "y"}),)), {"a": {}, "b": {}, "c": {}}, {}, {})
    with pytest.raises(LimitReached, match="2 databases"):
        catalog_change.check_change(CatalogChange((SetNamespace("c"),)), {"a": {}, "b": {}}, {}, {})
    with pytest.raises(LimitReached, match="2 databases"):
        catalog_change.check_change(CatalogChange((SetNamespace("b"), SetNamespace("c"))), {"a": {}}, {}, {})


def test_properties_of_all_databases_have_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_change, "PROPERTIES_TOTAL_BYTES_MAX", 10)
    full = {"a": {"k": "12345"}, "b": {"k": "123"}}
    for step in (SetNamespace("c", {"k": ""}), SetNamespace("b", {"k": "1234"})):
        with pytest.raises(LimitReached, match="more than 10 bytes"):
            catalog_change.check_change(CatalogChange((step,)), full, {}, {})
    for step in (SetNamespace("c"), SetNamespace("b", {"k": "1"}), SetNamespace("b", {"x": "123"})):
        catalog_change.check_change(CatalogChange((step,)), full, {}, {})
