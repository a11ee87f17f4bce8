"""The disk with faults: a process under the shim meets each of them; a power cut leaves what a disk may hold."""

from __future__ import annotations

import errno
import random
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from jepsen.system import power
from jepsen.system.preload import NoCompiler
from jepsen.system.shim import Action, Operation, Rule, Shim

SECONDS_MAX = 100.0
"""Of a process that syncs a hundred times, on a disk that others use too."""


class Home:
    """A folder with a shim, and processes on it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.side = folder / "data", folder / "side"
        self.root.mkdir()
        self.shim = Shim(self.side, self.root)

    def run(self, code: str, *, keeps_log: bool = False) -> subprocess.CompletedProcess[str]:
        """A plain Python on the folder; what it prints."""
        self.shim.keeps_log = keeps_log
        head = f"import os, sys, errno, time, threading\nos.chdir({str(self.root)!r})\n"
        return subprocess.run(
            [sys.executable, "-S", "-E", "-c", head + textwrap.dedent(code)],
            env=dict(self.shim.environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )

    def said(self, code: str) -> str:
        """Output of a process that ends well."""
        done = self.run(code)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def cut(self, code: str, chance: random.Random | None = None) -> dict[str, bytes]:
        """Files that a power cut leaves after some code; without a chance nothing unsynced is left."""
        done = self.run(code, keeps_log=True)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        self.shim.off = False
        power.cut(self.side, self.root, chance or Worst())
        return {str(p.relative_to(self.root)): p.read_bytes() for p in self.root.rglob("*") if p.is_file()}


class Worst(random.Random):
    """A chance by which all is lost that can be."""

    def choice(self, seq: object) -> str:  # type: ignore[override]
        """Nothing survives."""
        return "none"

    def choices(self, *_: object, **__: object) -> list[str]:  # type: ignore[override]
        """Nothing survives."""
        return ["none"]

    def random(self) -> float:
        """Nothing grows."""
        return 0.99


@pytest.fixture(name="home")
def _home(tmp_path: Path) -> Iterator[Home]:
    try:
        yield Home(tmp_path)
    except NoCompiler as error:
        pytest.skip(str(error))


FILE = """
    def fd(name, flags=os.O_RDWR | os.O_CREAT): return os.open(name, flags)
    def sync(name='.'):
        folder = os.open(name, os.O_RDONLY); os.fsync(folder); os.close(folder)
    def tried(deed):
        try: deed(); return 'done'
        except OSError as error: return errno.errorcode[error.errno]
"""


def code(text: str) -> str:
    """A process's code behind its helpers."""
    return textwrap.dedent(FILE) + textwrap.dedent(text)


DEEDS = {
    Operation.WRITE: ("os.write(fd('kept'), b'x')", "os.pwritev(fd('kept'), [b'x', b'y'], 3)"),
    Operation.READ: ("os.read(fd('kept'), 3)", "os.pread(fd('kept'), 3, 0)", "open('kept', 'rb').read()"),
    Operation.SYNC: ("os.fsync(fd('kept'))", "os.fdatasync(fd('kept'))"),
    Operation.SYNC_FOLDER: ("sync()",),
    Operation.RENAME: ("os.replace('kept', 'other')",),
    Operation.REMOVE: ("os.unlink('kept')", "os.remove('kept')"),
    Operation.TRUNCATE: ("os.ftruncate(fd('kept'), 1)", "os.truncate('kept', 1)", "open('kept', 'wb')"),
    Operation.CREATE: ("open('new', 'wb')",),
    Operation.OPEN: ("open('kept', 'rb')",),
    Operation.FOLDER: ("os.mkdir('folder')",),
    Operation.LINK: ("os.link('kept', 'second')",),
    Operation.CLOSE: ("os.close(fd('kept'))",),
}


def test_every_call_meets_its_error_and_only_below_the_folder(home: Home, tmp_path: Path) -> None:
    (home.root / "kept").write_bytes(b"abcdef")
    (tmp_path / "beside").mkdir()
    for operation, deeds in DEEDS.items():
        (tmp_path / "beside" / "kept").write_bytes(b"abcdef")
        planted = home.shim.plant(Rule(operation, "*", Action.ERROR, errno.EIO))
        tries = "; ".join(f"print(tried(lambda: {deed}))" for deed in deeds)
        assert home.said(code(tries)).split() == ["EIO"] * len(deeds), operation
        assert planted.hits == len(deeds)
        outside = re.sub(r"'(\w{3,})'", r"'../beside/\1'", deeds[0])
        if operation is not Operation.SYNC_FOLDER:
            assert home.said(code(f"print(tried(lambda: {outside}))")) == "done", outside
        planted.lift()
    assert (home.root / "kept").read_bytes() == b"abcdef"
    assert [path.name for path in home.root.iterdir()] == ["kept"]


