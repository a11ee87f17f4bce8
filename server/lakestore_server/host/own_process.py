"""Processes of the server's own: Python on a pipe to it and one back, with no more of its environment than they need.

Tokens, passwords and addresses of the environment stay with the server. A process that reads the lake's files is given
what the store's library reads there, keys among it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

_COMMON = {"PATH", "HOME", "USER", "LANG", "LANGUAGE", "TZ", "TZDIR", "TMPDIR", "SYSTEMROOT"}
_COMMON_PREFIXES = ("LC_", "LD_", "DYLD_", "MALLOC_", "PYTHON", "OMP_", "OPENBLAS_", "NPY_", "ARROW_")
_STORES = {"SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "JAVA_HOME", "CLASSPATH", "IMDS_ENDPOINT"}
_STORES_PREFIXES = (
    "AWS_", "GOOGLE_", "CLOUD_STORAGE_", "GCE_METADATA_", "AZURE_", "IDENTITY_", "MSI_", "HADOOP_", "LIBHDFS_", "KRB5",
    "OPENSSL_",
)  # fmt: skip
"""Variables of the libraries in Arrow that read S3, GCS, Azure and HDFS, managed identities and emulators too."""
_PROXIES = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}


def environment(whole: Mapping[str, str], *, reads_stores: bool = False) -> dict[str, str]:
    """The part of an environment that such a process gets."""
    names, prefixes = set(_COMMON), list(_COMMON_PREFIXES)
    if reads_stores:
        names |= {*_STORES, *_PROXIES, *map(str.lower, _PROXIES)}
        prefixes += _STORES_PREFIXES
    return {name: text for name, text in whole.items() if name in names or name.startswith(tuple(prefixes))}


def begun(
    module: str,
    *arguments: str,
    extra: Mapping[str, str] | None = None,
    reads_stores: bool = False,
    stderr: int | None = None,
) -> subprocess.Popen[bytes]:
    """A process that runs a module, which it finds where this process did; `extra` is added to its environment.

    `stderr` is as of `Popen`: None is this process's own.
    """
    command: Sequence[str] = [sys.executable, "-Pm", module, *arguments]
    path = os.pathsep.join(folder for folder in sys.path if folder)
    given = environment(os.environ, reads_stores=reads_stores)
    # No threads for sums of matrices: nobody multiplies any, and to begin them takes half of a start.
    given |= {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", **(extra or {})}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, bufsize=0, env=given)
