"""The query service: answers stream, processes are used again by their principal only, and no process is trusted."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.errors import Denied, Exhausted, Invalid, LakestoreError, LimitReached, NotAuthenticated, Unavailable
from lakestore.limits import Limits
from lakestore_server.edge.postgres.sqlstates import OUT_OF_MEMORY, sqlstate_of
from lakestore_server.host.child import Child
from lakestore_server.queries import memory_watch
from lakestore_server.queries import service as module
from lakestore_server.queries.parameter import Parameter
from lakestore_server.queries.question import Cancelled, Dialect, Form, Part, Question
from lakestore_server.queries.service import QueryService, QuerySession
from tests.support.rights import token_of, write_auth
from tests.support.served import Served
from tests.support.waiting import until

LIMITS = Limits(query_seconds=60, query_processes=2, query_wait_seconds=2, query_bytes=64 << 20, principal_percent=100)
SLOW = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b"
MANY = "SELECT range AS n, range * 2 AS m, 'row ' || range AS text FROM range({})"
RIGHTS = {"root": {"*": ["admin"]}, "ann": {"shop.*": ["read"]}, "bob": {"shop.orders": ["read"]}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("queries")
    auth = write_auth(folder / "auth.yaml", RIGHTS)
    with Served(folder / "data", ports=True, auth=str(auth), limits=LIMITS) as made:
        schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
        made.lake.create_table("shop.orders", schema, primary_key=["id"], buckets=1)
        made.lake.table("shop.orders").upsert([{"id": n, "name": f"order {n}"} for n in range(5)])
        yield made


@pytest.fixture(autouse=True)
def own_processes(service: QueryService) -> Iterator[None]:
    yield
    until(lambda: not service.running(), "the end of all questions")
    service.pool.end_idle()


@pytest.fixture
def service(served: Served) -> QueryService:
    assert served.server.queries is not None
    return served.server.queries


def session(served: Served, name: str = "ann") -> QuerySession:
    assert served.server.queries is not None
    return served.server.queries.session(served.server.access.caller(token_of(name)), "test", soon=False)


def rows(asked: QuerySession, question: Question | str) -> list[dict[str, object]]:
    question = Question(question) if isinstance(question, str) else question
    with asked.run(question) as answer:
        found: list[dict[str, object]] = pa.Table.from_batches(answer.batches(), answer.schema).to_pylist()
        return found


def slowly(parts: Iterator[Part]) -> Iterator[Part]:
    for part in parts:
        time.sleep(0.01)
        yield part


def test_head_comes_before_rows_and_figures_behind_them(served: Served) -> None:
    with session(served).run(Question("SELECT id, name FROM shop.orders ORDER BY id")) as answer:
        assert answer.schema == pa.schema([("id", pa.int64()), ("name", pa.string())])
        assert answer.token
        assert answer.explain == ""
        assert [batch.num_rows for batch in answer.batches()] == [5]
        assert (answer.figures.rows, answer.figures.has_more) == (5, False)
        assert "shop.orders" in answer.explain
    at = Question("SELECT count(*) AS n FROM shop.orders", at=answer.token)
    served.lake.table("shop.orders").upsert([{"id": 100, "name": "later"}])
    assert rows(session(served), at) == [{"n": 5}]
    served.lake.table("shop.orders").delete([{"id": 100}])


def test_an_answer_of_many_rows_needs_no_memory_for_them(served: Served, service: QueryService) -> None:
    """Neither the process nor the server holds the rows: both keep a few parts."""
    with session(served).run(Question(MANY.format(3_000_000))) as answer:
        count = highest = 0
        for part in answer.parts():
            count += part.rows
            assert len(part.data) < 3 << 20
            (run,) = list(service._runs)
            assert run._process is not None
            highest = max(highest, run._process.resident_bytes())
        (lowest,) = {count} - {0}
    assert lowest == 3_000_000
    assert highest < 500 << 20, "the answer has 120 MB, and a process that held it twice would have more"
    assert answer.figures.rows == 3_000_000


def test_the_server_reads_no_further_than_its_client(served: Served, service: QueryService) -> None:
    asked = session(served)
    with asked.run(Question(MANY.format(50_000_000))) as answer:
        parts = answer.parts()
        next(parts)
        (shown,) = service.running()
        assert (shown.principal, shown.door, shown.text) == ("ann", "test", MANY.format(50_000_000))
        assert shown.rows > 0
        before = shown.rows
        time.sleep(0.3)
        (later,) = service.running()
        assert later.rows == before
        assert later.process == shown.process
    assert service.running() == []
    assert rows(asked, "SELECT 1 AS one") == [{"one": 1}], "the session lives"


def test_rows_of_the_log_that_a_query_returns_unchanged_do_not_come_back(served: Served) -> None:
    """The process names their place in the server's own message."""
    everything = [{"id": n, "name": f"order {n}"} for n in range(5)]
    for text, is_place in (
        ("SELECT id, name FROM shop.orders", True),
        ("SELECT id, name FROM shop.orders WHERE id >= 0 LIMIT 5", True),
        ("SELECT id, name FROM shop.orders ORDER BY id", False),
    ):
        with session(served).run(Question(text)) as answer:
            parts = list(answer.parts())
            batches = [part.batch(answer.schema) for part in parts]
            found = pa.Table.from_batches(batches, answer.schema).sort_by("id").to_pylist()
        assert found == everything
        assert [bool(part.place.message) for part in parts] == [is_place]
    with session(served).run(Question("SELECT name AS n, id FROM shop.orders LIMIT 3")) as answer:
        (part,) = answer.parts()
        assert part.place.message
        assert part.batch(answer.schema).column(0).to_pylist() == [each["name"] for each in everything[:3]]


