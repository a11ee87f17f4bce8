"""The protocol between the server and its own processes: questions, silence, deaths, garbled bytes, orphans.

Run as a module, this file is the process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from lakestore.errors import Exhausted, Internal, PlanExpired
from lakestore_server.host import child
from lakestore_server.host.child import (
    HEAD,
    LARGE_BYTES,
    READ_BYTES,
    BoundedPipe,
    Child,
    Gone,
    Kind,
    Parent,
    Readable,
    frame,
    read_frame,
)

ECHO, SUM, LEAVE, FAIL, STOP, HALF, GARBLED, OTHER, NEVER, SPIN, LOUD, CODE, STRAY, ENDED, TWICE = range(15)
MODULE = "tests.unit.host.test_child"


@pytest.fixture
def process() -> Iterator[Child]:
    made = Child("a test", MODULE, silence_seconds=30, bytes_max=1 << 20)
    yield made
    made.close()


def tell(spinning: threading.Event, _verb: int, _question: bytes) -> list[bytes]:
    """No answer, and the event."""
    spinning.set()
    return []


def numbers(_verb: int, question: bytes) -> Iterator[bytes]:
    """The numbers below the one that is asked for; `PlanExpired` beyond 1,000."""
    for number in range(int(question)):
        if number == 1_000:
            raise PlanExpired("the lease is over", retry_after=1.5)
        yield str(number).encode()


def test_frames_of_every_size_cross_a_pipe_and_a_torn_one_is_an_end() -> None:
    sizes = [0, 1, READ_BYTES - 1, READ_BYTES + 1, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, 3 << 20, 5]
    payloads = [bytes([number]) * size for number, size in enumerate(sizes)]
    data = b"".join(frame(Kind.PART, payload) for payload in payloads) + frame(Kind.PART, b"x" * LARGE_BYTES)[:-1]
    back, there = os.pipe()
    idle, to = os.pipe()

    def write() -> None:
        with os.fdopen(there, "wb") as file:
            file.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(to, "wb") as unused, os.fdopen(back, "rb", buffering=0) as source:
        pipe = BoundedPipe(unused, source, 30.0)
        assert [bytes(read_frame(pipe)[2]) for _ in payloads] == payloads
        with pytest.raises(EOFError):
            read_frame(pipe)
    thread.join()
    os.close(idle)


def test_each_end_asks_the_other(process: Child) -> None:
    assert process.pid is None
    process.start()
    first = process.pid
    large = b"x" * 900_000  # more than a pipe holds
    assert process.ask(ECHO, large) == large
    assert process.ask(SUM, b"100", numbers) == b"4950"
    assert process.ask(SUM, b"0", numbers) == b"0"
    assert process.pid == first


def test_an_error_crosses_with_its_kind_and_text_and_the_process_goes_on(process: Child) -> None:
    with pytest.raises(Exhausted, match="no room") as refused:
        process.ask(FAIL)
    assert (refused.value.applied, refused.value.retry_after) == ("unknown", 2.5)
    with pytest.raises(PlanExpired, match="the lease is over") as expired:
        process.ask(SUM, b"2000", numbers)
    assert expired.value.retry_after == 1.5
    with pytest.raises(Internal, match="a defect of the server: ValueError"):
        process.ask(SUM, b"not a number", numbers)
    with pytest.raises(Internal, match="a defect of the server: ZeroDivisionError"):
        process.ask(CODE)
    assert process.ask(ECHO, b"still here") == b"still here"


def test_an_answer_that_nobody_takes_to_its_end_is_no_answer_to_the_next_question(process: Child) -> None:
    assert process.ask(LEAVE, b"900", numbers) == b"0"
    with pytest.raises(Internal, match="RuntimeError: in the middle"):
        process.ask(LEAVE, b"901", numbers)
    assert process.ask(SUM, b"3", numbers) == b"3"


@pytest.mark.parametrize("verb", [STOP, HALF])
def test_a_silent_process_is_killed_at_once_even_within_a_frame(verb: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not only when it has not ended with its pipes, which takes five seconds more."""
    deaths: list[str] = []
    codes: list[int] = []
    ended = child.ended

    def then_ended(process: subprocess.Popen[bytes], seconds: float) -> int:
        codes.append(process.wait(30))
        return ended(process, seconds)

    monkeypatch.setattr(child, "ended", then_ended)
    process = Child("a test", MODULE, silence_seconds=1, died=deaths.append)
    process.start()
    pid = process.pid
    assert pid
    with pytest.raises(Gone, match=r"the process of a test gave no answer for 1 s: try again") as gone:
        process.ask(verb)
    assert (gone.value.signal, deaths, process.pid, codes) == ("", [], None, [-signal.SIGKILL])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    process.close()


