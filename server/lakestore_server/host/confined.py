"""A process that confines itself before it imports the module that it runs, `python -m …host.confined MODULE WALLS`.

Libraries such as Arrow start threads when they are imported, and Landlock confines only threads that start later.
"""

from __future__ import annotations

import sys
from importlib import import_module

from lakestore_server.host import sandbox

PACKAGES = [
    "lakestore", "lakestore_server", "numpy", "pyarrow", "duckdb", "_duckdb", "pandas", "sqlglot", "orjson", "google",
    "google.protobuf", "pyroaring",
]  # fmt: skip
"""Packages that a query imports, wherever they lie."""


def main() -> None:
    """Call `main` of the module that the first argument names; it calls its own argument before a foreign byte.

    The other arguments name the walls that stand: a test tries one alone.
    """
    _, module, *walls = sys.argv
    if "landlock" in walls:
        sandbox.confine_files(sandbox.code_paths(PACKAGES))
    import_module(module).main(sandbox.confine_calls if "seccomp" in walls else lambda: None)


if __name__ == "__main__":
    main()
