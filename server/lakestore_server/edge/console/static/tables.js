// The list of tables: a grid of which only the rows in sight are in the page, however many there are.

import { brief, count, duration, plural, rate } from "./format.js";
import { curve, legend, numbers, ranges } from "./draw.js";
import { h } from "./dom.js";

const ROW = 34, MARGIN = 8;
export const place = { filter: "", sort: "name", down: false, selected: "", top: 0, height: 600 };
let ordered = [];

export function forget() {
  Object.assign(place, { filter: "", selected: "", top: 0 });
}

const debt = (row) => (row.lake_deleted_rows || 0) + (row.keyed ? Math.max(row.stored_rows - row.rows, 0) : 0);
export const age = (row, now) => (row.hot_since_us ? Math.max(now - row.hot_since_us, 0) / 1e6 : 0);
// A round ends when the promise is due. A change that is twice as old was left out by its round, or its round takes long.
export const isLate = (row, now) => age(row, now) > 2 * row.freshness_seconds;
export const trouble = (row, now) => (row.problem ? "not tiered" : isLate(row, now) ? "late" : row.held_by.length ? "held" : "");

export const isBehind = (row, now) => Boolean(row.problem) || isLate(row, now);

// Columns are [name, label, its figure, whether it is a number, what it means].
const COLUMNS = [
  ["name", "Table", (row) => row.name, false, "database.table"],
  ["keyed", "Kind", (row) => Number(row.keyed), false, "with a primary key, or a log"],
  ["rows", "Rows", (row) => row.rows, true, "live rows"],
  ["range", "Lake and log", (row) => row.head, false, "above: what the lake has; below: what the log has"],
  ["hot", "Hot", (row) => row.hot, true, "changes that the lake does not have yet"],
  ["age", "Age / promise", (row, now) => age(row, now), true, "age of the oldest hot change, against the table's freshness"],
  ["files", "Files", (row) => row.lake_files || 0, true, "data files + delete files of the lake"],
  ["debt", "Debt", debt, true, "rows that are deleted or superseded and still stored: compaction clears them away"],
  ["state", "State", (row, now) => trouble(row, now), false, "late: twice as old as promised; not tiered: rounds fail; held: the log is kept beyond its retention"],
];

export function order(app) {
  const wanted = place.filter.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const now = app.now();
  const by = COLUMNS.find(([name]) => name === place.sort)[2];
  const sign = place.down ? -1 : 1;
  ordered = [...app.tables.values()].filter((row) => wanted.every((word) => `${row.name} ${row.keyed ? "key" : "log"} ${trouble(row, now)}`.toLowerCase().includes(word)));
  ordered.sort((a, b) => {
    const one = by(a, now), other = by(b, now);
    return one < other ? -sign : one > other ? sign : a.name < b.name ? -1 : 1;
  });
  return ordered;
}

export function move(app, by) {
  if (!ordered.length) return;
  const at = ordered.findIndex((row) => row.name === place.selected);
  select(app, ordered[at < 0 ? 0 : Math.min(Math.max(at + by, 0), ordered.length - 1)].name);
}

function select(app, name) {
  place.selected = name;
  const box = document.getElementById("rows");
  const at = ordered.findIndex((row) => row.name === name);
  if (box && at >= 0) {
    const room = box.clientHeight - ROW; // the heads stay in sight
    if (at * ROW < box.scrollTop) box.scrollTop = at * ROW;
    if ((at + 1) * ROW > box.scrollTop + room) box.scrollTop = (at + 1) * ROW - room;
    place.top = box.scrollTop;
  }
  app.draw(); // now, for a row that was out of sight has no node yet
  document.querySelector('[role="row"][aria-selected="true"]')?.focus({ preventScroll: true });
}

function head(app) {
  return h(
    "div",
    { class: "row head", role: "row", "aria-rowindex": 1 },
    COLUMNS.map(([name, label, , right, meaning]) =>
      h(
        "div",
        { class: `cell ${name}${right ? " right" : ""}`, role: "columnheader", "aria-sort": place.sort === name ? (place.down ? "descending" : "ascending") : "none" },
        h("button", { type: "button", title: meaning, onclick: () => sortBy(app, name, right) }, label, h("span", { "aria-hidden": "true", class: "arrow" }, place.sort === name ? (place.down ? "▼" : "▲") : "")),
      ),
    ),
  );
}

function sortBy(app, name, right) {
  place.down = place.sort === name ? !place.down : right || name === "state";
  place.sort = name;
  app.render();
}

