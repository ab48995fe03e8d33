// The conversations whose last turn each group served: those that somebody began, by their titles.
import { json } from "../api.js";
import { element } from "../messages.js";
import * as store from "../store.js";

const [MOST, NAMED, AGAIN_MS] = [200, 3, 5000];
const places = new Map(); // the group of each conversation, the newest at the end
const titles = new Map();
const single = new Set(); // ids of calls that are no conversations, as far as was asked
let askedAt = -Infinity;

function place(id, group) {
  if (places.get(id) === group) return;
  places.delete(id);
  places.set(id, group);
  if (places.size > MOST) places.delete(places.keys().next().value);
}

// Reads which sessions are conversations. A group that served one since then is not overwritten.
export async function readConversations() {
  askedAt = performance.now();
  const found = await json(`/v1/sessions?spare=false&limit=${MOST}`).catch(() => ({ data: [] }));
  for (const one of found.data.reverse()) {
    titles.set(one.session_id, one.title ?? one.session_id);
    single.delete(one.session_id);
    if (one.last_group && !places.has(one.session_id)) place(one.session_id, one.last_group);
  }
}

// Takes the turns of a snapshot, newest first. What is not known yet is asked for, and is a single call if it is not in the answer.
export function takeTurns(sessions) {
  for (const one of [...sessions].reverse()) if (titles.has(one.session_id)) place(one.session_id, one.group);
  const strange = sessions.filter((one) => !titles.has(one.session_id) && !single.has(one.session_id));
  if (!strange.length || performance.now() - askedAt < AGAIN_MS) return;
  readConversations().then(() => {
    for (const one of strange) if (!titles.has(one.session_id)) single.add(one.session_id);
    while (single.size > 10 * MOST) single.delete(single.values().next().value);
  });
}

// A list for one group: the newest by name, the others as a number.
export function conversationsOf(group) {
  const words = element("span"), list = element("ul", { className: "chips", ariaLabel: `Conversations at ${group}` });
  const node = element("div", { className: "talks" }, words, list);
  let drawn = "";
  return { node, show() {
    const ids = [...places].filter(([, at]) => at === group).map(([id]) => id).reverse();
    const names = ids.slice(0, NAMED).map((id) => store.titles.of(id) ?? titles.get(id));
    const now = `${ids.length}\n${names.join("\n")}`;
    node.hidden = !ids.length;
    if (now === drawn) return;
    drawn = now;
    words.textContent = ids.length === 1 ? "1 conversation" : `${ids.length}${ids.length >= MOST ? "+" : ""} conversations`;
    const rest = ids.length - names.length;
    list.replaceChildren(...names.map((name) => element("li", { textContent: name, title: name })), ...(rest ? [element("li", { className: "rest", textContent: `and ${rest} more` })] : []));
  } };
}
