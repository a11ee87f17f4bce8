"""The console's JSON: by the viewer's rights, small where little has changed, and bounded whatever is asked."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import lakestore
from lakestore.errors import Denied
from lakestore.limits import Limits
from lakestore.release import wheel_with
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import pipe
from lakestore.wire.pipe import Verb
from lakestore_server.edge.console import routes, tails
from lakestore_server.edge.console.api import _shown
from lakestore_server.host.supervisor import DutyState
from lakestore_server.operate.board import HELD_BY
from lakestore_server.queries.question import Question
from lakestore_server.queries.service import QueryRun
from tests.console.scene import address, console_of, queries_of
from tests.support.rights import token_of, write_auth
from tests.support.served import SCHEMA, Served
from tests.support.waiting import until

API = "/console/api"
LIMITS = Limits(query_seconds=60, query_rows=3, query_processes=2, tails=2, query_bytes=64 << 20)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("console")
    auth = write_auth(
        folder / "auth.yaml",
        {"root": {"*": ["admin"]}, "report": {"shop.orders": ["read"]}, "etl": {"shop.*": ["write"]}, "new": {}},
    )
    with Served(folder / "data", ports=True, auth=str(auth), limits=LIMITS) as made:
        console_of(made).sampler.close()
        for name in ("shop.orders", "shop.items", "web.clicks"):
            made.lake.create_table(name, SCHEMA, buckets=1)
            made.append(name, 1, 2, 3, 4)
        yield made


def as_(served: Served, name: str = "") -> httpx.Client:
    """A client that shows a principal's token."""
    headers = {"Authorization": f"Bearer {token_of(name)}"} if name else {}
    return httpx.Client(base_url=address(served), headers=headers, timeout=90)


def rows(answer: httpx.Response) -> dict[str, dict[str, Any]]:
    said = answer.json()
    made = [dict(zip(said["columns"], row, strict=True)) for row in said["rows"]]
    return {row["name"]: row for row in made}


def query(served: Served, name: str, sql: str) -> httpx.Response:
    with as_(served, name) as http:
        return http.post(f"{API}/query", json={"sql": sql})


def test_the_page_is_open_and_everything_it_draws_is_not(served: Served) -> None:
    with as_(served) as http:
        page = http.get("/")
        assert page.status_code == 200
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert "unsafe" not in page.headers["content-security-policy"]
        assert http.get("/", headers={"If-None-Match": page.headers["etag"]}).status_code == 304
        for part in ("console.css", "main.js", "icon.svg"):
            assert http.get(f"/console/{part}").status_code == 200
        for absent in ("__init__.py", "console.css.bak"):
            assert http.get(f"/console/{absent}").status_code == 404
        for path in ("me", "status", "history", "clients", "streams", "streams/history", "holds", "tables/shop.orders"):
            answer = http.get(f"{API}/{path}")
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer"), "a browser would ask by itself"
        assert http.get(f"{API}/status?token={token_of('root')}").status_code == 401


def test_every_file_of_the_page_is_sent_and_packed() -> None:
    folder = Path(routes.__file__).with_name("static")
    names = {path.name for path in folder.iterdir() if path.is_file() and path.suffix != ".py"}
    assert set(routes.read_files()) == names
    packed = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-data"
    ]["*"]
    assert {f"*{Path(name).suffix}" for name in names} <= set(packed)


def test_a_session_is_a_token_of_an_hour_that_ends_with_its_origin(served: Served) -> None:
    with as_(served) as http:
        refused = http.post(f"{API}/session", json={"token": "lakestore_wrong"})
        assert refused.status_code == 401
        assert "wrong" not in refused.text
        assert http.post(f"{API}/session", json={"token": 7}).status_code == 400
        given = http.post(f"{API}/session", json={"token": token_of("report")}).json()
        assert token_of("report") not in json.dumps(given)
        http.headers["Authorization"] = f"Bearer {given['token']}"
        assert http.get(f"{API}/me").json() == {
            "principal": "report",
            "release": http.get(f"{API}/me").json()["release"],
            "administers": False,
            "reads_all": False,
        }
        later = http.post(f"{API}/renew", json={}).json()
        assert later["principal"] == "report"
        served.clock.advance(3_700)
        assert http.get(f"{API}/me").status_code == 401