function line(app, row, at, now) {
  const state = trouble(row, now);
  const cell = (name, right, ...inside) => h("div", { class: `cell ${name}${right ? " right" : ""}`, role: "gridcell" }, ...inside);
  return h(
    "div",
    {
      key: row.name,
      class: "row",
      role: "row",
      "aria-rowindex": at + 2,
      "aria-selected": String(row.name === place.selected),
      tabindex: row.name === place.selected || (!ordered.some((r) => r.name === place.selected) && at === 0) ? 0 : -1,
      style: { transform: `translateY(${at * ROW}px)` },
      onclick: () => { place.selected = row.name; app.open(row.name); },
      onfocus: () => { place.selected = row.name; },
    },
    cell("name", false, h("a", { href: `#/t/${encodeURIComponent(row.name)}`, tabindex: -1 }, row.name)),
    cell("keyed", false, row.keyed ? "key" : "log"),
    cell("rows", true, count(row.rows)),
    cell("range", false, ranges(row.log_start, row.tier_point, row.head, 150, 14)),
    cell("hot", true, brief(row.hot)),
    cell("age", true, row.hot ? `${duration(age(row, now))} / ${duration(row.freshness_seconds)}` : `– / ${duration(row.freshness_seconds)}`),
    cell("files", true, row.lake_files === null ? "–" : row.lake_delete_files ? `${brief(row.lake_files)} + ${brief(row.lake_delete_files)}` : brief(row.lake_files)),
    cell("debt", true, brief(debt(row))),
    cell("state", false, state && h("span", { class: `badge ${state === "held" ? "info" : state === "late" ? "warn" : "bad"}`, title: row.problem || (row.held_by.length ? `held by ${row.held_by.join(", ")}` : "") }, state)),
  );
}

function summary(app, now) {
  const all = [...app.tables.values()];
  const sum = (figure) => all.reduce((total, row) => total + (figure(row) || 0), 0);
  const late = all.filter((row) => isBehind(row, now)).length;
  const tile = (label, value, extra) => h("div", { class: `tile${extra || ""}` }, h("dt", null, label), h("dd", null, value));
  return h(
    "dl",
    { class: "tiles" },
    tile("Tables", count(all.length)),
    tile("Live rows", brief(sum((row) => row.rows))),
    tile("Hot", brief(sum((row) => row.hot))),
    tile("Late or not tiered", count(late), late ? " warn" : ""),
    tile("Oldest hot change", duration(Math.max(0, ...all.map((row) => age(row, now))))),
    tile("Lake files", brief(sum((row) => row.lake_files))),
  );
}

export function view(app) {
  const now = app.now();
  order(app);
  const first = Math.max(Math.floor(place.top / ROW) - MARGIN, 0);
  const last = Math.min(Math.ceil((place.top + place.height) / ROW) + MARGIN, ordered.length);
  const shown = ordered.slice(first, last).map((row, i) => line(app, row, first + i, now));
  const found = ordered.length === app.tables.size ? plural(ordered.length, "table") : `${count(ordered.length)} of ${plural(app.tables.size, "table")}`;
  const series = app.history;
  return [
    h("div", { class: "title", key: "title" }, h("h1", { tabindex: -1 }, "Tables"), legend()),
    summary(app, now),
    series && h("section", { class: "curves", key: "curves", "aria-label": "The server over time" },
      curve("Rows / s", series.times_us, series.values[1], { show: rate }),
      curve("Commits / s", series.times_us, series.values[0], { show: rate }),
      curve("Oldest hot change", series.times_us, series.values[6], { show: duration }),
      curve("Hot changes", series.times_us, series.values[5])),
    series && numbers("The server over time, as numbers", series.times_us, [["Rows / s", series.values[1], rate], ["Commits / s", series.values[0], rate], ["Oldest hot change", series.values[6], duration], ["Hot changes", series.values[5], count]]),
    h("div", { class: "bar", key: "bar" },
      h("label", { for: "filter" }, "Filter"),
      h("input", { id: "filter", type: "search", autocomplete: "off", spellcheck: "false", value: place.filter, placeholder: "name, key, log, late …", "aria-describedby": "found",
        oninput: (event) => { place.filter = event.target.value; place.top = 0; const box = document.getElementById("rows"); if (box) box.scrollTop = 0; app.render(); } }),
      h("span", { id: "found", role: "status" }, found)),
    h("div", { id: "rows", class: "grid", key: "grid", role: "grid", "aria-label": "Tables", "aria-rowcount": ordered.length + 1, "aria-colcount": COLUMNS.length,
      onscroll: (event) => { place.top = event.target.scrollTop; place.height = event.target.clientHeight; app.render(); } },
      h("div", { class: "heads", role: "rowgroup" }, head(app)),
      h("div", { class: "space", role: "rowgroup", style: { height: `${ordered.length * ROW}px` } }, shown),
      !ordered.length && h("p", { class: "empty-note" }, app.tables.size ? "No table matches the filter." : app.loaded ? "There are no tables yet, or none that you may see." : "Loading …")),
  ];
}
