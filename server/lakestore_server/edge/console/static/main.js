// The page: routes, keys, sign-in, and one loop that asks for what is new while somebody looks.

import * as api from "./api.js";
import * as pages from "./pages.js";
import * as sql from "./sql.js";
import * as streams from "./streams.js";
import * as table from "./table.js";
import * as tables from "./tables.js";
import { duration } from "./format.js";
import { h, patch } from "./dom.js";

const POLL_MS = 2000, HISTORY_MS = 10000, DRIFT_MS = 5000, AGAIN_MS = [1000, 2000, 5000, 10000];
const THEMES = ["auto", "light", "dark"];
const NAV = [["tables", "#/", "Tables"], ["streams", "#/streams", "Streams"], ["clients", "#/clients", "Clients"], ["health", "#/health", "Health"], ["sql", "#/sql", "SQL"]];

const app = {
  me: null, server: {}, tables: new Map(), history: null, loaded: false, page: "tables", name: "",
  revision: "", told: { us: 0, at: 0, drift: 0 }, heard: 0, failures: 0, problem: "", isAway: false, needsToken: false, signError: "",
  now: () => app.told.us + (performance.now() - app.told.at) * 1000, // the server's time, whatever the browser's is set to
  open: (name) => { location.hash = `#/t/${encodeURIComponent(name)}`; },
  render, draw, failed,
};
let frame = 0, timer = 0, historyAt = 0, isAsking = false;

function render() {
  if (!frame) frame = requestAnimationFrame(() => { frame = 0; draw(); });
}

function draw() {
  const theme = localStorage.getItem("lakestore.theme") || "auto";
  document.documentElement.dataset.theme = theme;
  patch(document.getElementById("header"), header(theme));
  patch(document.getElementById("notice"), notice());
  patch(document.getElementById("main"), [h("div", { key: app.needsToken ? "sign-in" : `${app.page} ${app.name}`, class: `view ${app.page}` }, body())]);
  const at = app.needsToken ? "Sign in" : app.page === "table" ? app.name : NAV.find(([page]) => page === app.page)[2];
  document.title = `${at} – Lakestore`;
  const box = document.getElementById("rows");
  if (box && box.clientHeight !== tables.place.height) {
    tables.place.height = box.clientHeight;
    render();
  }
}

function body() {
  if (app.needsToken) return signIn();
  if (!app.me) return h("p", { class: "muted" }, "Loading …");
  if (app.page === "table") return table.view(app);
  if (app.page === "sql") return sql.view(app);
  if (app.page === "tables") return tables.view(app);
  if (app.page === "streams") return streams.view(app);
  return pages[app.page](app);
}

function header(theme) {
  const health = app.server.health;
  const late = app.isAway ? "offline" : app.problem ? "failing" : health || "…";
  return [
    h("a", { class: "brand", href: "#/", "aria-label": "Lakestore, tables" }, "Lakestore"),
    !app.needsToken && h("span", { class: `badge ${app.problem ? "bad" : health === "serving" ? "good" : "warn"}`, id: "health" }, late),
    !app.needsToken && pages.role(app.server),
    h("nav", { "aria-label": "Pages" }, !app.needsToken && NAV.map(([page, href, label]) => h("a", { href, "aria-current": page === app.page || (page === "tables" && app.page === "table") ? "page" : null }, label))),
    h("span", { class: "fill" }),
    app.me && app.me.principal && h("span", { class: "muted", key: "who" }, app.me.principal),
    app.me && app.me.principal && h("button", { type: "button", key: "out", onclick: signOut }, "Sign out"),
    h("button", { type: "button", key: "theme", id: "theme", "aria-label": `Colours: ${theme}`, title: "Colours: as the system, light, dark", onclick: () => { localStorage.setItem("lakestore.theme", THEMES[(THEMES.indexOf(theme) + 1) % 3]); render(); } }, { auto: "◐ auto", light: "○ light", dark: "● dark" }[theme]),
    h("button", { type: "button", key: "help", "aria-label": "Keys", onclick: help }, "?"),
  ];
}

