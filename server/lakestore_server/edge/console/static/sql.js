// The query box: one query, read only, by the viewer's rights, answered by a process of its own.

import { count, duration } from "./format.js";
import { grid } from "./table.js";
import { h } from "./dom.js";
import { post } from "./api.js";

const asked = { text: "", answer: null, error: "", running: null, since: 0 };

export function enter(text) {
  if (text) asked.text = text;
}

export function leave() {
  asked.running?.abort();
}

export function clear() {
  asked.text = "";
}

export function forget() {
  leave();
  Object.assign(asked, { answer: null, error: "" });
}

async function run(app) {
  if (asked.running || !asked.text.trim()) return;
  const running = (asked.running = new AbortController());
  Object.assign(asked, { answer: null, error: "", since: Date.now() });
  app.render();
  try {
    const answer = await post("/query", { sql: asked.text }, running.signal);
    if (!running.signal.aborted) asked.answer = answer;
  } catch (error) {
    asked.error = error.name === "AbortError" ? "The query was cancelled." : error.message;
    if (error.status === 401) app.failed(error);
  }
  asked.running = null;
  app.render();
}

export function view(app) {
  const { answer, error, running } = asked;
  const rows = answer && answer.rows.map((row, number) => ({ number, row }));
  return [
    h("div", { class: "title", key: "title" }, h("h1", { tabindex: -1 }, "SQL")),
    h("form", { key: "form", class: "sql", onsubmit: (event) => { event.preventDefault(); run(app); } },
      h("label", { for: "sql" }, "Query, read only; tables are named database.table"),
      h("textarea", { id: "sql", rows: 6, spellcheck: "false", autocapitalize: "off", value: asked.text, placeholder: "SELECT count(*) FROM shop.orders",
        oninput: (event) => { asked.text = event.target.value; },
        onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(app); } } }),
      h("div", { class: "bar" },
        h("button", { type: "submit", class: "primary", disabled: Boolean(running) }, "Run"),
        h("button", { type: "button", disabled: !running, onclick: () => asked.running?.abort() }, "Cancel"),
        h("span", { class: "muted", role: "status" }, running ? ["Running", h("span", { "aria-hidden": "true" }, ` for ${duration((Date.now() - asked.since) / 1000)}`)] : answer ? `${answer.more ? "the first " : ""}${count(answer.rows.length)} rows in ${duration(answer.seconds)}` : "Ctrl+Enter runs"))),
    error && h("p", { class: "error", role: "alert", key: "error" }, error),
    answer && h("div", { key: "answer" }, grid("answer-rows", answer.columns, rows),
      answer.more && h("p", { class: "muted" }, "There are more rows: lakestore sql, or lake.sql, gives them all."),
      answer.token && h("p", { class: "muted token" }, `Read at ${answer.token}`),
      answer.explain && h("details", null, h("summary", null, "What was read"), h("pre", null, answer.explain))),
  ];
}
