// Pictures, each with the same in words: ranges of a table, and curves over time.

import { brief, clock, count, hour } from "./format.js";
import { h } from "./dom.js";

const px = (value) => Math.round(value * 10) / 10;

// Two lanes over the offsets from 0 to the head: the lake has all below the tier point, the log all from its start on.
export function ranges(start, point, head, width, height) {
  const words = head
    ? `log from ${count(start)} to head ${count(head)}, lake to ${count(point)}, ${count(head - point)} hot`
    : "empty";
  const scale = (offset) => (head ? (offset / head) * width : 0);
  const least = (from, to, lane, kind) => {
    if (to <= from) return null;
    const length = Math.max(scale(to) - scale(from), 2);
    return h("rect", { class: kind, x: px(Math.min(scale(from), width - length)), y: lane, width: px(length), height: half });
  };
  const half = (height - 2) / 2;
  return h(
    "svg",
    { class: "ranges", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": words },
    h("title", null, words),
    h("rect", { class: "empty", x: 0, y: 0, width, height: half }),
    h("rect", { class: "empty", x: 0, y: half + 2, width, height: half }),
    least(0, point, 0, "tiered"),
    least(start, Math.max(point, start), half + 2, "kept"),
    least(Math.max(point, start), head, half + 2, "hot"),
  );
}

export function legend() {
  const entry = (kind, text) => h("li", null, h("svg", { width: 14, height: 10, "aria-hidden": "true" }, h("rect", { class: kind, width: 14, height: 10 })), text);
  return h("ul", { class: "legend", "aria-label": "Legend" }, entry("tiered", "in the lake"), entry("kept", "in log and lake"), entry("hot", "hot: in the log alone"));
}

// As many points as can be told apart: the greatest of each group of neighbours.
function thinned(times, values, most) {
  const each = Math.ceil(values.length / most);
  if (each <= 1) return [times, values];
  const at = [], kept = [];
  for (let first = 0; first < values.length; first += each) {
    const group = values.slice(first, first + each);
    at.push(times[Math.min(first + each, values.length) - 1]);
    kept.push(Math.max(...group));
  }
  return [at, kept];
}

// A curve with its newest value; `limit` is drawn as a dashed line.
export function curve(title, times, values, options = {}) {
  const width = 280, height = 64;
  const shown = options.show || brief;
  const last = values.length ? values[values.length - 1] : null;
  const most = Math.max(...values, options.limit || 0, options.least || 0);
  const low = options.fromZero === false ? Math.min(...values) : 0;
  const span = most - low || 1;
  const begin = times[0] || 0, long = (times[times.length - 1] || 1) - begin || 1;
  const at = (time, value) => `${px(((time - begin) / long) * width)},${px(height - 2 - ((value - low) / span) * (height - 6))}`;
  const [dots, heights] = thinned(times, values, 120);
  const line = heights.map((value, i) => at(dots[i], value)).join(" ");
  const words = values.length
    ? `${title}: now ${shown(last)}, at most ${shown(Math.max(...values))}, at least ${shown(Math.min(...values))}, since ${hour(begin)} UTC`
    : `${title}: nothing yet`;
  const limit = options.limit === undefined ? null : height - 2 - ((options.limit - low) / span) * (height - 6);
  return h(
    "figure",
    { class: "curve", key: `curve ${title}` },
    h("figcaption", null, h("span", null, title), h("strong", null, last === null ? "–" : shown(last))),
    h(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": words },
      h("title", null, words),
      values.length > 1 && h("polygon", { class: "area", points: `${at(dots[0], low)} ${line} ${at(dots[dots.length - 1], low)}` }),
      values.length > 1 && h("polyline", { class: "line", points: line }),
      limit !== null && values.length > 1 && h("line", { class: "limit", x1: 0, x2: width, y1: px(limit), y2: px(limit) }),
    ),
    h("small", null, h("span", null, values.length ? hour(begin) : "collecting: a sample every 10 s"), h("span", null, values.length ? `most ${shown(Math.max(...values))}` : "")),
  );
}

// The same curves as a table that keys can open, newest first, one line for each of a few moments; columns are
// [name, values, how they are shown], and values end with the times.
export function numbers(title, times, columns) {
  const most = 13, last = times.length - 1;
  if (last < 0) return null;
  const each = Math.max(Math.ceil(times.length / most), 1);
  const at = Array.from({ length: Math.ceil(times.length / each) }, (_, i) => last - i * each);
  const cell = (values, i) => { const found = values[values.length - 1 - (last - i)]; return found === undefined || found === null ? null : found; };
  return h("details", { key: `numbers ${title}` }, h("summary", null, title),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, h("table", { class: "numbers" },
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Time"), columns.map(([name]) => h("th", { scope: "col", class: "right", title: name }, name)))),
      h("tbody", null, at.map((i) => h("tr", null, h("th", { scope: "row" }, clock(times[i])), columns.map(([, values, show]) => h("td", { class: "right" }, cell(values, i) === null ? "–" : show(cell(values, i))))))))));
}
