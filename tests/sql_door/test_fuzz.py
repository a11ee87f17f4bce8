"""Hostile bytes at the SQL ports: the server lives, its memory stays flat, other sessions are answered."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import postgres_fuzz
from tests.support.fuzzed_ports import FuzzedPorts
from tests.support.postgres_session import WireSession
from tests.support.seeds import seed
from tests.support.waiting import until

SHORT_CASES, SANS_IO_CASES = 80, 2_000
LONG_SECONDS = 600.0
GROWTH_BYTES = 64 << 20
MORE_THREADS, MORE_SOCKETS = 8, 8
"""Threads and sockets beyond those before the attacks: pools and query processes that were started meanwhile."""
WITNESS_EVERY = 10
_DEFECT = "a defect"


@pytest.fixture
def fuzzed(tmp_path: Path) -> Iterator[FuzzedPorts]:
    """A server to attack; at its end its log has no defect."""
    running = FuzzedPorts(tmp_path)
    try:
        yield running
    finally:
        running.close()
    assert _DEFECT not in running.server.errors, running.server.errors[-4000:]


@pytest.mark.slow
def test_hostile_bytes_on_sockets(fuzzed: FuzzedPorts) -> None:
    fuzzed.record(java=False)
    chance = random.Random(seed(36))
    fuzzed.check()
    before = fuzzed.figures()
    for case in range(SHORT_CASES):
        fuzzed.attack(chance)
        if case % WITNESS_EVERY == 0:
            fuzzed.check()
    fuzzed.check()
    until(lambda: fuzzed.figures().sockets <= before.sockets + MORE_SOCKETS, "the end of hostile connections")


@pytest.mark.long
@pytest.mark.timeout(LONG_SECONDS + 400)
def test_hostile_bytes_for_ten_minutes_leave_nothing_behind(fuzzed: FuzzedPorts) -> None:
    fuzzed.record(java=True)
    fuzzed.check()
    before = fuzzed.figures()
    base = seed()
    ends, cases = time.monotonic() + LONG_SECONDS, [0] * 4
    failures: list[BaseException] = []

    def attacks(number: int) -> None:
        chance = random.Random(f"{base} {number}")
        try:
            while time.monotonic() < ends:
                fuzzed.attack(chance)
                cases[number] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=attacks, args=(number,)) for number in range(len(cases))]
    for thread in threads:
        thread.start()
    time.sleep(LONG_SECONDS / 5)
    settled, checks = fuzzed.figures(), 0
    while time.monotonic() < ends:
        fuzzed.check()
        checks += 1
        time.sleep(1)
    for thread in threads:
        thread.join()
    fuzzed.check()
    until(lambda: fuzzed.figures().sockets <= before.sockets + MORE_SOCKETS, "the end of hostile connections")
    after = fuzzed.figures()
    print(f"{sum(cases)} connections, {checks} checks, before {before}, settled {settled}, after {after}")
    assert not failures
    assert after.resident - settled.resident < GROWTH_BYTES
    assert after.threads <= settled.threads + MORE_THREADS
    assert after.children <= settled.children + 1


def test_hostile_bytes_in_a_session_without_a_socket(caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(seed(37))
    for case in range(SANS_IO_CASES):
        session = WireSession()
        data = postgres_fuzz.beginning(chance) + postgres_fuzz.broken(chance, postgres_fuzz.messages(chance))
        while data and not session.session.is_over:
            size = chance.randint(1, len(data))
            session.raw(data[:size])
            data = data[size:]
        assert _DEFECT not in caplog.text, (case, caplog.text[-3000:])