function notice() {
  // What changes every second is not read out every second.
  const said = app.isAway ? "No connection: the server does not answer." : `The server refused what the page asked: ${app.problem}.`;
  if (app.problem && app.heard) return [`${said} `, h("span", { "aria-hidden": "true" }, `What you see is ${duration((Date.now() - app.heard) / 1000)} old.`)];
  return app.problem && !app.needsToken ? said : "";
}

function signIn() {
  return [
    h("h1", { tabindex: -1, key: "title" }, "Sign in"),
    h("form", { class: "sign", key: "sign", onsubmit: (event) => { event.preventDefault(); enter(event.target.elements.token); } },
      h("label", { for: "token" }, "Token"),
      h("input", { id: "token", name: "token", type: "password", autocomplete: "off", required: true, "aria-describedby": "sign-note", "aria-invalid": app.signError ? "true" : null }),
      h("button", { type: "submit", class: "primary" }, "Sign in"),
      h("p", { id: "sign-note", class: "muted" }, "The token that connect(…, token=…) takes. This tab keeps a token of an hour in its place, and renews it while it is open."),
      app.signError && h("p", { class: "error", role: "alert" }, app.signError)),
  ];
}

async function enter(input) {
  try {
    await api.signIn(input.value);
    input.value = "";
    Object.assign(app, { needsToken: false, signError: "" });
    await begin();
    document.querySelector("h1")?.focus();
  } catch (error) {
    app.signError = error.message;
    render();
  }
}

function signOut() {
  api.signOut();
  forget();
  sql.clear();
  location.hash = "#/";
  app.needsToken = true;
  app.signError = "";
  draw();
  document.getElementById("token")?.focus();
}

// Nothing that one viewer was shown is there for the next one.
function forget() {
  clearTimeout(timer);
  for (const part of [api, pages, sql, streams, table, tables]) part.forget();
  Object.assign(app, { me: null, server: {}, tables: new Map(), history: null, loaded: false, revision: "", problem: "", isAway: false, heard: 0 });
  historyAt = 0;
}

function help() {
  const dialog = document.getElementById("help");
  const keys = [["/", "filter the tables"], ["j k ↓ ↑", "next and previous table"], ["Enter", "open it"], ["Esc", "back to the list"], ["Ctrl+Enter", "run the query"], ["?", "this list"]];
  patch(dialog, [
    h("h2", { id: "help-title" }, "Keys"),
    h("dl", null, keys.map(([key, what]) => h("div", null, h("dt", null, h("kbd", null, key)), h("dd", null, what)))),
    h("form", { method: "dialog" }, h("button", { autofocus: true }, "Close")),
  ]);
  if (!dialog.open) dialog.showModal();
}

function take(page) {
  app.revision = page.revision;
  if (page.whole) app.tables = new Map();
  for (const name of page.gone) app.tables.delete(name);
  for (const row of page.rows) {
    const made = Object.fromEntries(page.columns.map((column, i) => [column, row[i]]));
    app.tables.set(made.name, made);
  }
  if (Object.keys(page.server).length) app.server = page.server;
  app.told = { us: page.now_us, at: performance.now(), drift: drift() };
  app.loaded = true;
}

const drift = () => Date.now() - performance.now();

async function ask() {
  await api.renew();
  const isAstray = Math.abs(drift() - app.told.drift) > DRIFT_MS; // the machine slept, or its clock was set
  const page = await api.get(`/status?since=${isAstray ? "" : encodeURIComponent(app.revision)}`);
  if (page) {
    if (page.whole && app.loaded) app.me = await api.get("/me"); // rights may have changed
    take(page);
  }
  if (!app.me.reads_all) app.history = null;
  else if (Date.now() - historyAt > HISTORY_MS) {
    historyAt = Date.now();
    app.history = await api.get("/history");
  }
  if (app.page === "table") await table.load(app);
  else if (app.page === "streams") await streams.load(app);
  else if (["clients", "health"].includes(app.page)) await pages.load(app, app.page);
}