def test_a_rule_has_a_pattern_lets_some_through_and_ends(home: Home) -> None:
    home.shim.plant(Rule(Operation.WRITE, "journal-*", Action.ERROR, errno.ENOSPC, skip=2, times=1))
    said = home.said(
        code(
            """
            other, journal = fd('other'), fd('journal-1')
            print([tried(lambda: os.write(journal, b'x')) for _ in range(5)], tried(lambda: os.write(other, b'x')))
            """
        )
    )
    assert said == "['done', 'done', 'ENOSPC', 'done', 'done'] done"


def test_a_short_write_is_half_done_and_then_fails(home: Home) -> None:
    home.shim.plant(Rule(Operation.WRITE, "*", Action.SHORT, errno.EDQUOT))
    text = "f = fd('a'); print(os.writev(f, [b'abc', b'defgh']), tried(lambda: os.write(f, b'rest')))"
    assert home.said(code(text)) == "4 EDQUOT"
    assert (home.root / "a").read_bytes() == b"abcd"


def test_a_slow_disk_takes_its_time(home: Home) -> None:
    home.shim.plant(Rule(Operation.SYNC, "*", Action.DELAY, value=50_000))
    home.shim.plant(Rule(Operation.WRITE, "*", Action.RATE, value=100_000))
    took = "f = fd('a'); a = time.monotonic(); {}; print(time.monotonic() - a)"
    assert 0.05 <= float(home.said(code(took.format("os.fsync(f)"))))
    assert 0.05 <= float(home.said(code(took.format("os.write(f, bytes(5000))"))))


@pytest.mark.parametrize(("action", "there"), [(Action.KILL_BEFORE, b""), (Action.KILL_AFTER, b"first")])
def test_a_process_is_killed_at_a_named_step(home: Home, action: Action, there: bytes) -> None:
    home.shim.plant(Rule(Operation.WRITE, "a", action))
    done = home.run(code("f = fd('a'); os.write(f, b'first'); os.write(f, b'second')"))
    assert done.returncode == -signal.SIGKILL
    assert (home.root / "a").read_bytes() == there


def test_bits_flip_in_what_is_read_and_not_in_the_file(home: Home) -> None:
    right = bytes(range(200))
    (home.root / "a").write_bytes(right)
    home.shim.plant(Rule(Operation.READ, "a", Action.FLIP, number=1, value=77, times=1))
    first, second = home.said(code("[print(open('a', 'rb', 0).read(200).hex()) for _ in range(2)]")).split()
    wrong = [a ^ b for a, b in zip(bytes.fromhex(first), right, strict=True) if a != b]
    assert len(wrong) == 1
    assert wrong[0].bit_count() == 1
    assert bytes.fromhex(second) == right


def test_a_full_disk_has_the_room_that_is_left(home: Home) -> None:
    home.shim.room = 100_000
    said = home.said(
        code(
            """
            import shutil
            f = fd('a', os.O_RDWR | os.O_CREAT | os.O_APPEND)
            print(shutil.disk_usage('.').free // 4096, os.write(f, bytes(60_000)), os.write(f, bytes(60_000)))
            print(tried(lambda: os.write(f, b'x')), os.pwrite(fd('a'), b'over', 0), tried(lambda: open('b', 'wb')))
            os.ftruncate(f, 99_990)
            print(os.write(f, bytes(20)))
            os.unlink('a')
            print(os.write(fd('c'), b'again'))
            """
        )
    )
    assert said.split() == ["24", "60000", "40000", "ENOSPC", "4", "ENOSPC", "10", "5"]
    home.shim.room = None
    assert home.said(code("print(os.write(fd('a'), bytes(200_000)))")) == "200000"


def test_children_and_forks_have_the_same_disk(home: Home) -> None:
    home.shim.plant(Rule(Operation.WRITE, "a", Action.ERROR, errno.EIO))
    said = home.said(
        code(
            """
            import subprocess
            deed = "import os; os.write(os.open('a', os.O_CREAT | os.O_RDWR), b'x')"
            print(subprocess.run([sys.executable, '-S', '-E', '-c', deed], stderr=subprocess.DEVNULL).returncode)
            if not os.fork():
                os._exit(tried(lambda: os.write(fd('a'), b'x')) == 'EIO')
            print(os.waitstatus_to_exitcode(os.wait()[1]))
            """
        )
    )
    assert said.split() == ["1", "1"]


