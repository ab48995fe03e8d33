// The conversations that the cluster keeps, newest first.
import { json, call } from "./api.js";
import { element } from "./messages.js";
import * as store from "./store.js";

const list = document.getElementById("sessions");
const note = document.getElementById("sessions-note");
const CROSS = "M5 5l10 10M15 5L5 15";

function icon(path) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  svg.append(document.createElementNS("http://www.w3.org/2000/svg", "path"));
  svg.firstChild.setAttribute("d", path);
  return svg;
}

function age(ms) {
  const minutes = Math.max(0, (Date.now() - ms) / 60_000);
  if (minutes < 1) return "just now";
  if (minutes < 60) return `${Math.floor(minutes)} min ago`;
  return minutes < 1440 ? `${Math.floor(minutes / 60)} h ago` : `${Math.floor(minutes / 1440)} d ago`;
}

let known = null; // the cluster's list as it was last read; null: never, or it could not be read
let asked = 0;

// What this page knows itself is drawn at once; the cluster's list when it comes, which takes seconds where the
// store is away. A later call's answer is never overwritten by an earlier one's.
export async function show(current, answering, acts) {
  const number = ++asked;
  draw(current, answering, acts, known, known ? null : "");
  const stored = await json("/v1/sessions?limit=50").then((answer) => answer.data, () => null);
  if (number !== asked) return;
  known = stored;
  draw(current, answering, acts, stored, stored ? null : "Earlier conversations cannot be read at the moment.");
}

function draw(current, answering, { open, removed }, stored, words) {
  const found = stored ?? [];
  // those that the cluster has not stored come first: an answer is being written, or was stopped
  const here = [...answering].map((id) => ({ session_id: id, told: "answering …" }));
  const unsaved = store.unsaved.all().filter((one) => !answering.has(one.sessionId));
  here.push(...unsaved.map((one) => ({ session_id: one.sessionId, told: "in this browser only" })));
  const ids = new Set(here.map((one) => one.session_id));
  const all = [...here, ...found.filter((one) => !ids.has(one.session_id))];
  note.textContent = words ?? (all.length ? "" : "Conversations appear here.");
  list.replaceChildren(...all.map((session) => {
    const id = session.session_id;
    const name = store.titles.of(id) ?? id;
    const where = session.last_group ? ` · ${session.last_group}` : "";
    const button = element("button", { type: "button", className: "open", onclick: () => open(id) },
      element("b", { textContent: name }), element("small", { textContent: session.told ?? age(session.updated_ms) + where }));
    const remove = element("button", { type: "button", className: "icon", ariaLabel: `Delete ${name}` }, icon(CROSS));
    remove.addEventListener("click", async () => {
      if (!confirm(`Delete “${name}”? The cluster forgets its text.`)) return;
      await call(`/v1/sessions/${encodeURIComponent(id)}`, { method: "DELETE" }).catch(() => {});
      store.titles.write(id, "");
      store.unsaved.write(id, null);
      removed(id);
    });
    const item = element("li", {}, button, remove);
    if (id === current) { item.dataset.on = ""; button.setAttribute("aria-current", "true"); }
    return item;
  }));
}
