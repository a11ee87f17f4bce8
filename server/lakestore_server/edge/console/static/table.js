// One table: its ranges bucket by bucket, its curves, its columns, and its changes as they come.

import { age, isLate } from "./tables.js";
import { brief, clock, count, duration, plural, size } from "./format.js";
import { curve, legend, numbers, ranges } from "./draw.js";
import { follow, get, table as path } from "./api.js";
import { h } from "./dom.js";

const ROWS_KEPT = 200, BUCKETS_SHOWN = 32;
const fresh = () => ({ name: "", found: null, curves: null, error: "", minutes: false, all: false, tail: null });
let seen = fresh();

export function enter(app, name) {
  leave();
  seen = { ...fresh(), name };
  load(app);
}

export function leave() {
  seen.tail?.stop.abort();
  seen.tail = null;
}

export function forget() {
  leave();
  seen = fresh();
}

export async function load(app) {
  const { name, minutes } = seen;
  try {
    const found = await get(path(name));
    if (seen.name !== name) return;
    seen.found = found;
    seen.error = "";
    const due = !seen.curves || seen.curves.minutes !== minutes || Date.now() - seen.curves.at > 9000;
    if (due) {
      const curves = await get(`${path(name)}/history${minutes ? "?by=minutes" : ""}`);
      if (seen.name === name) seen.curves = { ...curves, minutes, at: Date.now() };
    }
  } catch (error) {
    if (seen.name !== name) return;
    if (error.status === undefined || error.status === 401) throw error;
    if (error.status === 403 || error.status === 404) {
      leave();
      Object.assign(seen, { found: null, curves: null }); // what may no longer be seen, or is no more, goes at once
    }
    seen.error = error.message;
  }
  app.render();
}

function facts(app, status, definition) {
  const now = app.now();
  const row = app.tables.get(status.name);
  const late = row && isLate(row, now);
  const pairs = [
    ["Kind", status.keyed ? `primary key (${definition.primary_key.join(", ")})` : "log"],
    ["Live rows", count(status.rows)],
    ["Buckets", count(status.buckets)],
    ["Hot", `${count(status.hot)} of ${count(status.head.reduce((a, b) => a + b, 0))} changes`],
    ["Freshness", `${row && row.hot ? duration(age(row, now)) : "all is in the lake"}${row && row.hot ? ` against ${status.freshness}` : `, promised ${status.freshness}`}`, late && "late"],
    status.round && ["Round", round(status.round)],
    ["Last commit", clock(status.last_commit_us)],
    ["Lake", status.lake_files === undefined ? "not looked at yet, or empty" : `${plural(status.lake_files, "file")}, ${plural(status.lake_delete_files, "delete file")}, ${size(status.lake_bytes)}`],
    ["Deletes to clear", status.lake_deleted_rows === undefined ? "–" : `${count(status.lake_deleted_rows)} of ${count(status.lake_rows)} rows in the lake`],
    ["Upkeep", upkeep(status), status.upkeep_slowed && "slowed"],
    ["Segments", `${count(status.segments)}, ${size(status.segment_bytes)}, ${count(status.stored_rows)} rows`],
    ["Retention", status.retention || "the whole log is kept"],
    ["Rows expire", status.ttl || "never"],
    ["Readable from", status.reads_from_us ? `${clock(status.reads_from_us)}, ${status.reads_from_why}` : `LSN ${status.reads_from_lsn}`],
    ["Log held by", (status.held_by || []).join(", ") || "nobody beyond its retention"],
    ["Schema version", count(status.schema_id)],
    ...contract(status.contract, definition.contract),
  ];
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value, mark]) => h("div", null, h("dt", null, name), h("dd", null, value, mark && h("span", { class: "badge warn" }, mark)))));
}

