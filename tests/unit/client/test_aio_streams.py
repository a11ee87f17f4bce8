"""Streams of the asyncio client: what the blocking iterator behind one holds is given back off the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

from lakestore import aio
from lakestore.client.async_commits import Bridge
from tests.support.waiting import until


def test_an_ended_stream_gives_back_what_it_holds_on_its_own_thread() -> None:
    ended: list[str] = []

    def rows() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            ended.append(threading.current_thread().name)

    async def read_one() -> None:
        async with aio.Stream(Bridge(1), rows) as stream:
            assert await anext(stream) == 1
            await stream.aclose()

    asyncio.run(read_one())
    until(lambda: ended, "the end of the iterator")
    assert [name.startswith("lakestore-aio-stream") for name in ended] == [True]
