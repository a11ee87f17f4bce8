// Clients and health: who is connected, what is wrong and what is held.

import { count, duration, plural, size } from "./format.js";
import { curve, numbers } from "./draw.js";
import { get, post } from "./api.js";
import { h } from "./dom.js";
import { age, isBehind } from "./tables.js";

const ROWS_MAX = 300;
const held = { clients: null, holds: null, queries: null, error: "" };

export function forget() {
  Object.assign(held, { clients: null, holds: null, queries: null, error: "" });
}

export async function load(app, page) {
  if (page === "clients") [held.clients, held.queries] = await Promise.all([get("/clients"), get("/queries")]);
  if (page === "health") held.holds = await get("/holds");
  app.render();
}

// Columns are [name, cell of a row, whether it is a number]. A list of very many is cut, and says so.
export function list(id, title, rows, columns, key, empty) {
  return h("section", { key: id, "aria-labelledby": id }, h("h2", { id }, title, " ", h("small", null, rows ? count(rows.length) : "")),
    !rows ? h("p", { class: "muted" }, "Loading …") : !rows.length ? h("p", { class: "muted" }, empty) :
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-labelledby": id }, h("table", null,
      h("thead", null, h("tr", null, columns.map(([name, , right]) => h("th", { scope: "col", class: right ? "right" : "" }, name)))),
      h("tbody", null, rows.slice(0, ROWS_MAX).map((row, i) => h("tr", { key: key(row, i) }, columns.map(([, cell, right], at) => h(at ? "td" : "th", { scope: at ? null : "row", class: right ? "right" : "" }, cell(row)))))))),
    rows && rows.length > ROWS_MAX && h("p", { class: "muted" }, `The first ${count(ROWS_MAX)} are shown.`));
}

export const ago = (app, us) => (us ? `${duration((app.now() - us) / 1e6)} ago` : "–");

async function cancel(app, number) {
  held.error = "";
  try {
    await post(`/queries/${number}/cancel`, {});
    held.queries = await get("/queries");
  } catch (error) {
    held.error = error.message;
    if (error.status === 401) app.failed(error);
  }
  app.render();
}

export function clients(app) {
  return [
    h("div", { class: "title", key: "title" }, h("h1", { tabindex: -1 }, "Clients")),
    held.error && h("p", { class: "error", role: "alert", key: "error" }, held.error),
    list("queries", "Queries that run", held.queries, [
      ["Query", (q) => h("code", null, q.text)], ["Principal", (q) => q.principal || "anyone"], ["Door", (q) => q.door],
      ["Runs for", (q) => duration(q.seconds), true], ["Rows", (q) => count(q.rows), true], ["Bytes", (q) => size(q.nbytes), true],
      ["", (q) => h("button", { type: "button", onclick: () => cancel(app, q.number), "aria-label": `Cancel the query of ${q.principal || "anyone"}` }, "Cancel")],
    ], (q) => q.number, "No query runs."),
    h("p", { class: "muted", key: "note" }, `Connections that have a stream open or called within five minutes${app.me.administers ? "" : ": your own"}.`),
    list("connections", "Connections", held.clients, [
      ["From", (c) => c.peer.replace(/^ipv[46]:/, "")], ["Principal", (c) => c.principal || "anyone"], ["Port", (c) => c.port], ["Last call", (c) => c.call],
      ["Calls", (c) => count(c.calls), true], ["Streams", (c) => count(c.streams), true], ["Silent", (c) => duration(c.silent_seconds), true], ["Known for", (c) => duration(c.connected_seconds), true],
    ], (c) => `${c.port} ${c.principal} ${c.peer}`, "Nobody is connected."),
  ];
}

const isShared = (server) => (server.journal?.replicas || []).length > 0;

// The console of another server: its host as it names itself, and the port of this page. Empty on this page's own host.
function consoleOf(address) {
  const host = address.slice(0, address.lastIndexOf(":"));
  const isHost = /^([\w.-]+|\[[0-9a-f:]+\])$/i.test(host); // an address comes from the journal: it may be any text
  return isHost && host !== location.hostname ? `${location.protocol}//${host}${location.port && `:${location.port}`}/` : "";
}

function linked(address) {
  const href = consoleOf(address);
  return href ? h("a", { href }, address) : address;
}

// The part of a server in a journal that others share, for the head of each page.
export function role(server) {
  if (!isShared(server)) return null;
  const { role, leader } = server.journal;
  return h("span", { class: `badge ${role === "leader" ? "good" : "info"}`, id: "role", key: "role" }, role === "leader" ? "leads" : leader ? ["follows ", linked(leader)] : "follows nobody");
}

function replicas(server, fact) {
  const { role, epoch, leader, lag_ms: lag, replicas: rows } = server.journal;
  const newest = Math.max(...rows.map((row) => row.lsn));
  return [
    h("dl", { class: "facts", key: "journal" },
      fact("Part in the journal", role === "leader" ? "commits" : "follows"), fact("Leader", leader ? linked(leader) : "nobody"),
      fact("Epoch", count(epoch)), fact("Behind", lag ? duration(lag / 1000) : "nothing that was read")),
    list("replicas", "Servers of this journal", rows, [
      ["Server", (r) => linked(r.address)], ["Role", (r) => (r.is_silent ? h("span", { class: "badge warn" }, `${r.role}, silent`) : r.role)],
      ["LSN by its last report", (r) => count(r.lsn), true], ["Behind the newest", (r) => plural(newest - r.lsn, "commit"), true],
    ], (r) => r.address, "–"),
  ];
}

