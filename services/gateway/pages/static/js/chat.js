// The chat page: joins conversation, answers, sessions and settings.
import { json } from "./api.js";
import { Answer } from "./answer.js";
import * as versions from "./chat/branches.js";
import { drawing } from "./chat/drawing.js";
import * as menu from "./chat/menu.js";
import { loadModels } from "./chat/models.js";
import { AnswerTurn, element, userTurn } from "./messages.js";
import * as sessions from "./sessions.js";
import { onSaved, openSettings, sampling } from "./settings.js";
import * as store from "./store.js";

const at = (id) => document.getElementById(id);
const [list, scroll, text, live, model, trouble] = ["messages", "scroll", "composer-text", "live", "model", "trouble"].map(at);
const newId = () => `chat-${crypto.getRandomValues(new Uint32Array(3)).reduce((all, one) => all + one.toString(16).padStart(8, "0"), "")}`;

let talk = store.chat.read() ?? { sessionId: newId(), messages: [] };
const answering = new Map(); // answers that are being written, by session; only that of the open conversation is shown
const running = () => answering.get(talk.sessionId) ?? null;

const keepVersions = (its) => store.branches.write(its.sessionId, versions.hasVersions(its.messages) ? its : null);
function keep() { store.chat.write(talk); keepVersions(talk); }
function tell(words, kind = "bad", button = null) {
  trouble.hidden = !words;
  trouble.dataset.kind = kind;
  trouble.replaceChildren(element("span", { textContent: words }), ...(button ? [button] : []));
}
const button = (label, act) => element("button", { type: "button", className: "button", textContent: label, onclick: act });
const nearEnd = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
const toEnd = () => { scroll.scrollTop = scroll.scrollHeight; };

function draw() {
  at("empty").hidden = talk.messages.length > 0;
  list.replaceChildren(...talk.messages.map((message, index) => {
    if (message.role === "user") return userTurn(message, index);
    const turn = new AnswerTurn(index);
    turn.show(message, { broke: message.broke });
    return turn.node;
  }));
  if (running()) show(running());
  buttons();
}

