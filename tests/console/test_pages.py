"""The console's pages in a browser: what they show, by which keys, and that nothing flickers or speaks to others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.evolution import SetContract
from lakestore_server.operate.status import ServerStatus, StatusReader
from lakestore_server.state.commit_record import Leader
from tests.console.scene import LOGS, address, console_of, orders, queries_of
from tests.support.browser import Browser
from tests.support.replicas import LONG_LEASE_SECONDS, Replicas
from tests.support.rights import token_of, write_auth
from tests.support.served import SCHEMA, Served
from tests.support.waiting import until

PAGES = {"": "Tables", "t/shop.orders": "shop.orders", "streams": "Streams", "clients": "Clients", "health": "Health"}
ROWS = "document.querySelectorAll('.space [role=row]').length"
EVIL = "<img src=x onerror=\"document.title='evil'\"><script>document.title='evil'</script>"
NAMELESS = """
[...document.querySelectorAll('button, input, textarea, a, [role=img], [role=grid], [role=region], nav, dialog[open]')]
  .filter((node) => {
    const label = node.id && document.querySelector(`label[for="${node.id}"]`);
    const by = node.getAttribute('aria-labelledby');
    const other = by ? document.getElementById(by)?.textContent : label?.textContent;
    const said = node.getAttribute('aria-label') || other;
    return !(said || (!node.matches('input, textarea, svg') && node.textContent.trim()));
  }).map((node) => node.outerHTML.slice(0, 120))