def test_every_viewer_gets_what_the_principal_may_know_of(served: Served) -> None:
    seen = {}
    for name in ("root", "report", "etl", "new"):
        with as_(served, name) as http:
            seen[name] = sorted(rows(http.get(f"{API}/status")))
            statuses = {
                path: http.get(f"{API}/{path}").status_code
                for path in ("history", "tables/web.clicks", "tables/shop.orders", "tables/shop.orders/history")
            }
            assert statuses == {
                "history": 200 if name == "root" else 403,
                "tables/web.clicks": 200 if name == "root" else 403,
                "tables/shop.orders": 200 if name != "new" else 403,
                "tables/shop.orders/history": 200 if name != "new" else 403,
            }
            assert name == "root" or http.get(f"{API}/tables/shop.items/tail").status_code == 403
            found = http.get(f"{API}/clients").json()
            assert {each["principal"] for each in found} >= {name}
            assert name == "root" or {each["principal"] for each in found} == {name}
    assert seen == {
        "root": ["shop.items", "shop.orders", "web.clicks"],
        "report": ["shop.orders"],
        "etl": ["shop.items", "shop.orders"],
        "new": [],
    }


def test_names_of_others_are_cut_as_the_status_cuts_them(served: Served) -> None:
    lake = served.lake
    list(lake.table("shop.orders").changes("earliest", until="now", subscription="etl/feed"))
    lake.transport.report(pb.ReportRequest(producer="etl/bridge", records=1, detail="{}"))
    lease = lake.transport.plan(pb.PlanRequest(tables=["shop.orders"], lease_seconds=60, owner="etl")).lease
    served.clock.advance(1)
    with as_(served, "etl") as http:
        assert [each["name"] for each in http.get(f"{API}/streams").json()["subscriptions"]] == ["feed"]
        assert [each["name"] for each in http.get(f"{API}/status").json()["server"]["reports"]] == ["bridge"]
        assert http.get(f"{API}/holds").json()["leases"][0]["tables"] == ["shop.orders"]
    row = (*range(HELD_BY), ("lake", "subscription etl/feed"))
    access = served.server.access
    holders = {name: _shown(access.caller(token_of(name)), row)[HELD_BY] for name in ("root", "etl", "report")}
    assert holders == {
        "root": ("lake", "subscription etl/feed"),
        "etl": ("lake", "subscription feed"),
        "report": ("lake", "another's subscription"),
    }
    with as_(served, "report") as http:
        assert http.get(f"{API}/streams").json()["subscriptions"] == []
        assert http.get(f"{API}/status").json()["server"]["reports"] == []
        assert http.get(f"{API}/holds").json() == {"dropped": [], "count": 0, "leases": []}
    lake.transport.release_lease(pb.LeaseRequest(lease=lease))
    lake.transport.drop_subscription(pb.DropSubscriptionRequest(subscription="etl/feed"))


def test_a_page_is_told_what_changed_since_it_asked(served: Served) -> None:
    with as_(served, "root") as http:
        served.clock.advance(1)
        first = http.get(f"{API}/status").json()
        assert first["whole"] is True
        assert http.get(f"{API}/status", params={"since": first["revision"]}).status_code == 304
        served.append("shop.items", 5)
        second = http.get(f"{API}/status", params={"since": first["revision"]})
        assert list(rows(second)) == ["shop.items"]
        assert rows(second)["shop.items"]["head"] == 5
        served.lake.create_table("shop.new", SCHEMA, buckets=1)
        served.clock.advance(1)
        third = http.get(f"{API}/status", params={"since": second.json()["revision"]})
        assert list(rows(third)) == ["shop.new"]
        served.lake.drop_table("shop.new")
        served.clock.advance(1)
        fourth = http.get(f"{API}/status", params={"since": third.json()["revision"]}).json()
        assert (fourth["rows"], fourth["gone"], fourth["whole"]) == ([], ["shop.new"], False)
        (dropped,) = http.get(f"{API}/holds").json()["dropped"]
        assert (dropped["table"], dropped["going"]) == ("shop.new", False)
        for odd in ("", "x", "9.9", first["revision"] + "0", "0" * 400):
            assert http.get(f"{API}/status", params={"since": odd}).json()["whole"] is True