function buttons() {
  at("send").hidden = running() !== null;
  at("stop").hidden = running() === null;
  at("send").disabled = !text.value.trim();
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight}px`;
}

function showPlace(group) {
  at("place").hidden = !group;
  at("place").textContent = group ? `answered by ${group}` : "";
}

const showSessions = () => sessions.show(talk.sessionId, new Set(answering.keys()), {
  open: openSession,
  leaves: async (id) => { if (answering.has(id)) await stop(answering.get(id)); },
  removed: (ids) => { if (ids.includes(talk.sessionId)) startChat(); else showSessions(); },
  failed: fail,
});

// Another conversation is opened; the answer of this one goes on meanwhile.
function change(other, group = "") {
  const one = running();
  if (one) hide(one);
  talk = other;
  keep(); tell(""); draw(); showPlace(group); menu.close(); toEnd(); showSessions(); text.focus();
}

async function openSession(id) {
  const here = answering.get(id)?.talk ?? store.unsaved.of(id);
  if (here) { change(here); return; }
  try {
    const found = await json(`/v1/sessions/${encodeURIComponent(id)}?messages=true`);
    const system = found.messages.find((one) => one.role === "system");
    const messages = found.messages.filter((one) => ["user", "assistant"].includes(one.role));
    const kept = store.branches.of(id); // with its other versions, unless the conversation went on elsewhere
    change(kept && versions.holds(kept.messages, messages) ? kept : { sessionId: id, system: system?.content, messages }, found.last_group);
  } catch (error) { fail(error); }
}

const startChat = () => change({ sessionId: newId(), messages: [] });

function fail(error) {
  if (error.status === 401) {
    const words = store.key.read() ? "The gateway does not know this API key." : "This gateway asks for an API key.";
    tell(words, "wait", button("Enter the key", () => openSettings("key", words)));
    openSettings("key", words);
  } else if (error.status) {
    tell(`${error.message[0].toUpperCase()}${error.message.slice(1)}.`.replace(/\.\.$/, "."));
  } else tell("The gateway does not answer. Is it running?", "bad", button("Try again", () => { tell(""); load(); }));
}

async function stop(one = running()) {
  await one?.answer.stop();
  await one?.ended;
}

function ask() {
  const content = text.value.trim();
  if (!content || running()) return;
  talk.messages.push({ role: "user", content });
  text.value = "";
  if (talk.messages.length === 1) store.titles.write(talk.sessionId, content.slice(0, 60));
  begin();
}

function begin(fork) {
  const system = talk.system ?? store.settings.read().system;
  const said = talk.messages.map(({ role, content }) => ({ role, content }));
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...said];
  const body = { model: model.value, messages, stream: true, stream_options: { include_usage: true }, ...sampling() };
  keep(); draw();
  follow({ sessionId: talk.sessionId, body, streamId: "", lastId: "", message: { role: "assistant", content: "", ...(fork && { fork }) } });
  toEnd();
}

// Follows an answer to its end, in the open conversation or in another one.
function follow(run, its = talk) {
  const one = { talk: its, run, turn: null, draws: null };
  let began = false;
  one.answer = new Answer(run, {
    first: () => { if (!began && one.turn) { began = true; performance.mark("ryz:first-event"); live.textContent = "The answer begins."; } },
    change: () => one.draws?.ask(),
    waiting: (words) => { if (one.turn) tell(words, "wait"); },
  });
  answering.set(its.sessionId, one);
  if (its === talk) { tell(""); show(one); }
  one.ended = end(one);
  sessions.redraw(talk.sessionId, new Set(answering.keys()));
  buttons();
}

function show(one) {
  one.turn = new AnswerTurn(one.talk.messages.length);
  list.append(one.turn.node);
  one.draws = drawing(() => {
    const stay = nearEnd();
    one.turn?.show(one.run.message, { busy: true });
    const { content, reasoning, calls } = one.run.message;
    if (content) performance.mark("ryz:first-text");
    if (stay) toEnd();
    return Boolean(content || reasoning || calls);
  });
  one.turn.show(one.run.message, { busy: true });
}

function hide(one) {
  one.draws.end();
  one.turn = one.draws = null;
}

async function end(one) {
  let outcome;
  try { outcome = await one.answer.finish(); } catch (error) { outcome = { ended: "refused", error }; }
  const { run, turn, talk: its } = one, { message } = run;
  one.draws?.end();
  answering.delete(its.sessionId);
  if (outcome.ended === "stopped") message.broke = "Stopped";
  if (outcome.ended === "broke") message.broke = `The answer broke off: ${outcome.why}`;
  const refused = outcome.ended === "refused" && !message.content && !message.reasoning && !message.calls;
  if (refused) takeBack(its, message.fork); else its.messages.push(message);
  keepVersions(its);
  // what the cluster has not stored is kept here
  const stored = outcome.ended === "done" && !["not_stored", "conflict"].includes(run.stored);
  store.unsaved.write(its.sessionId, stored || !its.messages.length ? null : its);
  if (turn) {
    const stay = nearEnd();
    if (refused) draw(); else turn.show(message, { broke: message.broke });
    if (stay) toEnd();
    keep(); buttons(); showPlace(run.group);
    tell("");
    live.textContent = outcome.ended === "done" ? `The answer: ${turn.body.textContent.slice(0, 2000)}` : message.broke ?? "";
  }
  if (outcome.ended === "refused" && (turn || outcome.error.status === 401)) fail(outcome.error);
  showSessions();
}

// A message that was refused is not part of the conversation: it goes back to where it was written, and the
// version before it is open again.
function takeBack(its, again) {
  if (again) { its.messages = versions.back(its.messages, again); return; }
  const { content, fork } = its.messages.pop();
  if (its === talk && !text.value) text.value = content;
  if (fork) its.messages = versions.back(its.messages, fork);
  if (!its.messages.length) store.titles.write(its.sessionId, "");
}

function edit(turn, index) {
  const box = element("textarea", { value: talk.messages[index].content, ariaLabel: "Edit the message" });
  const save = () => {
    if (!box.value.trim()) return;
    const { before, fork } = versions.branch(talk.messages, index);
    talk.messages = [...before, { role: "user", content: box.value.trim(), fork }];
    begin();
  };
  const send = Object.assign(button("Send", save), { className: "button primary" });
  turn.querySelector(".body").replaceChildren(box, element("div", { className: "edit-row" }, button("Cancel", draw), send));
  turn.querySelector(".acts").hidden = true;
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); save(); }
    if (event.key === "Escape") { event.stopPropagation(); draw(); }
  });
  box.focus();
}

list.addEventListener("click", async (event) => {
  const pressed = event.target.closest("[data-act]");
  const turn = pressed?.closest(".turn");
  if (!turn) return;
  const index = Number(turn.dataset.index), act = pressed.dataset.act;
  if (act === "copy-code") await copy(pressed, pressed.closest(".code").querySelector("pre").textContent);
  else if (act === "copy") await copy(pressed, talk.messages[index]?.content ?? "");
  else if (act === "edit") { await stop(); edit(list.children[index], index); }
  else if (act === "older" || act === "newer") await openVersion(index, act === "older" ? -1 : 1);
  else if (act === "again") {
    await stop();
    const { before, fork } = versions.branch(talk.messages, index);
    talk.messages = before;
    begin(fork);
  }
});

async function openVersion(index, step) {
  await stop();
  const { fork } = talk.messages[index];
  talk.messages = versions.open(talk.messages, index, fork.at + step);
  keep(); draw();
  list.children[index].querySelector(`[data-act="${step < 0 ? "older" : "newer"}"]`).focus();
}

async function copy(pressed, content) {
  const before = pressed.textContent;
  await navigator.clipboard.writeText(content).then(() => { pressed.textContent = "Copied"; }, () => {});
  setTimeout(() => { pressed.textContent = before; }, 1200);
}

at("new-chat").addEventListener("click", startChat);
at("open-settings").addEventListener("click", () => openSettings());
at("stop").addEventListener("click", () => stop());
at("composer").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
text.addEventListener("input", buttons);
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); ask(); }
});
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || at("settings").open) return;
  if (menu.isOpen()) { menu.close(); at("menu").focus(); } else stop();
});
at("starters").addEventListener("click", ({ target }) => {
  if (target.closest("button")) { text.value = target.closest("button").textContent; ask(); }
});
onSaved(() => { tell(""); load(); });

async function load() {
  try {
    const names = await loadModels();
    if (!names.length) tell("No group serves a model yet.", "wait", button("Look again", () => { tell(""); load(); }));
    showSessions();
  } catch (error) { fail(error); }
}

draw();
for (const left of store.runs.all()) {
  const said = left.body.messages.filter((one) => one.role !== "system");
  follow(left, left.sessionId === talk.sessionId ? talk : store.branches.of(left.sessionId) ?? { sessionId: left.sessionId, messages: said });
}
toEnd();
load();