export function health(app) {
  const server = app.server;
  const damage = Array.isArray(server.damage) ? server.damage : [];
  const behind = [...app.tables.values()].filter((row) => isBehind(row, app.now()));
  const reason = (row) => row.problem || `Its oldest hot change is ${duration(age(row, app.now()))} old, and ${duration(row.freshness_seconds)} is promised: is a tierer running? lakestore tier starts one.`;
  const holding = [...app.tables.values()].filter((row) => row.held_by.length);
  const duties = Object.entries(server.duties || {}).map(([name, duty]) => ({ name, ...duty }));
  const memory = server.memory || {}, presented = server.presented || {}, series = app.history;
  const fact = (name, value) => h("div", null, h("dt", null, name), h("dd", null, value));
  return [
    h("div", { class: "title", key: "title" }, h("h1", { tabindex: -1 }, "Health")),
    h("section", { key: "damage", "aria-labelledby": "damage-title" }, h("h2", { id: "damage-title" }, "Damage"),
      damage.length ? damage.map((sentence) => h("p", { class: "error" }, sentence)) : h("p", { class: "muted" }, "No damaged place is known.")),
    h("dl", { class: "facts", key: "facts" },
      fact("State", server.health), fact("Tables late or not tiered", h("span", { class: behind.length ? "badge warn" : "" }, count(behind.length))), fact("Release", server.release), fact("LSN", count(server.lsn)), fact("Key index", server.index),
      fact("Clock", server.clock?.note || server.clock?.state || "–"), fact("Waits for the clock", (server.clock?.holds || []).join(", ") || "nothing"),
      fact("Journal to recover", size(server.journal_bytes)), fact("Failed checkpoints", count(server.checkpoints_failed)), fact("Disk free", size(server.disk_free_bytes)),
      fact("Memory at most", `${size(memory.settings_bytes)} by settings, ${size(memory.tables_bytes)} by tables, of ${size(memory.machine_bytes)}`),
      fact("Mapped files", `${count(memory.mapped_files)} of ${count(memory.mapped_files_max)}`),
      fact("Presented cuts", `${count(presented.cuts)}, ${plural(presented.files || 0, "file")}, ${size(presented.bytes)}`), fact("Warehouse", server.warehouse)),
    isShared(server) && replicas(server, fact),
    series && h("section", { class: "curves", key: "curves", "aria-label": "The server over time" },
      curve("Journal to recover", series.times_us, series.values[3], { show: size }), curve("Disk free", series.times_us, series.values[4], { show: size }),
      curve("Journal bytes / s", series.times_us, series.values[2], { show: size }), curve("Calls that run", series.times_us, series.values[7])),
    series && numbers("The server over time, as numbers", series.times_us, [["Journal to recover", series.values[3], size], ["Disk free", series.values[4], size], ["Journal bytes / s", series.values[2], size], ["Calls that run", series.values[7], count]]),
    list("behind", "Tables late or not tiered", behind, [["Table", (r) => h("a", { href: `#/t/${encodeURIComponent(r.name)}` }, r.name)], ["Why", reason]], (r) => r.name, "Every table is as fresh in the lake as promised."),
    list("held", "Logs held beyond their retention", holding, [["Table", (r) => h("a", { href: `#/t/${encodeURIComponent(r.name)}` }, r.name)], ["Held by", (r) => r.held_by.join(", ")]], (r) => r.name, "Nobody holds a log beyond its retention."),
    list("leases", "Reads that hold a cut", held.holds?.leases, [
      ["Principal", (l) => (l.follower ? `server ${l.follower}` : l.owner || "anyone")], ["Holds", (l) => (l.cut === null ? l.tables.join(", ") || "–" : `all tables at LSN ${count(l.cut)}`)],
      ["Streams", (l) => count(l.streams), true], ["Ends in", (l) => (l.streams ? "with its stream" : duration(l.seconds)), true],
    ], (_, i) => i, "No read holds anything."),
    list("dropped", "Dropped tables", held.holds?.dropped, [
      ["Table", (d) => d.table], ["Dropped", (d) => ago(app, d.dropped_us), true], ["Rows", (d) => count(d.rows), true], ["Bytes", (d) => size(d.bytes), true],
      ["Can be had back", (d) => (d.going ? "no more: its files go" : `for ${duration(Math.max(d.until_us - app.now(), 0) / 1e6)}, by lakestore undrop`)],
    ], (d) => d.table_uuid, "No dropped table is kept."),
    list("duties", "Work in the background", duties, [
      ["Duty", (d) => d.name], ["State", (d) => (d.state === "ok" ? "ok" : h("span", { class: "badge bad" }, d.state))], ["Failures", (d) => count(d.failures), true], ["Last error", (d) => d.error || "–"],
    ], (d) => d.name, "–"),
  ];
}
