"""pgjdbc's own tests through the Postgres port. A proxy lets them make their tables: see `WriterProxy`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

import lakestore as ls
from lakestore.limits import Limits
from lakestore_server.main import Server
from lakestore_server.settings import Postgres as PostgresPort
from lakestore_server.settings import Settings
from tests.support import pgjdbc_suites
from tests.support.pgjdbc_suites import Outcomes
from tests.support.postgres import Postgres
from tests.support.writer_proxy import WriterProxy

SECONDS = 1_500.0
QUICK = (
    "jdbc2.DatabaseMetaDataCacheTest",
    "jdbc2.DatabaseMetaDataPropertiesTest",
    "jdbc2.ParameterStatusTest",
    "jdbc3.TypesTest",
    "jdbc4.ClientInfoTest",
    "jdbc4.IsValidTest",
    "jdbc4.WrapperTest",
)
LONG = (
    "jdbc2.DatabaseMetaDataTest",
    "jdbc2.DatabaseMetaDataTransactionIsolationTest",
    "jdbc2.ResultSetMetaDataTest",
    "jdbc2.ServerErrorTest",
    "jdbc3.DatabaseMetaDataTest",
    "jdbc3.ParameterMetaDataTest",
    "jdbc4.DatabaseMetaDataTest",
    "jdbc4.UUIDTest",
    "jdbc42.DatabaseMetaDataTest",
)
QUICK_PASSES, LONG_PASSES = 45, 75
"""Tests that pass at least: a test of several parameters is one."""
_NOT_MADE = "the lake has no such thing: it is made by SQL that writes"
_KINDS = "the lake's tables have no column of this type"
_ONE_CUT = "every transaction reads one cut: repeatable read"
_DIGITS = "numeric without digits is decimal(38, 10)"
_ANEW = "the proxy makes a table anew when it changes"
_UNKNOWN = "the function is on no list"
FAILURES: Mapping[str, Mapping[str, str]] = {
    "jdbc2.DatabaseMetaDataTest": {
        _NOT_MADE: "ascDescIndexInfo crossReference customArrayTypeInfo domainColumnSize foreignKeyActions foreignKeys"
        " foreignKeysToUniqueIndexes funcReturningComposite funcReturningTable funcWithDirection funcWithNames"
        " funcWithoutNames functionColumns generatedColumns getUDT1 getUDT2 getUDT3 getUDT4 getUDTQualified"
        " identityColumns indexInfo materializedViewPrivileges multiColumnForeignKeys notNullDomainColumn"
        " partialIndexInfo partitionedTables partitionedTablesIndex remarkIndexInfo sameTableForeignKeys serialColumns"
        " smallSerialColumns smallSerialSequenceLikeColumns viewPrivileges",
        "there is one database": "catalogs",
        _DIGITS: "informationAboutArrayTypes numericPrecision",
        "rights are those of principals, not of GRANT": "noTablePrivileges tablePrivileges",
        _ANEW: "droppedColumns",
        "names of tables have letters, digits and _": "escaping",
    },
    "jdbc2.DatabaseMetaDataTransactionIsolationTest": {
        _ONE_CUT: "alterConnectionTransactionIsolation alterDatabaseDefaultTransactionIsolation"
        " connectionTransactionIsolation metadataDefaultTransactionIsolation setConnectionTransactionIsolation",
    },
    "jdbc2.ParameterStatusTest": {
        "a zone by its offset has the name of a zone: Etc/GMT-8 for GMT-08:00": "expectedInitialParameters",
    },
    "jdbc2.ResultSetMetaDataTest": {
        _NOT_MADE: "testIdentityColumn testIsAutoIncrement testSmallSerialColumns testSmallSerialSequenceLikeColumns",
        _KINDS: "testClosedResultSet testColumnDisplaySize testComposite testTimestampInfo testUnexecutedStatement",
        _ANEW: "testCache",
    },
    "jdbc3.DatabaseMetaDataTest": {_NOT_MADE: "getColumnsForDomain"},
    "jdbc3.ParameterMetaDataTest": {"there are no geometric operators": "testParameterMD"},
    "jdbc3.TypesTest": {_UNKNOWN: "testCallableBoolean"},
    "jdbc4.DatabaseMetaDataTest": {
        _NOT_MADE: "getColumnsForAutoIncrement getFunctionsInSchemaForFunctions getFunctionsWithBlankPatterns"
        " getFunctionsWithNullPatterns getFunctionsWithSpecificTypes getProceduresInSchemaForProcedures"
        " getProceduresWithCorrectCatalogAndWithout",
    },
    "jdbc4.IsValidTest": {_UNKNOWN: "testIsValidRemoteClose"},
    "jdbc4.UUIDTest": {_KINDS: "testUUID"},
    "jdbc42.DatabaseMetaDataTest": {
        _DIGITS: "getColumnsForNullScale getColumnsForSchema",
        _NOT_MADE: "getCorrectSQLTypeForOffPathTypes getCorrectSQLTypeForShadowedTypes",
    },
}
"""Class to reason to the tests that may fail for it."""


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[WriterProxy]:
    """A proxy before a server without principals."""
    limits = Limits(query_processes=4, principal_percent=100)
    server = Server(Settings(tmp_path / "data", port=0, http_port=0, postgres=PostgresPort(port=0), limits=limits))
    server.start()
    with ExitStack() as stack:
        stack.callback(server.close)
        lake = stack.enter_context(ls.connect(server.about["grpc"]))
        lake.create_database("public")
        real = stack.enter_context(Postgres())
        port = int(server.about["postgres"].rpartition(":")[2])
        yield stack.enter_context(WriterProxy(lake, port, real))


def _check(outcomes: Outcomes, classes: Sequence[str], passes: int) -> None:
    assert outcomes.keys() == set(classes)
    failed = {
        f"{name}.{test}: {why}"
        for name, tests in outcomes.items()
        for test, why in tests.items()
        if why.startswith("failed") and test not in " ".join(FAILURES.get(name, {}).values()).split()
    }
    assert not failed, "\n".join(sorted(failed))
    assert sum(why == "passed" for tests in outcomes.values() for why in tests.values()) >= passes


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pgjdbc_passes_its_tests_of_connections_and_properties(proxy: WriterProxy, tmp_path: Path) -> None:
    _check(pgjdbc_suites.run(proxy, QUICK, tmp_path / "reports", SECONDS), QUICK, QUICK_PASSES)


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 100)
def test_pgjdbc_passes_its_tests_that_read(proxy: WriterProxy, tmp_path: Path) -> None:
    _check(pgjdbc_suites.run(proxy, LONG, tmp_path / "reports", SECONDS), LONG, LONG_PASSES)
