"""The server's end of the pipe to a query's process bounds what an attacker in the process may send."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakestore.errors import Exhausted
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import pipe
from lakestore.wire.pipe import Verb
from lakestore_server.host import child
from lakestore_server.host.supervisor import Supervisor
from lakestore_server.operate.query_figures import QueryFigures
from lakestore_server.queries import rpcs
from lakestore_server.queries import service as queries
from lakestore_server.queries.question import Ask, Question
from lakestore_server.queries.service import QueryRun, QueryService


class Calls:
    """RPCs that answer with nothing."""

    generation = 0

    def readers(self) -> dict[str, tuple[str, ...]]:
        return {"ann": ("*",)}

    def begin(self, _caller: object, _name: str) -> Any:
        principal = SimpleNamespace(patterns=lambda _right: ("*",))
        return SimpleNamespace(follow=lambda: None, recheck=lambda: None, principal=principal)

    def parsed(self, _name: str, data: bytes) -> pb.PlanRequest:
        return pb.PlanRequest.FromString(data)

    def answer(self, _call: object, _name: str, _request: object, **_: bool) -> pb.PlanAnswer:
        return pb.PlanAnswer()

    def stream(self, _call: object, _name: str, _request: object, **_: bool) -> Generator[Any]:
        yield pb.PlanAnswer()


@pytest.fixture
def service() -> Iterator[QueryService]:
    service = QueryService(cast("Any", Calls()), Limits(), QueryFigures(), Supervisor())
    yield service
    service.close()


@pytest.fixture
def query(service: QueryService) -> QueryRun:
    viewer: Any = SimpleNamespace(counted_as="viewer", principal=SimpleNamespace(administers=False))
    return QueryRun(service, viewer, "test", Question("SELECT 1"))


def test_a_query_holds_so_many_streams_open(query: QueryRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "STREAMS_MAX", 3)
    opening = Verb.OPEN, pipe.called("Fetch", pb.PlanRequest(tables=["a.b"]).SerializeToString())
    numbers = [query._answer_to(*opening) for _ in range(3)]
    with pytest.raises(Exhausted, match="parts of tables at once"):
        query._answer_to(*opening)
    query._answer_to(Verb.CLOSE, numbers[0] or b"")
    assert query._answer_to(*opening)


def test_a_query_names_so_many_tables_in_its_requests(query: QueryRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpcs, "ASKED_BYTES_MAX", 5 * (rpcs.CALL_BYTES + 8))
    for _ in range(100):
        query.reads.read("Plan", pb.PlanRequest(tables=["a.b"]).SerializeToString())
    for number in range(4):
        query.reads.read("Plan", pb.PlanRequest(tables=[f"a.c{number}"]).SerializeToString())
    with pytest.raises(Exhausted, match="requests"):
        query.reads.read("Plan", pb.PlanRequest(tables=["a.d"]).SerializeToString())


@pytest.mark.parametrize(("administers", "told"), [(False, b"{}"), (True, b'{"ann": ["*"]}')])
def test_a_process_learns_rights_of_others_only_for_an_administrator(
    service: QueryService, *, administers: bool, told: bytes
) -> None:
    viewer: Any = SimpleNamespace(counted_as="viewer", principal=SimpleNamespace(administers=administers))
    query = QueryRun(service, viewer, "test", Question("SELECT 1"))
    assert query._answer_to(Verb.READERS, b"") == told


def test_what_the_process_says_is_logged_as_one_line(
    query: QueryRun,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The process writes into a pipe, not into the server's log or terminal."""
    module_process = child.module_process
    monkeypatch.setattr(
        child,
        "module_process",
        lambda *_, **given: module_process("tests.support.loud_process", stderr=given.get("stderr")),
    )
    with caplog.at_level(logging.WARNING, "lakestore.queries"), pytest.raises(Exception, match="has ended"):
        list(query.stream(Ask.RUN))
    (record,) = caplog.records
    assert r"\x1b]0;owned\x07\n2026 INFO all is well" in record.getMessage()
    assert "\n" not in record.getMessage()
    assert "owned" not in capfd.readouterr().err
