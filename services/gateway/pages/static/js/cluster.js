// The live view: one stream of snapshots, drawn as it comes.
import { Refused, call, events, json } from "./api.js";
import { drawFlow } from "./flow.js";
import { element } from "./messages.js";
import * as store from "./store.js";

const at = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const cards = new Map();
const told = new Set();
const history = [];
const places = new Map(); // the group of each session: as the store has it, then as turns tell
const sum = (groups, field) => groups.reduce((all, one) => all + one[field], 0);
const short = (number) => (number >= 10_000 ? `${Math.round(number / 1000)}k` : String(Math.round(number)));

function total(name, value, more = "") {
  return element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value }, element("small", { textContent: more })));
}

function meter(name, kind) {
  const bar = document.createElementNS(SVG, "rect");
  bar.setAttribute("height", "10");
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, value] of [["viewBox", "0 0 100 10"], ["preserveAspectRatio", "none"], ["aria-hidden", "true"]]) svg.setAttribute(key, value);
  svg.append(bar);
  const value = element("b");
  const node = element("div", { className: `meter ${kind}` }, element("span", { textContent: name }), svg, value);
  return { node, show(part, most, words) { bar.setAttribute("width", most ? Math.min(100, (100 * part) / most) : 0); value.textContent = words; } };
}

// One row for each rank; until the leader has told of them, only their numbers are known.
function drawRanks(list, group) {
  const known = group.rank_list.length ? group.rank_list : Array.from({ length: Math.min(group.ranks, 32) }, (_, rank) => ({ rank, state: group.state }));
  while (list.childElementCount > known.length) list.lastChild.remove();
  while (list.childElementCount < known.length) list.append(element("li", {}, element("i"), element("span")));
  known.forEach((one, place) => {
    const item = list.children[place];
    const state = group.state === "ready" ? one.state : group.state;
    item.dataset.state = state;
    const facts = [`rank ${one.rank}`, state, one.memory_bytes && `${short(one.memory_bytes / 2 ** 20)} MiB`, one.steps && `${short(one.steps)} steps`];
    item.lastChild.textContent = facts.filter(Boolean).join(" · ");
    item.title = one.kernels ?? "";
  });
}

function card(group) {
  const pill = element("span", { className: "pill" });
  const model = element("span", { className: "model" });
  const ranks = element("ol", { className: "ranks", ariaLabel: `Ranks of ${group}` });
  const [runs, waits, kv] = [meter("Running", "run"), meter("Waiting", "wait"), meter("KV", "kv")];
  const flow = element("p", { className: "note" });
  const chips = element("ul", { className: "chips", ariaLabel: `Sessions at ${group}` });
  const node = element("li", { className: "panel group" },
    element("header", {}, element("h3", { textContent: group }), model, pill), ranks, runs.node, waits.node, kv.node, flow, chips);
  let drawn = "";
  return { node, show(one, sessions) {
    node.dataset.state = pill.dataset.state = one.state;
    pill.textContent = one.away_s ? `${one.state} · ${one.away_s.toFixed(1)} s` : one.state;
    model.textContent = one.model;
    drawRanks(ranks, one);
    runs.show(one.running, one.max_running, `${one.running} of ${one.max_running}`);
    waits.show(one.waiting, one.max_waiting, `${one.waiting} of ${one.max_waiting}`);
    kv.show(one.used_blocks, one.total_blocks, `${short(one.used_blocks)} of ${short(one.total_blocks)} blocks`);
    flow.textContent = `${short(one.tokens_per_s)} tokens/s · ${one.ended} answered${one.broken ? ` · ${one.broken} failed` : ""}`;
    const names = sessions.slice(0, 12).map((session) => store.titles.of(session.session_id) ?? session.session_id);
    if (names.join("\n") !== drawn) {
      drawn = names.join("\n");
      chips.replaceChildren(...names.map((name) => element("li", { textContent: name, title: name })));
    }
    chips.hidden = !names.length;
  } };
}

function show(state) {
  const { groups, incidents } = state;
  for (const one of [...state.sessions].reverse()) place(one.session_id, one.group);
  const sessions = [...places].reverse().map(([session_id, group]) => ({ session_id, group }));
  const ready = groups.filter((one) => one.state === "ready").length;
  const [used, all] = [sum(groups, "used_blocks"), sum(groups, "total_blocks")];
  at("totals").replaceChildren(
    total("Groups serving", ready, ` of ${groups.length}`), total("Running", sum(groups, "running")), total("Waiting", sum(groups, "waiting")),
    total("Tokens a second", short(sum(groups, "tokens_per_s"))), total("KV in use", all ? Math.round((100 * used) / all) : 0, " %"),
    total("Answered", short(sum(groups, "ended"))));
  for (const one of groups) {
    if (!cards.has(one.group)) cards.set(one.group, card(one.group));
    cards.get(one.group).show(one, sessions.filter((session) => session.group === one.group));
  }
  for (const name of [...cards.keys()]) if (!groups.some((one) => one.group === name)) { cards.get(name).node.remove(); cards.delete(name); }
  groups.forEach((one, place) => { const { node } = cards.get(one.group); if (at("groups").children[place] !== node) at("groups").insertBefore(node, at("groups").children[place] ?? null); });
  for (const one of incidents) {
    if (told.has(one.number)) continue;
    told.add(one.number);
    const item = element("li", { textContent: one.text }, element("time", { textContent: new Date(one.at_ms).toLocaleTimeString() }));
    item.dataset.kind = one.kind;
    at("incidents").prepend(item);
    while (at("incidents").childElementCount > 64) at("incidents").lastChild.remove();
  }
  at("calm").hidden = at("incidents").childElementCount > 0;
  history.push({ at: state.at_ms, tokens: sum(groups, "tokens_per_s"), running: sum(groups, "running") });
  while (history.length && state.at_ms - history[0].at > 60_000) history.shift();
  const highest = drawFlow(at("flow"), history, incidents.filter((one) => one.kind === "lost").map((one) => one.at_ms));
  at("most-tokens").textContent = `, ${short(highest.tokens)} at most`;
  at("most-running").textContent = `, ${short(highest.running)} at most`;
}

function place(id, group) {
  if (places.get(id) === group) return;
  places.delete(id);
  places.set(id, group);
  if (places.size > 500) places.delete(places.keys().next().value);
}

// Sessions whose last turn was before this view was opened.
async function earlier() {
  const found = await json("/v1/sessions?limit=60").catch(() => ({ data: [] }));
  for (const one of found.data.reverse()) if (one.last_group && !places.has(one.session_id)) place(one.session_id, one.last_group);
}

function link(state, words) { at("link").dataset.state = state; at("link").textContent = words; }

async function follow() {
  for (let pause = 300; ; pause = Math.min(2 * pause, 3000)) {
    try {
      const answer = await call("/cluster/events");
      at("key-form").hidden = true;
      let first = true;
      for await (const { data } of events(answer)) {
        const state = JSON.parse(data);
        if (state.error) break;
        // a gateway that started again counts from 1 again
        if (first && told.size && !state.incidents.some((one) => told.has(one.number))) { told.clear(); at("incidents").replaceChildren(); }
        if (first) { link("live", "live"); await earlier(); }
        [first, pause] = [false, 300];
        show(state);
      }
    } catch (error) {
      if (error instanceof Refused && error.status === 401) { link("waiting", "needs a key"); at("key-form").hidden = false; return; }
    }
    link("waiting", "connecting again");
    await new Promise((done) => { setTimeout(done, pause); });
  }
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  store.key.write(at("key").value.trim(), store.key.kept());
  follow();
});
follow();