def test_a_query_reads_by_the_viewers_rights_and_no_further(served: Served) -> None:
    found = query(served, "report", "SELECT v FROM shop.orders ORDER BY v").json()
    assert (found["rows"], found["more"]) == ([["1"], ["2"], ["3"]], True)
    assert found["columns"] == [{"name": "v", "type": "int64"}]
    refused = query(served, "report", "SELECT * FROM web.clicks")
    assert (refused.status_code, "no right 'read'" in refused.text) == (403, True)
    assert query(served, "new", "SELECT 1").status_code == 403
    for text, why in (
        ("SELECT * FROM read_text('/etc/passwd')", "the query failed"),
        ("COPY (SELECT 1) TO '/tmp/x'", "takes one query"),
        ("SELECT 1; SELECT 2", "takes one query"),
        ("DELETE FROM shop.orders", "takes one query"),
        ("SELECT * FROM range(100000) a ORDER BY repeat(range::varchar, 2000)", "emory"),
    ):
        answer = query(served, "root", text)
        assert answer.status_code == 400, text
        assert why in answer.json()["error"]["message"]


def test_a_query_that_takes_too_long_is_ended(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries_of(served), "limits", Limits(query_seconds=1))
    answer = query(served, "root", "SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b")
    assert answer.status_code == 503
    assert "it took 1 seconds" in answer.json()["error"]["message"]


def test_running_queries_are_shown_to_their_principal_and_cancelled(served: Served) -> None:
    endless = "SELECT sum(a.range * b.range)\nFROM range(10000000) a, range(1000000) b"
    with ThreadPoolExecutor(1) as pool, as_(served, "root") as root, as_(served, "report") as report:
        asked = pool.submit(query, served, "report", endless)
        until(lambda: report.get(f"{API}/queries").json(), "the query")
        (shown,) = root.get(f"{API}/queries").json()
        assert (shown["principal"], shown["door"], shown["text"]) == ("report", "console", " ".join(endless.split()))
        with as_(served, "new") as other:
            assert other.get(f"{API}/queries").json() == []
            refused = other.post(f"{API}/queries/{shown['number']}/cancel")
            assert (refused.status_code, "of yours" in refused.text) == (404, True)
        assert root.post(f"{API}/queries/{shown['number']}/cancel").status_code == 200
        answer = asked.result()
        assert answer.status_code == 503
        assert "an administrator has cancelled it" in answer.json()["error"]["message"]
        assert root.get(f"{API}/queries").json() == []
        assert root.post(f"{API}/queries/no-number/cancel").status_code == 404
        figures = served.server.sources.queries
        assert figures.seconds["console", "Cancelled"].count > 0
        assert 'lakestore_query_seconds_count{door="console",outcome="Cancelled"}' in root.get("/metrics").text


