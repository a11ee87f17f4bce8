"""Workers do what they were given also when the system gives them no more threads."""

from __future__ import annotations

import threading

import pytest

from lakestore_server.host.workers import Workers


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_threads_that_are_there_do_the_work_of_one_that_cannot_be_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, goes_on, done = Workers(8, "work"), threading.Event(), threading.Event()

    def rest() -> None:
        goes_on.wait(30)

    workers.run(rest)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    workers.run(done.set)
    assert workers.threads == 1
    goes_on.set()
    assert done.wait(30)
    workers.close()


def test_work_that_nobody_can_do_is_refused_and_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, done = Workers(1, "work"), threading.Event()
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError):
            workers.run(done.set)
    assert not workers.is_full
    workers.run(done.set)
    assert done.wait(30)
    workers.close()
