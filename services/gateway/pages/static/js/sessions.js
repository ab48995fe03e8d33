// The conversations that somebody began, newest first: found, opened, renamed, saved as files and deleted.
import { json, call } from "./api.js";
import { saveSession, saveText } from "./chat/export.js";
import { element } from "./messages.js";
import * as store from "./store.js";

const at = (id) => document.getElementById(id);
const [list, note, find, more, all] = ["sessions", "sessions-note", "find", "more", "delete-all"].map(at);
const [FIRST, STEP, MOST, AT_ONCE] = [50, 150, 1000, 4];

function age(ms) {
  const minutes = Math.max(0, (Date.now() - ms) / 60_000);
  if (minutes < 1) return "just now";
  if (minutes < 60) return `${Math.floor(minutes)} min ago`;
  return minutes < 1440 ? `${Math.floor(minutes / 60)} h ago` : `${Math.floor(minutes / 1440)} d ago`;
}

let known = null; // the cluster's list as it was last read; null: never, or it could not be read
let further = false; // there are more than were read
let wanted = FIRST;
let asked = 0;
let last = ["", new Set(), {}]; // how `show` was called last
let unfolded = ""; // the conversation whose acts are seen
let shown = []; // what is in the list now

const titleOf = (session) => store.titles.of(session.session_id) ?? session.title ?? session.session_id;

// What this page knows itself is drawn at once; the cluster's list when it comes, which takes seconds where the
// store is away. A later call's answer is never overwritten by an earlier one's.
export async function show(current, answering, acts) {
  last = [current, answering, acts];
  const number = ++asked;
  draw(known ? null : "");
  // spare sessions are those of single calls: no conversations
  const page = await json(`/v1/sessions?spare=false&limit=${wanted}`).catch(() => null);
  if (number !== asked) return;
  known = page?.data ?? null;
  further = page?.has_more ?? false;
  draw(known ? null : "Earlier conversations cannot be read at the moment.");
}

// Draws again what this page knows, without asking the cluster.
export function redraw(current, answering) {
  last = [current, answering, last[2]];
  draw(null);
}

function everything(answering) {
  // those that the cluster has not stored come first: an answer is being written, or was stopped
  const found = new Map((known ?? []).map((one) => [one.session_id, one]));
  const here = [...answering].map((id) => ({ title: found.get(id)?.title, session_id: id, told: "answering …" }));
  const unsaved = store.unsaved.all().filter((one) => !answering.has(one.sessionId));
  here.push(...unsaved.map((one) => ({ title: found.get(one.sessionId)?.title, session_id: one.sessionId, told: "in this browser only", messages: one.messages })));
  const ids = new Set(here.map((one) => one.session_id));
  return [...here, ...[...found.values()].filter((one) => !ids.has(one.session_id))];
}

function draw(words) {
  if (list.querySelector("input")) return; // a name is being written; what has changed is drawn after that
  const [current, answering] = last;
  const sought = find.value.trim().toLowerCase();
  const there = everything(answering);
  shown = there.filter((one) => titleOf(one).toLowerCase().includes(sought) || one.session_id.toLowerCase().includes(sought));
  if (words !== null || known) note.textContent = words || (shown.length ? "" : sought ? "No title has these words." : "Conversations appear here.");
  at("find-box").hidden = there.length < 2 && !sought;
  more.hidden = !further || wanted >= MOST;
  all.hidden = !shown.length;
  all.textContent = sought ? `Delete these ${shown.length} …` : "Delete all …";
  const focused = list.contains(document.activeElement) ? document.activeElement.dataset.name : "";
  list.replaceChildren(...shown.map((session) => row(session, current)));
  if (focused) list.querySelector(`[data-name="${CSS.escape(focused)}"]`)?.focus();
}

