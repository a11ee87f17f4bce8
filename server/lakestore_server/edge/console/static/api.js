// The server's JSON. A token typed at sign-in is exchanged for one of an hour, which this tab keeps and shows in a
// header: no other site's page can do that, and nothing of it stands in an address.

const KEY = "lakestore.session";
const API = "/console/api";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const session = {
  read() {
    try {
      const found = JSON.parse(sessionStorage.getItem(KEY) || "null");
      return found && found.token ? found : null; // whether it is still valid is judged by the server's clock alone
    } catch {
      return null;
    }
  },
  keep(answer) {
    const now = Date.now();
    const kept = { token: answer.token, since: now, until: now + answer.seconds * 1000 };
    sessionStorage.setItem(KEY, JSON.stringify(kept));
  },
  forget() {
    sessionStorage.removeItem(KEY);
  },
};

let life = new AbortController();

// Nothing that was asked for one viewer is taken for the next one: what is under way is broken off.
export function forget() {
  life.abort();
  life = new AbortController();
}

const until = (signal) => (signal ? AbortSignal.any([signal, life.signal]) : life.signal);

function headers(more) {
  const held = session.read();
  return { ...(held ? { Authorization: `Bearer ${held.token}` } : {}), ...more };
}

async function refused(response) {
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // An answer that is no JSON says no more than its number.
  }
  return new Refused(response.status, message);
}

async function call(path, options = {}) {
  const body = options.body === undefined ? undefined : JSON.stringify(options.body);
  const more = body === undefined ? {} : { "Content-Type": "application/json" };
  const response = await fetch(API + path, {
    method: options.method || "GET",
    headers: headers(more),
    body,
    signal: until(options.signal),
    cache: "no-store",
    credentials: "same-origin",
    redirect: "error",
  });
  if (response.status === 304) return null;
  if (!response.ok) throw await refused(response);
  return response.json();
}

export const get = (path, signal) => call(path, { signal });
export const post = (path, body, signal) => call(path, { method: "POST", body, signal });
export const table = (name) => `/tables/${encodeURIComponent(name)}`;

export async function signIn(token) {
  session.keep(await post("/session", { token }));
}

export function signOut() {
  session.forget();
}

export async function renew() {
  const held = session.read();
  const now = Date.now(); // a clock that was set back tells nothing of the age
  if (held && (now > (held.since + held.until) / 2 || now < held.since)) session.keep(await post("/renew", {}));
}

// Server-sent events over fetch, which unlike EventSource shows the token in a header.
export async function follow(path, signal, told) {
  const response = await fetch(API + path, { headers: headers({}), signal: until(signal), cache: "no-store", redirect: "error" });
  if (!response.ok) throw await refused(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const kind = lines.find((line) => line.startsWith("event: "));
      const data = lines.find((line) => line.startsWith("data: "));
      if (kind && data) told(kind.slice(7), JSON.parse(data.slice(6)));
    }
  }
}
