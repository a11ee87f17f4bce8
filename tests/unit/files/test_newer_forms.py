"""What a newer release may add under a version that this release reads: it is refused, never left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given

from lakestore.errors import NewerFormat
from lakestore.rows.ipc import crc32c
from lakestore_server.files import checkpoint, journal
from lakestore_server.files.backup_manifest import BackupManifest
from lakestore_server.files.checkpoint import Checkpoint
from lakestore_server.state.judge import HEADER, Content, Judge, Kind, Standing, messages
from tests.support.records import CHECKPOINTS, SCHEMA
from tests.unit.files.test_commit_record import META
from tests.unit.state.test_judge import forged

Steps = Sequence[str | int]
RECORD: list[Steps] = [
    (),
    ("rows", 0),
    ("producers", 0),
    ("create", 0),
    ("create", 0, "lake"),
    ("create", 0, "columns", 1),
    ("alter", 0),
    ("catalog", 0),
    *(("catalog", 0, "steps", step) for step in range(4)),
    ("catalog", 0, "steps", 1, 4),
    ("catalog", 0, "steps", 1, 5, 0),
    ("tierer",),
    ("starts", 0),
    ("subscriptions", 1, 6, 0, 1),
    ("subscriptions", 2, 2, 0),
    ("slots", 0),
]
"""The entries of a record, each of which could become longer."""


def at(data: Any, path: Steps) -> Any:
    for step in path:
        data = data[step]
    return data


def extend(entry: Any) -> None:
    """Add something to an entry."""
    if isinstance(entry, dict):
        entry["novelty"] = 1
    else:
        entry.append("novelty")


def read(meta: dict[str, Any]) -> None:
    body = pa.py_buffer(b"")
    raw = journal.RawFrame(1, orjson.dumps(meta), body)
    journal.check_known(raw)
    raw.meta["rows"] = []
    journal.decode(raw, lambda _uuid, _schema_id: SCHEMA)


def sample() -> dict[str, Any]:
    """A record as it is stored."""
    meta: dict[str, Any] = orjson.loads(META)
    meta["producers"][0] += ["owner", 1]
    meta["catalog"][0]["steps"][1][5][0] += [True]
    return meta


@pytest.mark.parametrize("path", RECORD)
def test_a_record_with_more_in_it_is_refused(path: Steps) -> None:
    meta = sample()
    extend(at(meta, path))
    with pytest.raises(NewerFormat, match="is of a newer release"):
        read(meta)


@pytest.mark.parametrize(
    "change",
    [
        {"catalog": [{"key": "", "steps": [["rename-namespace", "shop"]]}]},
        {"registers": [[["a"], ["b"], 1, 2]]},
        {"registers": [[["a"], [1, "owner", 2]]]},
        {"subscriptions": [["a", ["u"], 1, None, 2, 3, [], [], 4]]},
        {"subscriptions": [["a", 1, [], [[1, 2, 3, 4, 5]]]]},
        {"rename": [["u", "a.t", 1]]},
        {"truncate": [["u", 1, 1]]},
        {"shelve": [["u", 1, 1]]},
        {"undrop": [["u", "a.t", 1]]},
        {"rescale": [["u", "c", [1], [0], "", 1]]},
        {"rescale": [["u", "c", [1], [0], "novelty"]]},
        {"swap": [["u", "c", 1, True, 1]]},
    ],
)
def test_a_change_of_another_form_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(NewerFormat, match="is of a newer release"):
        read({"t": 1, **change})


def test_a_merge_engine_that_this_release_does_not_know_is_refused() -> None:
    meta = sample()
    meta["create"][0]["merge"] = "newest"
    with pytest.raises(NewerFormat, match="is of a newer release"):
        read({"t": 1, "create": meta["create"]})


@given(CHECKPOINTS)
def test_a_checkpoint_with_more_in_it_is_refused(held: Checkpoint) -> None:
    data = checkpoint._data(held)
    sections = ("producers", "tables", "subscriptions", "clock_marks", "runs", "dropped", "pointers", "rescales")
    entries = [data, data["tierer"], *(entry for name in sections for entry in data.get(name, ())[:1])]
    entries += [entry for held in data.get("registers", {}).values() for entry in held[:1]]
    entries += [entry for table in data["tables"][:1] for entry in (*table["tiers"][:1], *table["bases"][:1])]
    entries += [entry for table in data["tables"][:1] for entry in table.get("former", ())[:1]]
    entries += [file for table in data["tables"] for files in table["buckets"] for file in files if len(file) == 3]
    for entry in entries:
        if entry in data["subscriptions"]:  # one without marks or refusals is shorter
            entry += [[]] * (8 - len(entry))
        if any(entry in table["tiers"] for table in data["tables"]):  # one that is not numbered is shorter
            entry += [True] * (8 - len(entry))
        extend(entry)
        with pytest.raises(NewerFormat, match="is of a newer release"):
            checkpoint._checkpoint_of(data)
        entry.pop("novelty") if isinstance(entry, dict) else entry.pop()


def test_a_message_with_flags_is_refused() -> None:
    (claim,), _ = messages(Standing(), Content(Kind.CLAIM), 7, 1 << 20)
    assert Judge().take(0, claim) is not None
    with pytest.raises(NewerFormat, match="is of a newer release"):
        Judge().take(0, forged(claim, 3, 4))
    assert len(claim) == HEADER.size


def test_a_journal_file_with_flags_is_refused() -> None:
    header = bytearray(journal.file_header(5))
    header[6] = 1
    header[16:20] = journal.CRC.pack(crc32c(bytes(header[:16])))
    with pytest.raises(NewerFormat, match="is of a newer release"):
        journal.head_of(bytes(header), "journal-1")


@pytest.mark.parametrize("novelty", [{"novelty": 1}, {"lake": "elsewhere"}])
def test_a_backup_with_more_in_it_is_refused(novelty: dict[str, Any]) -> None:
    manifest = BackupManifest("9", 1, "t", 1, "checkpoint-1", (), {})
    raw = manifest.encode()
    body = orjson.dumps({**orjson.loads(raw[20:]), **novelty})
    head = raw[:8] + len(body).to_bytes(8, "little") + crc32c(body).to_bytes(4, "little")
    with pytest.raises(NewerFormat, match="is of a newer release"):
        BackupManifest.decode(head + body, str(Path("b") / "MANIFEST"))
