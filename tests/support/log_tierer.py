"""A tierer of log tables without Spark: PyIceberg appends the hot rows through the server's own catalog."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog

from lakestore.model.columns import LAKE_BUCKET, LAKE_COLUMNS, LAKE_OFFSET
from lakestore.rows.live_sum import moved
from lakestore.union import arrow
from lakestore.union.cut import Cut
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.main import Server
from tests.support.process import ServerProcess


class LogTierer:
    """Rounds of one server, which must have its ports open."""

    def __init__(self, server: Server | ServerProcess, transport: Any, **properties: str) -> None:
        """`properties` are more of PyIceberg's, such as a token."""
        self._transport = transport
        http = f"{server.host}:{server.http_port}" if isinstance(server, ServerProcess) else server.about["http"]
        self._catalog = RestCatalog("lake", uri=f"http://{http}/iceberg", **properties)
        self._epoch = transport.acquire_tierer(pb.TiererRequest(holder="test", seconds=600)).epoch

    def flush(self, name: str) -> None:
        """Bring a log table's hot rows into the lake."""
        with Cut(self._transport, [name]) as cut:
            scan = cut.plan.scan(name)
            batches = list(arrow.hot(cut, scan, [*scan.table.selected(None), *LAKE_COLUMNS]))
            if not batches:
                return
            rows = pa.Table.from_batches(batches)
            table = self._catalog.load_table(name)
            table.append(_as_lake(rows, table.schema().as_arrow()), snapshot_properties=self._summary(scan, rows, cut))

    def _summary(self, scan: Any, rows: pa.Table, cut: Cut) -> dict[str, str]:
        buckets, offsets = rows.column(LAKE_BUCKET).to_numpy(), rows.column(LAKE_OFFSET).to_numpy()
        table = self._catalog.load_table(scan.table.name)
        snapshot = table.current_snapshot()
        said = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
        before = json.loads(said.get("lakestore.live-sum", "null"))  # a truncate's snapshot says none
        if before is None and scan.tier is not None:
            before = scan.tier.live_sum
        sums = [int(text) for text in before or ["0"] * scan.table.buckets]
        none = offsets[:0]
        after = [moved(total, offsets[buckets == i], none) for i, total in enumerate(sums)]
        return {
            "lakestore.epoch": str(self._epoch),
            "lakestore.tier-from": json.dumps([part.tier_point for part in scan.buckets]),
            "lakestore.tier-point": json.dumps([part.head for part in scan.buckets]),
            "lakestore.live-sum": json.dumps([str(total) for total in after]),
            "lakestore.lsn": str(cut.plan.lsn),
            "lakestore.schema-id": str(scan.table.schema_id),
        }


def _as_lake(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays([rows.column(field.name).cast(field.type) for field in schema], schema=schema)
