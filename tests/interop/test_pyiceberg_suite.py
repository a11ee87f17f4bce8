"""PyIceberg's own integration tests of REST catalogs against our server, in a process with the packages that they use.

`make long` runs them: they want the source release of PyIceberg and ten packages from the index, once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from tests.support import pyiceberg_suite
from tests.support.served import Served

pytestmark = pytest.mark.long

SUITE_SECONDS = 900
_FILES = ("catalog", "rest_catalog", "rest_schema")
"""Without `rest_manifest`, which reads a table that a Spark of theirs has made."""
_CATALOGS = "not hive_catalog and not memory_catalog and not sqlite and not (test_catalog.py and rest_catalog)"
"""The tests of the first file run for each catalog of a list; ours is `rest_test_catalog`."""
FAILURES = {
    "test_catalog::test_rest_custom_namespace_separator": "a namespace has one level, without a separator",
}
"""Tests that fail, each with the policy that it meets."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Test to `passed`, `skipped` or `failed: why`."""
    place = tmp_path_factory.mktemp("suite")
    suite = pyiceberg_suite.fetched()
    with Served(place / "data", ports=True) as served:
        address = f"http://{served.server.about['http']}/iceberg"
        served.server.catalog.create_namespace("default", {})
        ours = {
            "PYTHONPATH": f"{suite}:{suite / 'packages'}",
            "PYICEBERG_CATALOG__OURS__TYPE": "rest",
            "PYICEBERG_CATALOG__OURS__URI": address,
            "PYICEBERG_TEST_CATALOG": "ours",
            pyiceberg_suite.ADDRESS: address,
        }
        command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(suite), "-n", "0"]
        command += ["-p", "lakestore_suite", "-p", "no:cacheprovider", f"--junit-xml={place / 'report.xml'}"]
        command += ["-k", _CATALOGS, *(f"tests/integration/test_{name}.py" for name in _FILES)]
        done = subprocess.run(
            command,
            cwd=suite,
            env={**os.environ, **ours},
            capture_output=True,
            text=True,
            timeout=SUITE_SECONDS,
            check=False,
        )
    assert (place / "report.xml").exists(), done.stdout + done.stderr
    return dict(_outcome(case) for case in ElementTree.parse(place / "report.xml").iter("testcase"))


def _outcome(case: ElementTree.Element) -> tuple[str, str]:
    name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
    for kind in ("failure", "error"):
        problem = case.find(kind)
        if problem is not None:
            return name, f"failed: {problem.get('message')}"
    return name, "skipped" if case.find("skipped") is not None else "passed"


def test_the_catalog_passes_pyiceberg_s_own_tests(outcomes: dict[str, str]) -> None:
    failed = {name: why for name, why in outcomes.items() if why.startswith("failed")}
    assert failed.keys() == FAILURES.keys(), "\n".join(f"{name}: {why}" for name, why in failed.items())
    assert len(outcomes) > 80, "the suite has its tests"
