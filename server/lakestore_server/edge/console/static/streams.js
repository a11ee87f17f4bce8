// Streams: who reads and writes, how far behind each is, and how that was over time.

import { ago, list } from "./pages.js";
import { brief, count, plural, size } from "./format.js";
import { curve, numbers } from "./draw.js";
import { get } from "./api.js";
import { h } from "./dom.js";

const LAGS_MS = 9000;
const held = { streams: null, lags: null, asked: "", at: 0, minutes: false, filter: "" };

export function forget() {
  Object.assign(held, { streams: null, lags: null, asked: "", at: 0, filter: "" });
}

export async function load(app) {
  held.streams = await get("/streams");
  const asked = `/streams/history?by=${held.minutes ? "minutes" : "samples"}&filter=${encodeURIComponent(held.filter)}`;
  if (asked !== held.asked || Date.now() - held.at > LAGS_MS) {
    Object.assign(held, { asked, at: Date.now() });
    const lags = await get(asked);
    if (held.asked === asked) held.lags = lags;
  }
  app.render();
}

function again(app) {
  app.render();
  load(app).catch(app.failed);
}

const members = (each) => (each.shared ? each.members.map((m) => `${m.name} (${plural(m.buckets, "bucket")}, ${brief(m.behind)} behind${m.away ? ", away" : ""})`).join(", ") || "shared, nobody now" : "alone");
const halted = (each) => Object.entries(each.detail?.halted || {}).map(([topic, why]) => `${topic}: ${why}`).join("; ");

// The curves of one kind end together; one that began later than the others has no value before.
function lags(id, title, found, unit) {
  if (!found || !found.count) return null;
  const begun = (each) => found.times_us.slice(found.times_us.length - each.values.length);
  const more = found.count > found.curves.length ? `the ${found.curves.length} furthest behind of ${count(found.count)}` : "";
  return h("section", { key: id, "aria-labelledby": id },
    h("h3", { id }, title, " ", h("small", null, more)),
    h("div", { class: "curves few" }, found.curves.map((each) => curve(each.name, begun(each), each.values, { show: (value) => plural(value, unit, brief) }))),
    numbers(`${title}, as numbers`, found.times_us, found.curves.map((each) => [each.name, each.values, brief])));
}

function overTime(app) {
  const found = held.lags;
  const choice = (label, minutes) => h("button", { type: "button", "aria-pressed": String(held.minutes === minutes), onclick: () => { held.minutes = minutes; again(app); } }, label);
  const has = found && (found.subscription.count || found.bridge.count);
  return h("section", { key: "lags", "aria-labelledby": "lags-title" },
    h("div", { class: "title" }, h("h2", { id: "lags-title" }, "Behind, over time"), h("div", { class: "choice", role: "group", "aria-label": "Span" }, choice("2 hours", false), choice("2 days", true))),
    !has && h("p", { class: "muted" }, !found ? "Loading …" : held.filter ? "No subscription or bridge with a curve matches the filter." : "No subscription or bridge has been sampled yet: a sample is taken every 10 s."),
    found && lags("subscription-lags", "Changes before subscriptions", found.subscription, "change"),
    found && lags("bridge-lags", "Records before bridges", found.bridge, "record"));
}

export function view(app) {
  const found = held.streams || {};
  const words = held.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const matching = (rows) => rows && rows.filter((each) => words.every((word) => each.name.toLowerCase().includes(word)));
  const none = (text) => (words.length ? "None matches the filter." : text);
  const behind = (s) => (s.tables.includes("(no right)") ? "–" : count(s.behind));
  return [
    h("div", { class: "title", key: "title" }, h("h1", { tabindex: -1 }, "Streams")),
    h("div", { class: "bar", key: "bar" },
      h("label", { for: "streams-filter" }, "Filter"),
      h("input", { id: "streams-filter", type: "search", autocomplete: "off", spellcheck: "false", value: held.filter, placeholder: "parts of a name",
        oninput: (event) => { held.filter = event.target.value; again(app); } })),
    list("subscriptions", "Subscriptions", matching(found.subscriptions), [
      ["Subscription", (s) => s.name], ["Tables", (s) => s.tables.join(", ")], ["Behind", behind, true],
      ["Acknowledged", (s) => ago(app, s.acked_us), true], ["Reads", (s) => (s.snapshot ? "its snapshot" : "changes")], ["Consumers", members],
    ], (s) => s.name, none("No subscription keeps a position here.")),
    list("bridges", "Bridges", matching(app.server.reports || []), [
      ["Bridge", (b) => b.name], ["Behind", (b) => `${count(b.lag)} records`, true], ["Records", (b) => count(b.records), true], ["Bytes", (b) => size(b.bytes), true],
      ["Rejected", (b) => (b.rejected ? h("span", { class: "badge warn" }, count(b.rejected)) : "0"), true], ["Halted", (b) => halted(b) || "no"],
    ], (b) => b.name, none("No bridge has reported within the last minute.")),
    overTime(app),
    list("producers", "Producers", matching(found.producers), [
      ["Producer", (p) => p.name], ["Owner", (p) => p.owner || "–"], ["Commits", (p) => count(p.last_sequence), true],
      ["Used", (p) => ago(app, p.used_us), true], ["Progress", (p) => p.progress || "–"],
    ], (p) => p.name, none("No named producer has written here.")),
    list("registers", "Registers", matching(found.registers), [
      ["Register", (r) => r.name], ["Owner", (r) => r.owner || "–"], ["Value", (r) => r.value || "–"], ["Moved at LSN", (r) => count(r.moved), true],
    ], (r) => r.name, none("No position of another system is kept here.")),
    found.more_registers && h("p", { class: "muted", key: "more" }, "There are more: lakestore producers --registers lists them all."),
  ];
}
