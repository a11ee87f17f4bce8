"""Events of Debezium's connectors, with and without their schema: the rows that a person would expect."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from lakestore.kafka.bridge.decode.debezium.debezium import DebeziumJson
from tests.support.bridge_blocks import check_decoded
from tests.support.debezium_events import block, text

SAMPLES = sorted((Path(__file__).parent / "debezium_samples").glob("*.json"))


def shown(value: Any) -> Any:
    """A value as samples have it."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: shown(part) for name, part in value.items()}
    if isinstance(value, list):
        return [shown(part) for part in value]
    return value if value is None or isinstance(value, (int, float, str)) else str(value)


def payload(part: Any) -> Any:
    """A key or value without its schema."""
    return part.get("payload", part) if isinstance(part, dict) else part


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_connectors_events_are_the_rows_that_one_expects(path: Path) -> None:
    sample = json.loads(path.read_text())
    decoded = DebeziumJson().decode(block([(key, value) for key, value in sample["records"]]), None)
    check_decoded(decoded, len(sample["records"]))
    assert [shown(row) for row in decoded.values.to_pylist()] == sample["rows"]
    assert decoded.op is not None
    assert decoded.op.tolist() == sample["ops"]
    assert {reason: rows.tolist() for reason, rows in decoded.passed.items()} == sample["passed"]
    assert {str(reject.record): reject.code for reject in decoded.rejects} == sample["rejects"]
    assert decoded.envelope is not None
    assert decoded.envelope.field("position").to_pylist() == sample["positions"]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_same_events_without_their_schema_have_the_same_ends(path: Path) -> None:
    sample = json.loads(path.read_text())
    bare = [(payload(key), payload(value)) for key, value in sample["records"]]
    decoded = DebeziumJson().decode(block(bare), None)
    check_decoded(decoded, len(bare))
    assert decoded.op is not None
    assert decoded.op.tolist() == sample["ops"]
    assert {str(reject.record): reject.code for reject in decoded.rejects} == sample["rejects"]
    assert decoded.envelope is not None
    assert decoded.envelope.field("position").to_pylist() == sample["positions"]
    assert list(decoded.values.to_pylist()[0]) == list(sample["rows"][0])


@pytest.mark.parametrize("seed", range(3))
def test_damaged_events_of_all_connectors_end_once_each(seed: int) -> None:
    dice, decoder = random.Random(seed), DebeziumJson()
    pairs = [pair for path in SAMPLES for pair in json.loads(path.read_text())["records"]]
    for _ in range(5):
        some = []
        for key, value in dice.choices(pairs, k=20):
            raw = text(payload(value) if dice.random() < 0.3 else value)
            if raw and dice.random() < 0.3:
                at = dice.randrange(len(raw))
                raw = raw[:at] + bytes([dice.choice(b'0"{}[],:nul\\x\xff')]) + raw[at + dice.randrange(3) :]
            some.append((key, raw))
        records = block(some, partition=[dice.randrange(2) for _ in some])
        check_decoded(decoder.decode(records, None), len(some))