function row(session, current) {
  const id = session.session_id, name = titleOf(session);
  const where = session.last_group ? ` · ${session.last_group}` : "";
  const open = element("button", { type: "button", className: "open", onclick: () => last[2].open(id) },
    element("b", { textContent: name, title: name }), element("small", { textContent: session.told ?? age(session.updated_ms) + where }));
  const fold = element("button", { type: "button", className: "icon", ariaLabel: `More for ${name}`, ariaExpanded: String(unfolded === id), textContent: "⋯" });
  fold.addEventListener("click", () => { unfolded = unfolded === id ? "" : id; draw(null); });
  [open.dataset.name, fold.dataset.name] = [`open ${id}`, `more ${id}`];
  const item = element("li", {}, open, fold);
  if (id === current) { item.dataset.on = ""; open.setAttribute("aria-current", "true"); }
  if (unfolded === id) item.append(acts(session, name, item));
  return item;
}

function acts(session, name, item) {
  const id = session.session_id;
  const act = (words, pressed) => element("button", { type: "button", className: "quiet", textContent: words, onclick: () => pressed().catch(last[2].failed) });
  const text = async () => saveText(name, session.messages ?? (await json(`/v1/sessions/${encodeURIComponent(id)}?messages=true`)).messages);
  const made = [act("Rename", async () => rename(id, name, item))];
  if (session.told !== "answering …") made.push(act("Save as text", text));
  if (!session.told) made.push(act("Save as session", () => saveSession(id, name)));
  return element("div", { className: "row-acts" }, ...made, act("Delete", () => removeOne(session, name)));
}

function rename(id, name, item) {
  const box = element("input", { value: name, ariaLabel: "Title", maxLength: 120 });
  let over = false; // taking the box away takes its focus, which is no second end
  const done = (title) => {
    if (over) return;
    over = true;
    if (title) store.titles.write(id, title);
    box.remove();
    draw(null);
    list.querySelector(`[data-name="${CSS.escape(`more ${id}`)}"]`)?.focus();
  };
  unfolded = "";
  item.replaceChildren(box);
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) done(box.value.trim());
    if (event.key === "Escape") { event.stopPropagation(); done(""); }
  });
  box.addEventListener("blur", () => done(box.value.trim()));
  box.focus();
  box.select();
}

async function remove(session) {
  const id = session.session_id;
  await last[2].leaves(id); // else its stopped answer would be kept here afterwards
  // one that the cluster has never stored is only here
  await call(`/v1/sessions/${encodeURIComponent(id)}`, { method: "DELETE" }).catch((error) => { if (error.status !== 404) throw error; });
  store.titles.write(id, "");
  store.unsaved.write(id, null);
  store.branches.write(id, null);
  known = known?.filter((one) => one.session_id !== id) ?? null;
}

async function removeOne(session, name) {
  if (!confirm(`Delete “${name}”? The cluster forgets its text.`)) return;
  await remove(session);
  last[2].removed([session.session_id]);
}

async function removeAll() {
  if (further && wanted < MOST) { wanted = MOST; await show(...last); }
  const rest = [...shown], gone = [];
  const unseen = further && !find.value.trim() ? " There are more than these; they stay." : "";
  if (!confirm(`Delete ${rest.length === 1 ? "this conversation" : `these ${rest.length} conversations`}? The cluster forgets their text.${unseen}`)) return;
  all.disabled = true;
  const work = async () => {
    for (let one = rest.shift(); one; one = rest.shift()) {
      await remove(one);
      gone.push(one.session_id);
    }
  };
  const ends = await Promise.allSettled(Array.from({ length: AT_ONCE }, work));
  all.disabled = false;
  find.value = "";
  last[2].removed(gone);
  const failed = ends.find((one) => one.status === "rejected");
  if (failed) last[2].failed(failed.reason);
}

find.addEventListener("input", () => {
  if (further && wanted < MOST) { wanted = MOST; show(...last); } else draw(null);
});
find.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && find.value) { event.stopPropagation(); find.value = ""; draw(null); }
});
more.addEventListener("click", () => { wanted = Math.min(MOST, wanted + STEP); show(...last); });
all.addEventListener("click", removeAll);
