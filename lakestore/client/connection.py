"""The connection shared by a lake's tables: transport, producers, cached definitions, the newest token."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lakestore import evolution
from lakestore.client.group_commit import Combiner
from lakestore.client.producer import History, ProducerPool
from lakestore.client.transport import Transport
from lakestore.errors import Denied, NotFound
from lakestore.evolution import Step
from lakestore.model.names import suggestion
from lakestore.model.table import Table
from lakestore.model.token import Token, position_of
from lakestore.rows import ipc
from lakestore.rows.one_key import KeyCode
from lakestore.v1 import lakestore_pb2 as pb

COLUMNS_KEPT = 256
"""Column lists of one version whose schemas are cached."""


@dataclass(frozen=True, slots=True)
class OneRow:
    """Fast path for single rows of one table version. Unusual input returns None and takes the general path."""

    definition: Table
    _code: KeyCode | None
    _schemas: dict[tuple[str, ...], pa.Schema] = field(default_factory=dict)

    @staticmethod
    def of(definition: Table) -> OneRow:
        """The fast path of a table version."""
        return OneRow(definition, KeyCode.of(definition))

    def key(self, keys: Any) -> bytes | None:
        """The bytes of one whole key in a dict; None for other input."""
        if type(keys) is list and len(keys) == 1:
            keys = keys[0]
        code = self._code
        if code is None or type(keys) is not dict or len(keys) != len(code.names):
            return None
        try:
            # An empty key is not sent.
            return code.key([keys[name] for name in code.names]) or None
        except KeyError:
            return None

    def row(self, answer: pb.RowBatch, columns: Sequence[str] | None) -> pa.Table | None:
        """The row of an answer in this version, or no row; None if the answer has another version."""
        if answer.schema_id != self.definition.schema_id:
            return None
        named = tuple(columns or ())
        schema = self._schemas.get(named)
        if schema is None:
            schema = self.definition.read_schema(named)
            if len(self._schemas) < COLUMNS_KEPT:
                self._schemas[named] = schema
        batches = ipc.decode_server_rows(answer.rows, crc=answer.crc32c)
        return pa.Table.from_arrays(batches[0].columns, schema=schema) if len(batches) == 1 else None


class Connection:
    """A lake's connection. Thread-safe."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.history = History(transport)
        self.producers = ProducerPool(transport, self.history)
        self.single_writes = Combiner(self.producers)
        self._lock = threading.Lock()
        self._last: Token | None = None
        self._last_text = ""
        self._single: dict[str, OneRow] = {}
        self._definitions: dict[str, Table] = {}

    @property
    def last_token(self) -> str:
        """The newest position written here; plain reads are at least as new. Empty before the first write."""
        return self._last_text

    def remember(self, token: str) -> str:
        """Remember our commit and return its token."""
        position = position_of(token)
        self.history.remember(position)
        with self._lock:
            if self._last is None or position.timeline != self._last.timeline or position.lsn > self._last.lsn:
                self._last, self._last_text = position, token
        return token

    def single_rows(self, definition: Table) -> OneRow:
        """The single-row form of a version. One version of each table is cached."""
        form = self._single.get(definition.name)
        if form is None or form.definition is not definition:
            form = self._single[definition.name] = OneRow.of(definition)
        return form

    def begin_anew(self) -> None:
        """Accept the server's current history: plain reads need not include writes of an earlier one."""
        point = self.history.renew()
        with self._lock:
            if self._last is not None and self._last.timeline != point.timeline:
                self._last, self._last_text = None, ""

    def forget_definitions(self, names: Iterable[str]) -> None:
        """Reload these tables at their next use."""
        for name in names:
            self._definitions.pop(name, None)

    def create_table(self, definition: Table, *, check_only: bool) -> Table:
        """Create a table and return the server's definition. With `check_only` nothing is created."""
        request = pb.CreateTableRequest(definition=definition.to_json(), check_only=check_only)
        info = self.transport.create_table(request)
        return Table.from_json(info.definition) if check_only else self._known(info)

    def newest(self, name: str) -> Table:
        try:
            return self._known(self.transport.get_table(pb.TableRequest(table=name)))
        except NotFound as error:
            close = suggestion(name, [table.name for table in self.all()])
            if not close:
                raise
            raise NotFound(f"{error.message}{close}") from error

    def find(self, name: str) -> Table | None:
        """The table of exactly this name; None if there is none that the caller may read."""
        try:
            return self._known(self.transport.get_table(pb.TableRequest(table=name)))
        except (NotFound, Denied):
            return None

    def all(self) -> list[Table]:
        return [self._known(info) for info in self.transport.list_tables(pb.ListTablesRequest()).tables]

    def definition_of(self, name: str) -> Table:
        return self._definitions[name] if name in self._definitions else self.newest(name)

    def alter_table(
        self,
        definition: Table,
        steps: Sequence[Step],
        *,
        check_only: bool = False,
        proposal: pb.Proposal | None = None,
        why: str = "",
    ) -> Table:
        """Apply the steps as one commit. Raises `Conflict` if the definition is not the current one."""
        request = pb.AlterTableRequest(
            table=definition.name,
            alteration=evolution.to_json(steps),
            schema_id=definition.schema_id,
            check_only=check_only,
            table_uuid=definition.uuid,
            proposal=proposal,
            why=why,
        )
        info = self.transport.alter_table(request)
        return Table.from_json(info.definition) if check_only else self._known(info)

    def _known(self, info: pb.TableInfo) -> Table:
        definition = Table.from_json(info.definition)
        self._definitions[definition.name] = definition
        return definition
