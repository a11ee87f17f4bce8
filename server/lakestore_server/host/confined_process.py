"""Confines this process, then imports the module that it is to run: `python -m …host.confined_process MODULE WALLS`.

Libraries such as Arrow start threads on import, and Landlock confines only threads that start later.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.abc import MetaPathFinder

from lakestore_server.host import sandbox
from lakestore_server.host.child import Parent

PACKAGES = [
    "lakestore", "lakestore_server", "numpy", "pyarrow", "duckdb", "_duckdb", "sqlglot", "orjson", "google",
    "google.protobuf", "pyroaring",
]  # fmt: skip
"""Packages that a query imports, wherever they are installed."""


class _WithoutPandas(MetaPathFinder):
    """Hides pandas, which Arrow and DuckDB import if it is installed: that takes a third of the start."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("no query uses pandas", name="pandas")


def main() -> None:
    """Call `main(parent, confine)` of the module that the first argument names.

    The module calls `confine` before it works on a foreign byte.
    The other arguments name the walls that stand: a test tries one alone.
    """
    _, module, *walls = sys.argv
    if "landlock" in walls:
        sandbox.confine_files(sandbox.code_paths(PACKAGES))
    os.environ["OMP_NUM_THREADS"] = "2"  # Arrow's own threads
    sys.meta_path.insert(0, _WithoutPandas())
    run = import_module(module).main
    run(Parent(), sandbox.confine_calls if "seccomp" in walls else lambda: None)


if __name__ == "__main__":
    main()
