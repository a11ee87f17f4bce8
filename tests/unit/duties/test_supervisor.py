"""No error of a duty ends its thread, and none is silent: it is said, and the work is tried again."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.edge.http import HttpServer
from lakestore_server.host import worker
from lakestore_server.host.supervisor import Supervisor
from lakestore_server.host.worker import Worker
from tests.support.served import Served
from tests.support.waiting import until

ERRORS = [
    KeyError("k"),
    RuntimeError("r"),
    OSError("o"),
    AssertionError(),
    SystemExit(3),
    RecursionError(),
    pa.ArrowInvalid("a"),
]
DUTIES = ["checkpoint", "retention", "expiry", "index-rebuild", "scrub"]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("teller", ["says", "fails"])
def test_any_error_is_told_and_the_work_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, teller: str
) -> None:
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.001)
    supervisor, tries, go_on = Supervisor(), list[int](), threading.Event()

    def work() -> None:
        tries.append(1)
        if len(tries) < 4:
            raise error
        go_on.wait(10)

    def told(_: Exception) -> None:
        if teller == "fails":
            raise KeyError("the teller fails, too")

    duty = Worker(supervisor=supervisor, name="duty", work=work, failed=told)
    duty.start()
    assert supervisor.states()["duty"].as_dict() == {"state": "ok", "failures": 0, "error": ""}
    duty.wake()
    until(lambda: len(tries) == 4, "the tries")
    state = supervisor.states()["duty"]
    assert (state.failures, state.in_a_row) == (3, 3)
    assert state.error.startswith(type(error).__name__)
    assert supervisor.is_failing()
    go_on.set()
    until(lambda: not supervisor.is_failing(), "the success")
    assert supervisor.states()["duty"].failures == 3
    duty.close()


def test_pauses_grow_after_errors_that_nobody_thought_of(monkeypatch: pytest.MonkeyPatch) -> None:
    duty = Worker(supervisor=Supervisor(), name="duty", work=lambda: None, failed=lambda _: None)
    pauses: list[float] = []
    monkeypatch.setattr(duty, "_closing", type("Event", (), {"wait": lambda _, seconds: pauses.append(seconds)})())
    for error in (KeyError(), KeyError(), OSError(), *[KeyError()] * 9):
        duty._tell(error)
    assert pauses == [5, 10, 5, 40, 80, 160, *[300] * 6]


def status(served: Served) -> dict[str, Any]:
    answer = served.lake.transport.status(pb.StatusRequest())
    return dict(json.loads(answer.status))


@pytest.mark.parametrize("name", DUTIES)
def test_every_duty_that_fails_is_in_status_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.01)
    with Served(tmp_path) as served:
        upkeep = served.server.upkeep
        duties: dict[str, Worker] = {
            "checkpoint": upkeep.checkpointer._duty,
            "retention": served.server.retention._duty,
            "expiry": served.server.expiry._duty,
            "index-rebuild": upkeep._rebuilder._duty,
            "scrub": upkeep.scrubber._duty,
        }
        found = status(served)
        assert found["health"] == "serving"
        assert found["duties"][name] == {"state": "ok", "failures": 0, "error": ""}
        duty, fails, done = duties[name], threading.Event(), threading.Event()
        fails.set()

        def work() -> None:
            if fails.is_set():
                raise KeyError("injected")
            done.set()

        monkeypatch.setattr(duty, "_work", work)
        duty.wake()
        until(lambda: status(served)["duties"][name]["failures"] > 1, "the failures")
        found = status(served)
        assert (found["health"], found["duties"][name]["state"]) == ("degraded", "failing")
        assert found["duties"][name]["error"] == "KeyError: 'injected'"
        fails.clear()
        assert done.wait(10)
        until(lambda: status(served)["health"] == "serving", "health")


def test_a_last_checkpoint_that_fails_keeps_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise KeyError("injected")

    served = Served(tmp_path)
    served.lake.create_table("a.b", pa.schema([("v", pa.int64())])).append([{"v": 1}])
    monkeypatch.setattr(served.server.upkeep.checkpointer, "run_once", fails)
    served.close()
    assert served.engine.supervisor.states()["last-checkpoint"].error == "KeyError: 'injected'"
    with Served(tmp_path) as served:
        assert served.lake.table("a.b").scan().count() == 1


def test_a_thread_that_works_once_says_how_it_ended() -> None:
    supervisor = Supervisor()

    def fails() -> None:
        raise KeyError("once")

    supervisor.once("refresh", fails).join()
    assert supervisor.states()["refresh"].error == "KeyError: 'once'"
    supervisor.once("refresh", lambda: None).join()
    assert not supervisor.is_failing()


def test_a_http_server_that_ends_by_itself_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    application: Any = None
    ended: list[BaseException] = []
    for is_stopped in (False, True):
        server = HttpServer(application=application, host="127.0.0.1", port=0, on_end=ended.append)
        gone = threading.Event()
        monkeypatch.setattr(server._server, "run", lambda gone=gone: gone.wait(10))
        monkeypatch.setattr(server._server, "started", True, raising=False)
        server._thread.start()
        server.port = 1
        if is_stopped:
            server._server.should_exit = True
        gone.set()
        server._thread.join(10)
    assert [str(error) for error in ended] == ["the HTTP server has ended by itself"]
