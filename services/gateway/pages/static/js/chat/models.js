// The list of models with their states, asked for again while the page is seen.
import { json } from "../api.js";
import { element } from "../messages.js";
import { phaseOf, phaseWords } from "../phases.js";
import * as store from "../store.js";

const list = document.getElementById("model"), pill = document.getElementById("model-state");
const [OFTEN_MS, SELDOM_MS] = [3000, 15_000]; // where hosts load models and put them to sleep, and where they do not
const AWAY = "away";
let known = new Map(), timer = 0;

const nameOf = (id, phase) => (phase === "ready" ? id : `${id} (${phase})`);

function showPill() {
  const found = known.get(list.value);
  const phase = found ? phaseOf(found) : AWAY;
  pill.hidden = !list.value;
  pill.dataset.phase = phase;
  pill.textContent = pill.title = phaseWords(phase, found?.status, "message");
}

function take(models) {
  known = new Map(models.map((one) => [one.id, one]));
  const chosen = list.value || store.settings.read().model;
  const names = [...known.keys()];
  // a model that was chosen here and that no group serves now stays, so that what was meant is seen
  const shown = chosen && list.value && !known.has(chosen) ? [...names, chosen] : names;
  const old = [...list.options].map((one) => one.value);
  if (shown.join("\n") !== old.join("\n")) list.replaceChildren(...shown.map((id) => element("option", { value: id })));
  for (const option of list.options) {
    const found = known.get(option.value), phase = found ? phaseOf(found) : AWAY;
    const text = nameOf(option.value, phase);
    if (option.textContent !== text) option.textContent = text;
    option.title = found ? [`${found.max_model_len} tokens of context`, found.parent && `adapter of ${found.parent}`].filter(Boolean).join(", ") : "";
  }
  if (shown.includes(chosen)) list.value = chosen;
  showPill();
  return names;
}

async function look() {
  if (!document.hidden) {
    try { take((await json("/v1/models")).data); } catch { /* the next question may be answered */ }
  }
  again();
}

function again() {
  clearTimeout(timer);
  timer = setTimeout(look, [...known.values()].some((one) => one.status) ? OFTEN_MS : SELDOM_MS);
}

// Reads the list now and follows it from then on. Returns the names; an error is the caller's to tell.
export async function loadModels() {
  const names = take((await json("/v1/models")).data);
  again();
  return names;
}

list.addEventListener("change", () => {
  store.settings.write({ ...store.settings.read(), model: list.value });
  showPill();
});
