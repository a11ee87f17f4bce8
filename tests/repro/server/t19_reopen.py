# mypy: ignore-errors
# ruff: noqa: B023
"""T19: do the folders that the poison fuzz left open again, and do duties run on the definitions it got accepted?"""

import glob
import logging
import pathlib
import traceback

from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.repro.server.common import BASE

logging.disable(logging.CRITICAL)


for d in sorted(glob.glob(str(BASE / "poison[0-9]*"))):
    try:
        s = Server(Settings(data=pathlib.Path(d), lease_grace_seconds=0))
    except BaseException as e:
        print(d, "OPEN FAILS", type(e).__name__, e)
        continue
    odd = [
        (st.table.name, st.table.lake.target_file_bytes)
        for st in s.engine.view.tables.values()
        if not isinstance(st.table.lake.target_file_bytes, int)
    ]
    req = [
        (st.table.name, c.required)
        for st in s.engine.view.tables.values()
        for c in st.table.columns
        if not isinstance(c.required, bool)
    ]
    for n, f in {
        "retention": s.retention.run_once,
        "expiry": s.expiry.run_once,
        "checkpoint": s.upkeep.checkpoint,
        "status": lambda: s.service.verbs["Status"](pb.StatusRequest()),
    }.items():
        try:
            f()
        except BaseException as e:
            print(d, n, type(e).__name__, str(e)[:150], traceback.extract_tb(e.__traceback__)[-1])
    print(
        d.split("/")[-1],
        len(s.engine.view.tables),
        "tables; target_file_bytes accepted:",
        odd[:4],
        "required accepted:",
        req[:4],
    )
    s.close()