LEFT: dict[str, tuple[str, dict[str, bytes]]] = {
    "nothing was synced": ("os.write(fd('a'), b'x')", {}),
    "a name without content": ("f = fd('a'); os.write(f, b'x'); sync()", {"a": b""}),
    "content without a name": ("f = fd('a'); os.write(f, b'x'); os.fdatasync(f)", {}),
    "both": ("f = fd('a'); os.write(f, b'x'); os.fdatasync(f); sync()", {"a": b"x"}),
    "an append behind a sync": ("f = fd('a'); os.write(f, b'x'); os.fsync(f); sync(); os.write(f, b'y')", {"a": b"x"}),
    "an overwrite": (
        "f = fd('a'); os.write(f, b'abcdef'); os.fsync(f); sync(); os.pwrite(f, b'XY', 2); os.pwrite(f, b'Zgh', 5)",
        {"a": b"abcdef"},
    ),
    "a second sync": (
        "f = fd('a'); os.write(f, b'abc'); os.fsync(f); sync(); os.pwrite(f, b'X', 1); os.fsync(f)",
        {"a": b"aXc"},
    ),
    "a cut": ("f = fd('a'); os.write(f, b'abc'); os.fsync(f); sync(); os.ftruncate(f, 1)", {"a": b"abc"}),
    "a cut and an append": (
        "f = fd('a'); os.write(f, b'abc'); os.fsync(f); sync(); os.ftruncate(f, 1); os.pwrite(f, b'ZZZZ', 1)",
        {"a": b"abc"},
    ),
    "a file that is opened to be cut": (
        "f = fd('a'); os.write(f, b'abc'); os.fsync(f); sync(); open('a', 'wb').close()",
        {"a": b"abc"},
    ),
    "a sync by another descriptor": ("os.write(fd('a'), b'x'); os.fsync(fd('a')); sync()", {"a": b"x"}),
    "a file that syncs each write": (
        "os.write(fd('a', os.O_RDWR | os.O_CREAT | os.O_DSYNC), b'x'); sync(); os.pwrite(fd('a'), b'y', 1)",
        {"a": b"x"},
    ),
    "a rename without its folder": (
        "f = fd('a.tmp'); os.write(f, b'x'); os.fsync(f); sync(); os.rename('a.tmp', 'a')",
        {"a.tmp": b"x"},
    ),
    "a rename with its folder": (
        "f = fd('a.tmp'); os.write(f, b'x'); os.fsync(f); os.rename('a.tmp', 'a'); sync()",
        {"a": b"x"},
    ),
    "a rename of content that was not synced": (
        "os.write(fd('a.tmp'), b'x'); os.rename('a.tmp', 'a'); sync()",
        {"a": b""},
    ),
    "a rename over a file": (
        """
        for name, data in (('a', b'old'), ('b', b'new')):
            f = fd(name); os.write(f, data); os.fsync(f)
        sync(); os.replace('b', 'a')
        """,
        {"a": b"old", "b": b"new"},
    ),
    "a removal": ("f = fd('a'); os.write(f, b'x'); os.fsync(f); sync(); os.unlink('a')", {"a": b"x"}),
    "a removal with its folder": ("f = fd('a'); os.fsync(f); sync(); os.unlink('a'); sync()", {}),
    "a file made anew under its name": (
        """
        f = fd('a'); os.write(f, b'old'); os.fsync(f); sync()
        os.unlink('a'); g = fd('a'); os.write(g, b'new'); os.fsync(g)
        """,
        {"a": b"old"},
    ),
    "a folder": ("os.mkdir('d'); f = fd('d/a'); os.write(f, b'x'); os.fsync(f); sync('d')", {}),
    "a folder with its own": (
        "os.mkdir('d'); f = fd('d/a'); os.write(f, b'x'); os.fsync(f); sync('d'); sync()",
        {"d/a": b"x"},
    ),
    "a folder that is moved": (
        """
        os.mkdir('d'); f = fd('d/a'); os.write(f, b'x'); os.fsync(f); sync('d'); sync()
        os.rename('d', 'e'); os.mkdir('d')
        """,
        {"d/a": b"x"},
    ),
    "a folder that is removed": (
        "os.mkdir('d'); f = fd('d/a'); os.fsync(f); sync('d'); sync(); os.unlink('d/a'); os.rmdir('d')",
        {"d/a": b""},
    ),
    "a second name": ("f = fd('a'); os.fsync(f); os.link('a', 'b'); sync(); os.link('a', 'c')", {"a": b"", "b": b""}),
    "a copy": (
        "f = fd('a'); os.write(f, b'abc'); os.fsync(f); g = fd('b'); os.sendfile(g, f, 0, 3); sync()",
        {"a": b"abc", "b": b""},
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_a_power_cut_leaves_no_more_than_was_synced(home: Home, case: str) -> None:
    text, left = LEFT[case]
    assert home.cut(code(text)) == left


def test_a_second_cut_knows_what_the_first_one_left(home: Home) -> None:
    text = "f = fd('a'); os.write(f, b'abc'); os.fsync(f); sync(); os.write(f, b'def')"
    assert home.cut(code(text)) == {"a": b"abc"}
    assert home.cut(code("os.pwrite(fd('a'), b'XYZ', 0)")) == {"a": b"abc"}
    killed = "f = fd('a'); os.pwrite(f, b'YYYY', 1); os.kill(os.getpid(), 9)"
    assert home.run(code(killed), keeps_log=True).returncode == -signal.SIGKILL
    assert (home.root / "a").read_bytes() == b"aYYYY", "a killed process loses nothing"
    assert home.cut(code("")) == {"a": b"abc"}, "what an earlier process wrote is still not synced"


def test_a_failed_sync_loses_its_pages_though_later_ones_succeed(home: Home) -> None:
    home.shim.plant(Rule(Operation.SYNC, "a", Action.ERROR, errno.EIO, skip=1, times=1))
    text = """
        f = fd('a'); os.write(f, b'aa'); os.fsync(f); sync()
        os.write(f, b'bb'); print(tried(lambda: os.fsync(f))); os.fsync(f)
        os.write(f, b'cc'); os.fsync(f)
    """
    assert home.cut(code(text)) == {"a": b"aa\0\0cc"}


def test_a_disk_that_lies_about_syncs_loses_what_was_synced(home: Home) -> None:
    home.shim.plant(Rule(Operation.SYNC, "a", Action.LIE))
    assert home.cut(code("f = fd('a'); os.write(f, b'x'); os.fsync(f); sync()")) == {"a": b""}


def test_power_goes_at_a_named_step_for_all_threads_at_once(home: Home) -> None:
    home.shim.plant(Rule(Operation.SYNC, "b", Action.OFF_BEFORE))
    text = """
        def others(name):
            f = fd(name); sync()
            while True: os.write(f, b'x' * 100); os.fsync(f)
        for name in ('c', 'd', 'e'): threading.Thread(target=others, args=(name,), daemon=True).start()
        f = fd('a'); os.write(f, b'x'); os.fsync(f); sync()
        f = fd('b'); sync(); os.write(f, b'y'); time.sleep(0.02); os.fsync(f)
    """
    left = home.cut(code(text))
    assert left["a"] == b"x"
    assert left["b"] == b""
    assert all(len(left[name]) % 100 == 0 for name in ("c", "d", "e"))


def test_concurrent_writers_of_one_file_lose_what_none_has_synced(home: Home) -> None:
    text = """
        def work(me):
            f = fd('a', os.O_RDWR | os.O_CREAT | os.O_APPEND)
            for n in range(200): os.write(f, bytes([me]) * 64)
        def pages(me):
            f = fd('p')
            for n in range(200): os.pwrite(f, bytes([me]) * 64, (n * 7 + me) % 20 * 64)
        fd('a'); p = fd('p'); os.write(p, b'!' * 1280); os.fsync(p); sync()
        threads = [threading.Thread(target=deed, args=(n,)) for n in range(3) for deed in (work, pages)]
        [t.start() for t in threads]; [t.join() for t in threads]
    """
    assert home.cut(code(text)) == {"a": b"", "p": b"!" * 1280}


FATES = 30


def test_what_was_synced_survives_whatever_else_does(home: Home) -> None:
    """By chance torn writes, sectors and names are there; never anything that was not written."""
    text = f"""
        for n in range({FATES}):
            os.mkdir(str(n)); os.chdir(str(n))
            f = fd('a'); os.write(f, b'a' * 1500); os.fsync(f); sync()
            os.pwrite(f, b'b' * 1500, 700); os.write(fd('n'), b'n'); os.rename('n', 'm')
            os.chdir('..')
        sync()
    """
    left = home.cut(code(text), random.Random(7))
    for n in range(FATES):
        names = {name for name in ("n", "m") if f"{n}/{name}" in left}
        content = left[f"{n}/a"]
        assert len(names) < 2
        assert content[:700] == b"a" * 700
        assert set(content[700:1500]) <= {ord("a"), ord("b")}
        assert set(content[1500:]) <= {ord("b"), 0}
        assert 1500 <= len(content) <= 2200
    assert len({left[f"{n}/a"] for n in range(FATES)}) > FATES // 10, "the fates differ"
    assert {f"{n}/m" in left for n in range(FATES)} == {True, False}
