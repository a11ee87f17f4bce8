"""Administration of whole tables: rename, truncate, delete by a condition, drop and undrop."""

from __future__ import annotations

from collections.abc import Callable

from lakestore.client.connection import Connection
from lakestore.client.dropped import DeleteProgress, DroppedTable, Truncated
from lakestore.client.written import CommitToken, WriteResult
from lakestore.errors import LakestoreError
from lakestore.model.names import rows_text
from lakestore.model.table import Table
from lakestore.rows import clock_words
from lakestore.v1 import lakestore_pb2 as pb

OnProgress = Callable[[DeleteProgress], None]


def renamed(connection: Connection, definition: Table, name: str) -> Table:
    """The definition under another name, once the table has that."""
    request = pb.RenameTableRequest(table=definition.name, new_name=name, table_uuid=definition.uuid)
    made = Table.from_json(connection.transport.rename_table(request).definition)
    connection.forget_definitions([definition.name, name])
    return made


def truncated(connection: Connection, definition: Table, *, check_only: bool) -> Truncated:
    """The cost of taking all rows away, which is done unless it is only asked for."""
    request = pb.TruncateTableRequest(table=definition.name, table_uuid=definition.uuid, check_only=check_only)
    answer = connection.transport.truncate_table(request)
    token = answer.token if check_only else connection.seen(answer.token)
    if not check_only:
        connection.forget_definitions([definition.name])
    return Truncated(token, answer.rows, tuple(answer.subscriptions))


def deleted(
    connection: Connection, definition: Table, where: str, *, dry_run: bool, on_progress: OnProgress | None
) -> CommitToken:
    """Delete the rows that meet a condition at one cut; the position behind the last of its commits."""
    matched = gone = looked_at = 0
    last = ""
    asked = clock_words.fixed(where)
    request = pb.DeleteWhereRequest(table=definition.name, table_uuid=definition.uuid, where=asked, dry_run=dry_run)
    while True:
        try:
            answer = connection.transport.delete_where(request)
        except LakestoreError as error:
            if gone:
                _tell_deleted(error, gone)
            raise
        matched, gone, looked_at = matched + answer.matched, gone + answer.deleted, looked_at + answer.looked_at
        last = connection.seen(answer.last) if answer.last else last
        if on_progress is not None:
            on_progress(DeleteProgress(matched, gone, looked_at, answer.offsets))
        if not answer.next:
            break
        request.token, request.next = answer.token, answer.next
    result = WriteResult(definition.name, deleted=matched if dry_run else gone, schema_id=definition.schema_id)
    return CommitToken(last or answer.token, result)


def _tell_deleted(error: LakestoreError, rows: int) -> None:
    """The rows that earlier commits of the same delete have deleted, told by the error that breaks it off."""
    least = "at least " if error.applied == "unknown" else ""
    error.message += f"; before that {least}{rows_text(rows)} {'was' if rows == 1 else 'were'} deleted"
    error.args, error.applied = (error.message,), "unknown"


def undropped(connection: Connection, name: str, uuid: str, new_name: str) -> Table:
    """The definition of a table that is there again."""
    request = pb.UndropTableRequest(table=name, table_uuid=uuid, new_name=new_name)
    return Table.from_json(connection.transport.undrop_table(request).definition)


def dropped(connection: Connection) -> list[DroppedTable]:
    """The dropped tables that are still kept, the newest first."""
    answer = connection.transport.list_dropped_tables(pb.ListDroppedTablesRequest())
    return [DroppedTable.of(entry) for entry in answer.tables]
