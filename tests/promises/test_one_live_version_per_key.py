"""Promise 4: a key has one live version at the most, and the index names it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakestore.union.verify import verify
from tests.support.seeds import examples
from tests.support.served import Served

SCHEMA = pa.schema([("region", pa.string()), ("id", pa.int64()), ("v", pa.int64())])
KEYS = [(region, number) for region in ("", "eu", "us") for number in (0, 1, 2**40)]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["upsert", "upsert", "delete", "kill", "checkpoint"]),
        st.lists(st.sampled_from(KEYS), min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=12,
)


def row_of(key: tuple[str, int], **values: int) -> dict[str, Any]:
    """A row of that key."""
    return {"region": key[0], "id": key[1], **values}


def replaced_around(*between: str) -> list[tuple[str, list[tuple[str, int]]]]:
    """Rows, what happens then, and rows in their place; keys come twice, and one is deleted and comes back."""
    first, second = KEYS[:2]
    return [
        ("upsert", [*KEYS, first]),
        ("delete", [second]),
        *((verb, [first]) for verb in between),
        ("upsert", [first, second, first]),
        ("delete", [KEYS[2]]),
    ]


@given(STEPS)
@example(replaced_around())
@example(replaced_around("kill"))
@example(replaced_around("checkpoint"))
@example(replaced_around("checkpoint", "kill"))
@settings(max_examples=examples(20))
def test_every_key_has_one_live_version_and_the_index_names_it(steps: list[tuple[str, list[tuple[str, int]]]]) -> None:
    with TemporaryDirectory() as folder, Served(Path(folder) / "data") as served:
        served.lake.create_table("a.b", schema=SCHEMA, primary_key=["region", "id"], bucket_key=["id"], buckets=2)
        live: dict[tuple[str, int], int] = {}
        for number, (verb, keys) in enumerate(steps):
            table = served.lake.table("a.b")
            if verb == "upsert":
                table.upsert([row_of(key, v=number * 10 + place) for place, key in enumerate(keys)])
                live.update((key, number * 10 + place) for place, key in enumerate(keys))
            elif verb == "delete":
                table.delete([row_of(key) for key in keys])
                for key in keys:
                    live.pop(key, None)
            elif verb == "kill":
                served.kill()
                served.start()
            else:
                served.checkpoint()
            table = served.lake.table("a.b")
            wanted = sorted((*key, value) for key, value in live.items())
            scanned = [tuple(row.values()) for row in table.scan().to_arrow().to_pylist()]
            assert sorted(scanned) == wanted, "the rows of the log"
            found = [tuple(row.values()) for row in table.lookup([row_of(key) for key in KEYS]).to_pylist()]
            assert sorted(found) == wanted, "the rows that the index names"
        assert verify(served.lake.transport, "a.b", deep=True).problems() == []