"""
DOUBLED = "[...document.querySelectorAll('[id]')].map((n) => n.id).filter((id, i, all) => all.indexOf(id) !== i)"
PAIRS = [
    *((ink, card) for ink in ("--ink", "--soft", "--link") for card in ("--page", "--card")),
    ("--ink", "--select"),
    *((f"--{kind}", f"--{kind}-card") for kind in ("good", "warn", "bad", "info")),
    ("--on-accent", "--accent"),
    ("--warn", "--card"),
]
PICTURED = [
    ("--tiered", "--card"),
    ("--hot", "--card"),
    ("--focus", "--card"),
    ("--link", "--card"),
]


def shown(page: Browser, served: Served, hash_: str = "") -> None:
    """Open a page and wait for what it draws."""
    page.open(f"{address(served)}#/{hash_}")
    page.until("document.getElementById('health')?.textContent === 'serving'")


def ask(page: Browser, served: Served) -> None:
    """Have the page ask for what is new, as it does when its tab is looked at again."""
    served.clock.advance(1)
    page.js("document.dispatchEvent(new Event('visibilitychange'))")


def focused(page: Browser) -> str:
    return str(page.js("document.activeElement.textContent"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_has_names_landmarks_and_contrast_and_asks_nobody_else(
    page: Browser, shop: Served, scheme: str
) -> None:
    page.colours(scheme)
    shown(page, shop)
    for hash_, title in {**PAGES, "sql": "SQL"}.items():
        page.js(f"location.hash = '#/{hash_}'")
        page.until(f"document.querySelector('h1')?.textContent === {json.dumps(title)}")
        page.until("!document.body.innerText.includes('Loading …')")
        assert page.js(NAMELESS) == []
        assert page.js(DOUBLED) == []
        landmarks = "['header', 'nav', 'main', 'h1'].map((tag) => document.querySelectorAll(tag).length)"
        assert page.js(landmarks) == [1, 1, 1, 1]
        if hash_:
            page.until("document.activeElement.localName === 'h1'")
    colours = page.js(
        "(() => { const style = getComputedStyle(document.documentElement);"
        " return Object.fromEntries([...document.styleSheets[0].cssRules[0].style].filter((n) => n.startsWith('--'))"
        ".map((n) => [n, style.getPropertyValue(n).trim()])); })()"
    )
    assert (luminance(colours["--page"]) < 0.1) == (scheme == "dark")
    poor = {pair: round(contrast(colours, *pair), 2) for pair in PAIRS if contrast(colours, *pair) < 4.5}
    poor |= {pair: round(contrast(colours, *pair), 2) for pair in PICTURED if contrast(colours, *pair) < 3}
    assert poor == {}
    assert page.errors == []
    assert page.foreign(address(shop)) == []
    assert {url.partition("?")[0].rpartition("/")[0] for url in page.requests} >= {f"{address(shop)}console"}


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(colours: dict[str, str], one: str, other: str) -> float:
    bright, dim = sorted((luminance(colours[one]), luminance(colours[other])), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def test_an_update_changes_texts_and_keeps_every_node_with_focus_and_scroll(page: Browser, shop: Served) -> None:
    shown(page, shop)
    page.until(f"{ROWS} >= 13")
    name = LOGS[1]
    page.js("for (const node of document.querySelectorAll('main *')) node.mark = true")
    page.js(f"[...document.querySelectorAll('.space .row')].find((r) => r.textContent.startsWith('{name}')).focus()")
    before = page.js("document.activeElement.children[4].textContent")
    shop.append(name, *range(7))
    ask(page, shop)
    after = page.until(f"document.activeElement.children[4].textContent !== '{before}'")
    assert after
    assert page.js("[...document.querySelectorAll('main *')].filter((node) => !node.mark).length") == 0
    assert focused(page).startswith(name)
    shop.lake.create_table("aaa.first", SCHEMA, buckets=1)
    ask(page, shop)
    page.until(f"{ROWS} >= 14")
    fresh = page.js("[...document.querySelectorAll('.space .row')].filter((node) => !node.mark).length")
    assert fresh == 1  # the new row, and no other was made anew
    assert focused(page).startswith(name)
    shop.lake.drop_table("aaa.first")
    ask(page, shop)
    page.until(f"{ROWS} === 13")
    assert page.errors == []


def test_keys_filter_move_open_and_go_back(page: Browser, shop: Served) -> None:
    shown(page, shop)
    page.until(f"{ROWS} >= 13")
    page.press("/")
    page.type("shop")
    page.until("document.getElementById('found').textContent === '5 of 13 tables'")
    page.press("ArrowDown")
    assert focused(page).startswith("shop.customers")
    page.press("j")
    assert focused(page).startswith("shop.items")
    page.press("k")
    page.press("ArrowDown")
    page.press("Enter")
    page.until("location.hash === '#/t/shop.items' && document.querySelector('h1').textContent === 'shop.items'")
    page.until("document.activeElement.localName === 'h1'")
    page.press("Escape")
    page.until("location.hash === '#/' && document.activeElement.getAttribute('role') === 'row'")
    assert focused(page).startswith("shop.items")
    page.press("?")
    page.until("document.getElementById('help').open")
    page.press("Escape")
    page.until("!document.getElementById('help').open")
    assert page.js("location.hash") == "#/"
    page.js("document.querySelectorAll('[role=columnheader] button')[2].click()")
    page.until("document.querySelector('[aria-sort=descending]')?.textContent.startsWith('Rows')")
    first = page.js("document.querySelector('.space .row').textContent")
    assert first.startswith("shop.prices")
    assert page.errors == []


class Crowd:
    """The status of a server as if it had so many tables."""

    def __init__(self, reader: StatusReader, count: int) -> None:
        self._reader, self._count = reader, count

    def now(self) -> ServerStatus:
        """The status, its first table many times."""
        real = self._reader.now()
        one = real.tables[0]
        names = (f"db{i % 10}.table_{i:04}" for i in range(self._count))
        tables = tuple(replace(one, table=replace(one.table, name=name)) for name in names)
        return replace(real, tables=tables)


def test_a_thousand_tables_are_a_few_nodes(page: Browser, shop: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    board: Any = console_of(shop)._api._board
    monkeypatch.setattr(board, "_status", Crowd(board._status, 1_000))
    shop.clock.advance(1)
    shown(page, shop)
    page.until("document.getElementById('found').textContent === '1,000 tables'")
    assert page.js(ROWS) < 60
    assert page.js("document.getElementById('rows').getAttribute('aria-rowcount')") == "1001"
    page.js("document.querySelector('.space .row').focus()")
    page.press("End")
    page.until("document.activeElement.textContent.startsWith('db9.table_0999')")
    assert page.js("document.activeElement.getAttribute('aria-rowindex')") == "1001"
    assert page.js(ROWS) < 60
    assert page.errors == []


def test_lags_are_drawn_over_time_filtered_and_read_as_numbers_by_keys(page: Browser, shop: Served) -> None:
    shown(page, shop, "streams")
    labels = "[...document.querySelectorAll('.curve svg')].map((node) => node.getAttribute('aria-label'))"
    page.until(f"{labels}.length === 3")
    billing, warehouse, bridge = page.js(labels)
    assert billing.startswith("billing: now ")
    assert warehouse.startswith("warehouse: now 1,592 changes, at most 1,592 changes, at least 0 changes, since ")
    assert bridge.startswith("bridge/shop: now ")
    assert (
        page.js("[...document.querySelectorAll('.curve .line')].map((node) => node.points.length > 50)") == [True] * 3
    )
    page.js("(() => { const now = Date.now; Date.now = () => now() + 5 * 3600e3; })()")
    page.js("new Promise((done) => setTimeout(done, 1100))")  # it is drawn anew each second
    assert " s ago" in page.text()  # ages are the server's, though the browser's clock was set
    assert "5 h ago" not in page.text()
    page.js("document.querySelector('summary').focus()")
    page.press("Enter")
    page.until("document.querySelector('details').open")
    rows = "[...document.querySelectorAll('details[open] tr')].map((row) => row.innerText.split('\\t'))"
    heads, newest, *_, oldest = page.js(rows)
    assert heads == ["Time", "billing", "warehouse"]
    assert newest[2] == "1,592"
    assert 5 <= len(page.js(rows)) <= 15
    assert oldest[0] < newest[0]
    ask(page, shop)
    page.until("document.querySelector('details').open && document.activeElement.localName === 'summary'")
    page.js("document.getElementById('streams-filter').focus()")
    page.type("WARE")
    page.until(f"{labels}.length === 1 && document.querySelectorAll('table tbody tr').length >= 1")
    assert "billing" not in page.text()
    page.js("[...document.querySelectorAll('[aria-pressed]')][1].click()")
    page.until("document.querySelectorAll('[aria-pressed]')[1].getAttribute('aria-pressed') === 'true'")
    assert page.errors == []


def test_values_names_and_progress_are_texts_and_never_markup(page: Browser, shop: Served) -> None:
    lake = shop.lake
    table = lake.create_table("evil.values", pa.schema([("id", pa.int64()), ("v", pa.string())]), primary_key=["id"])
    with lake.producer("evil") as producer, producer.commit(progress=EVIL) as commit:
        commit.upsert("evil.values", pa.table({"id": [1], "v": [EVIL]}))
    list(table.changes("earliest", until="now", subscription=EVIL))
    list(table.changes("earliest", until="now", subscription="\u202eevil\u200b"))
    shop.clock.advance(1)
    shown(page, shop, "streams")
    page.until("document.body.innerText.includes('⟨202e⟩evil⟨200b⟩')")
    columns = "[...document.querySelectorAll('[aria-labelledby=subscriptions] tbody td:nth-child(2)')]"
    assert page.js(f"{columns}.every((cell) => cell.clientHeight < 40)")  # no word is broken while there is room
    page.until(f"document.body.innerText.split({json.dumps(EVIL)}).length >= 3")
    page.js("location.hash = '#/t/evil.values'")
    page.click("#follow")
    page.until("document.body.innerText.includes('waiting for the next change')")
    until(lambda: len(console_of(shop)._tails._open) == 1, "the tail")
    page.until("document.body.innerText.includes('Stop')")
    until(lambda: shop.engine.wakeups.listeners >= 1, "a stream that waits")
    table.upsert([{"id": 2, "v": EVIL}])
    page.until(f"document.getElementById('tail-rows')?.innerText.includes({json.dumps(EVIL)})")
    page.js("location.hash = '#/'")
    until(lambda: not console_of(shop)._tails._open, "the tail's end with its page")
    assert page.js("document.querySelectorAll('main img, main script').length") == 0
    assert page.js("document.title") != "evil"
    lake.drop_table("evil.values")
    assert page.errors == []


def test_the_query_box_answers_refuses_and_cancels(page: Browser, shop: Served) -> None:
    rows = shop.lake.create_table("sql.orders", orders(0, 1).schema, primary_key=["order_id"], buckets=1)
    rows.upsert(orders(0, 50))

    def run(text: str) -> None:
        page.js(f"location.hash = '#/sql/{id(text)}'")
        page.js(f"location.hash = '#/sql/' + encodeURIComponent({json.dumps(text)})")
        page.until(f"document.getElementById('sql')?.value === {json.dumps(text)}")
        page.click("button[type=submit]")

    shown(page, shop, "sql")
    run("SELECT count(*) AS n, max(amount) AS most FROM sql.orders")
    page.until("document.getElementById('answer-rows') !== null")
    assert page.js("[...document.querySelectorAll('#answer-rows td')].map((cell) => cell.textContent)") == [
        "50",
        "49.00",
    ]
    assert page.errors == []
    run("SELECT 1 -- " + "x" * 70_000)
    assert "the console takes 65,536" in page.until("document.querySelector('.error')?.textContent")
    run("SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b")
    page.until("document.body.innerText.includes('Running for')")
    until(lambda: any(query.pid for query in list(queries_of(shop)._runs)), "the query's process")
    page.js("[...document.querySelectorAll('button')].find((b) => b.textContent === 'Cancel').click()")
    page.until("document.body.innerText.includes('The query was cancelled')")
    until(lambda: not list(queries_of(shop)._runs), "the end of the query's process")
    shop.lake.drop_table("sql.orders")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Served]:
    auth = write_auth(tmp_path / "auth.yaml", {"root": {"*": ["admin"]}, "report": {"shop.orders": ["read"]}})
    with Served(tmp_path / "data", ports=True, auth=str(auth)) as served:
        served.lake.create_table("shop.orders", SCHEMA, buckets=1)
        served.lake.create_table("shop.secrets", SCHEMA, buckets=1)
        yield served


def test_sign_in_shows_what_the_viewer_may_see_and_keeps_no_typed_token(page: Browser, guarded: Served) -> None:
    def sign_in(token: str) -> None:
        page.until("document.getElementById('token') !== null")
        page.js("document.getElementById('token').focus()")
        page.js("document.getElementById('token').value = ''")
        page.type(token)
        page.press("Enter")

    page.open(address(guarded))
    sign_in("lakestore_wrong")
    assert "not known" in page.until("document.querySelector('.error')?.textContent")
    sign_in(token_of("report"))
    page.until(f"{ROWS} === 1")
    assert "shop.orders" in page.text()
    assert "shop.secrets" not in page.text()
    kept = page.js("JSON.stringify({...sessionStorage}) + JSON.stringify({...localStorage}) + document.cookie")
    assert token_of("report") not in kept
    assert not any(token_of("report") in url for url in page.requests)
    page.js("location.hash = '#/t/shop.secrets'")
    assert "no right" in page.until("document.querySelector('.error')?.textContent")
    page.js("[...document.querySelectorAll('button')].find((b) => b.textContent === 'Sign out').click()")
    page.until("document.getElementById('token') !== null")
    assert "shop.orders" not in page.text()
    sign_in(token_of("root"))
    page.js("location.hash = '#/'")
    page.until(f"{ROWS} === 2")


def test_nothing_of_one_viewer_is_there_for_the_next_nor_once_a_right_is_gone(
    page: Browser, guarded: Served, tmp_path: Path
) -> None:
    def signed_in(name: str) -> None:
        page.until("document.getElementById('token') !== null")
        page.js("document.getElementById('token').focus()")
        page.type(token_of(name))
        page.press("Enter")

    page.open(address(guarded))
    signed_in("root")
    page.until(f"{ROWS} === 2")
    for hash_ in ("streams", "clients", "health", "t/shop.secrets"):
        page.js(f"location.hash = '#/{hash_}'")
        page.until("!document.body.innerText.includes('Loading …')")
    # An answer that comes late, after its viewer has gone, and after the next one has come.
    page.js(
        "(() => { const real = window.fetch; window.fetch = async (...asked) => { const answer = await real(...asked);"
        " if (!window.held && String(asked[0]).includes('/status')) { window.held = true;"
        " await new Promise((go) => setTimeout(go, 500)); asked[1].signal?.throwIfAborted(); } return answer; }; })()"
    )
    ask(page, guarded)
    page.until("window.held")
    page.js("[...document.querySelectorAll('button')].find((b) => b.textContent === 'Sign out').click()")
    signed_in("report")
    page.until(f"location.hash === '#/' && {ROWS} === 1")
    for hash_ in ("streams", "clients", "health", "t/shop.orders", ""):
        page.js(f"location.hash = '#/{hash_}'")
        page.until("!document.body.innerText.includes('Loading …')")
        assert "secrets" not in page.text()
        assert "root" not in page.js("[...document.querySelectorAll('td')].map((cell) => cell.textContent)")
    page.js("(() => { const now = Date.now; Date.now = () => now() + 5 * 3600e3; })()")  # the browser's clock was wrong
    page.js("location.hash = '#/t/shop.orders'")
    page.until("document.getElementById('ranges-title') !== null")
    file = guarded.server.access._file
    assert file is not None
    write_auth(file, {"root": {"*": ["admin"]}, "report": {"shop.secrets": ["read"]}})
    guarded.server.access.refresh()
    ask(page, guarded)
    assert "no right" in page.until("document.querySelector('.error')?.textContent")
    assert page.js("document.getElementById('ranges-title')") is None


def test_a_server_that_goes_away_is_said_and_comes_back(page: Browser, tmp_path: Path) -> None:
    with Served(tmp_path / "data", ports=True) as served:
        served.lake.create_table("a.b", SCHEMA, buckets=1)
        shown(page, served)
        page.until(f"{ROWS} === 1")
        port = int(served.server.about["http"].rpartition(":")[2])
        served.close()
        served._settings = replace(served._settings, http_port=port)
        page.js("document.dispatchEvent(new Event('visibilitychange'))")
        said = page.until("document.getElementById('notice').textContent")
        assert "No connection: the server does not answer. What you see is" in said
        assert page.js(ROWS) == 1  # what was shown stays
        served.start()
        page.until("document.getElementById('notice').textContent === ''")
        page.until("document.getElementById('health').textContent === 'serving'")


def test_health_names_the_late_tables_that_the_list_of_tables_counts(page: Browser, tmp_path: Path) -> None:
    with Served(tmp_path / "data", ports=True) as served:
        table = served.lake.create_table("shop.late", SCHEMA, lake={"freshness": "10s"})
        table.append([{SCHEMA.names[0]: 1}])
        shown(page, served)
        tile = "[...document.querySelectorAll('dt')].find((n) => n.textContent === 'Late or not tiered').nextSibling"
        page.until(f"{tile}.textContent === '0'")
        served.clock.advance(60)
        table.append([{SCHEMA.names[0]: 2}])  # an answer that is new tells the page the time
        page.js("location.hash = '#/health'")
        page.until("document.getElementById('behind')?.parentNode.innerText.includes('shop.late')")
        page.until("document.getElementById('behind').parentNode.innerText.includes('is a tierer running?')")
        page.js("location.hash = '#/'")
        page.until(f"{tile}.textContent === '1'")


CONTRACT = """
apiVersion: v3.2.0
kind: DataContract
id: late
version: 1.0.0
status: active
schema:
  - name: late
    customProperties:
      - {property: lakestore.budget, value: {files: 500, snapshotAge: 12h}}
