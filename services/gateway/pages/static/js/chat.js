// The chat page: joins conversation, answers, sessions and settings.
import { json } from "./api.js";
import { Answer } from "./answer.js";
import { AnswerTurn, element, userTurn } from "./messages.js";
import * as sessions from "./sessions.js";
import { onSaved, openSettings, sampling } from "./settings.js";
import * as store from "./store.js";

const at = (id) => document.getElementById(id);
const [list, scroll, text, live, model, trouble] = ["messages", "scroll", "composer-text", "live", "model", "trouble"].map(at);
const STARTERS = ["My name is Ada.", "Tell me about yourself.", "What can I ask you?"];
const newId = () => `chat-${crypto.getRandomValues(new Uint32Array(3)).reduce((all, one) => all + one.toString(16).padStart(8, "0"), "")}`;

let talk = store.chat.read() ?? { sessionId: newId(), messages: [] };
const answering = new Map(); // answers that are being written, by session; only that of the open conversation is shown
const running = () => answering.get(talk.sessionId) ?? null;

function keep() { store.chat.write(talk); }
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
  removed: (id) => { answering.get(id)?.answer.stop(); if (id === talk.sessionId) startChat(); showSessions(); },
});

// Another conversation is opened; the answer of this one goes on meanwhile.
function change(other, group = "") {
  const one = running();
  if (one) hide(one);
  talk = other;
  keep(); tell(""); draw(); showPlace(group); closeMenu(); toEnd(); showSessions(); text.focus();
}

async function openSession(id) {
  const here = answering.get(id)?.talk ?? store.unsaved.of(id);
  if (here) { change(here); return; }
  try {
    const found = await json(`/v1/sessions/${encodeURIComponent(id)}?messages=true`);
    const system = found.messages.find((one) => one.role === "system");
    const messages = found.messages.filter((one) => ["user", "assistant"].includes(one.role));
    change({ sessionId: id, system: system?.content, messages }, found.last_group);
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

async function stop() {
  const one = running();
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

function begin() {
  const system = talk.system ?? store.settings.read().system;
  const said = talk.messages.map(({ role, content }) => ({ role, content }));
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...said];
  const body = { model: model.value, messages, stream: true, stream_options: { include_usage: true }, ...sampling() };
  keep(); draw();
  follow({ sessionId: talk.sessionId, body, streamId: "", lastId: "", message: { role: "assistant", content: "" } });
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
  if (refused) takeBack(its); else its.messages.push(message);
  // what the cluster has not stored is kept here
  store.unsaved.write(its.sessionId, outcome.ended === "done" || !its.messages.length ? null : its);
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

// A message that was refused is not part of the conversation: it goes back to where it was written.
function takeBack(its) {
  const { content } = its.messages.pop();
  if (its === talk && !text.value) text.value = content;
  if (!its.messages.length) store.titles.write(its.sessionId, "");
}

// Draws at most once in a frame, and seldomer where drawing takes long. `draw` returns whether it showed
// anything of the answer: what comes first waits for the next frame only, however long an empty turn took.
function drawing(draw) {
  let asked = false, over = false, rest = 0;
  const frame = () => {
    asked = false;
    if (over) return;
    const began = performance.now();
    const shown = draw();
    rest = shown ? performance.now() - began : 0;
  };
  return {
    ask() {
      if (asked) return;
      asked = true;
      if (rest > 8) setTimeout(() => requestAnimationFrame(frame), 4 * rest);
      else requestAnimationFrame(frame);
    },
    end() { over = true; },
  };
}

function edit(turn, index) {
  const box = element("textarea", { value: talk.messages[index].content, ariaLabel: "Edit the message" });
  const save = () => {
    if (!box.value.trim()) return;
    talk.messages = [...talk.messages.slice(0, index), { role: "user", content: box.value.trim() }];
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
  if (act === "copy-code") await copy(pressed, pressed.parentElement.querySelector("code").textContent);
  else if (act === "copy") await copy(pressed, talk.messages[index]?.content ?? "");
  else if (act === "edit") { await stop(); edit(list.children[index], index); }
  else if (act === "again") { await stop(); talk.messages = talk.messages.slice(0, index); begin(); }
});

async function copy(pressed, content) {
  const before = pressed.textContent;
  await navigator.clipboard.writeText(content).then(() => { pressed.textContent = "Copied"; }, () => {});
  setTimeout(() => { pressed.textContent = before; }, 1200);
}

function closeMenu() {
  delete at("sidebar").dataset.open;
  at("shade").hidden = true;
  at("menu").setAttribute("aria-expanded", "false");
}

at("menu").addEventListener("click", () => {
  at("sidebar").dataset.open = "";
  at("shade").hidden = false;
  at("menu").setAttribute("aria-expanded", "true");
  at("new-chat").focus();
});
at("shade").addEventListener("click", closeMenu);
at("new-chat").addEventListener("click", startChat);
at("open-settings").addEventListener("click", () => openSettings());
at("stop").addEventListener("click", stop);
at("composer").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
text.addEventListener("input", buttons);
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); ask(); }
});
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || at("settings").open) return;
  if ("open" in at("sidebar").dataset) { closeMenu(); at("menu").focus(); } else stop();
});
model.addEventListener("change", () => store.settings.write({ ...store.settings.read(), model: model.value }));
at("starters").append(...STARTERS.map((words) => element("li", {}, element("button", {
  type: "button", textContent: words, onclick: () => { text.value = words; ask(); },
}))));
onSaved(() => { tell(""); load(); });

// A model that a host loads and puts to sleep has a state; the others are ready.
const nameOf = ({ id, status }) => (status && status.phase !== "ready" ? `${id} (${status.phase})` : id);
const STATES_MS = 3000;
let looks = 0;

async function showStates() {
  if (!document.hidden) {
    try {
      const found = new Map((await json("/v1/models")).data.map((one) => [one.id, one]));
      for (const option of model.options) if (found.has(option.value)) option.textContent = nameOf(found.get(option.value));
    } catch { /* the next question may be answered */ }
  }
  looks = setTimeout(showStates, STATES_MS);
}

async function load() {
  try {
    const models = (await json("/v1/models")).data, names = models.map((one) => one.id);
    model.replaceChildren(...models.map((one) => element("option", { value: one.id, textContent: nameOf(one) })));
    const chosen = store.settings.read().model;
    if (names.includes(chosen)) model.value = chosen;
    clearTimeout(looks);
    if (models.some((one) => one.status)) looks = setTimeout(showStates, STATES_MS);
    if (!names.length) tell("No group serves a model yet.", "wait", button("Look again", () => { tell(""); load(); }));
    showSessions();
  } catch (error) { fail(error); }
}

draw();
for (const left of store.runs.all()) {
  const said = left.body.messages.filter((one) => one.role !== "system");
  follow(left, left.sessionId === talk.sessionId ? talk : { sessionId: left.sessionId, messages: said });
}
toEnd();
load();
