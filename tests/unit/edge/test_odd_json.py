"""JSON of the REST catalog with values of wrong types: refused as the caller's error, and nothing is changed."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

from tests.support.served import SCHEMA, Served

SPACE = "/iceberg/v1/namespaces"
TABLE = SPACE + "/shop/tables/orders"
ODD: list[tuple[str, Any]] = [
    (SPACE, {"namespace": ["x\ud800"]}),
    (SPACE, {"namespace": [5]}),
    (SPACE, {"namespace": ["x"], "properties": {"a": 10**30}}),
    (SPACE + "/shop/properties", {"removals": [[]]}),
    (SPACE + "/shop/properties", {"removals": [{"a": 1}], "updates": {"b": "c"}}),
    (SPACE + "/shop/properties", {"updates": {"b": [["c"] * 3]}}),
    (TABLE, {"requirements": [{"type": "assert-ref-snapshot-id", "ref": []}], "updates": []}),
    (TABLE, {"requirements": [{"type": "assert-table-uuid"}], "updates": []}),
    (TABLE, {"updates": [{"action": "set-properties", "updates": {"a": 2**70}}]}),
    (TABLE, {"updates": [{"action": "remove-properties", "removals": [[]]}]}),
    (TABLE, {"updates": [{"action": []}]}),
    (TABLE, {"updates": [{"action": "add-schema", "schema": json.loads("[" * 80 + "]" * 80)}]}),
    ("/iceberg/v1/tables/rename", {"source": {"namespace": [[]], "name": "a"}, "destination": {}}),
]


def test_odd_json_is_refused(tmp_path: Path) -> None:
    with Served(tmp_path, ports=True) as served:
        served.lake.create_table("shop.orders", SCHEMA)
        before = served.engine.view.lsn
        connection = http.client.HTTPConnection(served.server.about["http"], timeout=20)
        for path, body in ODD:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = answer.read()
            assert 400 <= answer.status < 500, (path, body, answer.status, said)
        connection.close()
        assert served.engine.view.lsn == before
