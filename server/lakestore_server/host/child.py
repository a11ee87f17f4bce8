"""The server's own processes: one protocol on two pipes for snapshots, merges and queries.

1. The server asks, and the process answers, at once or in parts. Until then the process may ask the server, one
question at a time.
2. No wait is without end: a process that moves no byte for some time is killed, and the next request starts another.
3. An error crosses the pipe with its kind and text. Bytes that are no frame end the process.

docs/internals/child-processes.md has the frames and the rules. `Child` is the server's end, `Parent` the process's.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from enum import IntEnum
from typing import IO, Protocol

from lakestore.errors import Internal, LakestoreError, Unavailable, error_of

log = logging.getLogger("lakestore.server")
END_SECONDS = 5.0
"""Time that a process has to end by itself: after its pipes are closed, and after its server is gone."""
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.2, 5.0
"""Pause before the third start in a row without an answer; it doubles up to the longest."""
INTERRUPT = signal.SIGUSR1
"""The signal by which the server asks a process to end its answer early."""
WORKING_SECONDS = 1.0
"""Time between two signs of life of a process that works."""
STDERR_BYTES_MAX = 64 << 10
"""Bytes that are logged of a process's standard error: as many as a pipe holds."""
FRAME_BYTES_MAX = (1 << 32) - 1
HEAD = struct.Struct("<2sBBBI")
MAGIC, VERSION = b"LP", 2
READ_BYTES, LARGE_BYTES = 4 << 10, 64 << 10
"""Bytes that are read ahead of a small frame; from LARGE_BYTES on a payload is read into memory of its own."""
PIPE_BYTES = 1 << 20
_COMMON = {"PATH", "HOME", "USER", "LANG", "LANGUAGE", "TZ", "TZDIR", "TMPDIR", "SYSTEMROOT"}
_COMMON_PREFIXES = ("LC_", "LD_", "DYLD_", "MALLOC_", "PYTHON", "OMP_", "OPENBLAS_", "NPY_", "ARROW_")
_STORES = {"SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "JAVA_HOME", "CLASSPATH", "IMDS_ENDPOINT"}
_STORES_PREFIXES = (
    "AWS_", "GOOGLE_", "CLOUD_STORAGE_", "GCE_METADATA_", "AZURE_", "IDENTITY_", "MSI_", "HADOOP_", "LIBHDFS_", "KRB5",
    "OPENSSL_",
)  # fmt: skip
"""Variables of the libraries in Arrow that read S3, GCS, Azure and HDFS, managed identities and emulators too."""
_PROXIES = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
_SIGNALS = {number.value: number.name for number in signal.Signals}


def environment(whole: Mapping[str, str], *, reads_stores: bool = False) -> dict[str, str]:
    """The part of an environment that such a process gets."""
    names, prefixes = set(_COMMON), list(_COMMON_PREFIXES)
    if reads_stores:
        names |= {*_STORES, *_PROXIES, *map(str.lower, _PROXIES)}
        prefixes += _STORES_PREFIXES
    return {name: text for name, text in whole.items() if name in names or name.startswith(tuple(prefixes))}


def module_process(
    module: str, *arguments: str, reads_stores: bool = False, stderr: int | None = None
) -> subprocess.Popen[bytes]:
    """A process that runs a module, which it finds where this process did; `stderr` is as of `Popen`."""
    # No threads for sums of matrices: nobody multiplies any, and to begin them takes half of a start.
    path = {"PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-Pm", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        bufsize=0,
        env=environment(os.environ, reads_stores=reads_stores) | path,
    )


class Silent(OSError):
    """The other process has neither taken nor given a byte in time."""


def _widen(number: int) -> None:
    """Give a pipe room for a whole part, so that neither end waits for the other within one. As the system allows."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):  # the user's pipes have all the memory that they may have
            fcntl.fcntl(number, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


class BoundedPipe:
    """Bytes to and from a process. For one thread at a time."""

    def __init__(self, to: IO[bytes], back: IO[bytes], seconds: float) -> None:
        """`seconds` without a byte moved are the end."""
        self._to, self._back, self._seconds = to.fileno(), back.fileno(), seconds
        for number in (self._to, self._back):
            os.set_blocking(number, False)
            _widen(number)
        self._can_write, self._can_read = select.poll(), select.poll()
        self._can_write.register(self._to, select.POLLOUT)
        self._can_read.register(self._back, select.POLLIN)
        self._held = b""

    def write(self, data: bytes) -> None:
        """Send all of it, or `Silent`."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._to, left) :]
            except BlockingIOError:
                self._wait(self._can_write)

    def read(self, size: int) -> bytes:
        """Some bytes that came back, so many at most; none at the pipe's end. `Silent` if none come."""
        while not self._held:
            try:
                self._held = os.read(self._back, max(size, READ_BYTES))
            except BlockingIOError:
                self._wait(self._can_read)
            else:
                if not self._held:
                    return b""
        part, self._held = self._held[:size], self._held[size:]
        return part

    def read_large(self, size: int) -> memoryview:
        """`size` bytes in memory of their own, without a copy of pieces, or EOFError."""
        data = memoryview(bytearray(size))
        done = min(size, len(self._held))
        data[:done], self._held = self._held[:done], self._held[done:]
        while done < size:
            try:
                more = os.readv(self._back, [data[done:]])
            except BlockingIOError:
                self._wait(self._can_read)
            else:
                if not more:
                    raise EOFError
                done += more
        return data

    def _wait(self, poll: select.poll) -> None:
        end = time.monotonic() + self._seconds
        while not poll.poll(max(end - time.monotonic(), 0.0) * 1000):
            if time.monotonic() >= end:
                raise Silent(f"the other process was silent for {self._seconds:g} s")


class Readable(Protocol):
    """Bytes that come from the other end."""

    def read(self, size: int, /) -> bytes | None:
        """Some of them, so many at most; none at the end."""


def exactly(pipe: Readable, size: int) -> bytes:
    """`size` bytes, or EOFError."""
    parts = []
    while size:
        part = pipe.read(size)
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def ended(process: subprocess.Popen[bytes], seconds: float) -> int:
    """The exit code of a process, which ends with its pipes or else is killed."""
    for pipe in (process.stdin, process.stdout):
        try:
            if pipe:
                pipe.close()
        except OSError:
            continue  # bytes that were still to be written to a process that has ended
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


class Kind(IntEnum):
    """The kinds of frames, the same in both directions. A question is answered by PARTs and END, or ERROR."""

    ASK = 1
    PART = 2
    END = 3
    ERROR = 4
    WORKING = 5


class Gone(Unavailable):
    """The process ended, or was killed because it was silent, before it answered."""

    signal = ""
    """The name of the signal that ended it, if that was not the server's."""


Parts = Generator[bytes | memoryview, None, bytes]
"""The parts of an answer, and the payload of its END."""
PartPieces = Generator[bytes | memoryview | tuple[bytes, memoryview], None, bytes]
"""The parts as a process gives them: a part may be two pieces."""
Answer = Callable[[int, bytes], bytes | PartPieces]
"""The process's answer to (verb, question)."""
Serve = Callable[[int, bytes], Iterable[bytes]]
"""The parts of the server's answer to (verb, question)."""


def frame(kind: Kind, payload: bytes = b"", verb: int = 0) -> bytes:
    """A frame's bytes."""
    return HEAD.pack(MAGIC, VERSION, kind, verb, len(payload)) + payload


def read_frame(pipe: Readable, bytes_max: int = FRAME_BYTES_MAX) -> tuple[Kind, int, bytes | memoryview]:
    """(kind, verb, payload) of the next frame. EOFError at the pipe's end, ValueError for bytes that are no frame."""
    magic, version, kind, verb, size = HEAD.unpack(exactly(pipe, HEAD.size))
    if (magic, version) != (MAGIC, VERSION):
        raise ValueError(f"bytes that are no frame of version {VERSION}")
    if size > bytes_max:
        raise ValueError(f"a frame of {size:,} bytes, more than {bytes_max:,}")
    if isinstance(pipe, BoundedPipe) and size >= LARGE_BYTES:
        return Kind(kind), verb, pipe.read_large(size)
    return Kind(kind), verb, exactly(pipe, size)


def _error_frame(error: Exception) -> bytes:
    if not isinstance(error, LakestoreError):
        error = Internal(f"a defect of the server: {type(error).__name__}: {error}")
    return frame(Kind.ERROR, json.dumps([error.kind, error.message, error.applied, error.retry_after]).encode())


def _error_in(payload: bytes) -> LakestoreError:
    kind, message, applied, retry_after = json.loads(payload)
    return error_of(str(kind), str(message), str(applied), float(retry_after))


class Child:
    """A process, started by `start` or the first request; one request at a time. Thread-safe."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Callable[[], Sequence[str]] = tuple,
        *,
        silence_seconds: float,
        reads_stores: bool = False,
        is_trusted: bool = True,
        bytes_max: int = FRAME_BYTES_MAX,
        died: Callable[[str], None] = lambda signal: None,
        log: logging.Logger = log,
    ) -> None:
        """`died` counts deaths by a signal. The standard error of a process that is not trusted is a pipe."""
        self.name = name
        """The purpose of the process, for errors and the log."""
        self._module, self._arguments = module, arguments
        self._silence_seconds, self._reads_stores, self._is_trusted = silence_seconds, reads_stores, is_trusted
        self._bytes_max, self._died, self._log = bytes_max, died, log
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: BoundedPipe | None = None
        self._ends_in_a_row = 0
        self._has_spoken = False
        """Whether the process has sent a frame, so that its start is over."""

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        return self._process.pid if self._process else None

    @property
    def has_ended(self) -> bool:
        """Whether the process was started and has ended by itself. The next request would find that out."""
        return (process := self._process) is not None and process.poll() is not None

    def start(self) -> None:
        """Start the process if it is not there, without waiting for it or for a request that it is at."""
        if self._lock.acquire(blocking=False):
            try:
                if not self._closing.is_set():
                    self._opened()
            finally:
                self._lock.release()

    def ask(self, verb: int, question: bytes = b"", serve: Serve = lambda *_: (), *, again: bool = False) -> bytes:
        """The process's answer; `serve` answers its questions meanwhile, in this thread.

        `again` repeats a request that changes nothing if the process ends. Raises `Gone`, or the process's error.
        """
        with self._lock:
            try:
                return _end_of(self._exchange(verb, question, serve, in_parts=False))
            except Gone:
                if not again or self._closing.is_set():
                    raise
                return _end_of(self._exchange(verb, question, serve, in_parts=False))

    def stream(self, verb: int, question: bytes = b"", serve: Serve = lambda *_: ()) -> Parts:
        """The process's answer in parts, which are read from the pipe one by one. `serve` and errors are as of `ask`.

        The process is killed if the caller closes the generator before the end.
        """
        with self._lock:
            return (yield from self._exchange(verb, question, serve, in_parts=True))

    def interrupt(self) -> bool:
        """Ask the process to end its answer early; false if it may not know the signal yet, because it starts."""
        if not self._has_spoken or (process := self._process) is None:
            return False
        process.send_signal(INTERRUPT)
        return True

    def kill(self) -> None:
        """End the process for good, at once."""
        self._closing.set()
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """End the process for good; a request that has no answer soon is broken off.

        If the server itself does not end its answer to a question, the process is killed, and the thread of the request
        closes the pipes when it goes on.
        """
        self._closing.set()
        if not self._lock.acquire(timeout=END_SECONDS):
            self.kill()
            if not self._lock.acquire(timeout=END_SECONDS):
                self._log.warning("a question of the process of %s is still being answered: it is left", self.name)
                if (process := self._process) is not None:
                    with suppress(subprocess.TimeoutExpired):  # the kernel has not ended it yet
                        process.wait(END_SECONDS)
                return
        try:
            self._end()
        finally:
            self._lock.release()

    def _exchange(self, verb: int, question: bytes, serve: Serve, *, in_parts: bool) -> Parts:
        if self._ends_in_a_row > 1:
            self._closing.wait(min(PAUSE_SECONDS * 2.0 ** min(self._ends_in_a_row - 2, 10), PAUSE_SECONDS_MAX))
        if self._closing.is_set():
            raise Gone("the server is closing: try again")
        try:
            pipe = self._opened()
            pipe.write(frame(Kind.ASK, question, verb))
            kind, payload = yield from self._answer(pipe, serve, in_parts=in_parts)
            error = _error_in(payload) if kind is Kind.ERROR else None
        except (EOFError, OSError, ValueError, TypeError) as lost:
            raise self._lost(lost) from lost
        except BaseException:  # the next request must not read the rest of this answer
            if self._process is not None:
                self._process.kill()
            self._end()
            raise
        self._ends_in_a_row = 0
        if error is not None:
            raise error
        return payload

    def _answer(
        self, pipe: BoundedPipe, serve: Serve, *, in_parts: bool
    ) -> Generator[bytes | memoryview, None, tuple[Kind, bytes]]:
        """The parts, and the frame that ends a request. The process's questions are answered meanwhile."""
        while True:
            kind, asked, payload = read_frame(pipe, self._bytes_max)
            self._has_spoken = True
            if kind is Kind.PART and in_parts:
                yield payload
            elif kind is Kind.ASK:
                for data in _served(serve, asked, bytes(payload)):
                    pipe.write(data)
            elif kind in (Kind.END, Kind.ERROR):
                return kind, bytes(payload)
            elif kind is not Kind.WORKING:
                raise ValueError(f"a frame of kind {kind.name} where an answer was due")

    def _opened(self) -> BoundedPipe:
        if self._process is None or self._pipe is None:
            stderr = None if self._is_trusted else subprocess.PIPE
            self._process = process = module_process(
                self._module, *self._arguments(), reads_stores=self._reads_stores, stderr=stderr
            )
            assert process.stdin is not None
            assert process.stdout is not None
            self._pipe = BoundedPipe(process.stdin, process.stdout, self._silence_seconds)
            if self._closing.is_set():
                process.kill()  # whoever closed it has not seen it
        return self._pipe

    def _lost(self, lost: Exception) -> Gone:
        """The error of a request whose process has ended, or ends here."""
        is_closing, why = self._closing.is_set(), ""
        if self._process is None:
            why = f"cannot be started: {lost}"
        elif isinstance(lost, Silent):
            why = f"gave no answer for {self._silence_seconds:g} s"
        elif isinstance(lost, ValueError | TypeError):
            why = f"sent what it should not: {lost}"
        if why and self._process is not None:
            self._process.kill()
        code = self._end()
        self._ends_in_a_row += 1
        name = "" if why or is_closing or code >= 0 else _SIGNALS.get(-code, f"signal {-code}")
        event = why or f"was ended by {name or 'itself'}"
        gone = Gone(f"the process of {self.name} {event}: try again")
        gone.signal = name
        if name:
            self._died(name)
        if name or (why and not is_closing):
            self._log.warning("%s", gone.message)
        return gone

    def _end(self) -> int:
        """End the process if there is one: it ends with its pipes, else it is killed. Its exit code."""
        process, self._has_spoken = self._process, False
        if process is None:
            return 0
        try:
            code = ended(process, END_SECONDS)
        finally:  # until it has ended, another thread may kill it
            self._process = self._pipe = None
        if process.stderr is not None:
            with process.stderr as pipe:
                os.set_blocking(pipe.fileno(), False)
                text = pipe.read(STDERR_BYTES_MAX)
            if text:  # one line, escaped: code in the process could forge lines of the log
                self._log.warning("the process of %s wrote %s", self.name, ascii(text.decode(errors="replace")))
        return code


def _served(serve: Serve, verb: int, question: bytes) -> Iterator[bytes]:
    """The frames of the server's answer to a question of the process."""
    try:
        for part in serve(verb, question):
            yield HEAD.pack(MAGIC, VERSION, Kind.PART, 0, len(part))
            yield part
    except Exception as error:  # the process waits for an end, and tells the error to whoever asked
        yield _error_frame(error)
    else:
        yield frame(Kind.END)


def _end_of(parts: Parts) -> bytes:
    """The end of an answer that has no parts."""
    try:
        next(parts)
    except StopIteration as end:
        data: bytes = end.value
        return data
    raise AssertionError("a part where none is read")


class ServerEnded(Exception):
    """The server has closed the pipe."""


class Parent:
    """The server, for its process: standard input and output. Only one of a process."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the server ends the process
        self._from, self._to = os.fdopen(0, "rb", buffering=1 << 20), os.dup(1)
        os.dup2(2, 1)  # libraries in C++ print, as AWS's SDK does, and a word of theirs in the pipe is no frame
        self._lock = threading.RLock()
        self._is_answered, self._told, self._questions = True, 0.0, 0
        self._is_at_work = False
        """Whether a request of the server's is under way: only then the server answers questions."""
        threading.Thread(target=_end_with_server, daemon=True).start()

    def reply(self, answer: Answer) -> bool:
        """Answer one request of the server's; False when the server has closed the pipe."""
        try:
            kind, verb, question = self._read()
            if kind is not Kind.ASK:
                raise SystemExit(f"a frame of kind {kind.name} where a request was due")
            self._is_at_work = True
            try:
                made = answer(verb, question)
                data = frame(Kind.END, made if isinstance(made, bytes) else self._sent(made))
            except ServerEnded:
                raise
            except Exception as error:  # the boundary of the process: whoever asked is told
                if not isinstance(error, LakestoreError):
                    traceback.print_exc()
                data = _error_frame(error)
            with self._lock:  # a thread that the answer has left behind asks nothing any more
                self._drain()
                self._is_at_work = False
                self._send(data)
        except ServerEnded:
            return False
        return True

    def _sent(self, parts: PartPieces) -> bytes:
        """Send all parts of an answer, each when the pipe has room for it. The payload of the END."""
        with closing(parts):
            while True:
                try:
                    part = next(parts)
                except StopIteration as end:
                    data: bytes = end.value
                    return data
                pieces = part if isinstance(part, tuple) else (part,)
                with self._lock:
                    self._drain()
                    self._send(HEAD.pack(MAGIC, VERSION, Kind.PART, 0, sum(map(len, pieces))))
                    for piece in pieces:
                        self._send(piece)

    def ask(self, verb: int, question: bytes = b"") -> Generator[bytes]:
        """The parts of the server's answer to a question; its error is raised. Thread-safe."""
        with self._lock:
            if not self._is_at_work:
                raise Internal("the answer for which this question was asked is over")
            self._drain()
            self._send(frame(Kind.ASK, question, verb))
            self._is_answered, self._questions = False, self._questions + 1
            number = self._questions
            while (part := self._part()) is not None:
                yield part
                if number != self._questions:
                    raise Internal("the rest of this answer was dropped by a later question")

    def working(self) -> None:
        """Tell that the answer takes its time; to be called often."""
        if time.monotonic() - self._told > WORKING_SECONDS:
            self._told = time.monotonic()
            self._send(frame(Kind.WORKING))

    def _part(self) -> bytes | None:
        kind, _, payload = self._read()
        if kind not in (Kind.PART, Kind.END, Kind.ERROR):
            raise SystemExit(f"a frame of kind {kind.name} where an answer was due")
        self._is_answered = kind is not Kind.PART
        if kind is Kind.ERROR:
            raise _error_in(payload)
        return None if self._is_answered else payload

    def _drain(self) -> None:
        """Read the parts of an answer that nobody has taken."""
        with self._lock, suppress(LakestoreError):
            while not self._is_answered:
                self._part()

    def _read(self) -> tuple[Kind, int, bytes]:
        try:
            kind, verb, payload = read_frame(self._from)
        except EOFError as error:
            raise ServerEnded from error
        return kind, verb, bytes(payload)

    def _send(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        with self._lock:
            try:
                while left:
                    left = left[os.write(self._to, left) :]
            except BrokenPipeError as error:
                raise ServerEnded from error


def _end_with_server() -> None:
    """End the process soon after its server, whatever it is at."""
    poll = select.poll()
    poll.register(0, 0)  # a hang-up alone is told
    poll.poll()
    time.sleep(END_SECONDS)
    sys.stderr.flush()
    os._exit(0)
