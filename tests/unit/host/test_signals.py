"""A second signal ends a server at once, wherever its main thread waits."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

WAITS = """
import signal, sys, threading
from lakestore_server.main import Signals

def send(*numbers):  # to a thread that is not the main one, as if that had begun to wait just after the signal
    thread = threading.Thread(target=lambda: [signal.pthread_kill(threading.get_ident(), number) for number in numbers])
    thread.start()
    thread.join()

signals, hung_up = Signals(), []
send(signal.SIGHUP)
threading.Timer(0.3, send, (signal.{first},)).start()
signals.wait(lambda: hung_up.append(1))
print(bool(hung_up), flush=True)
threading.Timer(0.3, send, (signal.SIGHUP, {second})).start()
threading.Event().wait({seconds})
"""


def ended(first: str, second: str, seconds: float) -> subprocess.CompletedProcess[str]:
    script = WAITS.format(first=first, second=second, seconds=seconds)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("first", "second"), [("SIGTERM", "SIGTERM"), ("SIGINT", "SIGTERM"), ("SIGTERM", "SIGINT")])
def test_a_second_signal_ends_at_once_while_the_main_thread_waits(first: str, second: str) -> None:
    found = ended(first, f"signal.{second}", 600)
    assert (found.returncode, found.stdout, found.stderr) == (128 + getattr(signal, second), "True\n", "")


def test_an_end_is_heard_behind_more_hang_ups_than_the_pipe_holds() -> None:
    script = """
import ctypes, signal, sys
from lakestore_server.main import Signals

signals = Signals()
sys.setswitchinterval(10)  # with a way to send that keeps the interpreter's lock: the thread that reads has to wait
send = getattr(ctypes.PyDLL(None), "raise")
for _ in range(70_000):
    send(signal.SIGHUP)
send(signal.SIGTERM)
signals.wait(lambda: None)
"""
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


def test_a_hang_up_after_the_first_signal_ends_nothing() -> None:
    found = ended("SIGTERM", "signal.SIGHUP", 0.6)
    assert (found.returncode, found.stdout, found.stderr) == (0, "True\n", "")