slaProperties: [{property: latency, value: 5, unit: s}]
"""


def test_the_page_of_a_table_shows_its_contract(page: Browser, tmp_path: Path) -> None:
    with Served(tmp_path / "data", ports=True) as served:
        table = served.lake.create_table("shop.late", SCHEMA, lake={"freshness": "10s"})
        table.alter(SetContract(CONTRACT, "late", "<b>we</b> sell them"))
        table.append([{SCHEMA.names[0]: 1}])
        served.clock.advance(60)
        served.server.service.status.promises.run_once()
        shown(page, served)
        page.js("location.hash = '#/t/shop.late'")
        page.until("document.querySelector('dl.facts')?.innerText.includes('Contract')")
        told = page.js("document.querySelector('dl.facts').innerText")
        assert "version 1, " in told
        assert ": <b>we</b> sell them" in told
        assert "freshness 60 s (5.0 s promised)broken" in told.replace("\n", "")
        assert "files not counted yet (500 allowed)" in told
        assert page.errors == []


def test_a_follower_says_whom_it_follows_and_links_the_leader(page: Browser, tmp_path: Path) -> None:
    def facts() -> dict[str, str]:
        return dict(
            page.js(
                "[...document.querySelectorAll('dl.facts > div')].map((n) => [...n.children].map((c) => c.textContent))"
            )
        )

    def role(number: int, said: str, host: str = "localhost") -> None:
        port = replicas.servers[number].about["http"].rpartition(":")[2]
        page.open(f"http://{host}:{port}/#/health")
        page.until(f"document.getElementById('role')?.textContent === {json.dumps(said)}")
        page.until("document.querySelectorAll('[aria-labelledby=replicas] tbody tr').length === 3")

    with Replicas(tmp_path, lease_seconds=LONG_LEASE_SECONDS) as replicas:
        leading = replicas.leader()
        assert leading is not None
        leader, following = replicas.address(leading), (leading + 1) % 3
        until(lambda: len(replicas.servers[following].engine.loop.journal.replicas) == 3, "reports")
        until(lambda: len(replicas.servers[leading].engine.loop.journal.replicas) == 3, "reports")
        role(leading, "leads")
        assert facts()["Part in the journal"] == "commits"
        role(following, f"follows {leader}")
        assert (facts()["Part in the journal"], facts()["Leader"], facts()["Epoch"]) == ("follows", leader, "1")
        cells = "[...document.querySelectorAll('[aria-labelledby=replicas] tbody td:nth-child(2)')]"
        assert sorted(page.js(f"{cells}.map((cell) => cell.textContent)")) == ["follower", "follower", "leader"]
        port = replicas.servers[following].about["http"].rpartition(":")[2]
        assert page.js("document.querySelector('#role a').href") == f"http://127.0.0.1:{port}/"
        assert page.js(NAMELESS) == page.js(DOUBLED) == []
        role(following, f"follows {leader}", "127.0.0.1")
        assert page.js("document.querySelector('#role a')") is None, "a page of this host has another port there"
        replicas.ends[following].is_cut = True  # so that no beat of the leader comes
        journal: Any = replicas.servers[following].engine.loop.journal
        journal._leader = Leader("javascript:alert(1)//:7340", 1)
        role(following, "follows javascript:alert(1)//:7340")
        assert page.js("document.querySelector('#role a')") is None
    assert page.errors == []
