"""A plugin of pytest for PyIceberg's own tests: it sends their catalogs to our server.

Some of them name the address at which PyIceberg's own fixtures have a server. `pyiceberg_suite` copies this file into
the folder of the suite, because the package `tests` is another one there.
"""

from __future__ import annotations

import os
from typing import Any

_THEIRS = "http://localhost:8181"


def pytest_configure() -> None:
    """Replace the address of the suite's server by ours, and leave its store's settings out."""
    from pyiceberg.catalog.rest import RestCatalog

    begin: Any = RestCatalog.__init__

    def opened(catalog: Any, name: str, **properties: str) -> None:
        ours = {"uri": os.environ["LAKESTORE_SUITE_CATALOG"]}
        said = ours if properties.get("uri") == _THEIRS else properties
        begin(catalog, name, **{"supports_nested_namespaces": "false", **said})

    setattr(RestCatalog, "__init__", opened)  # noqa: B010 mypy refuses the plain assignment
