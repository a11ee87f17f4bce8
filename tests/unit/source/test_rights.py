"""Rights of the data source: a token of the options, at the driver and in its tasks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.errors import Denied, NotAuthenticated
from lakestore_spark.source import LakestoreSource
from tests.support.micro_batches import Checkpoint, Query, loaded, read_rows
from tests.support.rights import token_of, write_auth
from tests.support.served import Served

PRINCIPALS = {"report": {"shop.*": ["read"]}, "other": {"else.*": ["read"]}, "writer": {"shop.*": ["write"]}}


def test_who_may_read_reads_and_streams(tmp_path: Path) -> None:
    """Others are denied before anything is planned, at a restart as well."""
    auth = write_auth(tmp_path / "auth.yaml", PRINCIPALS)
    with Served(tmp_path / "data", ports=True, auth=str(auth)) as served:
        table = served.lake.create_table("shop.orders", schema=pa.schema([("id", pa.int64())]))
        table.append([{"id": 1}, {"id": 2}])
        plain = {"server": served.server.about["grpc"], "table": "shop.orders"}
        mine = {**plain, "token": token_of("report")}
        assert [row["id"] for row in read_rows(mine)] == [1, 2]
        point, stream = Checkpoint(), {**mine, "startingOffsets": "earliest", "subscription": "report/daily"}
        query = Query(point, **stream)
        query.run()
        assert [row["id"] for row in point.rows] == [1, 2]
        query.stop()
        for name in ("other", "writer"):
            reader = LakestoreSource({**plain, "token": token_of(name)}).reader
            with pytest.raises(Denied):
                reader(loaded(**mine)[1]).partitions()
            with pytest.raises(Denied):
                Query(point, **{**stream, "token": token_of(name)}).run()
        with pytest.raises(NotAuthenticated):
            loaded(**plain)
