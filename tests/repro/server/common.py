# mypy: ignore-errors
"""A server in a process of its own, started and stopped by the scripts of this folder."""

import os
import shutil
import subprocess
import time

from jepsen.system.server import free_port
from tests.repro.place import LAKESTORE as LS
from tests.repro.place import room

BASE = room("server")


class Srv:
    def __init__(self, name, limits=None, env=None, extra="", keep=False, pre=()):
        self.dir = f"{BASE}/{name}"
        if not keep:
            shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(self.dir, exist_ok=True)
        self.port, self.http = free_port(), free_port()
        self.cfg = f"{self.dir}/server.yaml"
        self.limits = limits or {}
        self.extra = extra
        self.env = env or {}
        self.pre = list(pre)
        self.p = None

    def start(self, wait=True, timeout=60):
        with open(self.cfg, "w") as f:
            f.write(f"data: {self.dir}/data\nport: {self.port}\nhttp_port: {self.http}\n{self.extra}")
            if self.limits:
                f.write("limits:\n" + "".join(f"  {k}: {v}\n" for k, v in self.limits.items()))
        env = {**os.environ, **self.env}
        self.log = open(f"{self.dir}/log", "ab")
        self.p = subprocess.Popen(
            [*self.pre, "nice", "-n", "5", LS, "serve", "-c", self.cfg],
            stdout=self.log,
            stderr=self.log,
            env=env,
            cwd=self.dir,
        )
        if wait:
            t = time.time()
            while time.time() - t < timeout:
                if self.p.poll() is not None:
                    raise RuntimeError(f"server ended rc={self.p.returncode}: " + self.tail())
                if b"serves gRPC" in open(f"{self.dir}/log", "rb").read()[getattr(self, "_mark", 0) :]:
                    break
                time.sleep(0.05)
            else:
                raise RuntimeError("no start: " + self.tail())
        return self

    def tail(self, n=1500):
        return open(f"{self.dir}/log").read()[-n:]

    def stop(self, timeout=60):
        if self.p and self.p.poll() is None:
            self.p.terminate()
            self.p.wait(timeout)
        self._mark = os.path.getsize(f"{self.dir}/log")

    def kill(self):
        self.p.kill()
        self.p.wait()
        self._mark = os.path.getsize(f"{self.dir}/log")

    @property
    def addr(self):
        return f"localhost:{self.port}"
