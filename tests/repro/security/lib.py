# mypy: ignore-errors
"""Start servers (secure / default), raw gRPC + HTTP helpers."""

import hashlib
import http.client
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
from pathlib import Path

from tests.repro.place import PYTHON as PY
from tests.repro.place import room

os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.dont_write_bytecode = True

ROOT = room("security")
room("security/srv")
room("security/logs")
PKI = ROOT / "pki"


def sh(*a):
    subprocess.run(a, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def pki():
    if (PKI / "done").exists():
        return
    PKI.mkdir(exist_ok=True)
    for ca in ("ca", "evilca"):
        sh(
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{PKI}/{ca}.key",
            "-out",
            f"{PKI}/{ca}.pem",
            "-days",
            "30",
            "-subj",
            f"/CN={ca}",
        )

    def leaf(name, cn, san, ca="ca", eku=""):
        sh(
            "openssl",
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{PKI}/{name}.key",
            "-out",
            f"{PKI}/{name}.csr",
            "-subj",
            f"/CN={cn}",
        )
        (PKI / f"{name}.ext").write_text(
            (f"subjectAltName={san}\n" if san else "") + (f"extendedKeyUsage={eku}\n" if eku else "")
        )
        sh(
            "openssl",
            "x509",
            "-req",
            "-in",
            f"{PKI}/{name}.csr",
            "-CA",
            f"{PKI}/{ca}.pem",
            "-CAkey",
            f"{PKI}/{ca}.key",
            "-CAcreateserial",
            "-out",
            f"{PKI}/{name}.pem",
            "-days",
            "30",
            "-extfile",
            f"{PKI}/{name}.ext",
        )

    leaf("server", "localhost", "DNS:localhost,IP:127.0.0.1")
    leaf("c_reader", "reader", "")
    leaf("c_stranger", "nobody-known", "")
    leaf("c_evil", "admin", "", ca="evilca")
    leaf("c_two", "reader", "DNS:writer")
    (PKI / "done").write_text("")


TOK = {}


def auth_file(path):
    """principals with tokens; tokens are deterministic so scripts can share them."""
    users = {
        "admin": [(["admin"], ["*"])],
        "shopadmin": [(["admin"], ["shop.*"])],
        "mineadmin": [(["admin"], ["mine.*"])],
        "reader": [(["read"], ["shop.pub"])],
        "writer": [(["write"], ["shop.pub"])],
        "rw": [(["read", "write"], ["shop.pub"])],
        "fwriter": [(["read", "write"], ["mine.*"])],
        "tierer": [(["tier"], ["*"])],
        "none": [],
        "readall": [(["read"], ["*"])],
    }
    data = {"principals": {}}
    for name, grants in users.items():
        tok = "lakestore_" + hashlib.sha256(b"secbreak" + name.encode()).hexdigest()
        TOK[name] = tok
        data["principals"][name] = {
            "tokens": [{"sha256": hashlib.sha256(tok.encode()).hexdigest()}],
            "certificates": [name],
            "grants": [{"rights": r, "tables": t} for r, t in grants],
        }
    exp = "lakestore_expired"
    TOK["expired"] = exp
    data["principals"]["admin"]["tokens"].append(
        {"sha256": hashlib.sha256(exp.encode()).hexdigest(), "until": "2020-01-01"}
    )
    path.write_text(json.dumps(data))
    path.chmod(0o600)


class Srv:
    def __init__(self, name, secure=False, tls=False, mtls=False, extra="", data_limit_gb=6, fresh=True, env=None):
        pki()
        self.name, self.tls = name, tls
        self.dir = ROOT / "srv" / name
        if fresh and self.dir.exists():
            shutil.rmtree(self.dir)
        self.dir.mkdir(parents=True, exist_ok=True)
        cfg = f"data: {self.dir}/data\nport: 0\nhttp_port: 0\nlog_level: info\n" + extra
        if secure:
            auth_file(self.dir / "auth.yaml")
            cfg += f"auth: {self.dir}/auth.yaml\n"
        if tls:
            cfg += f"tls:\n  cert: {PKI}/server.pem\n  key: {PKI}/server.key\n" + (
                f"  client_ca: {PKI}/ca.pem\n" if mtls else ""
            )
        (self.dir / "cfg.yaml").write_text(cfg)
        self.log = ROOT / "logs" / f"{name}.log"
        f = open(self.log, "w")
        lim = int(data_limit_gb * (1 << 30))
        self.p = subprocess.Popen(
            [
                "prlimit",
                f"--data={lim}",
                "nice",
                "-n",
                "5",
                PY,
                "-m",
                "lakestore",
                "serve",
                "-c",
                str(self.dir / "cfg.yaml"),
            ],
            stdout=f,
            stderr=f,
            cwd=self.dir,
            env={**os.environ, **(env or {})},
            close_fds=False,
        )
        for _ in range(300):
            t = self.log.read_text()
            m = re.search(r"serves gRPC on 127\.0\.0\.1:(\d+).*?://127\.0\.0\.1:(\d+)", t)
            if m:
                self.gport, self.hport = int(m[1]), int(m[2])
                break
            if self.p.poll() is not None:
                raise SystemExit("server died: " + t)
            time.sleep(0.1)
        else:
            raise SystemExit("no start: " + t)

    def rss(self):
        try:
            return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.p.pid}/status").read_text())[1]) // 1024
        except Exception:
            return -1

    def alive(self):
        return self.p.poll() is None

    def stop(self):
        if self.alive():
            self.p.terminate()
            try:
                self.p.wait(30)
            except subprocess.TimeoutExpired:
                self.p.kill()
                self.p.wait()
        return self.p.returncode

    def channel(self, cert=None, opts=()):
        import grpc

        o = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), *opts]
        if not self.tls:
            return grpc.insecure_channel(f"127.0.0.1:{self.gport}", options=o)
        k = dict(root_certificates=(PKI / "ca.pem").read_bytes())
        if cert:
            k |= dict(
                private_key=(PKI / f"{cert}.key").read_bytes(), certificate_chain=(PKI / f"{cert}.pem").read_bytes()
            )
        return grpc.secure_channel(f"localhost:{self.gport}", grpc.ssl_channel_credentials(**k), options=o)

    def http(self, method, path, body=None, headers=None, token=None, timeout=30, cert=None):
        h = dict(headers or {})
        if token:
            h["Authorization"] = f"Bearer {token}"
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
            h.setdefault("Content-Type", "application/json")
        if self.tls:
            c = ssl.create_default_context(cafile=PKI / "ca.pem")
            if cert:
                c.load_cert_chain(PKI / f"{cert}.pem", PKI / f"{cert}.key")
            con = http.client.HTTPSConnection("localhost", self.hport, timeout=timeout, context=c)
        else:
            con = http.client.HTTPConnection("127.0.0.1", self.hport, timeout=timeout)
        con.request(method, path, body, h)
        r = con.getresponse()
        d = r.read()
        con.close()
        return r.status, d.decode("utf-8", "replace")

    def lake(self, who=None, cert=None):
        import lakestore as ls

        kw = {}
        if who:
            kw["token"] = TOK[who]
        if self.tls:
            kw["tls"] = ls.TLS(
                ca=str(PKI / "ca.pem"),
                **(dict(cert=str(PKI / f"{cert}.pem"), key=str(PKI / f"{cert}.key")) if cert else {}),
            )
        return ls.connect(f"{'localhost' if self.tls else '127.0.0.1'}:{self.gport}", **kw)


def md(who=None):
    return (("authorization", f"Bearer {TOK[who]}"),) if who else ()
