// The live view: one stream of snapshots, drawn as it comes.
import { Refused, call, events } from "./api.js";
import { drawModels, readModels, short, sum } from "./cluster/cards.js";
import { chart } from "./cluster/chart.js";
import { readConversations, takeTurns } from "./cluster/conversations.js";
import { element } from "./messages.js";
import * as store from "./store.js";

const at = (id) => document.getElementById(id);
const [SPAN_MS, MODELS_MS] = [60_000, 5000];
const told = new Set();
const history = [];
const charts = { tokens: chart("Tokens a second", "a"), running: chart("Requests running", "b") };
at("charts").append(...Object.values(charts).map((one) => one.node));

function total(name, value, more = "") {
  return element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value }, element("small", { textContent: more })));
}

function show(state) {
  const { groups, incidents } = state;
  takeTurns(state.sessions);
  const ready = groups.filter((one) => one.state === "ready").length;
  const [used, all] = [sum(groups, "used_blocks"), sum(groups, "total_blocks")];
  at("totals").replaceChildren(
    total("Groups serving", ready, ` of ${groups.length}`), total("Running", sum(groups, "running")), total("Waiting", sum(groups, "waiting")),
    total("Tokens a second", short(sum(groups, "tokens_per_s"))), total("KV cache in use", all ? Math.round((100 * used) / all) : 0, " %"),
    total("Answered", short(sum(groups, "ended"))));
  drawModels(at("models"), groups);
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
  while (history.length && state.at_ms - history[0].at > SPAN_MS) history.shift();
  const losses = incidents.filter((one) => one.kind === "lost").map((one) => one.at_ms);
  for (const [field, one] of Object.entries(charts)) one.show(history.map((point) => ({ at: point.at, value: point[field] })), losses);
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
        if (first) { link("live", "live"); await Promise.all([readConversations(), readModels()]); }
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
setInterval(() => { if (!document.hidden && at("link").dataset.state === "live") readModels(); }, MODELS_MS);
follow();
