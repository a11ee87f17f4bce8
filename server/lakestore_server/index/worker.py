"""The key index's own process: requests from standard input, answers to standard output, LMDB behind them.

py-lmdb gives up the interpreter lock at every key, so a busy server would wait a switch interval per key; a process
with one thread does not. Ends with its pipe. Imports little, for its start is part of the server's.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import IO

from lakestore_server.index.lmdb_store import LMDB_ERRORS, TEMPORARY_ERRORS, LmdbStore, MapResized
from lakestore_server.index.pipe import DAMAGED_FILES, FAILED, Answer, Op, Request


def main(folder: str, map_bytes: int, *, read_only: bool) -> None:
    """Serve requests until standard input closes."""
    os.umask(0o027)  # LMDB takes a mode, less the umask that the server was started with
    requests, answers = os.fdopen(0, "rb", buffering=1 << 20), os.fdopen(1, "wb", buffering=0)
    store: LmdbStore | None = None
    while True:
        try:
            request = Request.read(requests)
            try:
                if request.op in _MERGES:
                    answers.write(_of_a_merge(request, requests, answers).encode())
                    continue
                store = store or LmdbStore(folder, map_bytes, read_only=read_only)
                answer = answered(store, request)
            except TEMPORARY_ERRORS as error:
                answer = Answer(FAILED, str(error).encode())
            except LMDB_ERRORS as error:
                answer = Answer(DAMAGED_FILES, f"it cannot be opened: {error}".encode())
            answers.write(answer.encode())
        except (EOFError, BrokenPipeError, KeyboardInterrupt):
            if store:
                store.close()
            return


def _of_a_merge(request: Request, requests: IO[bytes], answers: IO[bytes]) -> Answer:
    from lakestore_server.index import merge_apart  # only a process that merges needs it

    return merge_apart.serve(request, requests, answers)


def answered(store: LmdbStore, request: Request) -> Answer:
    """The answer to a request; errors of LMDB are answers, too."""
    try:
        try:
            return _answer(store, request)
        except MapResized:
            store.adopt_map()
            return _answer(store, request)
    except TEMPORARY_ERRORS as error:
        return Answer(FAILED, str(error).encode())
    except (*LMDB_ERRORS, struct.error, ValueError) as error:
        return Answer(DAMAGED_FILES, f"{type(error).__name__}: {error}".encode())


def _answer(store: LmdbStore, request: Request) -> Answer:
    if request.op in _READS:
        return _read(store, request)
    if request.op == Op.HELD_LSN:
        return Answer(store.held_lsn(), store.size().encode())
    if request.op == Op.STAND_AT:
        store.stand_at(request.number)
    elif request.op == Op.REMOVE:
        store.remove(request.keys.blob, request.number)
    elif request.op == Op.CLEAR:
        store.clear()
    return Answer(store.lsn(), store.size().encode())


_MERGES = frozenset({Op.MERGE_RUNS, Op.GO_ON, Op.STOP})
_READS = frozenset({Op.FIND, Op.RANGES, Op.WALK, Op.NEXT, Op.HIGHEST})


def _read(store: LmdbStore, request: Request) -> Answer:
    keys = request.keys
    if request.op == Op.FIND:
        lsn, values = store.find(keys)
        return Answer(lsn, values.tobytes())
    if request.op == Op.RANGES:
        return Answer(*store.ranges(keys.listed(), request.number))
    if request.op == Op.WALK:
        prefix, start = [*keys.listed(), b""][:2]
        lsn, walked = store.walk(prefix, start, request.number)
        return Answer(lsn, walked.encode())
    if request.op == Op.NEXT:
        return Answer(store.lsn(), store.next_prefix(keys.blob))
    return Answer(store.lsn(), store.highest(keys.blob))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), read_only=sys.argv[3] == "1")