function buckets(app, status) {
  const sum = (list) => list.reduce((a, b) => a + b, 0);
  const shown = seen.all ? status.buckets : Math.min(status.buckets, BUCKETS_SHOWN);
  const line = (label, start, point, head) =>
    h("tr", null, h("th", { scope: "row" }, label), h("td", { class: "wide" }, ranges(start, point, head, 420, 18)), ...[start, point, head, head - point].map((value) => h("td", { class: "right" }, count(value))));
  return h("section", { key: "ranges", "aria-labelledby": "ranges-title" },
    h("div", { class: "title" }, h("h2", { id: "ranges-title" }, "Ranges"), legend()),
    h("div", { class: "scroll" }, h("table", null,
      h("thead", null, h("tr", null, ["Bucket", "Lake and log", "Log start", "Tier point", "Head", "Hot"].map((name, i) => h("th", { scope: "col", class: i > 1 ? "right" : "" }, name)))),
      h("tbody", null,
        line("all", sum(status.log_start), sum(status.tier_point), sum(status.head)),
        status.buckets > 1 && Array.from({ length: shown }, (_, i) => line(String(i), status.log_start[i], status.tier_point[i], status.head[i]))))),
    shown < status.buckets && h("button", { type: "button", onclick: () => { seen.all = true; app.render(); } }, `Show all ${count(status.buckets)} buckets`));
}

function curves(app, status) {
  const found = seen.curves || { times_us: [], values: [[], [], [], [], [], [], [], []] };
  const [rows, hot, lag, files, deleteFiles, deleted, dead, segments] = found.values;
  const choice = (label, minutes) => h("button", { type: "button", "aria-pressed": String(seen.minutes === minutes), onclick: () => { seen.minutes = minutes; load(app).catch(app.failed); } }, label);
  return h("section", { key: "curves", "aria-labelledby": "curves-title" },
    h("div", { class: "title" }, h("h2", { id: "curves-title" }, "Over time"), h("div", { class: "choice", role: "group", "aria-label": "Span" }, choice("2 hours", false), choice("2 days", true))),
    h("div", { class: "curves" },
      curve("Age of hot changes", found.times_us, lag, { show: duration, limit: status.freshness_seconds }),
      curve("Hot changes", found.times_us, hot),
      curve("Live rows", found.times_us, rows),
      curve("Lake files", found.times_us, files),
      curve("Delete files", found.times_us, deleteFiles),
      curve("Deleted rows in the lake", found.times_us, deleted),
      curve("Dead rows in segments", found.times_us, dead),
      curve("Segments", found.times_us, segments)),
    numbers("The table over time, as numbers", found.times_us, [["Age of hot changes", lag, duration], ["Hot changes", hot, count], ["Live rows", rows, count], ["Lake files", files, count],
      ["Delete files", deleteFiles, count], ["Deleted rows in the lake", deleted, count], ["Dead rows in segments", dead, count], ["Segments", segments, count]]));
}