def test_a_principal_uses_its_process_again_and_nobody_else_does(served: Served, service: QueryService) -> None:
    def pid(name: str) -> int:
        with session(served, name).run(Question("SELECT count(*) FROM shop.orders")) as answer:
            list(answer.parts())
            (run,) = list(service._runs)
            assert run.pid is not None
            return run.pid

    first = pid("ann")
    assert pid("ann") == first
    other = pid("bob")
    assert other != first
    assert pid("ann") == first
    third = pid("root")
    assert third not in (first, other)
    assert not Path(f"/proc/{other}").exists(), "two processes, so the one that was idle for longest made room"


def test_a_process_asks_for_the_rights_of_all_principals_only_if_a_text_needs_them(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    access, calls = served.server.access, list[str]()
    readers = access.readers

    def counted() -> Mapping[str, tuple[str, ...]]:
        calls.append("readers")
        return readers()

    monkeypatch.setattr(access, "readers", counted)

    def asked(name: str, text: str) -> list[dict[str, object]]:
        return rows(session(served, name), Question(text, dialect=Dialect.POSTGRES, user=name))

    assert asked("root", "SELECT count(*) AS n FROM shop.orders") == [{"n": 5}]
    assert not calls
    text = "SELECT has_table_privilege('bob', 'shop.orders', 'select') AS may"
    assert asked("root", text) == [{"may": True}]
    assert calls == ["readers"]
    with pytest.raises(LakestoreError, match='role "bob" does not exist'):
        asked("ann", text)
    assert calls == ["readers"]
    assert access.readers() is access.readers(), "made once for each reading of the auth file"


def test_a_process_ends_when_rights_change(served: Served, service: QueryService) -> None:
    file = served.server.access._file
    assert file is not None
    asked = session(served, "bob")
    rows(asked, "SELECT 1")
    (before,) = [each.child.pid for each in service.pool._idle]
    try:
        write_auth(file, {**RIGHTS, "bob": {}})
        served.clock.advance(2)
        with pytest.raises(Denied):
            rows(asked, "SELECT count(*) FROM shop.orders")
        until(lambda: not Path(f"/proc/{before}").exists(), "the end of the process")
    finally:
        write_auth(file, RIGHTS)
        served.clock.advance(2)


def test_a_lost_token_ends_the_answer_under_way(served: Served) -> None:
    file = served.server.access._file
    assert file is not None
    try:
        with session(served, "bob").run(Question(MANY.format(50_000_000))) as answer:
            parts = answer.parts()
            next(parts)
            write_auth(file, {name: rights for name, rights in RIGHTS.items() if name != "bob"})
            served.clock.advance(2)
            with pytest.raises(NotAuthenticated):
                list(slowly(parts))
    finally:
        write_auth(file, RIGHTS)
        served.clock.advance(2)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that kills no process which is slow to end its answer."""
    monkeypatch.setattr(module, "INTERRUPT_SECONDS", 60.0)


@pytest.mark.usefixtures("patient")
def test_any_thread_cancels(served: Served, service: QueryService) -> None:
    asked, errors = session(served), list[LakestoreError]()
    rows(asked, "SELECT 1")

    def run() -> None:
        try:
            rows(asked, f"{SLOW}, shop.orders")
        except LakestoreError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: any(len(run.reads._calls) > 1 for run in list(service._runs)), "the query has its plan")
    (process,) = [each.process for each in service.running()]
    asked.cancel("you asked for it")
    thread.join()
    assert isinstance(errors[0], Cancelled)
    assert "you asked for it" in errors[0].message
    assert rows(asked, "SELECT 1 AS one") == [{"one": 1}]
    assert [each.child.pid for each in service.pool._idle] == [process], "it answers the next question"


@pytest.mark.usefixtures("patient")
def test_an_answer_that_is_closed_early_leaves_its_process(served: Served, service: QueryService) -> None:
    asked, question = session(served), Question(MANY.format(50_000_000))
    pids = set()
    for form in (Form.ARROW, Form.ROWS, Form.COPY_TEXT):
        with asked.run(replace(question, form=form)) as answer:
            next(answer.parts())
            (run,) = list(service._runs)
            pids.add(run.pid)
        assert run.outcome == "Cancelled"
        assert rows(asked, "SELECT count(*) AS n FROM shop.orders") == [{"n": 5}]
    assert [each.child.pid for each in service.pool._idle] == list(pids)


@pytest.mark.parametrize("is_read", [True, False])
def test_a_process_that_does_not_end_its_answer_is_killed(served: Served, service: QueryService, is_read: bool) -> None:
    asked = session(served)
    answer = asked.run(Question(MANY.format(50_000_000)))
    (run,) = list(service._runs)
    process = run.pid
    assert process is not None
    os.kill(process, signal.SIGSTOP)
    if is_read:
        answer.close()
    else:
        run.cancel("nobody reads")
        until(lambda: run._process is not None and run._process.child.has_ended, "the end of the process")
        answer.close()
    assert not Path(f"/proc/{process}").exists()
    assert rows(asked, "SELECT 1 AS one") == [{"one": 1}]


def test_an_interrupt_that_comes_late_ends_no_other_answer(
    served: Served, service: QueryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = session(served)
    rows(asked, "SELECT 1")
    (process,) = [each.child.pid for each in service.pool._idle]
    monkeypatch.setattr(Child, "interrupt", lambda _: True)  # the signal is lost
    answer = asked.run(Question("SELECT 1"))
    answer.close()
    assert not Path(f"/proc/{process}").exists(), "the signal may still come, so the process is not used again"


def test_a_question_waits_for_a_process_and_is_then_refused(served: Served, service: QueryService) -> None:
    answers = [session(served).run(Question(MANY.format(50_000_000))) for _ in range(2)]
    with pytest.raises(Exhausted, match="2 queries run, the limit"):
        rows(session(served), "SELECT 1")
    answers[0].close()
    assert rows(session(served), "SELECT 1 AS one") == [{"one": 1}]
    answers[1].close()


def test_time_is_over_also_for_a_client_that_does_not_read(
    served: Served, service: QueryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = session(served)
    rows(asked, "SELECT 1")  # the process is there
    with asked.run(Question(MANY.format(50_000_000))) as answer:
        parts = answer.parts()
        next(parts)
        monkeypatch.setattr(service, "limits", Limits(query_seconds=1))
        (run,) = list(service._runs)
        until(lambda: bool(run._why), "the end of the time")
        with pytest.raises(Cancelled, match="it took 1 seconds"):
            list(parts)


def test_a_process_that_dies_in_the_middle_is_an_error_of_its_question(served: Served, service: QueryService) -> None:
    asked = session(served)
    with asked.run(Question(MANY.format(50_000_000))) as answer:
        parts = answer.parts()
        next(parts)
        (shown,) = service.running()
        os.kill(shown.process or 0, 9)
        with pytest.raises(Unavailable, match="SIGKILL"):
            list(parts)
    assert rows(asked, "SELECT 1 AS one") == [{"one": 1}]


def test_an_error_of_a_text_leaves_the_process(served: Served, service: QueryService) -> None:
    asked = session(served)
    rows(asked, "SELECT 1")
    (process,) = [each.child.pid for each in service.pool._idle]
    for text in ("SELECT nope FROM shop.orders", "SELECT * FROM read_text('/etc/passwd')", "SELEKT"):
        with pytest.raises(Invalid):
            rows(asked, text)
    with pytest.raises(LakestoreError):
        rows(asked, "SELECT * FROM secret.pay")
    assert [each.child.pid for each in service.pool._idle] == [process]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT list(range) AS many FROM range(100000000)",  # DuckDB counts its memory
        "SELECT length(repeat('a', 900000000)) AS n",  # DuckDB counts no constant
        "SELECT repeat('a', 20000000) || range AS long FROM range(1000)",  # and no long texts
    ],
)
def test_a_question_beyond_its_memory_is_an_error_that_names_memory(served: Served, text: str) -> None:
    asked = session(served)
    for _ in range(2):
        with pytest.raises(LakestoreError) as error:
            rows(asked, text)
        assert sqlstate_of(error.value) == OUT_OF_MEMORY
        assert rows(asked, "SELECT 7 AS n") == [{"n": 7}]


def test_a_process_of_a_question_beyond_its_memory_is_not_used_again(served: Served, service: QueryService) -> None:
    asked = session(served)
    rows(asked, "SELECT 1 AS n")
    (idle,) = service.pool._idle
    process, bound = idle.child.pid, memory_watch.BESIDE_BYTES + 2 * LIMITS.query_bytes
    assert LIMITS.query_bytes < idle.room_bytes() - memory_watch.ROOM_BYTES <= bound
    with pytest.raises(LimitReached, match="more memory than it may take"):
        rows(asked, "SELECT list(range) AS many FROM range(100000000)")
    assert process not in [each.child.pid for each in service.pool._idle]


@pytest.mark.parametrize("form", [Form.ARROW, Form.ROWS])
def test_a_row_that_is_longer_than_a_part_leaves_the_process(served: Served, service: QueryService, form: Form) -> None:
    asked = session(served)
    rows(asked, "SELECT 1 AS n")
    (process,) = [each.child.pid for each in service.pool._idle]
    question = Question("SELECT repeat('a', 68000000) AS long", form=form)
    with pytest.raises(LimitReached, match=r"a row has 68,000,\d+ bytes, the most is 67,107,840"):
        with asked.run(question) as answer:
            list(answer.parts())
    assert [each.child.pid for each in service.pool._idle] == [process]


def test_a_drain_waits_for_a_question_and_refuses_later_ones(
    served: Served, service: QueryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, calls = session(served), service.rpcs.calls
    monkeypatch.setattr(calls, "_is_draining", False)  # it is false again after the test
    with asked.run(Question(MANY.format(1_000_000))) as answer:
        assert not calls.drain(0), "the question makes no call now, and runs"
        constant = Question("SELECT 1", dialect=Dialect.POSTGRES, form=Form.ROWS)
        for question in (constant, Question("SELECT * FROM shop.orders WHERE id = 1"), Question("SELECT 1 AS n")):
            with pytest.raises(Unavailable, match="going down: try again"):
                session(served).run(question)
        assert sum(part.rows for part in answer.parts()) == 1_000_000
    assert calls.drain(60)


def test_a_closed_session_takes_no_question(served: Served) -> None:
    asked = session(served)
    asked.close()
    with pytest.raises(Cancelled):
        rows(asked, "SELECT 1")


@pytest.mark.parametrize(
    "text",
    [
        "no head",
        "bad head",
        "no frame",
        "huge frame",
        "short part",
        "bad batch",
        "wild place",
        "wild offsets",
        "bad figures",
        "death",
    ],
)
def test_garbage_of_a_process_ends_it(
    served: Served, service: QueryService, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """The server opens no bytes of a process without a check, and its next question gets another process."""
    monkeypatch.setattr(module, "_CONFINED", "tests.support.garbage_process")
    with pytest.raises(Unavailable):
        rows(session(served), text)
    assert service.pool.size == 0


def test_endless_parts_end_with_the_time(
    served: Served, service: QueryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CONFINED", "tests.support.garbage_process")
    with session(served).run(Question("endless")) as answer:
        monkeypatch.setattr(service, "limits", Limits(query_seconds=4))
        sizes = (len(part.data) for part in slowly(answer.parts()))
        with pytest.raises(Cancelled, match="it took 4 seconds"):
            max(sizes)


def test_parameters_are_described_and_typed(served: Served) -> None:
    asked = session(served)
    found = asked.describe(Question("SELECT id, name FROM orders WHERE id = $1 LIMIT $2", search_path=("shop",)))
    assert found.parameters == (pa.int64(), pa.int64())
    assert found.schema == pa.schema([("id", pa.int64()), ("name", pa.string())])
    given = Parameter(pa.int64(), 3), Parameter(pa.int64(), 5)
    question = Question("SELECT name FROM orders WHERE id = $1 LIMIT $2", given, search_path=("shop",))
    assert rows(asked, question) == [{"name": "order 3"}]


def test_an_administrator_is_told_what_others_may_read(served: Served) -> None:
    text = "SELECT has_table_privilege('bob', 'shop.orders', 'select') AS a, has_table_privilege('ann', 'shop.orders',"
    asked = Question(f"{text} 'insert') AS b", dialect=Dialect.POSTGRES, user="root")
    assert rows(session(served, "root"), asked) == [{"a": True, "b": False}]
    with pytest.raises(LakestoreError, match='role "bob" does not exist'):
        rows(session(served, "ann"), replace(asked, user="ann"))


def test_rows_leave_as_bytes_of_postgres(served: Served) -> None:
    for form, begin in ((Form.ROWS, b"D"), (Form.COPY_TEXT, b"d"), (Form.COPY_BINARY, b"d")):
        with session(served).run(Question("SELECT id FROM shop.orders ORDER BY id", form=form)) as answer:
            parts = [(part.rows, bytes(part.data)) for part in answer.parts()]
        assert sum(number for number, _ in parts) == 5
        assert parts[0][1].startswith(begin)
