"""Riddles in texts: planted ones are found, and words that only look like them are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import prose

PROTO = Path(__file__).resolve().parent.parent / "proto/lakestore/v1/lakestore.proto"


@pytest.mark.parametrize(
    "text",
    [
        '"""Keys and those of others."""\n',
        '"""Keys and those\nof others."""\n',
        'x = 1\n"""One number, of which parts are read."""\n',
        "# A list, of\n# which one part is read.\n",
        "x = 1  # begun anew\n",
        "f(f'{x} runs, of which {y} are old')\n",
        "f('the file is read'\n  ' anew')\n",
        "# The next file, or that one.\n",
        "# A row: that one is new.\n",
        "# No row is found that one changes.\n",
    ],
)
def test_a_planted_riddle_is_found(text: str) -> None:
    assert list(prose.riddles(text))


@pytest.mark.parametrize(
    "text",
    [
        "x = ways.anew\n",
        "f('anew')\n",
        "# With `anew` the partitions are closed.\n",
        "# Rows that one call reads, and the share that one of several readers reads.\n",
        "# Choose from those\n\nx = 1\n\n# of others\n",
    ],
)
def test_code_and_that_one_before_a_noun_are_no_riddles(text: str) -> None:
    assert not list(prose.riddles(text))


def test_the_proto_file_has_no_riddles() -> None:
    text = PROTO.read_text()
    assert "//" in text
    assert not prose.riddles_of(re.sub(r"\n\s*//", " ", text))