function failed(error) {
  if (error.name === "AbortError") return; // another viewer's
  if (error.status === 401) {
    const was = app.me;
    forget();
    app.needsToken = true;
    app.signError = was ? error.message : "";
    draw();
    document.getElementById("token")?.focus();
  } else {
    app.isAway = error.status === undefined;
    app.problem = error.message;
    app.failures += 1;
  }
  render();
}

async function poll() {
  clearTimeout(timer);
  if (document.hidden || app.needsToken || isAsking) return;
  isAsking = true;
  try {
    await ask();
    Object.assign(app, { problem: "", isAway: false, failures: 0, heard: Date.now() });
  } catch (error) {
    failed(error);
  } finally {
    isAsking = false;
  }
  render();
  if (!app.needsToken) timer = setTimeout(poll, app.failures ? AGAIN_MS[Math.min(app.failures, AGAIN_MS.length) - 1] : POLL_MS);
}

function route() {
  const [, first = "", ...rest] = location.hash.replace(/^#/, "").split("/");
  const before = `${app.page} ${app.name}`;
  let said = "";
  try {
    said = decodeURIComponent(rest.join("/"));
  } catch {
    said = ""; // an address that somebody has typed
  }
  const known = NAV.some(([page]) => page === first);
  app.page = first === "t" && said ? "table" : known ? first : "tables";
  app.name = app.page === "table" ? said : "";
  if (`${app.page} ${app.name}` !== before) {
    if (before.startsWith("table ")) table.leave();
    if (before.startsWith("sql ")) sql.leave();
  }
  if (app.page === "sql") sql.enter(said);
  if (app.page === "table" && app.me) table.enter(app, app.name);
  render();
  return `${app.page} ${app.name}` !== before;
}

function routed() {
  if (!route() || app.needsToken) return;
  requestAnimationFrame(() => requestAnimationFrame(() => {
    const row = app.page === "tables" && document.querySelector('[role="row"][aria-selected="true"]');
    (row || document.querySelector("h1"))?.focus({ preventScroll: true });
  }));
  if (app.me) poll();
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("help").open || app.needsToken) return;
  const typing = event.target.closest("input, textarea, select");
  if (event.key === "Escape") {
    if (typing) typing.blur();
    else if (app.page !== "tables") location.hash = "#/";
  } else if (typing && !(typing.id === "filter" && ["ArrowDown", "Enter"].includes(event.key))) return;
  else if (event.key === "?") help();
  else if (app.page !== "tables") return;
  else if (event.key === "/") document.getElementById("filter")?.focus();
  else if (["j", "ArrowDown"].includes(event.key)) tables.move(app, 1);
  else if (["k", "ArrowUp"].includes(event.key)) tables.move(app, -1);
  else if (event.key === "PageDown") tables.move(app, 15);
  else if (event.key === "PageUp") tables.move(app, -15);
  else if (event.key === "Home") tables.move(app, -1e9);
  else if (event.key === "End") tables.move(app, 1e9);
  else if (event.key === "Enter" && event.target.closest('[role="row"]:not(.head), #filter')) {
    if (typing) tables.move(app, 0);
    if (tables.place.selected) app.open(tables.place.selected);
  } else return;
  if (!(event.key === "Enter" && !event.target.closest('[role="row"], #filter'))) event.preventDefault();
}

async function begin() {
  try {
    app.me = await api.get("/me");
    app.needsToken = false;
  } catch (error) {
    failed(error);
    if (!app.needsToken) timer = setTimeout(begin, AGAIN_MS[Math.min(app.failures, AGAIN_MS.length) - 1]);
    return;
  }
  if (app.page === "table") table.enter(app, app.name);
  await poll();
}

addEventListener("hashchange", routed);
addEventListener("keydown", key);
document.addEventListener("visibilitychange", () => { if (!document.hidden && app.me) poll(); });
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); document.querySelector("h1")?.focus(); });
setInterval(() => { if (!document.hidden && app.me) render(); }, 1000); // ages grow by themselves
route();
draw();
begin();