function columns(definition) {
  const keys = definition.primary_key || [];
  return h("section", { key: "columns", "aria-labelledby": "columns-title" }, h("h2", { id: "columns-title" }, "Columns"),
    h("div", { class: "scroll" }, h("table", null,
      h("thead", null, h("tr", null, ["Column", "Type", "Null", "Key"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, definition.columns.map((column) => h("tr", { key: column.name }, h("th", { scope: "row" }, column.name), h("td", null, column.type), h("td", null, column.required ? "no" : "yes"), h("td", null, keys.includes(column.name) ? `key ${keys.indexOf(column.name) + 1}` : "")))))));
}

function startTail(app) {
  const tail = { stop: new AbortController(), columns: [], rows: [], number: 0, skipped: 0, note: "waiting for the next change", isOpen: true };
  seen.tail = tail;
  const told = (kind, event) => {
    if (kind === "changes") {
      tail.columns = event.columns || tail.columns;
      for (const row of event.rows) tail.rows.push({ number: tail.number++, row });
      tail.rows.splice(0, Math.max(tail.rows.length - ROWS_KEPT, 0));
      tail.skipped += event.skipped;
      tail.note = "following";
    } else if (kind !== "begin") tail.note = event.message;
    if (kind === "dropped" || kind === "failed") tail.isOpen = false;
    app.render();
  };
  follow(`${path(seen.name)}/tail`, tail.stop.signal, told)
    .then(() => { if (tail.isOpen) tail.note = "the stream has ended"; })
    .catch((error) => { if (error.name !== "AbortError") tail.note = error.message; })
    .finally(() => { tail.isOpen = false; app.render(); });
  app.render();
}

function tailPart(app) {
  const tail = seen.tail;
  const isOpen = tail && tail.isOpen;
  return h("section", { key: "tail", "aria-labelledby": "tail-title" },
    h("div", { class: "title" }, h("h2", { id: "tail-title" }, "Changes"),
      h("button", { type: "button", id: "follow", onclick: () => { if (isOpen) { tail.stop.abort(); tail.note = "stopped"; tail.isOpen = false; app.render(); } else startTail(app); } }, isOpen ? "Stop" : "Follow"),
      h("span", { role: "status", class: "muted" }, tail ? tail.note : "the changelog from now on, newest first"),
      tail && tail.skipped > 0 && h("span", { class: "muted" }, `${count(tail.skipped)} changes were not shown`)),
    tail && tail.rows.length > 0 && grid("tail-rows", tail.columns.map((name) => ({ name })), [...tail.rows].reverse()));
}

function round({ step, seconds, changes, tasks, tasks_done: done }) {
  return `${step}${tasks ? ` (${count(done)} of ${count(tasks)} tasks)` : ""}, for ${duration(seconds)}${changes ? `, ${plural(changes, "change")}` : ""}`;
}

function contract(status, definition) {
  if (!status || !definition) return [];
  const seconds = (figure, value) => (figure.unit === "s" ? duration(value) : `${value} %`);
  const promise = (figure) => `${figure.promise} ${figure.measured === null ? "not measured yet" : seconds(figure, figure.measured)} (${seconds(figure, figure.promised)} promised)`;
  const shown = { files: count, snapshot_age: duration, delete_ratio: (value) => `${(100 * value).toFixed(1)} %`, percent: (value) => `${value.toFixed(1)} %` };
  const bound = (figure) => `${figure.part.replace("_", " ")} ${figure.used === null ? "not counted yet" : shown[figure.part](figure.used)} (${shown[figure.part](figure.bound)} allowed)`;
  return [
    ["Contract", `version ${count(status.version)}${status.by ? ` by ${status.by}` : ""}, ${clock(status.at_us)}${status.why ? `: ${status.why}` : ""}`],
    status.violations.length && ["Broken rules", status.violations.map((each) => `${each.rule} ${plural(each.rows, "row")} (${each.action.replace("_", " ")})`).join("; ")],
    status.promises.length && ["Promises", status.promises.map(promise).join("; "), status.promises.some((figure) => figure.met === false) && "broken"],
    status.budget.length && ["Budget", status.budget.map(bound).join("; "), status.budget.some((figure) => figure.exceeded) && "exceeded"],
  ];
}

function upkeep(status) {
  if (!status.upkeep) return "no tierer has reported it yet";
  const debts = status.upkeep.filter((debt) => debt.count).map((debt) => `${debt.duty.replace("_", " ")} ${count(debt.count)}${debt.note ? ` (${debt.note})` : ""}`);
  return [debts.join(", ") || "nothing to do", status.upkeep_slowed].filter(Boolean).join("; ");
}

export function grid(id, heads, rows) {
  return h("div", { class: "scroll", id, tabindex: 0, role: "region", "aria-label": "Rows" }, h("table", { class: "data" },
    h("thead", null, h("tr", null, heads.map((each) => h("th", { scope: "col" }, each.name, each.type && h("small", null, each.type))))),
    h("tbody", null, rows.map(({ number, row }) => h("tr", { key: number }, row.map((cell) => h("td", cell === null ? { class: "null" } : null, cell === null ? "null" : cell)))))));
}

export function view(app) {
  const { found, name, error } = seen;
  const title = h("div", { class: "title", key: "title" },
    h("h1", { tabindex: -1 }, name), h("a", { href: `#/sql/${encodeURIComponent(`SELECT * FROM ${name} LIMIT 100`)}` }, "Query"), h("a", { href: "#/" }, "All tables"));
  if (!found) return [title, h("p", { class: error ? "error" : "muted", role: error ? "alert" : null }, error || "Loading …")];
  const { status, definition } = found;
  const problems = [status.lake_ahead, status.tier_failures ? `Not tiered, ${plural(status.tier_failures, "round")} in a row failed: ${status.tier_problem}` : ""].filter(Boolean);
  return [
    title,
    error && h("p", { class: "error", role: "alert" }, error),
    problems.map((problem) => h("p", { class: "error" }, problem)),
    facts(app, status, definition),
    buckets(app, status),
    curves(app, status),
    tailPart(app),
    columns(definition),
  ];
}
