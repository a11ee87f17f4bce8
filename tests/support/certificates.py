"""Real certificates, made by the openssl command: an authority, and what it signs."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Signed:
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        assert shutil.which("openssl"), "these tests need the openssl command: install openssl"
        self._folder, self._name = folder, name
        self.cert, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                 "-keyout", self._key, "-out", self.cert)  # fmt: skip

    def sign(self, name: str, *, alternatives: str = "DNS:localhost,IP:127.0.0.1", days: int = 2) -> Signed:
        """A certificate with this common name."""
        made = Signed(self._folder / f"{self._name}-{name}.pem", self._folder / f"{self._name}-{name}.key")
        request, more = made.cert.with_suffix(".csr"), made.cert.with_suffix(".ext")
        _openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", made.key, "-out", request)
        more.write_text(f"subjectAltName={alternatives}\n")
        _openssl("x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self._key, "-CAcreateserial",
                 "-days", str(days), "-extfile", more, "-out", made.cert)  # fmt: skip
        return made


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)
