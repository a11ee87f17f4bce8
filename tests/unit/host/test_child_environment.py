"""Processes of the server's own get no secret that is none of their business."""

from __future__ import annotations

from pathlib import Path

import pytest

import lakestore_server
from lakestore_server.host import child

SECRETS = {"LAKESTORE_TOKEN": "t", "DATABASE_URL": "postgres://me:secret@db", "PGPASSWORD": "p", "OTEL_X_HEADERS": "h"}
STORE = {"AWS_SECRET_ACCESS_KEY": "k", "https_proxy": "http://proxy", "SSL_CERT_FILE": "ca.pem"}
STORES = (
    "AWS_PROFILE AWS_CONFIG_FILE AWS_WEB_IDENTITY_TOKEN_FILE GOOGLE_APPLICATION_CREDENTIALS GCE_METADATA_ROOT"
    " CLOUD_STORAGE_EMULATOR_ENDPOINT AZURE_CLIENT_SECRET IDENTITY_ENDPOINT IDENTITY_HEADER MSI_ENDPOINT MSI_SECRET"
    " IMDS_ENDPOINT HADOOP_HOME LIBHDFS_OPTS KRB5CCNAME KRB5_CONFIG OPENSSL_CONF no_proxy NO_PROXY ALL_PROXY"
).split()
PLAIN = {"PATH": "/bin", "LC_ALL": "C.UTF-8", "TMPDIR": "scratch", "NPY_DISABLE_CPU_FEATURES": "AVX512F"}


@pytest.mark.parametrize("reads_stores", [False, True])
def test_only_what_it_needs_is_given(reads_stores: bool) -> None:
    given = child.environment({**SECRETS, **STORE, **PLAIN}, reads_stores=reads_stores)
    assert given == {**PLAIN, **(STORE if reads_stores else {})}


@pytest.mark.parametrize("name", STORES)
def test_what_a_library_of_a_store_reads_is_given_to_those_that_read_the_lake(name: str) -> None:
    assert child.environment({name: "x"}, reads_stores=True) == {name: "x"}
    assert child.environment({name: "x"}) == {}


def test_a_process_that_runs_has_none_of_the_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {**SECRETS, **STORE}.items():
        monkeypatch.setenv(name, text)
    (tmp_path / "says_its_environment.py").write_text("import os; print(*os.environ)")
    monkeypatch.syspath_prepend(tmp_path)
    process = child.module_process("says_its_environment", reads_stores=True)
    names = set(process.communicate(timeout=120)[0].decode().split())
    assert not names & set(SECRETS)
    assert names >= set(STORE)


def test_no_other_module_begins_a_process() -> None:
    folder = Path(lakestore_server.__file__).parent
    found = {path.name for path in folder.rglob("*.py") if "subprocess.Popen(" in path.read_text()}
    assert found == {"child.py", "tier_process.py"}, "a tierer is a client of its own, with its token and its stores'"