@pytest.mark.parametrize("error", [MemoryError, asyncio.CancelledError])
def test_no_request_gets_the_rest_of_the_answer_before_it(
    process: Child, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    exactly = child.exactly

    def failing(pipe: Readable, size: int) -> bytes:
        if size == 6:
            raise error
        return exactly(pipe, size)

    with monkeypatch.context() as patched:
        patched.setattr(child, "exactly", failing)
        with pytest.raises(error):
            process.ask(ECHO, b"secret")
    assert process.ask(ECHO, b"other") == b"other"
    assert process.ask(SUM, b"10", numbers) == b"45"


def test_an_error_of_the_work_that_looks_like_the_pipe_s_end_is_told(process: Child) -> None:
    with pytest.raises(Internal, match="EOFError"):
        process.ask(ENDED)
    assert process.ask(ECHO, b"x") == b"x"


def test_a_second_question_drops_the_rest_of_the_first_answer(process: Child) -> None:
    with pytest.raises(Internal, match="dropped by a later question"):
        process.ask(TWICE, b"100", numbers)
    assert process.ask(SUM, b"10", numbers) == b"45"


def test_a_process_that_takes_nothing_is_silent() -> None:
    process = Child("a test", MODULE, silence_seconds=1)
    process.start()
    assert process.pid
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(Gone, match="no answer"):
        process.ask(ECHO, b"x" * (1 << 21))
    process.close()


def test_a_death_by_a_signal_is_told_counted_and_logged(process: Child, caplog: pytest.LogCaptureFixture) -> None:
    deaths: list[str] = []
    process._died = deaths.append

    def kill(_verb: int, _question: bytes) -> Iterator[bytes]:
        assert process.pid
        os.kill(process.pid, signal.SIGSEGV)
        yield b"x" * (1 << 20)

    with caplog.at_level(logging.WARNING), pytest.raises(Gone, match="was ended by SIGSEGV: try again") as gone:
        process.ask(SUM, b"1", kill)
    assert (gone.value.signal, deaths) == ("SIGSEGV", ["SIGSEGV"])
    assert [record.getMessage() for record in caplog.records] == [
        "the process of a test was ended by SIGSEGV: try again"
    ]
    assert process.ask(ECHO, b"another one") == b"another one"


@pytest.mark.parametrize("verb", [GARBLED, OTHER, NEVER, STRAY])
def test_bytes_that_are_no_frame_end_the_process(process: Child, verb: int) -> None:
    with pytest.raises(Gone, match="sent what it should not"):
        process.ask(verb)
    assert process.pid is None
    assert process.ask(ECHO, b"another one") == b"another one"


def test_a_frame_is_refused_by_its_length_before_it_is_read() -> None:
    sizes: list[int] = []

    class Sent:
        def read(self, size: int) -> bytes:
            sizes.append(size)
            return HEAD.pack(child.MAGIC, child.VERSION, Kind.END, 0, 101)[:size]

    with pytest.raises(ValueError, match="a frame of 101 bytes, more than 100"):
        read_frame(Sent(), 100)
    assert sizes == [HEAD.size]


def test_a_request_is_asked_once_more_and_later_starts_are_after_a_pause(
    process: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives: list[int | None] = []

    def die(_verb: int, _question: bytes) -> Iterator[bytes]:
        lives.append(process.pid)
        if len(lives) != 3:
            assert process.pid
            os.kill(process.pid, signal.SIGKILL)
        yield b"7"

    pauses: list[float | None] = []
    monkeypatch.setattr(process._closing, "wait", pauses.append)
    with pytest.raises(Gone, match="SIGKILL"):
        process.ask(SUM, b"1", die, again=True)
    assert (len(set(lives)), pauses) == (2, [])
    assert process.ask(SUM, b"1", die, again=True) == b"7"
    assert (len(set(lives)), pauses) == (3, [child.PAUSE_SECONDS])
    process._ends_in_a_row = 100
    assert process.ask(ECHO, b"x") == b"x"
    assert process._ends_in_a_row == 0
    assert pauses[1:] == [child.PAUSE_SECONDS_MAX]


def test_it_ends_with_its_pipe_and_a_busy_one_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for verb in (None, SPIN):
        process = Child("a test", MODULE, silence_seconds=60)
        process.start()
        begun = process._process
        assert begun
        errors: list[Gone] = []
        spinning = threading.Event()

        def ask(process: Child = process, errors: list[Gone] = errors, said: threading.Event = spinning) -> None:
            try:
                process.ask(SPIN, b"", partial(tell, said))
            except Gone as error:
                errors.append(error)

        asking = threading.Thread(target=ask)
        if verb is SPIN:
            asking.start()
            assert spinning.wait(30)
            monkeypatch.setattr(child, "END_SECONDS", 1.0)
        else:
            assert process.ask(ECHO) == b""
        process.close()
        if verb is SPIN:
            asking.join()
        assert (len(errors), begun.returncode) == ((1, -signal.SIGKILL) if verb is SPIN else (0, 0))
        with pytest.raises(Gone, match="closing"):
            process.ask(ECHO)


def test_close_does_not_wait_for_a_server_that_answers_a_question_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process = Child("a test", MODULE, silence_seconds=60)
    process.start()
    begun = process._process
    assert begun
    asked, goes_on = threading.Event(), threading.Event()
    errors: list[Gone] = []

    def serve(_verb: int, _question: bytes) -> list[bytes]:
        asked.set()
        goes_on.wait(60)
        return [b"1"]

    def ask() -> None:
        try:
            process.ask(SUM, b"", serve)
        except Gone as error:
            errors.append(error)

    asking, closing = threading.Thread(target=ask), threading.Thread(target=process.close, daemon=True)
    asking.start()
    assert asked.wait(30)
    monkeypatch.setattr(child, "END_SECONDS", 1.0)
    closing.start()
    closing.join(30)
    is_closed, code = not closing.is_alive(), begun.returncode
    goes_on.set()
    asking.join(30)
    assert (is_closed, code) == (True, -signal.SIGKILL)
    assert "a question of the process of a test is still being answered" in caplog.text
    assert len(errors) == 1
    assert process.pid is None, "the request's thread has closed the pipes"


def test_a_process_that_is_about_to_end_can_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Child("a test", MODULE, silence_seconds=60)
    process.start()
    begun, is_ending, ended = process._process, threading.Event(), child.ended
    assert begun

    def slowly(given: subprocess.Popen[bytes], seconds: float) -> int:
        is_ending.set()
        given.wait()
        return ended(given, seconds)

    monkeypatch.setattr(child, "ended", slowly)
    closing = threading.Thread(target=process.close, daemon=True)
    closing.start()
    assert is_ending.wait(30)
    process.kill()
    closing.join(30)
    code = begun.returncode
    begun.kill()
    assert code == -signal.SIGKILL
    assert process.pid is None


def test_a_killed_process_is_not_started_again(process: Child) -> None:
    process.kill()
    with pytest.raises(Gone, match="closing"):
        process.ask(ECHO)
    process.start()
    assert process.pid is None


def test_a_process_that_cannot_be_started_is_told(process: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(Gone, match="cannot be started"):
        process.ask(ECHO)


def test_a_library_that_prints_is_not_in_the_pipe_and_foreign_words_are_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    process = Child("a test", MODULE, silence_seconds=30, is_trusted=False)
    with caplog.at_level(logging.WARNING):
        assert process.ask(LOUD) == b"said"
        process.close()
    (record,) = caplog.records
    assert record.getMessage() == r"the process of a test wrote 'a\nINFO all is well'"
    assert "all is well" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("verb", [ECHO, SPIN])
def test_a_process_ends_soon_after_its_server_whatever_it_is_at(verb: int) -> None:
    """Both hold the same pipe as their standard error, so its end is the end of both."""
    text = (
        "from tests.unit.host.test_child import *; import time\n"
        "process = Child('a test', MODULE, lambda: ['0.1'], silence_seconds=600)\n"
        "def said(*_):\n    print(process.pid, flush=True)\n    return ()\n"
        f"process.ask({ECHO}); {verb} == {ECHO} and said(); process.ask({verb}, b'', said); time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as server:
        assert server.stdout
        assert server.stderr
        assert int(server.stdout.readline())
        server.kill()
        said = server.stderr.read()
    assert b"Traceback" not in said


def answer(parent: Parent, verb: int, question: bytes) -> bytes:
    if verb == SUM:
        return str(sum(map(int, parent.ask(0, question)))).encode()
    if verb == LEAVE:
        first = next(parent.ask(0, question))
        if question == b"901":
            raise RuntimeError("in the middle")
        return first
    if verb == FAIL:
        raise Exhausted("no room", applied="unknown", retry_after=2.5)
    if verb == LOUD:
        os.write(1, b"a\n")
        os.write(2, b"INFO all is well")
        return b"said"
    if verb == ECHO:
        return question
    return misbehave(parent, verb)


def misbehave(parent: Parent, verb: int) -> bytes:
    if verb == STOP:
        os.kill(os.getpid(), signal.SIGSTOP)
    if verb == ENDED:
        raise EOFError
    if verb == TWICE:
        first = parent.ask(0, b"100")
        next(first)
        assert len(list(parent.ask(0, b"3"))) == 3
        return b"".join(first)
    if verb in (HALF, GARBLED, OTHER, NEVER, STRAY):
        data = {
            HALF: frame(Kind.END, b"x" * 100)[:50],
            GARBLED: b"Segmentation fault, or so",
            OTHER: HEAD.pack(child.MAGIC, child.VERSION + 1, Kind.END, 0, 0),
            STRAY: frame(Kind.PART, b"a part of nothing"),
            NEVER: frame(Kind.ERROR, json.dumps(["Invalid", "text"]).encode()),
        }[verb]
        os.write(parent._to, data)
        signal.pause()
    if verb == SPIN:
        parent._send(frame(Kind.ASK))  # and it takes no answer, which the end of the pipe would be
        while True:
            pass
    return b"%d" % (1 // 0)


if __name__ == "__main__":
    if sys.argv[1:]:
        child.END_SECONDS = float(sys.argv[1])
    parent_of_this = Parent()
    while parent_of_this.reply(lambda verb, question: answer(parent_of_this, verb, question)):
        pass
