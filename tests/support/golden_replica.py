"""Folders of servers that share a journal: recording one of this release, and opening one on what its log had.

`python -m tests.support.golden_replica` writes tests/golden/replica-<release>.tar.xz and .json; see the README there.
The archive has the folder as a killed server leaves it: a checkpoint with its place in the log, and segments. The file
`messages` has the log's messages from this place on, a line each.
"""

from __future__ import annotations

import base64
import json
import tarfile
import tempfile
from pathlib import Path

import lakestore as ls
from lakestore.model import file_uri
from lakestore.release import RELEASE
from lakestore_server.catalog.metadata_store import LocalStorage
from lakestore_server.catalog.warehouse_mark import WarehouseMark
from lakestore_server.files import checkpoint
from lakestore_server.host.disk import RealDisk
from lakestore_server.state.judge import Standing
from tests.support import golden
from tests.support.replicas import Replicas

MESSAGES = "messages"


def standing_of(folder: Path) -> Standing:
    """The place of a folder's checkpoint in its log."""
    content = checkpoint.newest(RealDisk(), folder)
    assert content is not None
    return Standing.parse(content.place.split("/")[1])


def opened(folder: Path, root: Path) -> Replicas:
    """Servers on the log of an unpacked folder, none of them started. The log before the checkpoint is gone."""
    replicas = Replicas(root, count=0, lease_seconds=3.0)
    position = standing_of(folder).position
    lines = (folder / MESSAGES).read_text().splitlines()
    log = replicas.log
    log.first, log.messages = position, [b""] * position + [base64.b64decode(line) for line in lines]
    content = checkpoint.newest(RealDisk(), folder)
    assert content is not None
    uri = file_uri.to_uri(root / "warehouse")
    WarehouseMark(LocalStorage(uri), uri, content.timeline).put()
    return replicas


def record(release: str, into: Path = golden.FOLDER) -> Path:
    """Write the archive of this release."""
    with tempfile.TemporaryDirectory() as temporary, Replicas(Path(temporary), count=1) as replicas:
        data = Path(temporary) / "0"
        with ls.connect(replicas.address(0)) as lake:
            golden.create(lake)
            golden.write(lake, range(4))
            replicas.servers[0].upkeep.checkpoint()
            golden.write(lake, range(4, 6))
            said = golden.contents(lake)
        kept = replicas.log.messages[standing_of(data).position :]
        (data / MESSAGES).write_text("".join(f"{base64.b64encode(each).decode()}\n" for each in kept))
        archive = into / f"replica-{release}.tar.xz"
        left_out = ("lock", "warehouse", "cache")
        with tarfile.open(archive, "w:xz") as tar:
            tar.add(
                data,
                f"replica-{release}",
                filter=lambda entry: None if entry.name.split("/")[-1] in left_out else entry,
            )
        archive.with_name(f"replica-{release}.json").write_text(json.dumps(said, indent=2) + "\n")
        return archive


if __name__ == "__main__":
    record(RELEASE)
