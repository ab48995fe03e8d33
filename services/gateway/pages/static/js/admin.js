// Tenants, keys, usage, changes and shares, read again every few seconds; keys can be revoked here.
import { Refused, call, json } from "./api.js";
import { element } from "./messages.js";
import { at, bar, cell } from "./cells.js";
import { drawShares } from "./shares.js";
import * as store from "./store.js";

const EVERY_MS = 5000;
const SHARES_MS = 1000;
const number = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const WORDS = {
  requests_per_minute: "requests a minute", tokens_per_minute: "tokens a minute", running: "at a time",
  tokens_per_day: "tokens a day", tokens_per_month: "tokens a month", money_per_day: "a day", money_per_month: "a month",
  sessions: "sessions", kv_bytes: "bytes of KV", batch_lines: "lines of batches", adapters: "adapters",
};
const KEPT = { session_days: "sessions", response_days: "responses", file_days: "files", batch_days: "batches", usage_days: "usage",
  record_days: "records of requests" };
let currency = "";

function money(amount) {
  return `${amount.toFixed(amount < 1 ? 4 : 2)}${currency ? ` ${currency}` : ""}`;
}

function limitsIn(limits = {}) {
  const told = Object.entries(WORDS).filter(([name]) => limits[name]);
  return told.map(([name, words]) => `${name.startsWith("money") ? money(limits[name]) : short.format(limits[name])} ${words}`).join(", ") || "none";
}

function keptIn(record) {
  const told = Object.entries(KEPT).filter(([name]) => record?.[name]);
  return told.length > 0 && `keeps ${told.map(([name, what]) => `${what} ${number.format(record[name])} days`).join(", ")}`;
}

function drawTenants(tenants, usage) {
  const used = new Map(usage.map((one) => [one.tenant, one]));
  const names = [...new Set([...tenants.map((one) => one.id), ...used.keys()])].sort();
  const all = usage.reduce((sum, one) => sum + one.prompt_tokens + one.completion_tokens, 0);
  at("tenants").replaceChildren(...names.map((name) => {
    const record = tenants.find((one) => one.id === name);
    const sum = used.get(name) ?? { requests: 0, prompt_tokens: 0, cached_tokens: 0, completion_tokens: 0, money: 0 };
    const facts = [record?.suspended && "suspended", record && record.weight !== 1 && `weight ${record.weight}`, record?.models?.length && record.models.join(", "), keptIn(record)];
    const row = element("tr", {},
      cell(name, { more: facts.filter(Boolean).join(" · ") }), cell(limitsIn(record?.limits)),
      ...[sum.requests, sum.prompt_tokens, sum.cached_tokens, sum.completion_tokens].map((value) => cell(short.format(value), { className: "number" })),
      cell(sum.money ? money(sum.money / 1e6) : "–", { className: "number" }), bar(all ? (sum.prompt_tokens + sum.completion_tokens) / all : 0));
    if (record?.suspended) row.dataset.state = "suspended";
    return row;
  }));
  at("no-tenants").hidden = names.length > 0;
}

function may(scopes = {}) {
  const words = [scopes.admin && "manage everything", scopes.read_only && "read only"].filter(Boolean);
  if (scopes.models?.length) words.push(`models ${scopes.models.join(", ")}`);
  if (scopes.apis?.length) words.push(scopes.apis.join(", "));
  return words.join("; ") || "everything of its tenant";
}

function drawKeys(keys) {
  const now = Date.now() / 1000;
  at("keys").replaceChildren(...keys.map((key) => {
    const over = key.expires_s && key.expires_s <= now;
    const revoke = element("button", { className: "quiet", type: "button", textContent: "Revoke", ariaLabel: `Revoke ${key.prefix}` });
    revoke.addEventListener("click", () => ask(key));
    const row = element("tr", {}, element("td", {}, element("code", { textContent: `${key.prefix}…` })), cell(key.tenant), cell(key.label || "–"),
      cell(key.bus_user ? `the bus, as ${key.bus_user.name}` : may(key.scopes)), cell(limitsIn(key.limits)), cell(key.expires_s ? `${over ? "since " : ""}${new Date(1000 * key.expires_s).toLocaleString()}` : "never"), element("td", {}, revoke));
    if (over) row.dataset.state = "expired";
    return row;
  }));
  at("no-keys").hidden = keys.length > 0;
}

function drawAudit(entries) {
  at("audit").replaceChildren(...entries.map((one) => element("li", { textContent: `${one.actor}: ${one.action} ${one.subject}` },
    element("time", { textContent: new Date(one.at_ms).toLocaleString() }))));
  at("no-audit").hidden = entries.length > 0;
}

async function ask(key) {
  at("ask-words").textContent = `${key.prefix} of tenant ${key.tenant}${key.label ? ` (${key.label})` : ""}. Requests with it are refused within a second. This cannot be undone.`;
  at("ask").showModal();
  await new Promise((done) => { at("ask").addEventListener("close", done, { once: true }); });
  if (at("ask").returnValue !== "yes") return;
  try { await call(`/v1/manage/keys/${encodeURIComponent(key.id)}`, { method: "DELETE" }); } catch (error) { link("failed", error.message); return; }
  await read();
}

function link(state, words) { at("link").dataset.state = state; at("link").textContent = words; }

async function read() {
  const day = new Date(Date.now() - 29 * 86_400_000).toISOString().slice(0, 10);
  try {
    const [tenants, keys, usage, audit] = await Promise.all(
      ["tenants", "keys", `usage?by=tenant&since=${day}`, "audit?count=20"].map((what) => json(`/v1/manage/${what}`)));
    currency = usage.currency ?? "";
    drawTenants(tenants.tenants, usage.data);
    drawKeys(keys.keys);
    drawAudit(audit.entries);
    at("days").textContent = "usage of the last 30 days";
    at("rule").textContent = keys.keys_required ? `${number.format(keys.keys.length)}, and requests need one` : "requests need none";
    [at("key-form").hidden, at("shown").hidden] = [true, false];
    link("live", "live");
    return true;
  } catch (error) {
    if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
      [at("key-form").hidden, at("shown").hidden] = [false, true];
      link("waiting", "needs an admin key");
      return false;
    }
    link("waiting", error instanceof Refused ? error.message : "connecting again");
    return true;
  }
}

const pause = (ms) => new Promise((done) => { setTimeout(done, ms); });
let followed = 0;

async function follow() {
  followed += 1;
  const mine = followed;
  followShares(mine);
  while (mine === followed && await read()) await pause(EVERY_MS);
  if (mine === followed) followed += 1; // without an admin key shares are not asked for either
}

// Shares change from second to second, the rest seldom. A hidden page asks for none.
async function followShares(mine) {
  while (mine === followed) {
    if (!document.hidden && !at("shown").hidden) {
      try { drawShares(await json("/v1/manage/shares")); } catch { at("busy").textContent = "not known now"; }
    }
    await pause(SHARES_MS);
  }
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  store.key.write(at("key").value.trim(), store.key.kept());
  follow();
});
follow();