def test_without_duckdb_the_extra_is_named(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(tmp_path, "duckdb.py").write_text("raise ModuleNotFoundError('No module named duckdb')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    queries_of(served).pool.end_idle()
    answer = query(served, "root", "SELECT 1")
    queries_of(served).pool.end_idle()
    assert wheel_with("duckdb") in answer.json()["error"]["message"]


def test_the_querys_process_may_only_read(served: Served) -> None:
    caller = served.server.access.caller(token_of("report"))
    asked = QueryRun(queries_of(served), caller, "console", Question("SELECT 1"))
    for name in ("Commit", "DropTable", "AcceptClock", "Changes", "Nonsense"):
        for verb in (Verb.CALL, Verb.OPEN):
            with pytest.raises(Denied, match=name):
                asked._answer_to(verb, pipe.called(name, b""))


def test_a_killed_process_is_an_error_and_takes_nothing_with_it(served: Served) -> None:
    queries = queries_of(served)

    async def killed() -> httpx.Response:
        async with httpx.AsyncClient(base_url=address(served), timeout=90) as http:
            http.headers["Authorization"] = f"Bearer {token_of('root')}"
            text = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b"
            asked = asyncio.ensure_future(http.post(f"{API}/query", json={"sql": text}))
            await asyncio.to_thread(until, lambda: any(each.pid for each in list(queries._runs)), "the process")
            os.kill(next(each.pid for each in list(queries._runs) if each.pid), 9)
            return await asked

    answer = asyncio.run(killed())
    assert answer.status_code == 503
    assert "process has ended" in answer.json()["error"]["message"]
    assert query(served, "root", "SELECT 7 AS x").json()["rows"] == [["7"]]


def events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    kind = ""
    for line in lines:
        if line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            yield kind, json.loads(line[6:])


def test_a_tail_sends_the_newest_changes_and_ends_with_its_rights(served: Served, tmp_path: Path) -> None:
    file = served.server.access._file
    assert file is not None
    before = file.read_text()
    until(lambda: not served.engine.wakeups.listeners, "the ends of earlier streams")
    with as_(served, "report") as http, http.stream("GET", f"{API}/tables/shop.orders/tail") as stream:
        told = events(stream.iter_lines())
        assert next(told) == ("begin", {"table": "shop.orders"})
        until(lambda: served.engine.wakeups.listeners, "the tail")
        served.append("shop.orders", *range(250))
        kind, said = next(told)
        assert (kind, len(said["rows"]), said["skipped"]) == ("changes", tails.ROWS_MAX, 250 - tails.ROWS_MAX)
        assert said["columns"][:4] == ["__change", "__bucket", "__offset", "__timestamp"]
        assert said["rows"][-1][-1] == "249"
        time.sleep(3 * tails.EVENT_SECONDS)  # until it waits: a right is asked for in silence too
        write_auth(file, {"root": {"*": ["admin"]}, "report": {"web.clicks": ["read"]}})
        served.server.access.refresh()
        kind, said = next(told)
        assert (kind, said["kind"]) == ("failed", "Denied")
    until(lambda: not console_of(served)._tails._open, "the end of the tail")
    file.write_text(before)
    served.server.access.refresh()
    until(lambda: not served.engine.wakeups.listeners, "the end of its stream")


def test_tails_are_few_and_a_reader_that_goes_leaves_nothing(served: Served) -> None:
    with as_(served, "root") as http, as_(served, "root") as other:
        with http.stream("GET", f"{API}/tables/shop.items/tail") as stream:
            told = events(stream.iter_lines())
            assert next(told)[0] == "begin"
            with other.stream("GET", f"{API}/tables/shop.items/tail") as refused:
                kind, said = next(events(refused.iter_lines()))
                assert (kind, said["kind"]) == ("failed", "Exhausted")  # half of two, for one principal
    until(lambda: not console_of(served)._tails._open, "the end of the tail")
    until(lambda: console_of(served)._tails._permits.held == 0, "its permit")


def test_a_slow_reader_is_told_and_dropped(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    monkeypatch.setattr(tails, "SLOW_SECONDS", 0.2)

    listening = served.engine.wakeups.listeners

    def write() -> None:
        until(lambda: served.engine.wakeups.listeners > listening, "the tail")
        served.append("web.clicks", 1)

    writing = threading.Thread(target=write, daemon=True)

    async def read_slowly() -> list[bytes]:
        caller = served.server.access.caller(token_of("root"))
        rpcs = console_of(served)._rpcs
        found = []
        async for event in tails.Tail(rpcs, rpcs.begin(caller, "Changes"), "web.clicks").events():
            found.append(event)
            if len(found) == 1:
                writing.start()
            else:
                await asyncio.sleep(0.4)
        return found

    kinds = [event.partition(b"\n")[0] for event in asyncio.run(read_slowly())]
    assert kinds == [b"event: begin", b"event: changes", b"event: dropped"]


def test_a_server_with_tails_closes_at_once(tmp_path: Path) -> None:
    with Served(tmp_path / "data", ports=True) as one:
        one.lake.create_table("a.b", SCHEMA, buckets=1)
        one.lake.create_table("a.c", pa.schema([("id", pa.int64())]), primary_key=["id"])
        with httpx.Client(base_url=address(one)) as http, http.stream("GET", f"{API}/tables/a.b/tail") as stream:
            told = events(stream.iter_lines())
            assert next(told)[0] == "begin"
            one.close()
            assert next(told) == ("failed", {"message": "the server is going down", "kind": "Unavailable"})


def test_words_that_may_name_any_table_are_told_to_whom_may_see_all(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    scrubber = served.server.service.status._upkeep.scrubber
    monkeypatch.setattr(scrubber, "damage", ["web.clicks is damaged"])
    monkeypatch.setitem(served.engine.supervisor._states, "expiry", DutyState(1, 1, "web.clicks has no column d"))
    monkeypatch.setattr(type(served.engine.index), "state", "the rows of web.clicks are damaged")
    served.clock.advance(1)
    told = {}
    for name in ("root", "report"):
        with as_(served, name) as http, lakestore.connect(served.server.about["grpc"], token=token_of(name)) as lake:
            told[name] = [lake.transport.status(pb.StatusRequest()).status, http.get(f"{API}/status").text]
    assert all("web.clicks is damaged" in each and "no column d" in each for each in told["root"])
    assert all("web.clicks" not in each for each in told["report"])
    assert all("damaged places: 1;" in each for each in told["report"])


def test_a_subscription_over_a_table_that_is_no_longer_seen_tells_nothing_of_it(served: Served) -> None:
    lake = served.lake
    for name in ("shop.orders", "web.clicks"):
        list(lake.table(name).changes("earliest", until="now", subscription=f"report/{name}"))
    console_of(served).sampler.run_once()
    with as_(served, "report") as http:
        found = {each["name"]: each for each in http.get(f"{API}/streams").json()["subscriptions"]}
        drawn = http.get(f"{API}/streams/history").json()["subscription"]
    behind = found["shop.orders"]["behind"]
    assert (found["shop.orders"]["tables"], behind) == (["shop.orders"], lake.table("shop.orders").scan().count())
    assert (found["web.clicks"]["tables"], found["web.clicks"]["behind"]) == (["(no right)"], 0)
    assert [(each["name"], each["values"]) for each in drawn["curves"]] == [("shop.orders", [float(behind)])]
    for name in ("shop.orders", "web.clicks"):
        lake.transport.drop_subscription(pb.DropSubscriptionRequest(subscription=f"report/{name}"))


def test_curves_of_streams_are_the_viewers_own_the_furthest_behind_and_few(served: Served) -> None:
    lake, console = served.lake, console_of(served)
    served.clock.advance(61)  # reports of other tests are over
    table = lake.create_table("shop.many", SCHEMA, buckets=1)
    for number in range(15):
        list(table.changes("latest", until="now", subscription=f"etl/feed {number:02}"))
        served.append("shop.many", number)
    list(table.changes("latest", until="now", subscription="<b>other\u202e</b>"))
    lake.transport.report(pb.ReportRequest(producer="etl/bridge/shop/host/7", lag=30, detail="{}"))
    lake.transport.report(pb.ReportRequest(producer="report/bridge/web/host/7", lag=9, detail="{}"))
    console.sampler.run_once()
    served.append("shop.many", 1)
    console.sampler.run_once()

    def drawn(name: str, **asked: str) -> dict[str, dict[str, list[float]]]:
        with as_(served, name) as http:
            found = http.get(f"{API}/streams/history", params=asked).json()
        assert all(len(each["times_us"]) >= len(c["values"]) for each in found.values() for c in each["curves"])
        return {kind: {c["name"]: c["values"][-2:] for c in each["curves"]} for kind, each in found.items()}

    own = drawn("etl")
    assert own["subscription"] == {f"feed {n:02}": [15.0 - n, 16.0 - n] for n in range(routes.SHOWN_MAX)}
    assert own["bridge"] == {"bridge/shop": [30.0, 30.0]}
    assert list(drawn("etl", filter="FEED 14")["subscription"]) == ["feed 14"]
    assert drawn("report") == {"subscription": {}, "bridge": {"bridge/web": [9.0, 9.0]}}
    assert drawn("new") == {"subscription": {}, "bridge": {}}
    everything = drawn("root")
    assert set(everything["bridge"]) == {"etl/bridge/shop", "report/bridge/web"}
    assert "<b>other\u202e</b>" in drawn("root", filter="other")["subscription"]
    assert len(drawn("root", by="minutes")["subscription"]) == routes.SHOWN_MAX
    for name in [*(f"etl/feed {number:02}" for number in range(15)), "<b>other\u202e</b>"]:
        lake.transport.drop_subscription(pb.DropSubscriptionRequest(subscription=name))
    lake.drop_table("shop.many")


def test_without_auth_a_foreign_page_is_refused(tmp_path: Path) -> None:
    with Served(tmp_path / "data", ports=True) as one, httpx.Client(base_url=address(one)) as http:
        assert http.get(f"{API}/me").json()["principal"] == ""
        assert http.post(f"{API}/session", json={"token": "x"}).status_code == 400
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            assert http.get(f"{API}/status", headers=headers).status_code == 403
        plain = http.post(f"{API}/query", content=b'{"sql": "SELECT 1"}', headers={"Content-Type": "text/plain"})
        assert plain.status_code == 400
