"""Slabs: a message's copy is its own for as long as anybody holds it, and its memory is used again afterwards."""

from __future__ import annotations

import errno
import gc
import mmap
import random
import threading

import pyarrow as pa
import pytest

from lakestore_server.host.quota import SLAB_BYTES_MIN, BufferPool

MESSAGE = 300_000


def message(number: int, size: int = MESSAGE) -> bytes:
    return random.Random(number).randbytes(size)


def test_a_copy_stays_as_it_is_while_others_come_and_go() -> None:
    slabs = BufferPool(64 << 20)
    kept = {number: slabs.held(message(number)) for number in range(8)}
    for number in range(8, 40):
        assert slabs.held(message(number)).to_pybytes() == message(number)
    for number, held in kept.items():
        assert held.to_pybytes() == message(number)


def test_a_part_of_a_copy_holds_all_of_its_memory() -> None:
    slabs = BufferPool(64 << 20)
    rows = pa.Array.from_buffers(pa.int64(), 100, [None, slabs.held(message(1)).slice(800, 800)])
    wanted = rows.to_pylist()
    for number in range(10):
        slabs.held(message(number + 2))
    assert rows.to_pylist() == wanted


def test_memory_that_nobody_holds_is_used_again() -> None:
    slabs = BufferPool(64 << 20)
    first = slabs.held(message(1))
    address = first.address
    del first
    assert slabs.idle_bytes == 512 << 10
    again = slabs.held(message(2, MESSAGE + 5_000))
    assert again.address == address
    assert slabs.idle_bytes == 0


@pytest.mark.parametrize("size", [1, SLAB_BYTES_MIN - 1, SLAB_BYTES_MIN, SLAB_BYTES_MIN + 1, 1 << 20, (1 << 20) + 1])
def test_a_message_of_any_size_has_room(size: int) -> None:
    slabs = BufferPool(64 << 20)
    assert slabs.held(message(size, size)).to_pybytes() == message(size, size)
    assert slabs.held(message(size, size)).address % 64 == 0


def test_idle_memory_is_bounded_over_all_sizes() -> None:
    slabs = BufferPool(1 << 20)
    held = [slabs.held(message(size, size)) for size in (200_000, 400_000, 800_000) for _ in range(4)]
    held.clear()
    gc.collect()
    assert 0 < slabs.idle_bytes <= 1 << 20


def test_copies_are_let_go_in_other_threads() -> None:
    slabs = BufferPool(8 << 20)
    wrong: list[int] = []

    def work(seed: int) -> None:
        chance, held = random.Random(seed), {}
        for number in range(200):
            held[number % 5] = (slabs.held(message(seed * 1_000 + number)), seed * 1_000 + number)
            found, came_from = held[chance.choice(sorted(held))]
            if found.to_pybytes() != message(came_from):
                wrong.append(came_from)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert slabs.idle_bytes <= 8 << 20


def test_without_memory_for_a_slab_a_message_is_held_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", none)
    assert BufferPool(64 << 20).held(message(1)).to_pybytes() == message(1)
