"""Iceberg's own tests of catalogs, CatalogTests and ViewCatalogTests, against our server over HTTP.

The suites are in the `tests` jar of iceberg-core. Both run in one JVM against one server.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pyspark
import pytest

from jepsen.system.jvm import SHORT_LIVED
from lakestore.java import java
from lakestore.model import file_uri
from lakestore_demo.ivy import fetch
from tests.support.java_source import compiled
from tests.support.served import Served

VERSION = "1.10.1"
"""The newest release of Iceberg whose `tests` jar is served."""
_SUITES = tuple(f"org.apache.iceberg:iceberg-{part}:{VERSION}:jar:tests" for part in ("core", "api"))
_JARS = (
    f"org.apache.iceberg:iceberg-core:{VERSION}",
    "org.junit.platform:junit-platform-console-standalone:1.14.0",
    "org.assertj:assertj-core:3.27.6",
    "org.mockito:mockito-core:4.11.0",
    "org.awaitility:awaitility:4.3.0",
)
_HADOOP = ("hadoop-client-*.jar", "commons-logging*.jar", "snappy-java*.jar")
"""Jars of Spark that Iceberg's access to local files needs."""
_SOURCE = Path(__file__).parents[1] / "support" / "CatalogSuites.java"
SUITE_SECONDS = 600

Outcomes = dict[str, str]
"""Test to `passed`, `failed: why` or `skipped`."""

TABLE_TESTS, VIEW_TESTS = 102, 47
FAILURES = {
    "testNamespaceWithSlash()": "a namespace is a folder of the warehouse, so its name has no slash",
    "testTableNameWithSlash()": "a table is a folder of the warehouse, so its name has no slash",
}
"""Tests that fail, each with the policy that it meets."""
SKIPPED = {
    "testListNestedNamespaces()": "a namespace has one level here",
    "createAndDropEmptyNamespace()": "Iceberg's REST client sends no empty namespace",
    "listNamespacesWithEmptyNamespace()": "Iceberg's REST client sends no empty namespace",
    "listTablesInEmptyNamespace()": "Iceberg's REST client sends no empty namespace",
    "namespacePropertiesOnEmptyNamespace()": "Iceberg's REST client sends no empty namespace",
}
"""Tests that the suite of tables skips, because CatalogSuites says that the catalog lacks the feature."""
SKIPPED_VIEWS = {"listViewsInEmptyNamespace()": "Iceberg's REST client sends no empty namespace"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcomes]:
    """Suite to the outcomes of its tests."""
    place = tmp_path_factory.mktemp("suites")
    spark = Path(pyspark.__file__).parent / "jars"
    hadoop = [jar for pattern in _HADOOP for jar in sorted(spark.glob(pattern))]
    suites = fetch("iceberg-suites", VERSION, _SUITES, transitive=False)
    classes = compiled(_SOURCE, suites, fetch("iceberg-suites-jars", VERSION, _JARS), *hadoop)
    with Served(place / "data", ports=True) as served:
        warehouse = served.server.settings.warehouse_uri
        chosen = Path(file_uri.to_path(warehouse) or "") / "chosen"
        chosen.mkdir(parents=True)
        settings = {
            "uri": f"http://{served.server.about['http']}/iceberg",
            "warehouse": warehouse,
            "java.io.tmpdir": str(chosen),  # the suite of views puts views into temporary folders
        }
        command = [java(), *SHORT_LIVED, "-Xmx512m", *(f"-D{key}={value}" for key, value in settings.items())]
        command += ["-cp", classes, "org.junit.platform.console.ConsoleLauncher", "execute", "--disable-banner"]
        command += ["--details", "none", "--reports-dir", str(place / "reports")]
        command += ["--select-class", "CatalogSuites$Tables", "--select-class", "CatalogSuites$Views"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SUITE_SECONDS, check=False)
    (report,) = (place / "reports").glob("*jupiter.xml")
    assert report.exists(), done.stdout + done.stderr
    found: dict[str, Outcomes] = {"CatalogSuites$Tables": {}, "CatalogSuites$Views": {}}
    for case in ElementTree.parse(report).iter("testcase"):
        found[case.get("classname", "")][case.get("name", "")] = _outcome(case)
    return found


def _outcome(case: ElementTree.Element) -> str:
    for kind in ("failure", "error"):
        problem = case.find(kind)
        if problem is not None:
            return f"failed: {problem.get('message')}"
    return "skipped" if case.find("skipped") is not None else "passed"


def _check(outcomes: Outcomes, tests: int, failures: set[str], skipped: set[str]) -> None:
    failed = {name: why for name, why in outcomes.items() if why.startswith("failed")}
    assert failed.keys() == failures, "\n".join(f"{name}: {why}" for name, why in failed.items())
    assert {name for name, why in outcomes.items() if why == "skipped"} == skipped
    assert len(outcomes) == tests


def test_the_catalog_passes_iceberg_s_own_tests(outcomes: dict[str, Outcomes]) -> None:
    _check(outcomes["CatalogSuites$Tables"], TABLE_TESTS, set(FAILURES), set(SKIPPED))


def test_the_catalog_s_views_pass_iceberg_s_own_tests(outcomes: dict[str, Outcomes]) -> None:
    _check(outcomes["CatalogSuites$Views"], VIEW_TESTS, set(), set(SKIPPED_VIEWS))
