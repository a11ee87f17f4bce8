"""Erasures from the client: ask for one, wait for its end, check its certificate again."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lakestore.client.connection import Connection
from lakestore.errors import Invalid
from lakestore.model.contract import deletes
from lakestore.model.retention import seconds_of
from lakestore.model.table import Table
from lakestore.rows import literals
from lakestore.v1 import lakestore_pb2 as pb

POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Erasure:
    """An erasure, as the server told it last."""

    id: str
    table: str
    step: str
    """`rows`, `lake`, `log`: what is being done; `done`."""
    asked_by: str
    why: str
    asked_at: str
    until: str
    """The deadline. Afterwards no reader and no subscription holds it back."""
    done_at: str | None
    keys: int
    """Erased keys; 0 before they are found, and for a log table."""
    versions: int
    """Erased versions of rows, with the deletes; erased rows of a log table; 0 before they are found."""
    held_back_by: tuple[str, ...]
    """Why it has not come further."""
    certificate: dict[str, Any] | None
    """The certificate, once it is done."""

    @property
    def is_done(self) -> bool:
        return self.step == "done"

    @staticmethod
    def from_json(text: str) -> Erasure:
        """Decode the server's answer."""
        said = json.loads(text)
        return Erasure(**{**said, "held_back_by": tuple(said["held_back_by"])})


OnErasure = Callable[[Erasure], None]


@dataclass(frozen=True, slots=True)
class ErasedCheck:
    """The result of `verify --erased`."""

    findings: tuple[str, ...]
    """Files that hold erased rows, or that nobody can vouch for, one sentence each; empty if the rows are nowhere."""
    files: int
    bytes: int


def ask(
    connection: Connection, definition: Table, where: str, within: str | int | None, why: str, backups: Sequence[str]
) -> Erasure:
    """Ask for an erasure. It is journaled when this returns."""
    seconds = deletes.of_table(definition).erase_within_seconds if within is None else seconds_of(within)
    request = pb.EraseRowsRequest(
        table=definition.name,
        table_uuid=definition.uuid,
        where=literals.fixed(where),
        erasure=uuid.uuid4().hex[:16],
        within_seconds=seconds,
        why=why,
        backups=backups,
    )
    return Erasure.from_json(connection.transport.erase_rows(request).erasure)


def listed(connection: Connection, definition: Table, number: str = "") -> list[Erasure]:
    """The erasures of a table, newest first; only one with `number`."""
    request = pb.ListErasuresRequest(table=definition.name, table_uuid=definition.uuid, erasure=number)
    return [Erasure.from_json(text) for text in connection.transport.list_erasures(request).erasures]


def await_end(connection: Connection, definition: Table, number: str, on_progress: OnErasure | None) -> Erasure:
    """Wait until an erasure is done."""
    while True:
        found = listed(connection, definition, number)
        if not found:
            raise Invalid(f"the server knows no erasure {number} of table {definition.name}")
        if on_progress is not None:
            on_progress(found[0])
        if found[0].is_done:
            return found[0]
        time.sleep(POLL_SECONDS)


def verify(connection: Connection, certificate: dict[str, Any]) -> ErasedCheck:
    """Scan every file again for the rows of a certificate."""
    table = certificate.get("table")
    if not isinstance(table, str):
        raise Invalid("the file is no certificate of an erasure")
    answer = connection.transport.verify_erased(
        pb.VerifyErasedRequest(table=table, certificate=json.dumps(certificate))
    )
    return ErasedCheck(tuple(answer.findings), answer.objects, answer.bytes)
