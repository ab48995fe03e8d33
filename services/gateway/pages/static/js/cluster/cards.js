// Models with their groups: a section for each model, a card for each group in it.
import { json } from "../api.js";
import { element } from "../messages.js";
import { phaseOf, phaseWords } from "../phases.js";
import { conversationsOf } from "./conversations.js";

const SVG = "http://www.w3.org/2000/svg";
const cards = new Map();
const sections = new Map();
let offered = []; // models that hosts load and put to sleep
export const sum = (groups, field) => groups.reduce((all, one) => all + one[field], 0);
export const short = (number) => (number >= 10_000 ? `${Math.round(number / 1000)}k` : String(Math.round(number)));
const megabytes = (bytes) => (bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : `${Math.round(bytes / 1e6)} MB`);

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

// A square for each rank of a model that is split; in words how many there are, what they take, and which are not ready.
function ranks(group) {
  const list = element("ol", { ariaLabel: `Ranks of ${group}` }), words = element("span");
  const node = element("div", { className: "ranks" }, list, words);
  return { node, show(one) {
    const known = one.rank_list.length ? one.rank_list : Array.from({ length: Math.min(one.ranks, 32) }, (_, rank) => ({ rank, state: one.state }));
    while (list.childElementCount > known.length) list.lastChild.remove();
    while (list.childElementCount < known.length) list.append(element("li", {}, element("i"), element("span", { className: "sr" })));
    const states = known.map((rank) => (one.state === "ready" ? rank.state : one.state));
    known.forEach((rank, at) => {
      const item = list.children[at];
      item.dataset.state = states[at];
      const facts = [`rank ${rank.rank}`, states[at], rank.memory_bytes && megabytes(rank.memory_bytes), rank.steps && `${short(rank.steps)} steps`, rank.kernels];
      item.title = item.lastChild.textContent = facts.filter(Boolean).join(", ");
    });
    list.hidden = one.ranks < 2;
    const memory = sum(known.filter((rank) => rank.memory_bytes), "memory_bytes");
    const amiss = one.state === "ready" ? known.filter((rank) => rank.state !== "ready").map((rank) => `rank ${rank.rank} is ${rank.state}`) : [];
    const facts = [one.ranks < 2 ? "One rank" : `Split over ${one.ranks} ranks`, memory && `${megabytes(memory)}${one.ranks < 2 ? "" : " together"}`, ...amiss];
    words.textContent = facts.filter(Boolean).join(" · ");
    node.hidden = one.ranks < 2 && !memory && !amiss.length; // the leader has not told of it, or computes elsewhere
  } };
}

function card(group) {
  const pill = element("span", { className: "pill" });
  const held = ranks(group), talks = conversationsOf(group);
  const [runs, waits, kv] = [meter("Running", "run"), meter("Waiting", "wait"), meter("KV cache", "kv")];
  const rate = element("p", { className: "note" });
  const node = element("li", { className: "panel group" },
    element("header", {}, element("h4", { textContent: group }), pill), runs.node, waits.node, kv.node, rate, held.node, talks.node);
  return { node, show(one) {
    node.dataset.state = pill.dataset.state = one.state;
    pill.textContent = one.away_s ? `${one.state} · ${one.away_s.toFixed(1)} s` : one.state;
    held.show(one);
    runs.show(one.running, one.max_running, `${one.running} of ${one.max_running}`);
    waits.show(one.waiting, one.max_waiting, `${one.waiting} of ${one.max_waiting}`);
    kv.show(one.used_blocks, one.total_blocks, `${one.total_blocks ? Math.round((100 * one.used_blocks) / one.total_blocks) : 0} %`);
    kv.node.title = `${one.used_blocks} of ${one.total_blocks} blocks`;
    rate.textContent = `${short(one.tokens_per_s)} tokens a second · ${one.ended} answered${one.broken ? ` · ${one.broken} failed` : ""}`;
    talks.show();
  } };
}

function section(model) {
  const facts = element("span", { className: "facts" }), list = element("ul", { className: "groups" });
  const node = element("section", { className: "model" }, element("header", {}, element("h3", { textContent: model }), facts), list);
  node.dataset.model = model;
  return { node, list, facts };
}

function factsOf(groups, offer) {
  if (!groups.length) return phaseWords(phaseOf(offer), offer.status, "request");
  const ready = groups.filter((one) => one.state === "ready").length;
  const count = groups.length === 1 ? (ready ? "1 group" : `1 group, ${groups[0].state}`) : `${ready} of ${groups.length} groups ready`;
  return `${count} · ${sum(groups, "running")} running · ${short(sum(groups, "tokens_per_s"))} tokens a second`;
}

// Puts nodes into a list in their order, and moves only those that stand elsewhere.
function arrange(list, nodes) {
  nodes.forEach((node, at) => { if (list.children[at] !== node) list.insertBefore(node, list.children[at] ?? null); });
  while (list.childElementCount > nodes.length) list.lastChild.remove();
}

export function drawModels(place, groups) {
  for (const name of [...cards.keys()]) if (!groups.some((one) => one.group === name)) cards.delete(name);
  const offers = new Map(offered.map((one) => [one.id, one]));
  const names = [...new Set([...groups.map((one) => one.model), ...offers.keys()])].sort();
  for (const name of [...sections.keys()]) if (!names.includes(name)) sections.delete(name);
  arrange(place, names.map((name) => {
    if (!sections.has(name)) sections.set(name, section(name));
    const { node, list, facts } = sections.get(name), its = groups.filter((one) => one.model === name);
    facts.textContent = factsOf(its, offers.get(name));
    node.dataset.phase = its.length ? "" : phaseOf(offers.get(name));
    arrange(list, its.map((one) => {
      if (!cards.has(one.group)) cards.set(one.group, card(one.group));
      cards.get(one.group).show(one);
      return cards.get(one.group).node;
    }));
    list.hidden = !its.length;
    return node;
  }));
}

// Which models hosts offer, ready or not; the others are known by their groups.
export async function readModels() {
  offered = await json("/v1/models").then(({ data }) => data.filter((one) => one.status && !one.parent), () => offered);
}
